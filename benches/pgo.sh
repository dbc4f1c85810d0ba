#!/usr/bin/env bash
# A profile-guided build of the profile `dist`. An instrumented build serves the loads of the comparison, and the
# compiler uses its profile to optimize the hot paths. The result is target/pgo/sluicegate.
#
#   benches/pgo.sh [--if-possible]     with the option: a plain build if a tool is missing
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/pgo
# Older versions cannot read the profiles that the compiler writes.
profdata=$(type -P llvm-profdata-21 llvm-profdata-20 llvm-profdata-19 | head -1 || true)

missing=()
[ -n "$profdata" ] || missing+=(llvm-19)
for need in wrk nginx:nginx-light haproxy redis-server python3 taskset:util-linux; do
    type -P "${need%%:*}" >/dev/null || missing+=("${need#*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
    if [ "${1:-}" = --if-possible ]; then
        echo "a plain build: for a profile-guided one install ${missing[*]}"
        exec cargo build --profile dist --locked --bin sluicegate
    fi
    echo "missing; Debian: apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
fi

rm -rf "$work/raw"
mkdir -p "$work/raw"
echo "1/3 an instrumented build"
RUSTFLAGS="-Cprofile-generate=$work/raw" cargo build --profile dist --locked --bin sluicegate --target-dir "$work/instrumented"
echo "2/3 the loads of the comparison (the figures are those of the instrumented build)"
LLVM_PROFILE_FILE="$work/raw/%p.profraw" python3 benches/compare.py --rounds 1 --secs 3 \
    --binary "$work/instrumented/dist/sluicegate" \
    sluicegate sluicegate~browser sluicegate~chunked sluicegate+memory sluicegate+redis sluicegate+redis-3 \
    sluicegate+refusal sluicegate-10k-routes
"$profdata" merge -o "$work/merged.profdata" "$work"/raw/*.profraw
echo "3/3 the build that uses the profile"
SLUICEGATE_BUILD=profile-guided RUSTFLAGS="-Cprofile-use=$work/merged.profdata" \
    cargo build --profile dist --locked --bin sluicegate --target-dir "$work/used"
install -m 0755 "$work/used/dist/sluicegate" "$work/sluicegate"
"$work/sluicegate" --version
