#!/usr/bin/env bash
# Runs the tests, some subjects at a time, and prints the time of each, and the CPU time of its processes. Repeats the
# output of failed tests at the end.
# If at most twelve failed, each runs once more, alone: one that passes then is reported as FLAKY and fails nothing.
# Arguments: subjects, such as `limits outages`; default: all subjects, the crate's unit tests and its doc tests.
# A subject is a module that tests/limiting.rs or tests/proxying.rs declares, or `tidy`, `lib` or `doc`.
# LANES=1 runs one subject after another, for instance to find out what a subject alone takes.
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

# Modules whose tests measure times: subjects of their own, which run before the others, with one test for each core.
# The longest come first.
measuring=(
    upstreams::balance limits::several_gateways outages::sentinel admin::floods charges::queue_floods
    limits::real_time outages::far_redis outages::flood stores::long_decisions
    upstreams::adaptive upstreams::health upstreams::http2_floods
)
for module in "${measuring[@]}"; do
    program[$module]=${program[${module%%::*}]}
done

subjects=()
[ $# -gt 0 ] || set -- "${all[@]}"
for subject in "$@"; do
    for module in "${measuring[@]}"; do
        [[ $module != "$subject"::* ]] || subjects+=("$module")
    done
    subjects+=("$subject")
done
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

# Builds, and reads the path of each program: "src_path":"/tests/tidy.rs" … "executable":"/target/debug/deps/tidy-0123".
declare -A binary=()
if [ ${#builds[@]} -gt 0 ]; then
    "$cargo" test --no-run --message-format json-render-diagnostics "${builds[@]}" >"$logs/build" || exit 1
    while read -r source path; do
        binary[$source]=$path
    done < <(sed -n 's/.*"src_path":"[^"]*\/\([a-z]*\)\.rs".*"executable":"\([^"]*\)".*/\1 \2/p' "$logs/build")
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
    *::*) echo 1 ;;
    *) echo "$cores" ;;
    esac
}

# Prints the names of a subject's tests. By name, as a filter would also match modules of the same name within others.
tests_of() {
    local module others=()
    for module in "${measuring[@]}"; do
        [[ $module != "$1"::* ]] || others+=(-e "^$module::")
    done
    "${binary[${program[$1]}]}" --list | sed -n "s/^\($1::.*\): test\$/\1/p" | grep -v "${others[@]:--e^$}"
}

# Runs the tests of one subject. Each test that ends prints a line.
run() {
    local tests
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(threads "$1")}
    case $1 in
    doc) "$cargo" test --color never --doc ;;
    lib | tidy) "${binary[$1]}" --color never ;;
    *)
        mapfile -t tests < <(tests_of "$1")
        # Without a name, the program would run every test.
        [ ${#tests[@]} -gt 0 ] || { echo "$1 has no tests"; return 1; }
        "${binary[${program[$1]}]}" --color never --exact "${tests[@]}"
        ;;
    esac
}

# Runs one subject and prints its result. On a terminal, shows what it is at meanwhile.
run_subject() {
    local subject=$1 since=$SECONDS head result=ok passed user system
    local TIMEFORMAT='%U %S'
    head="[$(clock $SECONDS)] $subject"
    [ -t 1 ] || echo "$head"
    { time run "$subject" >&3 2>&1; } 3>&1 2>"$logs/$subject.times" | tee "$logs/$subject" | {
        total=0 ended=0
        while IFS= read -r line; do
            case $line in
                "running "*" test"*) total=${line#running } total=$((ended + ${total%% *})) ;;
                "test "*" ... "*) ended=$((ended + 1)) ;;
                *) continue ;;
            esac
            show "${#subjects[@]} subjects, $head: $ended of $total tests, $((SECONDS - since)) s"
        done
    } || { result=FAILED; echo "$subject" >>"$logs/failed"; }
    passed=$(awk '/^test result: / { sum += $4 } END { print sum + 0 }' "$logs/$subject")
    read -r user system <"$logs/$subject.times"
    show ''
    echo "$head: $result, $passed passed, $((SECONDS - since)) s, CPU $((${user%.*} + ${system%.*})) s"
}

# Runs subjects, as many at a time as the first argument says. While a quarter of the machine is idle, because their
# tests wait, it runs more, up to the second argument.
run_subjects() {
    local least=$1 most=$2 subject running
    shift 2
    for subject in "$@"; do
        while running=$(jobs -rp | wc -l); [ "$running" -ge "$least" ]; do
            if [ "$running" -lt "$most" ] && is_idle; then break; fi
            [ "$running" -lt "$most" ] || wait -n
        done
        run_subject "$subject" &
    done
    wait
}

# Measures for two seconds whether a quarter of all CPU time is idle, or used at low priority.
is_idle() {
    local before after
    mapfile -t before < <(cpu_times)
    sleep 2
    mapfile -t after < <(cpu_times)
    [ $((4 * (after[0] - before[0]))) -gt $((after[1] - before[1])) ]
}

# Prints the CPU time since the start of the machine that was idle or of low priority, and all CPU time.
cpu_times() {
    awk '/^cpu / { for (i = 2; i <= 9; i++) all += $i; print $3 + $5 + $6; print all }' /proc/stat
}

# Tests that only compute run beside the others, at low priority: they use the time in which the others wait. Of those,
# what takes long starts first, so that none of it is left to run alone.
has() { [[ " ${subjects[*]} " == *" $1 "* ]]; }
beside=() alone=() waiting=()
for subject in "${measuring[@]}"; do
    has "$subject" && alone+=("$subject")
done
for subject in dashboard charges limits manual stores interop outages auth admin http3 acme import upstreams; do
    has "$subject" && waiting+=("$subject")
done
for subject in "${subjects[@]}"; do
    case $subject in
    algorithms | config | lib | tidy | doc) beside+=("$subject") ;;
    *::*) ;;
    *) [[ " ${waiting[*]} " == *" $subject "* ]] || waiting+=("$subject") ;;
    esac
done
touch "$logs/failed"
(renice -n 10 -p "$BASHPID" >/dev/null; run_subjects 1 1 "${beside[@]}") &
(
    run_subjects "$cores" "$cores" "${alone[@]}"
    run_subjects "${LANES:-$cores}" "${LANES:-$((2 * cores))}" "${waiting[@]}"
) &
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
    if [ ${#again[@]} -le 12 ] &&
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
