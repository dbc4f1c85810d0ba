#!/usr/bin/env python3
"""Mutation tests of the Lua scripts: changes one token at a time, and lists the mutants that no test detects.

The tests load the files from the directory LUA_DIR (tests/support/limiting/lua.rs), so a mutant needs no build.
gateways.lua, which makes no decisions, is left out.
"""

import argparse
import concurrent.futures
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOKEN = re.compile(r"--\[\[.*?\]\]|--[^\n]*|'[^'\n]*'|\"[^\"\n]*\"|\.\.|[<>=~]=|\d+|[A-Za-z_]\w*|\S", re.S)
SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "==",
    "+": "-", "-": "+", "*": "+", "/": "*", "%": "+",
    "and": "or", "or": "and", "true": "false", "false": "true", "not": "",
}
CALLS = {"min": "max", "max": "min", "floor": "ceil", "ceil": "floor"}
OPERAND_ENDS = re.compile(r"[\w\])]")
# A mutant with an endless loop is detected by its CPU time.
CPU_SECONDS = 120
TWIN = "algorithms::twin::"
# Algorithms whose state is in records, and those with a shape of their own.
RECORDED = ["token_bucket", "fixed_window", "gcra", "sliding_window", "calendar", "leaky_bucket"]
SHAPED = ["sliding_log", "concurrency"]
# File that several algorithms use -> the algorithms whose tests load it.
USERS = {
    "bucket.lua": ["token_bucket", "gcra"],
    "refill.lua": ["token_bucket", "gcra", "leaky_bucket"],
    "counted.lua": ["fixed_window", "calendar"],
    "records.lua": RECORDED,
    "gate.lua": SHAPED,
    "freeing.lua": SHAPED,
    "shapes/cells.lua": [],
    "shapes/native.lua": SHAPED,
    "shapes/log.lua": ["sliding_log"],
    "shapes/leases.lua": ["concurrency"],
}


def name_of(path):
    """The path below lua/, such as `shapes/log.lua`."""
    return str(path.relative_to(ROOT / "lua"))


def mutants(path):
    """Yields every mutant of a file: name of the file, offset, token and its replacement."""
    text = path.read_text()
    tokens = [t for t in TOKEN.finditer(text) if not t.group().startswith("--")]
    for i, token in enumerate(tokens):
        word, before = token.group(), tokens[i - 1].group() if i else ""
        after = tokens[i + 1].group() if i + 1 < len(tokens) else ""
        if word == "-" and (not OPERAND_ENDS.fullmatch(before[-1:]) or before in ("return", "and", "or", "not")):
            new = ""
        elif word in CALLS and after == "(":
            new = CALLS[word]
        elif word in SWAPS:
            new = SWAPS[word]
        elif word.isdigit():
            new = "0" if word == "1" else str(int(word) + 1)
        else:
            continue
        yield name_of(path), token.start(), word, new


def build():
    """Builds the test program and returns its path."""
    command = ["cargo", "test", "--no-run", "--test", "limiting", "--message-format", "json"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    messages = (json.loads(line) for line in lines)
    return next(m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == "limiting")


def run(program, tests, lua):
    """Runs the module `tests` of the program with the files in `lua`. Returns whether it passes, and its output."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    env = dict(os.environ, LUA_DIR=str(lua), RUST_BACKTRACE="0")
    try:
        done = subprocess.run(
            [program, tests, "--test-threads", "1"], cwd=ROOT, env=env, preexec_fn=limit, timeout=20 * CPU_SECONDS,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )
    except subprocess.TimeoutExpired:
        return False, "timeout"
    return done.returncode == 0, f"status {done.returncode}\n{done.stdout[-2000:]}"


def tests_of(name):
    """The test modules that load a file, the fastest first."""
    users = USERS[name] if name in USERS else [Path(name).stem]
    tests = [TWIN + user for user in users] + [TWIN + "the_gate_decides_like_the_memory_store"]
    if name == "calendar.lua":
        tests.append(TWIN + "a_calendar_of_another_age_is_no_harm")
    if name in ("gate.lua", "freeing.lua") or name.startswith("shapes/"):
        tests.append("algorithms::full")
    if set(users) & set(SHAPED) or name == "shapes/cells.lua":
        tests += ["stores::redis_state", "stores::log_blocks"]
    return tests


def survives(program, mutant):
    """Returns whether all tests of the file pass with the mutant."""
    name, start, old, new = mutant
    with tempfile.TemporaryDirectory(prefix="sluicegate-lua-") as scratch:
        lua = Path(scratch) / "lua"
        shutil.copytree(ROOT / "lua", lua)
        text = (lua / name).read_text()
        (lua / name).write_text(text[:start] + new + text[start + len(old):])
        return all(run(program, tests, lua)[0] for tests in tests_of(name))


def describe(mutant):
    name, start, old, new = mutant
    before = (ROOT / "lua" / name).read_text()[:start]
    line, column = before.count("\n") + 1, start - before.rfind("\n")
    return f"lua/{name}:{line}:{column}: `{old}` as `{new}`"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="paths; default: all that make decisions")
    parser.add_argument("--minutes", type=float, default=20, help="no mutant is tested after that")
    parser.add_argument("--sample", type=int, help="test so many mutants instead of all")
    parser.add_argument("--seed", type=int, help="repeat the order of an earlier run")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()

    files = [Path(name).resolve() for name in args.files] or sorted((ROOT / "lua").rglob("*.lua"))
    todo = [mutant for path in files if path.name != "gateways.lua" for mutant in mutants(path)]
    program = build()
    for tests in sorted({tests for path in files for tests in tests_of(name_of(path))}):
        passed, log = run(program, tests, ROOT / "lua")
        if not passed:
            sys.exit(f"{tests} fails without a mutant: {log}")
    if survives(program, (name_of(files[0]), 0, "", "error('broken') ")):
        sys.exit("the tests do not read LUA_DIR, so they cannot detect mutants")

    total, seed = len(todo), args.seed if args.seed is not None else random.randrange(10**6)
    random.Random(seed).shuffle(todo)
    todo = todo[: args.sample]
    end, survivors, tried = time.monotonic() + 60 * args.minutes, [], 0

    def attempt(mutant):
        return None if time.monotonic() > end else survives(program, mutant)

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for mutant, survived in zip(todo, pool.map(attempt, todo)):
            tried += survived is not None
            if survived:
                survivors.append(mutant)
                print(f"SURVIVED {describe(mutant)}", flush=True)
    print(f"{tried} of {total} mutants tested (--seed {seed}): {tried - len(survivors)} detected, {len(survivors)} survived")


main()
