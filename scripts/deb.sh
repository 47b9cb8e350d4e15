#!/usr/bin/env bash
# Makes the Debian package from release binaries: generates man pages and completions, then calls cargo-deb.
#
# Called by `make deb` after the build; prints the package's path. Installs cargo-deb, at one version, where it is not.
set -euo pipefail
cd "$(dirname "$0")/.."

# Another version may lay files out differently; what this one makes is checked by scripts/deb-check.sh.
readonly CARGO_DEB=3.8.0

release=${CARGO_TARGET_DIR:-target}/release
pages=$release/package

say() { printf 'deb: %s\n' "$*" >&2; }

for program in evenkeeld evenkeel evenkeel-gpu; do
    [[ -x $release/$program ]] || { say "$release/$program is missing: make build"; exit 1; }
done
if [[ $(cargo deb --version 2>/dev/null) != "cargo-deb $CARGO_DEB" ]]; then
    say "installing cargo-deb $CARGO_DEB"
    cargo install cargo-deb --version "$CARGO_DEB" --locked --quiet >&2
fi

rm -rf "$pages"
mkdir -p "$pages"/{man,bash,zsh,fish}
for program in evenkeeld evenkeel evenkeel-gpu; do
    "$release/$program" man "$pages/man"
    "$release/$program" completions bash >"$pages/bash/$program"
    "$release/$program" completions zsh >"$pages/zsh/_$program"
    "$release/$program" completions fish >"$pages/fish/$program.fish"
done

gzip -9n "$pages"/man/*

cargo deb --package evenkeeld --no-build --quiet
