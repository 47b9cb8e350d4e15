#!/usr/bin/env bash
# Sends what schemathesis can think of to the REST face of a real daemon, which must not be found wrong in anything:
# first as it is installed, then with its changes allowed. The GPU is emulated.
# Before that, `promtool check metrics` looks at one scrape of /metrics, where it is installed.
#
# Takes the directory of the built programs (`scripts/rest-fuzz.sh target/release`); called by `make rest-fuzz`.
# Streams are left out, since the tool waits for the end of an answer: daemon/tests/api/rest_feeds.rs has them.
# Skips, saying so, where schemathesis cannot be installed: it comes from the Python package index.
set -euo pipefail
cd "$(dirname "$0")/.."

programs=$(realpath "${1:?the directory of evenkeeld, evenkeel and evenkeel-gpu}")
examples=${EXAMPLES:-100}
tool=schemathesis==4.32.5
venv=$(realpath -m "${CARGO_TARGET_DIR:-target}/rest-fuzz")

skip() {
    echo "rest-fuzz: skipped, since $1" >&2
    exit 0
}

command -v python3 >/dev/null || skip "python3 is not installed"
if [[ ! -x $venv/bin/schemathesis ]]; then
    mkdir -p "$(dirname "$venv")"
    python3 -m venv "$venv" || skip "python3 cannot make a virtual environment (Debian: python3-venv)"
    "$venv/bin/pip" install --quiet "$tool" </dev/null || skip "pip cannot install $tool"
fi

folder=$(mktemp -d)
started=()
end() {
    ((${#started[@]} == 0)) || kill "${started[@]}" 2>/dev/null || true
    started=()
    wait
    # The device outlives its daemon.
    [[ ! -e $folder/gpu/device.lock ]] || kill "$(cat "$folder/gpu/device.lock")" 2>/dev/null || true
    rm -rf "$folder"
}
trap end EXIT

until_it() { # what, and a command that says whether it is so
    for _ in {1..200}; do
        "${@:2}" >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "rest-fuzz: $1 did not happen" >&2
    cat "$folder/log" >&2
    return 1
}

# A daemon with a lease, a job with a worker, and a profile: those that the document has as examples.
begin() {
    local writes=$1
    mkdir -p "$folder"
    cat >"$folder/evenkeeld.toml" <<TOML
[ledger]
path = "$folder/ledger.db"
ballast_mib = 1
min_free_mib = 0
[listen]
socket = "$folder/s"
rest = "127.0.0.1:$port"
rest_writes = $writes
[gpu]
backend = "emulated"
[gpu.emulated]
dir = "$folder/gpu"
TOML
    sed 's/^name = "laptop"/name = "pick-and-place"/' examples/laptop.toml >"$folder/job.toml"
    cat >"$folder/profile.json" <<JSON
{"key": {"stage": "pick-and-place/simulation", "gpu": "none"}, "points": [
  {"cores": 1, "sms": 0, "batch": 1, "replicas": 1, "units_per_s": 90.0, "memory_bytes": 0, "weight": 1.0},
  {"cores": 2, "sms": 0, "batch": 1, "replicas": 1, "units_per_s": 160.0, "memory_bytes": 0, "weight": 1.0}]}
JSON
    export EVENKEEL_SOCKET=$folder/s
    "$programs/evenkeeld" --config "$folder/evenkeeld.toml" >"$folder/log" 2>&1 &
    started+=($!)
    until_it "the daemon's start" "$programs/evenkeel" node
    "$programs/evenkeel" run --sm 10% --gpu-memory 1GiB -- sleep 3600 >>"$folder/log" 2>&1 &
    started+=($!)
    # A shell of its own each time: `<(…)` here would be asked once, and read to its end by the first try.
    until_it "the first lease" bash -c 'curl -fsS "$1" | grep -q "\"id\":1,"' _ "$url/v1/leases/1"
    "$programs/evenkeel" submit "$folder/job.toml" >>"$folder/log"
    "$programs/evenkeel" calibrate import "$folder/profile.json" >>"$folder/log"
    "$programs/evenkeel" run --job pick-and-place --stage simulation -- sleep 3600 >>"$folder/log" 2>&1 &
    started+=($!)
}

# What Prometheus would say of the names, types and units: asked while there is something to tell.
metrics() {
    if ! promtool --version >/dev/null 2>&1; then
        echo "promtool: skipped, since it is not installed (apt install prometheus)" >&2
        return
    fi
    curl -fsS "$url/metrics" | promtool check metrics
    echo "rest-fuzz: promtool finds nothing in /metrics"
}

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
for writes in false true; do
    echo "rest-fuzz: listen.rest_writes = $writes"
    begin "$writes"
    metrics
    # In the folder: it writes down there what it found before.
    (cd "$folder" && "$venv/bin/schemathesis" run "$url/openapi.json" \
        --checks all --exclude-tag streams --max-examples "$examples" --continue-on-failure)
    curl -fsS "$url/healthz" >/dev/null # it is still there
    end
done
echo "rest-fuzz: nothing was found"
