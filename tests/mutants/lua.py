#!/usr/bin/env python3
"""Breaks the Lua of the limits, one place at a time, and lists the breaks that no test notices.

The tests take the files from a directory (LUA_DIR, tests/support/lua.rs), so nothing is built anew for
a break. gateways.lua, which decides nothing, is left out.
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
# A break that loops forever is noticed by its time.
CPU_SECONDS = 120
TWIN = "algorithms::twin::"
# Which algorithms' tests look at a file that is not one's own, as those whose state is in records.
RECORDED = ["token_bucket", "fixed_window", "gcra", "sliding_window", "calendar", "leaky_bucket"]
SHAPED = ["sliding_log", "concurrency"]
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
    """As below lua/, like `shapes/log.lua`."""
    return str(path.relative_to(ROOT / "lua"))


def breaks(path):
    """Every break of a file: its place, what stands there and what would."""
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
    """Builds the test program with the tests of Lua, and returns its path."""
    command = ["cargo", "test", "--no-run", "--test", "limiting", "--message-format", "json"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    messages = (json.loads(line) for line in lines)
    return next(m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == "limiting")


def run(program, tests, lua):
    """Returns whether `tests`, a module of the program, pass with the files in `lua`, and their output."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    env = dict(os.environ, LUA_DIR=str(lua), RUST_BACKTRACE="0")
    try:
        done = subprocess.run(
            [program, tests, "--test-threads", "1"], cwd=ROOT, env=env, preexec_fn=limit, timeout=20 * CPU_SECONDS,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )
    except subprocess.TimeoutExpired:
        return False, "no end"
    return done.returncode == 0, f"status {done.returncode}\n{done.stdout[-2000:]}"


def noticing(name):
    """The tests that look at a file, those first that notice soonest."""
    users = USERS[name] if name in USERS else [Path(name).stem]
    tests = [TWIN + user for user in users] + [TWIN + "the_gate_decides_like_the_memory_store"]
    if name == "calendar.lua":
        tests.append(TWIN + "a_calendar_of_another_age_is_no_harm")
    if name in ("gate.lua", "freeing.lua") or name.startswith("shapes/"):
        tests.append("algorithms::full")
    if set(users) & set(SHAPED) or name == "shapes/cells.lua":
        tests += ["stores::redis_state", "stores::log_blocks"]
    return tests


def survives(program, found):
    name, start, old, new = found
    with tempfile.TemporaryDirectory(prefix="sluicegate-lua-") as scratch:
        lua = Path(scratch) / "lua"
        shutil.copytree(ROOT / "lua", lua)
        text = (lua / name).read_text()
        (lua / name).write_text(text[:start] + new + text[start + len(old):])
        return all(run(program, tests, lua)[0] for tests in noticing(name))


def place(found):
    name, start, old, new = found
    before = (ROOT / "lua" / name).read_text()[:start]
    line, column = before.count("\n") + 1, start - before.rfind("\n")
    return f"lua/{name}:{line}:{column}: `{old}` as `{new}`"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="paths; default: all that decide")
    parser.add_argument("--minutes", type=float, default=20, help="no break is begun after that")
    parser.add_argument("--sample", type=int, help="so many breaks instead of all")
    parser.add_argument("--seed", type=int, help="the same order as a run before")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()

    files = [Path(name).resolve() for name in args.files] or sorted((ROOT / "lua").rglob("*.lua"))
    todo = [found for path in files if path.name != "gateways.lua" for found in breaks(path)]
    program = build()
    for tests in sorted({tests for path in files for tests in noticing(name_of(path))}):
        passed, said = run(program, tests, ROOT / "lua")
        if not passed:
            sys.exit(f"{tests} fails without any break: {said}")
    if survives(program, (name_of(files[0]), 0, "", "error('broken') ")):
        sys.exit("the tests do not read LUA_DIR: what they say of breaks would mean nothing")

    total, seed = len(todo), args.seed if args.seed is not None else random.randrange(10**6)
    random.Random(seed).shuffle(todo)
    todo = todo[: args.sample]
    end, survivors, tried = time.monotonic() + 60 * args.minutes, [], 0

    def attempt(found):
        return None if time.monotonic() > end else survives(program, found)

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for found, survived in zip(todo, pool.map(attempt, todo)):
            tried += survived is not None
            if survived:
                survivors.append(found)
                print(f"SURVIVED {place(found)}", flush=True)
    print(f"{tried} of {total} breaks tried (--seed {seed}): {tried - len(survivors)} noticed, {len(survivors)} survived")


main()
