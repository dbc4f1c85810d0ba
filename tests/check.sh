# The check of test scripts, for `source`. They set `scratch`, `passed` and `failed`.

# check NAME COMMAND...: one PASS or FAIL line; what the command said is shown when it failed.
check() {
    local name=$1
    shift
    if "$@" >"$scratch/said" 2>&1; then
        passed=$((passed + 1))
        echo "PASS  $name"
    else
        failed=$((failed + 1))
        echo "FAIL  $name"
        tail -5 "$scratch/said" | sed 's/^/      /'
    fi
}
