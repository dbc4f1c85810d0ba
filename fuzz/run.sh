#!/usr/bin/env bash
# Runs fuzz targets one after another. Arguments: seconds for each, then their names. They start from the inputs in
# fuzz/corpus. What was found interesting is kept in fuzz/found and tried first by the next run; an input that fails is
# in fuzz/artifacts. After a long run `cargo fuzz cmin` makes a small corpus of both.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
shift
version=0.13.2
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "installing cargo-fuzz $version"
    cargo install --locked --quiet "cargo-fuzz@$version"
fi
# The stable compiler has what libFuzzer needs, but asks for this name before it lets one use it.
export RUSTC_BOOTSTRAP=1
for target in "$@"; do
    echo "== $target, $seconds s"
    mkdir -p "fuzz/found/$target" "fuzz/corpus/$target"
    cargo fuzz run --dev --sanitizer none "$target" "fuzz/found/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -max_len=4096 -verbosity=0 -print_final_stats=1
done
