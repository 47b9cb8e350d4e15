#!/usr/bin/env bash
# Boots the tree of deb-check.sh in a container of systemd's own and uses the installed unit there as an admin and as
# two users would: sandbox, capabilities, readiness, restart, watchdog.
#
# Takes the tree, the package and a folder for logs. Called by deb-check.sh, in its namespaces. Where no systemd can be booted (no
# systemd-nspawn, no control groups), it says so and ends well.
set -euo pipefail
tree=$1 deb=$2 logs=$3

found() { printf 'deb-check: %s: %s\n' "$1" "$2"; }

# What happens inside: each line of its output that begins with `found` is a figure, `failed` ends it.
mkdir -p "$tree/opt/check"
cp "$deb" "$tree/opt/check/evenkeel.deb"
cat >"$tree/opt/check/inside.sh" <<'INSIDE'
#!/bin/bash
# Runs once, as root, when the container has booted.
set -uo pipefail
exec >/opt/check/inside.out 2>&1
failed() { echo "failed $1"; systemctl status evenkeeld --no-pager -n 20; journalctl -u evenkeeld --no-pager -n 40; exit 1; }
until_true() { # WHAT COMMAND…: waits for it, half a minute at most
    local what=$1
    shift
    for _ in $(seq 300); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done
    failed "waited in vain: $what"
}
show() { systemctl show -p "$1" --value evenkeeld; }
as() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }
lease_of() { evenkeel leases --output json | tr -d ' \n' | grep -o '"id":[0-9]*' | head -n 1 | cut -d : -f 2; }
cpus_of() { sed -n 's/^Cpus_allowed_list:\s*//p' "/proc/$1/status"; }

mkdir -p /etc/systemd/system/evenkeeld.service.d
cat >/etc/systemd/system/evenkeeld.service.d/check.conf <<'DROPIN'
[Service]
Environment=EVENKEEL__GPU__BACKEND=emulated EVENKEEL__GPU__EMULATED__MULTIUSER=true
Environment=EVENKEEL__LEASES__QUARANTINE_KILL_MS=1000
WatchdogSec=3
DROPIN
systemctl daemon-reload
evenkeeld --check-config || failed "evenkeeld --check-config"
evenkeeld --print-node | grep -q '"cores"' || failed "evenkeeld --print-node"
systemctl is-enabled evenkeeld && failed "it is enabled before anybody has asked for it"
systemctl enable --now evenkeeld || failed "systemctl enable --now evenkeeld"
[[ $(show ActiveState) == active ]] || failed "it is not active"
echo "found status: $(show StatusText)"
pid=$(show MainPID)
[[ $(stat -c %U "/proc/$pid") == evenkeel ]] || failed "it does not run as its own user"
[[ $(sed -n 's/^Seccomp:\s*//p' "/proc/$pid/status") == 2 ]] || failed "no system call filter"
gpu=$(pidof evenkeel-gpu) || failed "no emulated GPU"
[[ $(sed -n 's/^CapEff:\s*//p' "/proc/$gpu/status") == 0000000000000000 ]] || failed "the emulated GPU has capabilities"

# A user takes a core and a share of the GPU.
as 1001 evenkeel run --cores 1 --sm 30% --gpu-memory 10GiB -- sh -c 'sleep 1000 & echo $! >/tmp/worker; wait' &
until_true "a worker" test -s /tmp/worker
worker=$(cat /tmp/worker)
bound() { [[ $(cpus_of "$worker") =~ ^[0-9]+$ ]]; }
until_true "the worker is bound" bound
echo "found worker of another user bound to CPU $(cpus_of "$worker")"
# It undoes that; the daemon, in its sandbox, binds it again (CAP_SYS_NICE).
as 1001 taskset -pc 0-63 "$worker" >/dev/null
until_true "the drift is repaired" bound
lease=$(lease_of)
[[ -n $lease ]] || failed "no lease"

# An upgrade makes a copy and restarts the daemon: leases, workers and the emulated GPU go on.
all_there() { [[ $(lease_of) == "$lease" && -d /proc/$worker && $(pidof evenkeel-gpu) == "$gpu" ]]; }
evenkeeld backup /opt/check/copy.db || failed "evenkeeld backup, as root, while it runs"
pid=$(show MainPID)
DEBIAN_FRONTEND=noninteractive dpkg --install --force-confold /opt/check/evenkeel.deb || failed "the upgrade"
[[ $(show ActiveState) == active && $(show MainPID) != "$pid" ]] || failed "the upgrade does not restart the daemon"
all_there || failed "the upgrade lost something"
systemctl restart evenkeeld || failed "systemctl restart evenkeeld"
all_there || failed "the restart lost something"
echo "found upgrade and restart: lease $lease, its worker and the emulated GPU went on"

# A copy is put back by root, and is the daemon's.
systemctl stop evenkeeld
rm -f /var/lib/evenkeel/ledger.db.lock # as on another host, where root is the first to write there
evenkeeld restore /opt/check/copy.db || failed "evenkeeld restore"
systemctl start evenkeeld || failed "it does not start on the restored ledger"
[[ $(stat -c %U /var/lib/evenkeel/ledger.db /var/lib/evenkeel/ledger.db.lock | sort -u) == evenkeel ]] || failed "the restored ledger is not the daemon's"
all_there || failed "the restored ledger lacks something"
echo "found backup and restore: as root, with lease $lease"

# A daemon that hangs is ended by the watchdog and started again.
before=$(show NRestarts)
kill -STOP "$(show MainPID)"
restarted() { (($(show NRestarts) > before)) && [[ $(show ActiveState) == active ]]; }
until_true "the watchdog" restarted
all_there || failed "the watchdog lost something"
echo "found watchdog: a hung daemon was started again, lease $lease went on"

# What is revoked and stays is ended (CAP_KILL), also where its parents are gone (its environment is read: CAP_SYS_PTRACE).
evenkeel leases revoke "$lease" || failed "revoke"
gone() { [[ ! -d /proc/$worker ]]; }
until_true "the worker is ended" gone
free() { [[ -z $(lease_of) ]]; }
until_true "its share is free" free
echo "found revoked: the worker of another user was ended, and its share is free"

# A wrong configuration is not tried again and again.
sed -i '1i nonsense = 1' /etc/evenkeel/evenkeeld.toml
systemctl restart evenkeeld && failed "it starts with a wrong configuration"
refused() { [[ $(show ActiveState) == failed ]]; }
until_true "it gives up" refused
sed -i 1d /etc/evenkeel/evenkeeld.toml
rm -r /etc/systemd/system/evenkeeld.service.d
systemctl daemon-reload
systemctl start evenkeeld || failed "it does not start with the package's own configuration"
evenkeel doctor || failed "evenkeel doctor"
evenkeel drain || failed "evenkeel drain"
systemctl disable --now evenkeeld
# Removed as an admin does it, while the emulated GPU goes on.
apt-get remove -y evenkeel || failed "apt-get remove"
gpu_gone() { [[ -z $(pidof evenkeel-gpu) ]]; }
until_true "the emulated GPU is ended" gpu_gone
[[ -f /etc/evenkeel/evenkeeld.toml && -f /var/lib/evenkeel/ledger.db ]] || failed "remove takes the configuration or the ledger away"
echo "found removed: configuration and ledger stay"
echo "done"
INSIDE
chmod +x "$tree/opt/check/inside.sh"
cat >"$tree/etc/systemd/system/inside.service" <<'UNIT'
[Unit]
After=multi-user.target
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
ExecStart=/opt/check/inside.sh
TimeoutStartSec=5min
UNIT
mkdir -p "$tree/etc/systemd/system/multi-user.target.wants"
ln -sf ../inside.service "$tree/etc/systemd/system/multi-user.target.wants/inside.service"
cleanup() { rm -rf "$tree/opt/check" "$tree/etc/systemd/system/inside.service" "$tree/etc/systemd/system/multi-user.target.wants/inside.service"; }

command -v systemd-nspawn >/dev/null || { found booted "skipped, since there is no systemd-nspawn"; cleanup; exit 0; }
timeout 400 systemd-nspawn --directory "$tree" --register=no --keep-unit --boot --console=read-only </dev/null \
    >"$logs/booted.log" 2>&1 || true
if [[ ! -f $tree/opt/check/inside.out ]]; then
    found booted "skipped, since systemd does not boot in a container here ($(tail -n 1 "$logs/booted.log" | tr -d '\r'))"
    cleanup
    exit 0
fi
cp "$tree/opt/check/inside.out" "$logs/booted.log"
cleanup
sed -n 's/^found /deb-check: booted: /p' "$logs/booted.log"
tail -n 1 "$logs/booted.log" | grep -qx done || { tail -n 60 "$logs/booted.log"; exit 1; }
found booted "all of it holds"
