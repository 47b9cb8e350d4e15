#!/usr/bin/env bash
# Makes an archive of a minimal, clean Debian tree, unless it is there. Needs root, debootstrap and Debian's archive.
#
# Takes the suite and the archive's path. Called by deb-check.sh and container-check.sh.
set -euo pipefail
suite=$1 archive=$2
readonly MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

[[ -f $archive ]] && exit
mkdir -p "$(dirname "$archive")"
tree=$(mktemp -d)
chmod 755 "$tree" # it becomes the root of others
trap 'rm -rf --one-file-system "$tree"' EXIT
# Said only if it fails: it is long.
debootstrap --variant=minbase "$suite" "$tree" "$MIRROR" >"$archive.log" 2>&1 || { tail -n 1 "$archive.log"; exit 1; }
tar -C "$tree" -cf "$archive.part" .
mv "$archive.part" "$archive"
