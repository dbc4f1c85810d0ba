#!/usr/bin/env bash
# Runs the tests, one subject after another, and prints the time of each. Repeats the output of failed tests at the end.
# If at most five failed, each runs once more, alone: one that passes then is reported as FLAKY and fails nothing.
# Arguments: subjects, such as `limits outages`; default: all subjects, the crate's unit tests and its doc tests.
# A subject is a module that tests/limiting.rs or tests/proxying.rs declares, or `tidy`, `lib` or `doc`.
set -uo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
cores=$(nproc)

# Each subject with its test program: program[limits]=limiting, program[http1]=proxying.
declare -A program=([lib]=lib [tidy]=tidy [doc]=doc)
all=(lib)
for file in limiting proxying; do
    while IFS= read -r subject; do
        program[$subject]=$file
        all+=("$subject")
    done < <(sed -n 's/^mod \([a-z0-9_]*\);$/\1/p' "tests/$file.rs" | grep -vx support)
done
all+=(tidy doc)

[ $# -gt 0 ] && subjects=("$@") || subjects=("${all[@]}")
declare -A builds=()
for subject in "${subjects[@]}"; do
    case ${program[$subject]:-} in
    '') echo "no subject $subject; there are: ${all[*]}" >&2; exit 2 ;;
    doc) ;;
    lib) builds[lib]=--lib ;;
    *) builds[${program[$subject]}]=--test=${program[$subject]} ;;
    esac
done

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# Once to build, once more for the paths: "Executable tests/tidy.rs (target/debug/deps/tidy-0123)".
declare -A binary=()
if [ ${#builds[@]} -gt 0 ]; then
    "$cargo" test --no-run "${builds[@]}" || exit 1
    while read -r source path; do
        binary[$(basename "$source" .rs)]=$path
    done < <("$cargo" test --no-run --color never "${builds[@]}" 2>&1 | sed -n 's/^ *Executable .*\b\([a-z]*\/[a-z]*\.rs\) (\(.*\))$/\1 \2/p')
fi
# Cargo sets these for the tests that it runs.
export CARGO_MANIFEST_DIR=$PWD CARGO_PKG_NAME=sluicegate

clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# Overwrites the last line of a terminal. Prints nothing elsewhere.
show() { [ -t 1 ] && printf '\r\033[K%s' "$1"; return 0; }

# Tests that mostly wait share a core.
threads() {
    case $1 in
    acme | admin | forward_auth | http1 | http2 | limits | manual | outages | reload | tls | upstreams) echo $((3 * cores)) ;;
    charges | client_address | interop | process | replay | routing | telemetry) echo $((2 * cores)) ;;
    *) echo "$cores" ;;
    esac
}

# Modules whose tests measure times: they run after the other tests of their subject, one for each core.
measuring='^(admin::floods|charges::queue_floods|limits::real_time|outages::far_redis|stores::long_decisions)::'

# Runs the tests of one subject. Each test that ends prints a line.
run() {
    local path=${binary[${program[$1]}]:-} threads=${RUST_TEST_THREADS:-$(threads "$1")} result=0 names tests
    case $1 in
    doc) "$cargo" test --color never --doc ;;
    lib | tidy) RUST_TEST_THREADS=$threads "$path" --color never ;;
    *)
        # By name: a filter would also match modules of the same name within other subjects.
        names=$("$path" --list | sed -n "s/^\($1::.*\): test\$/\1/p")
        mapfile -t tests < <(grep -vE "$measuring" <<<"$names")
        RUST_TEST_THREADS=$threads "$path" --color never --exact "${tests[@]}" || result=1
        mapfile -t tests < <(grep -E "$measuring" <<<"$names")
        [ ${#tests[@]} -eq 0 ] ||
            RUST_TEST_THREADS=${RUST_TEST_THREADS:-$cores} "$path" --color never --exact "${tests[@]}" || result=1
        return $result
        ;;
    esac
}

# Runs subjects one after another. The first argument is a prefix for the progress on a terminal, or "" for none.
run_all() {
    local prefix=$1 subject since head result passed
    shift
    for subject in "$@"; do
        since=$SECONDS
        head="[$(clock $SECONDS)] $subject"
        [ -t 1 ] || echo "$head"
        [ -z "$prefix" ] || show "$head"
        result=ok
        run "$subject" 2>&1 | tee "$logs/$subject" | {
            total=0 ended=0
            while IFS= read -r line; do
                case $line in
                    "running "*" test"*) total=${line#running } total=$((ended + ${total%% *})) ;;
                    "test "*" ... "*) ended=$((ended + 1)) ;;
                    *) continue ;;
                esac
                [ -z "$prefix" ] || show "$prefix $head: $ended of $total tests, $((SECONDS - since)) s"
            done
        } || { result=FAILED; echo "$subject" >>"$logs/failed"; }
        passed=$(awk '/^test result: / { sum += $4 } END { print sum + 0 }' "$logs/$subject")
        show ''
        echo "$head: $result, $passed passed, $((SECONDS - since)) s"
    done
}

# Tests that only compute run beside the others, at low priority: they use the time in which the others wait.
beside=() waiting=()
for subject in "${subjects[@]}"; do
    case $subject in
    algorithms | config | tidy | doc) beside+=("$subject") ;;
    *) waiting+=("$subject") ;;
    esac
done
touch "$logs/failed"
(renice -n 10 -p "$BASHPID" >/dev/null; run_all '' "${beside[@]}") &
run_all "${#subjects[@]} subjects," "${waiting[@]}"
wait

# Prints the names of a subject's failed tests. Fails if a program ended before it printed its results.
failed_tests() {
    local log=$logs/$1
    [ "$1" != doc ] && [ "$(grep -c '^running [0-9]* test' "$log")" = "$(grep -c '^test result: ' "$log")" ] || return 1
    # The last list of a program; the one before has their output.
    awk '/^failures:$/ { names = "" } /^    [^ ]+$/ { names = names $1 "\n" }
        /^test result: FAILED/ { printf "%s", names; names = "" }' "$log" | grep .
}

mapfile -t failed <"$logs/failed"
again=() lasting=()
for subject in "${failed[@]}"; do
    printf '\n== %s ==\n' "$subject"
    # From the list of failures on; all of it if the program ended before it printed one.
    sed -n '/^failures:$/,$p' "$logs/$subject" | grep . || cat "$logs/$subject"
    if names=$(failed_tests "$subject"); then
        while read -r name; do again+=("$subject $name"); done <<<"$names"
    else
        lasting+=("$subject")
    fi
done
echo
flaky=()
for pair in "${again[@]}"; do
    read -r subject name <<<"$pair"
    if [ ${#again[@]} -le 5 ] &&
        RUST_TEST_THREADS=1 "${binary[${program[$subject]}]}" --color never --exact "$name" >"$logs/again" 2>&1 &&
        grep -q '^test result: ok\. 1 passed' "$logs/again"; then
        flaky+=("$name")
    else
        lasting+=("$name")
    fi
done
[ ${#flaky[@]} -eq 0 ] || printf 'FLAKY: passed when run again: %s\n' "${flaky[@]}"
[ ${#lasting[@]} -eq 0 ] || { printf 'FAILED: %s\n' "${lasting[@]}"; echo "all took $(clock $SECONDS)"; exit 1; }
echo "all ${#subjects[@]} passed, $(clock $SECONDS)"
