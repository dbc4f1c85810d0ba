#!/usr/bin/env bash
# Breaks what decides, one place at a time, and lists the breaks that no test notices. Rust by
# cargo-mutants, in random order, going on where the last run ended; Lua by tests/mutants/lua.py.
# Arguments: minutes in all (default 60); then, for cargo-mutants, options such as --shard 0/20.
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=${1:-60}
shift || true
version=27.1.0
if ! cargo mutants --version >/dev/null 2>&1; then
    echo "installing cargo-mutants $version"
    cargo install --locked --quiet "cargo-mutants@$version"
fi
out=$PWD/target/mutants
tree=$out/tree
mkdir -p "$tree"
started=$SECONDS

# Broken is a copy, in place, so that a break costs no build from nothing.
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$tree" --

# $1: minutes; $2: name; then files; then, after --, filters of the tests that should fail; after another --, options.
rust() {
    local span=$1 name=$2 files=() tests=()
    shift 2
    while [ "$1" != -- ]; do
        # A file that has moved would be left out without a word.
        [[ $1 == *\** || -f $1 ]] || { echo "there is no $1" >&2; return 1; }
        files+=(-f "$1")
        shift
    done
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do tests+=("$1"); shift; done
    shift || true
    echo "== $name, $span min"
    # Interrupted it tells what it has; 2: some survived, 3: some took too long; 124: the time was up.
    timeout --signal INT --kill-after 60 "$((span * 60))" \
        cargo mutants --dir "$tree" --in-place --iterate --shuffle --no-times --colors never --output "$out/$name" --minimum-test-timeout 60 \
        "${files[@]}" --cargo-arg=--lib --cargo-arg=--test=limiting "$@" -- -- "${tests[@]}" || case $? in 2 | 3 | 4 | 124 | 130) ;; *) return 1 ;; esac
    local found="$out/$name/mutants.out/missed.txt"
    [ -s "$found" ] && sed 's/^/SURVIVED /' "$found" || echo "no survivor so far"
}

# `limiting::` are the unit tests of that directory, the others are modules of tests/limiting.rs.
algorithms=(limiting:: algorithms:: charges::)
around=(limiting:: stores:: charges:: limits:: admin::)
rust $((minutes * 2 / 5)) algorithms 'src/limiting/algorithm/**/*.rs' -- "${algorithms[@]}" -- "$@"
rust $((minutes * 2 / 5)) around src/limiting/limiter.rs src/limiting/charges/guard.rs src/limiting/charges/backlog.rs src/limiting/store/redis/denials.rs -- "${around[@]}" -- "$@"
echo "== lua"
tests/mutants/lua.py --minutes $((minutes / 5))
echo "took $(((SECONDS - started) / 60)) min; survivors of Rust: target/mutants/*/mutants.out/missed.txt"
