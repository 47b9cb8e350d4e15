#!/usr/bin/env bash
# Installs the Debian package in a clean tree of Debian 12 and uses it there: as a program, under a real systemd, and
# until it is purged. Prints a line for each thing that was found: `deb-check: WHAT: VALUE`.
#
# Takes the package's path (else the newest in target/debian). Needs root and Debian's archive; where one of them is
# not there, it says so and ends well. Called by `make deb-check`, and by `make accept` for its figures.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly SUITE=bookworm
readonly cache=${CARGO_TARGET_DIR:-target}/deb-check
# What the tree has beside the base system: systemd to judge and to run the unit, man and bash-completion to read.
readonly BESIDE="systemd systemd-sysv dbus man-db bash-completion zsh fish"

found() { printf 'deb-check: %s: %s\n' "$1" "$2"; }
skip() { printf 'deb-check: skipped, since %s\n' "$1"; exit 0; }
fail() { printf 'deb-check: FAILED: %s\n' "$1"; exit 1; }

# All processes and mounts of a run are in namespaces of its own, and end with it.
if [[ ${1:-} != --inside ]]; then
    (($(id -u) == 0)) || skip "it needs root, for a tree of its own"
    command -v apt-get >/dev/null || skip "it needs apt-get"
    for package in debootstrap systemd-container; do
        dpkg -s "$package" >/dev/null 2>&1 || apt-get install -y --no-install-recommends "$package" >/dev/null 2>&1 \
            || { apt-get update && apt-get install -y --no-install-recommends "$package"; } >/dev/null 2>&1 \
            || skip "$package cannot be installed"
    done
    deb=${1:-$(ls -t "${CARGO_TARGET_DIR:-target}"/debian/*.deb 2>/dev/null | head -n 1)}
    [[ -f $deb ]] || fail "there is no package; make deb"
    exec unshare --mount --pid --fork --kill-child --mount-proc "$0" --inside "$(realpath "$deb")"
fi
deb=$2

# ---- A clean tree. The base system is kept as an archive, so that only the first run loads it. ----
mkdir -p "$cache"
base=$cache/$SUITE.tar
if [[ ! -f $base ]]; then
    said=$(scripts/debian-base.sh "$SUITE" "$cache/$SUITE-minimal.tar") || skip "debootstrap failed: $said"
    rm -rf "$cache/base" && mkdir "$cache/base"
    tar -C "$cache/base" -xf "$cache/$SUITE-minimal.tar"
    cp /etc/resolv.conf "$cache/base/etc/"
    chroot "$cache/base" sh -c "apt-get update && apt-get install -y --no-install-recommends $BESIDE" \
        >"$cache/apt.log" 2>&1 || skip "packages cannot be installed: $(tail -n 1 "$cache/apt.log")"
    tar -C "$cache/base" -cf "$base.part" . && mv "$base.part" "$base"
    rm -rf "$cache/base"
fi
tree=$(mktemp -d)
cleanup() {
    for mounted in proc sys dev; do umount --lazy "$tree/$mounted" 2>/dev/null || true; done
    rm -rf --one-file-system "$tree"
}
trap cleanup EXIT
tar -C "$tree" -xf "$base"
cp /etc/resolv.conf "$tree/etc/" 2>/dev/null || true
mount -t proc proc "$tree/proc"
mount -t sysfs -o ro sysfs "$tree/sys"
mount --bind /dev "$tree/dev"

inside() { chroot "$tree" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
listing() { (cd "$tree" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./tmp \) -prune -o -print | sort); }
listing >"$cache/before"

# ---- Installed, with what it depends on. ----
cp "$deb" "$tree/tmp/evenkeel.deb"
inside apt-get update >"$cache/apt.log" 2>&1 || skip "Debian's archive is not reached"
inside apt-get install -y --no-install-recommends /tmp/evenkeel.deb >"$cache/apt.log" 2>&1 \
    || { tail -n 20 "$cache/apt.log"; fail "the package does not install"; }
found installed "$(inside dpkg-query -W -f '${Package} ${Version}, ${Installed-Size} KiB' evenkeel)"
found depends "$(inside dpkg-query -W -f '${Depends}' evenkeel)"
[[ -z $(inside dpkg --verify evenkeel) ]] || fail "dpkg --verify finds differences"

# ---- The unit. ----
unit=/usr/lib/systemd/system/evenkeeld.service
verified=$(inside systemd-analyze verify --man=yes "$unit" 2>&1) || fail "systemd-analyze verify: $verified"
found verify "${verified:-clean}"
exposure=$(inside systemd-analyze security --offline=true --no-pager "$unit" | sed -n 's/.*Overall exposure level.*: \([0-9.]*\) .*/\1/p')
found exposure "${exposure:-unknown}"

# ---- What people read, and what shells load. ----
pages=0
for page in $(inside dpkg -L evenkeel | grep '^/usr/share/man/.*\.gz$'); do
    inside man --warnings -l "$page" 2>"$cache/man.log" >"$cache/page" || fail "man -l $page"
    [[ ! -s $cache/man.log ]] || fail "$page: $(head -n 1 "$cache/man.log")"
    (($(wc -l <"$cache/page") > 10)) || fail "$page is empty"
    pages=$((pages + 1))
done
found pages "$pages"
shells=0
for program in evenkeel evenkeeld evenkeel-gpu; do
    inside bash -ec ". /usr/share/bash-completion/bash_completion; _completion_loader $program || [ \$? = 124 ]; complete -p $program" >/dev/null \
        || fail "bash does not complete $program"
    inside zsh -fc "autoload -U compinit; compinit -u; [[ -n \$_comps[$program] ]]" || fail "zsh does not complete $program"
    [[ -n $(inside fish -c "complete -C '$program '") ]] || fail "fish does not complete $program"
    shells=$((shells + 3))
done
found completions "$shells"

# ---- The daemon, as its unit starts it, without systemd. ----
of_unit() { sed -n "s/^$1=//p" "$tree$unit" | tail -n 1; }
lower=$(of_unit AmbientCapabilities | tr 'A-Z ' 'a-z,' | sed 's/cap_/+/g')
as_service() {
    inside env "$@" setpriv --reuid "$(of_unit User)" --regid "$(of_unit Group)" --init-groups --no-new-privs \
        --inh-caps "-all,$lower" --ambient-caps "-all,$lower" --bounding-set "-all,$lower" -- $(of_unit ExecStart)
}
serve() { # NAME [VARIABLE=VALUE…]: starts it, uses it as another user, and ends it
    local name=$1 status=0
    shift
    inside rm -rf /run/evenkeel && inside systemd-tmpfiles --create evenkeel.conf
    as_service "$@" >"$cache/$name.log" 2>&1 &
    local daemon=$!
    timeout 30 bash -c "until [[ -S $tree/run/evenkeel/evenkeeld.sock ]]; do kill -0 $daemon || exit 1; sleep 0.05; done" \
        || { tail -n 5 "$cache/$name.log"; fail "the daemon does not start ($name)"; }
    inside setpriv --reuid 1001 --regid 1001 --clear-groups evenkeel run "${ask[@]}" -- "${job[@]}" \
        >"$cache/$name.out" 2>&1 || { cat "$cache/$name.out"; fail "evenkeel run ($name)"; }
    found "run $name" "$(tail -n 1 "$cache/$name.out")"
    inside evenkeel doctor >"$cache/$name.doctor" 2>&1 || status=$?
    ((status == 0)) || { cat "$cache/$name.doctor"; fail "evenkeel doctor ($name): exit code $status"; }
    found "doctor $name" "$(grep -c '^ok' "$cache/$name.doctor") ok, $(grep -c '^warn' "$cache/$name.doctor" || true) warnings"
    pkill -TERM -U "$(inside id -u evenkeel)" -x evenkeeld
    wait "$daemon" || fail "the daemon does not end well ($name)"
}
ask=(--cores 1) job=(true)
serve "with cores"
job=(grep Cpus_allowed_list /proc/self/status)
serve "with cores again"
ask=(--cores 1 --sm 30% --gpu-memory 10GiB) job=(sh -c 'echo "EMULATED GPU, $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE % of its threads"')
serve "with an emulated GPU" EVENKEEL__GPU__BACKEND=emulated EVENKEEL__GPU__EMULATED__MULTIUSER=true

# ---- The same under a real systemd. ----
# The emulated GPU outlives the daemon, as it should.
pkill -TERM -x evenkeel-gpu || fail "the emulated GPU has ended with the daemon"
timeout 10 bash -c 'while pidof evenkeel-gpu >/dev/null; do sleep 0.05; done' || fail "the emulated GPU does not end"
umount "$tree/dev" "$tree/sys" "$tree/proc"
scripts/deb-check-booted.sh "$tree" "$deb" "$cache" || fail "under systemd: see $cache/booted.log"
mount -t proc proc "$tree/proc"

# ---- Gone without a trace. ----
inside apt-get purge -y evenkeel >"$cache/apt.log" 2>&1 || { tail -n 20 "$cache/apt.log"; fail "it cannot be purged"; }
inside apt-get autoremove --purge -y >>"$cache/apt.log" 2>&1 || fail "autoremove"
listing >"$cache/after"
# What apt, dpkg and systemd keep of everything: lists, caches, logs, backups of their own files.
left=$(comm -13 "$cache/before" "$cache/after" \
    | grep -vE '^\./(var/(lib/(apt|dpkg|systemd|private)|cache|log|tmp|backups)|run|root|etc/(passwd|group|shadow|gshadow|subuid|subgid)-|etc/\.(updated|pwd\.lock)|etc/(machine-id|ld\.so\.cache|mtab))(/|$)' || true)
users=$(grep -c '^evenkeel:' "$tree/etc/passwd" "$tree/etc/group" | grep -vc ':0' || true)
[[ -z $left && $users == 0 ]] || { printf '%s\n' "$left"; fail "purge leaves something behind ($users users or groups)"; }
found purge "nothing is left"
