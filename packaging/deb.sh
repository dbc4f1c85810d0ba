#!/usr/bin/env bash
# Makes the Debian package in target/debian: builds the program, has it write its manual page and completions, and
# packs all of it with cargo-deb. Called by `make package` and tests/package.sh.
#
#   PROFILE=dev packaging/deb.sh      another build than release, for a quick try
set -euo pipefail

cd "$(dirname "$0")/.."
profile=${PROFILE:-release}
target=${CARGO_TARGET_DIR:-target}
if ! cargo deb --version >/dev/null 2>&1; then
    echo "cargo-deb is missing: cargo install cargo-deb --locked" >&2
    exit 1
fi
command -v dpkg-shlibdeps >/dev/null || { echo "dpkg-shlibdeps is missing: apt-get install dpkg-dev" >&2; exit 1; }

cargo build --quiet --profile "$profile"
binary=$target/$([ "$profile" = dev ] && echo debug || echo "$profile")/sluicegate
mkdir -p target/package
"$binary" man >target/package/sluicegate.1
"$binary" completions bash >target/package/sluicegate.bash
"$binary" completions fish >target/package/sluicegate.fish
"$binary" completions zsh >target/package/_sluicegate
rm -f "$target"/debian/sluicegate_*.deb
# cargo-deb finds the binary of the asset list under the profile's folder.
cargo deb --quiet --no-build --profile "$profile"
ls "$target"/debian/sluicegate_*.deb
