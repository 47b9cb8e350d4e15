#!/usr/bin/env bash
# Sees to it that what the build needs from the system is there. Silent and quick when it is.
#
# As root on Debian or Ubuntu it installs what is missing; elsewhere it says what to install and how.
# Called by the Makefile before every build, and by nobody else.
set -euo pipefail
cd "$(dirname "$0")/.."

# What is missing, as Debian's package names. Each line: the package, and how to tell that it is there.
missing=()
# SQLite is compiled from C.
cc -E -x c - <<<'#include <stdlib.h>' >/dev/null 2>&1 || missing+=(gcc libc6-dev)
# jemalloc is built by its own makefile.
command -v make >/dev/null || missing+=(make)
# hwloc knows the topology of the machine; pkg-config finds it.
command -v pkg-config >/dev/null || missing+=(pkg-config)
pkg-config --exists hwloc 2>/dev/null || missing+=(libhwloc-dev)

install_command="apt-get install -y --no-install-recommends ${missing[*]:-}"

say() { printf 'deps: %s\n' "$*" >&2; }

install() {
    export DEBIAN_FRONTEND=noninteractive
    # The package lists are old or absent on a fresh image: refresh them only if the first try fails.
    $install_command </dev/null >/dev/null 2>&1 && return
    say "refreshing the package lists"
    apt-get update </dev/null >/dev/null
    $install_command </dev/null >/dev/null
}

if ((${#missing[@]} > 0)); then
    if ! command -v apt-get >/dev/null; then
        say "missing: ${missing[*]} (Debian's names for them)."
        say "Install a C compiler, make, pkg-config and hwloc with its headers, then try again."
        exit 1
    fi
    if (($(id -u) != 0)); then
        say "missing: ${missing[*]}. Install them, then try again:"
        say "    sudo apt-get update && sudo $install_command"
        exit 1
    fi
    say "installing ${missing[*]}"
    if ! install; then
        say "apt could not install them. What it says:"
        $install_command </dev/null >&2 || exit 1
    fi
fi

# Rust itself is the one thing that we do not install: whose toolchain it is, is not ours to say.
wanted=$(sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' Cargo.toml)
if ! command -v cargo >/dev/null; then
    say "Rust is missing: install $wanted or newer (with rustup, say), then try again."
    exit 1
fi
present=$(rustc --version | cut -d ' ' -f 2)
oldest=$(printf '%s\n%s\n' "$wanted" "$present" | sort -V | head -n 1)
if [[ $oldest != "$wanted" ]]; then
    say "Rust $present is too old: $wanted or newer is needed (rustup update stable)."
    exit 1
fi
