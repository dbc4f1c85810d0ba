#!/usr/bin/env python3
"""Runs applications of other projects behind the gateway, each with its real client, and prints a table.

`make apps` builds the gateway and calls this. Arguments: names of files here, such as `grpc_calls`; default: all.

The head of each file lists what to install: programs of Debian, packages of PyPI and npm. Packages are installed into
target/apps/NAME and kept until the list changes. Then the file runs as a program, on a network with nothing but its own
loopback: so the configs of the manual apply unchanged, with their ports and host names.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    import tomllib
except ImportError:
    sys.exit("tests/apps needs Python 3.11 or later")

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()

# Longest time for one application, without its installation.
TIMEOUT_S = 300
# Mount and network of its own, and processes that end with the first of them. This works without root where users may
# create namespaces.
ISOLATION = "unshare --map-root-user --mount --net --pid --fork --kill-child --mount-proc".split()


class Missing(Exception):
    """Something that a test needs is missing. The text says how to install it."""


def needs_of(file):
    """The lines between `# /// script` and `# ///`, which are TOML (the inline script metadata of Python)."""
    lines = file.read_text().splitlines()
    start = lines.index("# /// script") + 1
    head = lines[start:lines.index("# ///", start)]
    needs = tomllib.loads("\n".join(line.removeprefix("#").removeprefix(" ") for line in head))
    return {"pypi": needs.get("dependencies", []), "npm": {}, "overrides": {}, "debian": {}} | needs["tool"]["apps"]


def run(arguments, what, **options):
    if subprocess.run(arguments, **options).returncode != 0:
        raise Missing(f"{what}: `{' '.join(map(str, arguments))}` failed, see above")


def install(name, needs):
    """Installs what is missing. Returns the seconds that the last full installation took."""
    start = time.monotonic()
    programs = [f"{program}:{package}" for program, package in needs["debian"].items()]
    run([ROOT / "tests/tools.sh", "ip:iproute2", "unshare:util-linux", *programs], "Debian packages")
    home = TARGET / "apps" / name
    ready = home / "ready.json"
    if ready.exists():
        known = json.loads(ready.read_text())
        if known["needs"] == needs:
            return known["seconds"]
    subprocess.run(["rm", "-rf", home], check=True)
    home.mkdir(parents=True)
    # Debian's own Python: the ones of version managers depend on the home directory of a user.
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else "python3"
    run([python, "-m", "venv", home / "venv"], "a virtual environment; apt-get install python3-venv")
    pip = [home / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check"]
    if needs["pypi"]:
        run([*pip, *needs["pypi"]], f"{' '.join(needs['pypi'])} from PyPI")
    if needs["npm"]:
        package = {"private": True, "dependencies": needs["npm"], "overrides": needs["overrides"]}
        (home / "package.json").write_text(json.dumps(package))
        npm = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
        run(npm, f"{' '.join(needs['npm'])} from npm", cwd=home, stdout=subprocess.DEVNULL)
    seconds = round(time.monotonic() - start)
    ready.write_text(json.dumps({"needs": needs, "seconds": seconds}))
    return seconds


def version_of(name, needs):
    """The installed version of the application, which `version` in the head of the file names as KIND:PACKAGE."""
    kind, package = needs["version"].split(":")
    home = TARGET / "apps" / name
    if kind == "npm":
        return json.loads((home / "node_modules" / package / "package.json").read_text())["version"]
    if kind == "pypi":
        query = [home / "venv/bin/python", "-c", f"from importlib.metadata import version; print(version('{package}'))"]
    else:
        query = ["dpkg-query", "-W", "-f", "${Version}", package]
    found = subprocess.run(query, capture_output=True, text=True)
    return found.stdout.strip() or "?"


def test(name):
    """Runs one file. Returns whether it passed, and the seconds."""
    start = time.monotonic()
    environment = os.environ | {"SLUICEGATE": str(TARGET / "debug/sluicegate"), "PYTHONDONTWRITEBYTECODE": "1"}
    program = [TARGET / "apps" / name / "venv/bin/python", HERE / f"{name}.py"]
    with tempfile.TemporaryDirectory(prefix="sluicegate-apps-") as directory:
        environment |= {"APP_HOME": str(TARGET / "apps" / name), "APP_DIR": directory, "no_proxy": "*"}
        try:
            passed = subprocess.run([*ISOLATION, *program], env=environment, timeout=TIMEOUT_S).returncode == 0
        except subprocess.TimeoutExpired:
            print(f"{name}: not done after {TIMEOUT_S} s", file=sys.stderr)
            passed = False
    return passed, time.monotonic() - start


def main(names):
    known = sorted(file.stem for file in HERE.glob("*.py") if "# /// script" in file.read_text().splitlines())
    for name in names:
        if name not in known:
            sys.exit(f"no application {name}; there are: {' '.join(known)}")
    if subprocess.run([*ISOLATION, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        sys.exit("`unshare --map-root-user --net` fails here: run `make apps` as root, or allow namespaces of users")
    rows = []
    for name in names or known:
        needs = needs_of(HERE / f"{name}.py")
        print(f"== {needs['application']}", flush=True)
        version, seconds, passed, took = "-", "-", False, 0
        try:
            seconds = install(name, needs)
            version = version_of(name, needs)
            passed, took = test(name)
        except Missing as missing:
            print(missing, file=sys.stderr)
        result = "ok" if passed else "FAILED"
        rows.append((needs["application"], version, needs["client"], str(seconds), f"{took:.0f}", result))
    rows.insert(0, ("application", "version", "client", "install s", "test s", "result"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    passed = sum(row[-1] == "ok" for row in rows)
    print(f"{passed} of {len(rows) - 1} applications passed")
    sys.exit(passed != len(rows) - 1)


if __name__ == "__main__":
    main(sys.argv[1:])
