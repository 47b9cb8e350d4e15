#!/usr/bin/env bash
# Installs the peers that `make bench-leases` measures beside Evenkeel: etcd, Redis and PostgreSQL, as Debian has them.
#
# Asks nothing. The packages' system services are not started and not enabled: the benchmark starts servers of its own,
# in folders of its own. What is there already is left as it is.
set -euo pipefail

say() { printf 'peers: %s\n' "$*" >&2; }

# A package, and how to tell that its server is there.
missing=()
command -v etcd >/dev/null || missing+=(etcd-server)
command -v redis-server >/dev/null || missing+=(redis-server)
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || command -v postgres >/dev/null || missing+=(postgresql)

if ((${#missing[@]} == 0)); then
    say "all are there"
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    say "missing: ${missing[*]} (Debian's names). Install them by hand; the benchmark finds them on PATH."
    exit 1
fi
if (($(id -u) != 0)); then
    say "missing: ${missing[*]}. Run this script as root, or install them by hand and disable their services."
    exit 1
fi

# Debian's own way to say "start nothing": a policy that forbids it, for as long as apt runs.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi

export DEBIAN_FRONTEND=noninteractive
get() { apt-get install -y --no-install-recommends "${missing[@]}" </dev/null; }
say "installing ${missing[*]}"
if ! get >/dev/null 2>&1; then
    say "refreshing the package lists"
    apt-get update </dev/null >/dev/null
    get >/dev/null
fi

# Nor at the next start of the machine.
if command -v systemctl >/dev/null; then
    for package in "${missing[@]}"; do
        systemctl disable "${package%-server}" "$package" >/dev/null 2>&1 || true
    done
fi
say "done"
