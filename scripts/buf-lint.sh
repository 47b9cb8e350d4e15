#!/usr/bin/env bash
# Lints the wire with buf, at the version that package-lock.json pins. Works offline once installed.
#
# Skips, saying so, where npm is not there; called by `make check`.
set -euo pipefail
cd "$(dirname "$0")/.."

buf=node_modules/.bin/buf
# npm's own record of what it installed: newer than the lock file means up to date.
if [[ ! -x $buf || package-lock.json -nt node_modules/.package-lock.json ]]; then
    if ! command -v npm >/dev/null; then
        echo "buf lint: skipped, since npm is not there to install buf" >&2
        exit 0
    fi
    # --ignore-scripts: the package is a binary; nothing has to run to install it.
    npm ci --ignore-scripts --no-audit --no-fund --loglevel=error </dev/null >/dev/null
    touch node_modules/.package-lock.json
fi
"$buf" lint proto
echo "buf lint: clean"
