#!/usr/bin/env bash
# Runs every suite that `make test` leaves out, one after the other, and prints a table of their results. A suite that
# fails stops none of the others. Called by `make everything`, as root: the packages and the container need it.
#
# Arguments: suites, which are targets of the Makefile; default: all. The output of each is in target/everything.
#
#   PROFILE=dist tests/everything.sh      builds what is shipped as it is shipped; default: dev, in a fraction of the time
set -uo pipefail

cd "$(dirname "$0")/.."
suites=(manifests book package-test release-test container-test systemd-test apps loom http3-loss fuzz-smoke microbench admin-api-test)
export PROFILE=${PROFILE:-dev}
logs=$(realpath -m "${CARGO_TARGET_DIR:-target}/everything")

[ $# -gt 0 ] || set -- "${suites[@]}"
for suite in "$@"; do
    if [[ " ${suites[*]} " != *" $suite "* ]]; then
        echo "no suite $suite; there are: ${suites[*]}" >&2
        exit 2
    fi
done

clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# The last line of a log that counts something.
count_of() {
    grep -ahoE '[0-9]+ passed[;,] [0-9]+ failed|all [0-9]+ passed|[0-9]+ of [0-9]+ applications passed' "$1" | tail -1
}

mkdir -p "$logs"
rows=()
passed=0
failed=0
for suite in "$@"; do
    echo "== $suite (output in $logs/$suite.log)"
    since=$SECONDS
    # Without ONLY of this run, which means something else to some of the suites.
    if env -u MAKEFLAGS make --no-print-directory "$suite" ONLY= >"$logs/$suite.log" 2>&1 </dev/null; then
        result=ok passed=$((passed + 1))
    else
        result=FAILED failed=$((failed + 1))
        tail -40 "$logs/$suite.log"
    fi
    rows+=("$(printf '%-16s %-7s %6s  %s' "$suite" "$result" "$(clock $((SECONDS - since)))" "$(count_of "$logs/$suite.log")")")
    echo "== $suite: $result, $(clock $((SECONDS - since)))"
done

printf '\n%-16s %-7s %6s  %s\n' suite result time counts
printf '%s\n' "${rows[@]}"
echo "profile $PROFILE, all took $(clock $SECONDS)"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
