#!/usr/bin/env bash
# Makes the Debian package in target/debian: builds the program, has it write its manual page and completions, and
# packs all of it with cargo-deb. Called by `make package` and tests/package.sh.
#
# Installs its own cargo-deb, of the version below, into target/tools.
#
#   PROFILE=dev packaging/deb.sh            another build than release, for a quick try
#   BINARY=FILE packaging/deb.sh DIRECTORY  packs that program, into that directory
set -euo pipefail

cd "$(dirname "$0")/.."
profile=${PROFILE:-release}
target=${CARGO_TARGET_DIR:-target}
cargo_deb=3.8.0

tools=$(realpath -m "$target/tools")
export PATH="$tools/bin:$PATH"
if [ "$(cargo deb --version 2>/dev/null)" != "cargo-deb $cargo_deb" ]; then
    echo "installing cargo-deb $cargo_deb into $tools" >&2
    cargo install --quiet cargo-deb --version $cargo_deb --locked --no-default-features --features lzma --root "$tools" >&2
fi
command -v dpkg-shlibdeps >/dev/null || { echo "dpkg-shlibdeps is missing: apt-get install dpkg-dev" >&2; exit 1; }

output=${1:-$target/debian}
options=(--quiet --no-build --output "$output")
[ "$profile" != dev ] || options+=(--fast)
# cargo-deb finds the binary of the asset list under the profile's folder.
if [ -n "${BINARY:-}" ]; then
    binary=$BINARY
    packed=$(mktemp -d)
    trap 'rm -rf "$packed"' EXIT
    install -D "$binary" "$packed/release/sluicegate"
    export CARGO_TARGET_DIR=$packed
    options+=(--no-strip)
else
    cargo build --quiet --profile "$profile"
    binary=$target/$([ "$profile" = dev ] && echo debug || echo "$profile")/sluicegate
    options+=(--profile "$profile")
fi
mkdir -p target/package
"$binary" man >target/package/sluicegate.1
"$binary" completions bash >target/package/sluicegate.bash
"$binary" completions fish >target/package/sluicegate.fish
"$binary" completions zsh >target/package/_sluicegate
mkdir -p "$output"
rm -f "$output"/sluicegate_*.deb
cargo deb "${options[@]}"
ls "$output"/sluicegate_*.deb
