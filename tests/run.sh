#!/usr/bin/env bash
# Runs the tests, program by program, and says which of how many runs and since when; what failed is told
# again at the end. Arguments: names of programs, like `attack`; without any, all and the crate's own.
set -uo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

only=()
if [ $# -gt 0 ]; then
    programs=("${@/#/--test=}")
    only=("${programs[@]}")
else
    programs=(--lib)
    for file in tests/*.rs; do
        programs+=("--test=$(basename "$file" .rs)")
    done
    programs+=(--doc)
fi

"$cargo" test --no-run "${only[@]}" || exit 1
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# Over the line before, where that is a terminal; elsewhere what goes on is not told.
show() { [ -t 1 ] && printf '\r\033[K%s' "$1"; return 0; }

failed=()
for at in "${!programs[@]}"; do
    program=${programs[$at]}
    name=${program#--test=}
    name=${name#--}
    since=$SECONDS
    head="[$((at + 1))/${#programs[@]}, $(clock $SECONDS)] $name"
    [ -t 1 ] || echo "$head"
    show "$head"
    # Not --quiet: each test that ends is a line.
    result=ok
    # Tests that wait for most of their time share a core; those that measure do not.
    threads=$(nproc)
    case " after config faults gateway limits outage protocols replay upstreams " in *" $name "*) threads=$((2 * threads)) ;; esac
    RUST_TEST_THREADS=${RUST_TEST_THREADS:-$threads} "$cargo" test --color never "$program" 2>&1 | tee "$logs/$name" | {
        total='?' ended=0
        while IFS= read -r line; do
            case $line in
                "running "*" test"*) total=${line#running } total=${total%% *} ;;
                "test "*" ... "*) ended=$((ended + 1)) ;;
                *) continue ;;
            esac
            show "$head: $ended of $total tests, $((SECONDS - since)) s"
        done
    } || { result=FAILED; failed+=("$name"); }
    passed=$(awk '/^test result: / { sum += $4 } END { print sum + 0 }' "$logs/$name")
    show ''
    echo "$head: $result, $passed passed, $((SECONDS - since)) s"
done

for name in "${failed[@]}"; do
    printf '\n== %s ==\n' "$name"
    # What each said, then their names; all of it where the program did not come so far.
    sed -n '/^failures:$/,$p' "$logs/$name" | grep . || cat "$logs/$name"
done
echo
[ ${#failed[@]} -eq 0 ] || { echo "FAILED: ${failed[*]}; all took $(clock $SECONDS)"; exit 1; }
echo "all ${#programs[@]} passed, $(clock $SECONDS)"
