#!/usr/bin/env bash
# Runs the workspace's tests: with nextest, or with cargo's own runner where nextest is not there.
#
# Takes the runner's arguments (`scripts/test.sh lease`); called by `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."

if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --workspace "$@"
    # What nextest does not run: the examples in the documentation of libraries.
    # One summary is enough, so they speak only when they fail.
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    cargo test --workspace --doc --quiet >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
else
    echo "nextest is not installed (cargo install cargo-nextest --locked): using cargo test" >&2
    # One package's failing test must not hide another's.
    cargo test --workspace --no-fail-fast "$@"
fi
