"""Renders the figures of compare.py as Markdown, and puts them into a page of the manual, between two comments."""
import datetime
import os
import platform
import re
import shlex
import subprocess
import sys

import wire

START, END = "<!-- figures: written by benches/compare.py --page -->", "<!-- end of the figures -->"
# Figure -> heading.
FIGURES = {"rate": "requests/s", "p50": "p50 ms", "p99": "p99 ms", "cpu": "CPU µs", "redis": "Redis' CPU µs"}


def write_page(path, figures):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if text.count(START) != 1 or text.count(END) != 1:
        sys.exit(f"{path} has no single pair of the comments between which the figures go:\n{START}\n{END}")
    before, rest = text.split(START)
    after = rest.split(END)[1]
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{before}{START}\n\n{figures}\n{END}{after}")


def render(options, subjects, rows, results):
    parts = [table(["", ""], machine(options))]
    if subjects:
        parts.append("**Requests.** Medians of the rounds; CPU is per request.\n\n" + table(
            ["subject", *FIGURES.values()],
            [[f"`{name}`", f"{of['rate']:.0f}", *(f"{of[figure]:.2f}" for figure in list(FIGURES)[1:])] for name, of in subjects]))
    if rows:
        parts.append("**Ratios of the CPU time per request.** Below 1, the first needs less.\n\n" + table(
            ["comparison", "ratio"], [[label, f"{ratio:.2f}"] for label, ratio in rows]))
    if ratios := wire.ratios(results):
        peers = wire.PROXIES[1:]
        parts.append("**Protocols and bodies.** CPU time of Sluicegate, as a ratio to each peer.\n\n" + table(
            ["row", *peers], [[label, *(f"{of[peer]:.2f}" if peer in of else "" for peer in peers)] for label, of in ratios]))
    if idle := wire.idle_bytes(results):
        parts.append("**Memory of an idle connection**, in bytes.\n\n" + table(
            ["row", *wire.PROXIES],
            [[label, *("" if each is None else f"{each:.0f}" for each in columns)] for label, columns in idle]))
    return "\n\n".join(parts) + "\n"


def machine(options):
    """What somebody needs to know to judge the figures, or to measure them again."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        model = re.search(r"model name\s*:\s*(.*)", file.read())
    os_release = platform.freedesktop_os_release()
    # Which page it writes says nothing about the figures.
    command = re.sub(r" --page[ =]\S+", "", shlex.join(["benches/compare.py", *sys.argv[1:]]))
    return [
        ["date", datetime.datetime.now(datetime.UTC).date().isoformat()],
        ["CPU", f"{model[1] if model else platform.machine()}, {len(os.sched_getaffinity(0))} cores"],
        ["system", f"{os_release['PRETTY_NAME']}, Linux {platform.release().split('-')[0]}"],
        ["Sluicegate", version(options.binary, "--version")],
        ["peers", ", ".join(filter(None, [version("nginx", "-v"), version("haproxy", "-v"), f"Envoy ({wire.ENVOY})"]))],
        ["store", version("redis-server", "--version")],
        ["command", f"`{command}`"],
        ["rounds", f"{options.rounds} of {options.secs} s each, {options.conns} connections"],
    ]


def version(program, option):
    """The name and the version that a program states; empty if it is not there."""
    try:
        said = subprocess.run([program, option], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    found = re.search(r"(\d+\.\d+[\w.-]*)(.*profile-guided)?", said.stdout + said.stderr)
    return f"{os.path.basename(program)} {found[1]}{', profile-guided' if found[2] else ''}" if found else ""


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
