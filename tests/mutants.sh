#!/usr/bin/env bash
# Mutation tests of the code that makes decisions: lists the mutants that no test detects. cargo-mutants mutates the
# Rust code in random order and continues where the last run ended; tests/mutants/lua.py mutates the Lua scripts.
# Arguments: total minutes (default 60), then options for cargo-mutants, such as --shard 0/20.
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

# The mutants are built in one copy of the repository, so that their builds are incremental.
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$tree" --

# Arguments: minutes, name, files; after `--`, filters of the tests that should fail; after another `--`, options.
rust() {
    local span=$1 name=$2 files=() tests=()
    shift 2
    while [ "$1" != -- ]; do
        # cargo-mutants ignores a path that does not exist.
        [[ $1 == *\** || -f $1 ]] || { echo "there is no $1" >&2; return 1; }
        files+=(-f "$1")
        shift
    done
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do tests+=("$1"); shift; done
    shift || true
    echo "== $name, $span min"
    # SIGINT makes it write its results. Exit codes: 2: some survived, 3: some took too long, 124: timeout.
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
rust $((minutes * 2 / 5)) around 'src/limiting/limiter/*.rs' src/limiting/charges/guard.rs src/limiting/charges/backlog.rs src/limiting/store/redis/denials.rs -- "${around[@]}" -- "$@"
echo "== lua"
tests/mutants/lua.py --minutes $((minutes / 5))
echo "took $(((SECONDS - started) / 60)) min; survivors of Rust: target/mutants/*/mutants.out/missed.txt"
