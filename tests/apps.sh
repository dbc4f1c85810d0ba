#!/usr/bin/env bash
# Puts the applications that tests/apps.rs runs behind the gateway into target/apps-venv: httpbin
# under gunicorn, from PyPI. Does nothing when they are there. Called by that test.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=target/apps-venv
packages=(httpbin gunicorn)

mkdir -p target
exec 9>"$venv.lock"
flock 9
[ "$(cat "$venv/ready" 2>/dev/null)" = "${packages[*]}" ] && exit 0

if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    echo "tests/apps.rs needs Python with venv and pip: apt-get install python3-venv" >&2
    exit 1
fi
rm -rf "$venv"
python3 -m venv "$venv"
if ! "$venv/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"; then
    echo "tests/apps.rs needs ${packages[*]} from PyPI, which pip could not install (see above)" >&2
    exit 1
fi
echo "${packages[*]}" >"$venv/ready"
