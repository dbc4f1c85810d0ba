#!/usr/bin/env bash
# Installs the programs that the tests talk to, where they are missing.
# Arguments: PROGRAM:DEBIAN-PACKAGE ... A package without a program has the path of one of its files instead.
set -euo pipefail

# is_there PROGRAM:PACKAGE
is_there() {
    # Debian's python3 has no virtual environments without another package.
    [[ $1 != python3:python3-venv ]] || { python3 -c 'import ensurepip, venv' 2>/dev/null; return; }
    # Not a word of the shell's: the tests start programs.
    type -P "${1%%:*}" >/dev/null || [[ $1 == /* && -e ${1%%:*} ]]
}

missing=()
for tool in "$@"; do
    is_there "$tool" || missing+=("${tool#*:}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
if ! command -v apt-get >/dev/null; then
    echo "the tests need: ${missing[*]} (names of Debian's packages); install them and try again" >&2
    exit 1
fi
echo "installing what the tests talk to: ${missing[*]}"
# A package that starts a service of its own would hold the port a user may need.
policy=/usr/sbin/policy-rc.d
[ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$policy" >/dev/null; "${sudo[@]}" chmod +x "$policy"; trap '"${sudo[@]}" rm -f "$policy"' EXIT; }
"${sudo[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
