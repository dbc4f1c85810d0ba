#!/usr/bin/env python3
"""Sluicegate beside nginx, haproxy and Envoy, by the CPU each request costs. `make bench` runs it.

    benches/compare.py                               everything, about half an hour
    benches/compare.py --rounds 3 nginx sluicegate   some subjects
    benches/compare.py '*/h2' '*/tls'                some rows of wire.py: HTTP/2, TLS, bodies and more
    benches/compare.py '*+rpc*' '*+proxied*'         decisions over gRPC beside proxied requests
    benches/compare.py '*hot-key*'                   one key at high load, with leases and without, Redis near and 1 ms away
    benches/compare.py --rounds 1 '*/idle*'          the memory of idle connections
    benches/compare.py --before OLD_BINARY           an earlier build in the same rounds
    benches/compare.py --page docs/operating/benchmarks.md    also puts the figures into that page

The proxy under test has the first core to itself; wrk, the upstream and Redis share the second. Every
round runs every subject once, every other round in reverse order. A ratio is taken within a round, where
both subjects find the machine in the same state, and the median of the rounds is printed with their range.
Absolute figures vary with the machine; compare ratios only. CPU times come from /proc in steps of 10 ms, so
rounds of less than 2 s are not precise.

A subject that hangs, exits or sends no response is skipped for that round, reported at the end, and makes the exit
code 1; the others continue. SIGINT and SIGTERM stop the run and print the results so far; the second one stops at once.
"""
import argparse
import fnmatch
import os
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from urllib.error import HTTPError
from urllib.request import urlopen

import report
import rpc
import subjects as make
import wire

TICKS = os.sysconf("SC_CLK_TCK")

# Work, numerator, denominator, figure, goal.
GOALS = [
    ("plain proxying / nginx with the same headers", "sluicegate", "nginx+fields", "cpu", 0.85),
    ("plain proxying / nginx", "sluicegate", "nginx", "cpu", 1.0),
    ("  only X-Forwarded-For added / nginx", "sluicegate-fields", "nginx", "cpu", None),
    ("plain proxying / haproxy with the same headers", "sluicegate", "haproxy+fields", "cpu", None),
    ("a browser's headers / nginx, same headers", "sluicegate~browser", "nginx+fields~browser", "cpu", None),
    ("chunked responses / nginx, same headers", "sluicegate~chunked", "nginx+fields~chunked", "cpu", None),
    ("256 connections / nginx, same headers", "sluicegate~256", "nginx+fields~256", "cpu", None),
    ("bucket in memory / limit_req, same headers", "sluicegate+memory", "nginx+limit+fields", "cpu", 0.9),
    ("bucket in memory / nginx limit_req", "sluicegate+memory", "nginx+limit", "cpu", None),
    ("bucket in memory / haproxy stick table", "sluicegate+memory", "haproxy+limit", "cpu", None),
    ("bucket on Redis / nginx", "sluicegate+redis", "nginx", "cpu", 1.2),
    ("bucket on Redis / nginx-lua on Redis", "sluicegate+redis", "nginx-lua+redis", "cpu", 0.4),
    ("  the same, Redis' own CPU", "sluicegate+redis", "nginx-lua+redis", "redis", 0.35),
    ("three limits / one limit, Redis", "sluicegate+redis-3", "sluicegate+redis", "cpu", 1.15),
    ("hot key / nginx-lua, one call each", "sluicegate+hot-key", "nginx-lua+hot-key", "cpu", None),
    ("  the same, Redis' own CPU", "sluicegate+hot-key", "nginx-lua+hot-key", "redis", None),
    ("hot key with a lease / without", "sluicegate+hot-key+lease", "sluicegate+hot-key", "cpu", None),
    ("fair, 1000 tenants / one bucket, memory", "sluicegate+fair", "sluicegate+shared", "cpu", None),
    ("fair, 1000 tenants / one bucket, Redis", "sluicegate+redis+fair", "sluicegate+redis+shared", "cpu", None),
    ("  the same, Redis' own CPU", "sluicegate+redis+fair", "sluicegate+redis+shared", "redis", None),
    ("a decision over gRPC / a proxied request", "sluicegate+rpc", "sluicegate+proxied", "cpu", None),
    ("  the same on Redis", "sluicegate+rpc+redis", "sluicegate+proxied+redis", "cpu", None),
    ("refusal (spent key, Redis) / nginx", "sluicegate+refusal", "nginx", "cpu", 0.4),
    ("10,000 routes / 10 routes", "sluicegate-10k-routes", "sluicegate-10-routes", "cpu", 1.05),
]
BEFORE = "@before"
FAR, NEAR = "sluicegate+redis-far", "sluicegate+redis"


def main():
    options = arguments()
    preflight(options)
    catch_signals()
    with tempfile.TemporaryDirectory(prefix="sluicegate-bench-") as directory:
        bench = make.Bench(directory, **({"upstream": options.upstream} if options.upstream else {}))
        chosen, site = choose(bench, options)
        results, failures = measure(bench, chosen, site, options)
        chosen = [subject for subject in chosen if subject.name in results]
    print(subprocess.run([options.binary, "--version"], capture_output=True, text=True, check=True).stdout.strip())
    print_subjects(chosen, results)
    print_goals(results)
    print_distance(results)
    for suffix in ("", BEFORE):
        wire.table(results, suffix)
        wire.idle_table(results, suffix)
    code = print_faults(chosen, results, failures)
    if options.page:
        if code != 0:
            sys.exit(f"{options.page} stays as it is: there were failures")
        report.write_page(options.page, render_page(options, chosen, results))
    return code


def render_page(options, chosen, results):
    subjects = [(subject.name, {figure: median(results, subject.name, figure) for figure in report.FIGURES})
                for subject in chosen if not subject.row]
    rows = [(label.strip(), statistics.median(found)) for label, over, under, figure, _ in GOALS
            if (found := ratios(results, over, under, figure))]
    return report.render(options, subjects, rows, results)


def catch_signals():
    """The first SIGINT or SIGTERM ends the measurement, the second one the process. Set explicitly: a shell without job
    control starts background commands with SIGINT ignored."""
    def stop_measuring(number, _frame):
        for either in (signal.SIGINT, signal.SIGTERM):
            signal.signal(either, signal.SIG_DFL)
        raise KeyboardInterrupt(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop_measuring)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help="default: all; a wrong name lists them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--secs", type=int, default=4, help="seconds of load per subject and round")
    parser.add_argument("--conns", type=int, default=64, help="client connections")
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--binary", default=f"{target}/release/sluicegate")
    parser.add_argument(
        "--extra", action="append", default=[], metavar="NAME=PORT=COMMAND",
        help="a subject of your own, which listens on PORT and forwards to the upstream at --upstream",
    )
    parser.add_argument("--upstream", type=int, help="the port of the upstream; default: a free one")
    parser.add_argument("--page", metavar="FILE", help="put the figures into this page of the manual")
    parser.add_argument("--before", metavar="BINARY", help="an earlier build to measure in the same rounds")
    return parser.parse_args()


def preflight(options):
    """Exits and names the remedy if a program, a binary or a core is missing."""
    missing = make.missing_programs() | wire.missing_programs()
    if missing:
        packages = " ".join(missing.values())
        sys.exit(f"missing: {', '.join(missing)}\nDebian: apt-get install -y --no-install-recommends {packages}")
    for binary in filter(None, [options.binary, options.before]):
        if not os.access(binary, os.X_OK):
            sys.exit(f"{binary} is not there; build it: cargo build --release")
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("two cores are needed: one for the proxy under test, one for the load, the upstream and Redis")


def choose(bench, options):
    lua, lack = make.nginx_lua(bench)
    if lack:
        print(f"skipping nginx-lua+redis: install {lack}")
    binary, patterns = os.path.abspath(options.binary), options.subjects or ["*"]
    every = make.nginx(bench) + lua + make.haproxy(bench) + make.sluicegate(bench, binary) + rpc.subjects(bench, binary)
    # The site takes files of 100 MB and a download, so it is made only if a row needs it.
    rows = [f"{proxy}/{row}" for proxy in wire.PROXIES for row in wire.ROWS]
    site = wire.Site(bench) if any(fnmatch.filter(rows, pattern) for pattern in patterns) else None
    names = [subject.name for subject in every] + rows
    unknown = [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]
    if unknown:
        sys.exit(f"no such subject: {', '.join(unknown)}\nThere are: {', '.join(names)}")
    every += wire.subjects(bench, site, binary) if site else []
    chosen = [subject for subject in every if any(fnmatch.fnmatch(subject.name, pattern) for pattern in patterns)]
    chosen += [extra(text) for text in options.extra]
    if options.before:
        earlier = make.sluicegate(bench, os.path.abspath(options.before), BEFORE)
        earlier += rpc.subjects(bench, os.path.abspath(options.before), BEFORE)
        earlier += wire.subjects(bench, site, os.path.abspath(options.before), BEFORE) if site else []
        names = [subject.name for subject in chosen]
        chosen += [subject for subject in earlier if subject.name.removesuffix(BEFORE) in names]
    return chosen, site


def extra(text):
    """A subject named on the command line."""
    name, port, command = text.split("=", 2)
    return make.Subject(name, shlex.split(command), int(port))


def measure(bench, chosen, site, options):
    """Runs all rounds. Returns a dict of subject name -> one dict of figures per round, and a line for each failed run."""
    front, back = sorted(os.sched_getaffinity(0))[:2]
    redis_command = ["redis-server", "--port", str(bench.redis), "--bind", "127.0.0.1"]
    redis_command += ["--save", "", "--appendonly", "no"]
    results, failures, helpers = {subject.name: [] for subject in chosen}, [], []
    try:
        helpers.append(spawn(back, make.upstream(bench), bench))
        redis = spawn(back, redis_command, bench)
        helpers.append(redis)
        delay_line = os.path.join(os.path.dirname(os.path.abspath(__file__)), "delay_line.py")
        for port, delay in ((bench.far_redis, [make.FAR_MS]), (bench.away_redis, [make.AWAY_MS, 0])):
            line_command = [sys.executable, delay_line, str(port), str(bench.redis), *map(str, delay)]
            helpers.append(spawn(back, line_command, bench))
        for helper, port in zip(helpers, (bench.upstream, bench.redis, bench.far_redis, bench.away_redis)):
            await_port(helper, port, bench)
        for command, port in site.helpers() if site else []:
            helpers.append(spawn(back, command, bench))
            await_port(helpers[-1], port, bench)
        for number in range(options.rounds):
            for at, subject in enumerate(chosen if number % 2 == 0 else reversed(chosen), 1):
                # The memory of a connection does not change from round to round.
                if number > 0 and wire.is_idle(subject):
                    continue
                step = f"round {number + 1} of {options.rounds}, {at} of {len(chosen)}: {subject.name}"
                print(step, file=sys.stderr, flush=True)
                try:
                    figures = run(bench, subject, redis, front, back, options)
                    results[subject.name].append(figures | {"round": number})
                except (make.Failed, OSError) as error:
                    failures.append(f"{subject.name}, round {number + 1}: {error}")
                    print(f"skipped: {failures[-1]}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("stopped; the results so far:", file=sys.stderr)
    finally:
        for helper in helpers:
            stop(helper)
    return {name: rounds for name, rounds in results.items() if rounds}, failures


def run(bench, subject, redis, front, back, options):
    """Measures one subject under load for one round. Returns its figures."""
    send_command(bench.redis, "FLUSHALL")
    proxy = spawn(front, subject.command, bench)
    try:
        await_port(proxy, subject.port, bench)
        if wire.is_idle(subject):
            nothing = {"undecided": 0, "cpu": 0, "redis": 0, "calls": 0, "trips": 0}
            return wire.idle(subject, proxy.pid, back) | nothing | {"rss": peak_rss_mb(proxy.pid)}
        if not subject.row and not subject.command_of_load:
            await_response(subject.port)
        conns = subject.conns or options.conns
        # The first load opens the connections, warms the caches and spends the keys of a subject that refuses.
        load(bench, subject, back, conns, 1)
        before = cpu(proxy.pid), cpu(redis.pid), calls(bench.redis)
        failed = undecided(subject.admin)
        figures = load(bench, subject, back, conns, options.secs)
        if figures["requests"] == 0:
            raise make.Failed("there was no response")
        figures["undecided"] = undecided(subject.admin) - failed
        after = cpu(proxy.pid), cpu(redis.pid), calls(bench.redis)
        per_request = [(late - early) / max(figures["requests"], 1) for early, late in zip(before, after)]
        figures |= {"cpu": per_request[0] * 1e6, "redis": per_request[1] * 1e6, "calls": per_request[2]}
        figures["rss"] = peak_rss_mb(proxy.pid)
        figures["trips"] = figures["p50"] / round_trip_ms(bench.far_redis) if subject.name.startswith(FAR) else 0
        return figures
    finally:
        stop(proxy)


def load(bench, subject, core, conns, secs):
    """Runs the load of a subject for `secs` seconds. Returns what the load program measured."""
    if subject.row:
        return wire.load(bench, subject, core, conns, secs)
    if subject.command_of_load:
        return rpc.load(bench, subject, core, secs)
    command = ["taskset", "-c", str(core), "wrk", "-t1", f"-c{conns}", f"-d{secs}s", "--latency"]
    command += ["-s", make.load_script(bench, subject), f"http://127.0.0.1:{subject.port}/"]
    text = make.output(command, secs + make.GRACE_S)

    def find(pattern, default="0"):
        match = re.search(pattern, text)
        return match[1] if match else default

    requests = int(find(r"(\d+) requests in"))
    if requests == 0:
        raise make.Failed(f"there was no response; wrk's output:\n{text}\n{logs(bench)}")
    return {
        "requests": requests,
        "rate": float(find(r"Requests/sec:\s+([\d.]+)")),
        "p50": milliseconds(find(r"(?m)^ +50%\s+(\S+)")),
        "p99": milliseconds(find(r"(?m)^ +99%\s+(\S+)")),
        "non_2xx": int(find(r"Non-2xx or 3xx responses: (\d+)")),
        "socket_errors": find(r"Socket errors: (.*)", ""),
    }


def milliseconds(text):
    match = re.match(r"([\d.]+)(us|ms|s|m)$", text)
    return float(match[1]) * {"us": 0.001, "ms": 1, "s": 1000, "m": 60000}[match[2]] if match else 0.0


def spawn(core, command, bench):
    with open(os.path.join(bench.dir, os.path.basename(command[0]) + ".log"), "ab") as log:
        pinned = ["taskset", "-c", str(core)] + command
        return subprocess.Popen(pinned, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def stop(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(8)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def await_port(process, port, bench, secs=20):
    """Returns when `port` accepts connections. Raises Failed if `process` exits or `secs` seconds pass before."""
    end = time.monotonic() + secs
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise make.Failed(f"`{' '.join(process.args)}` did not come up on port {port}\n{logs(bench)}")


def await_response(port, secs=10):
    """Returns at the first response, whatever its status. Raises Failed after `secs` seconds."""
    end = time.monotonic() + secs
    while True:
        try:
            return urlopen(f"http://127.0.0.1:{port}/", timeout=1).read()
        except HTTPError:
            return None
        except OSError as error:
            if time.monotonic() > end:
                raise make.Failed(f"port {port} sends no response: {error}") from error
            time.sleep(0.05)


def logs(bench):
    """The last lines of all log files, for error messages."""
    texts = []
    for name in sorted(os.listdir(bench.dir)):
        if name.endswith((".log", ".err")):
            with open(os.path.join(bench.dir, name), encoding="utf-8", errors="replace") as file:
                texts.append(f"--- {name}\n{file.read()[-2000:]}")
    return "\n".join(texts)


def cpu(pid):
    """Seconds of CPU time that the process and all its threads have used."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_rss_mb(pid):
    """The peak resident memory of the process in MiB."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))


def calls(port):
    """The number of script calls that Redis has executed."""
    return sum(int(count) for count in re.findall(r"cmdstat_evalsha:calls=(\d+)", send_command(port, "INFO commandstats")))


def undecided(admin):
    """The number of decisions that failed at the store, from the metrics of the proxy; 0 without an admin listener."""
    if admin is None:
        return 0
    text = urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=5).read().decode()
    return sum(float(value) for value in re.findall(r"^sluicegate_store_errors_total\S* (\S+)", text, re.MULTILINE))


def round_trip_ms(port, count=20):
    """The median round-trip time of `count` PING commands on one connection, in milliseconds."""
    times = []
    with socket.create_connection(("127.0.0.1", port), 5) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            start = time.monotonic()
            link.sendall(b"PING\r\n")
            link.recv(64)
            times.append((time.monotonic() - start) * 1000)
    return statistics.median(times)


def send_command(port, command):
    """Sends one command to Redis on a connection of its own. Returns the reply as text."""
    with socket.create_connection(("127.0.0.1", port), 5) as link:
        link.sendall(f"{command}\r\nQUIT\r\n".encode())
        reply = b""
        while chunk := link.recv(65536):
            reply += chunk
    return reply.decode()


def median(results, name, figure):
    return statistics.median(round_[figure] for round_ in results[name])


def ratios(results, over, under, figure):
    """The ratio of `over` to `under` in each round in which both were measured."""
    pairs = make.pair_rounds(results.get(over, []), results.get(under, []))
    return [top[figure] / bottom[figure] for top, bottom in pairs if bottom[figure] > 0]


def print_subjects(chosen, results):
    heads = {"req/s": 8, "p50 ms": 8, "p99 ms": 8, "CPU us": 8, "Redis us": 10, "calls": 7, "RSS MB": 8, "non-2xx": 9}
    print(" " * 29 + "".join(f"{head:>{width}}" for head, width in heads.items()))
    for name in (subject.name for subject in chosen):
        value = lambda figure: median(results, name, figure)  # noqa: E731
        print(
            f"{name:29}{value('rate'):8.0f}{value('p50'):8.2f}{value('p99'):8.2f}{value('cpu'):8.2f}"
            f"{value('redis'):10.2f}{value('calls'):7.3f}{value('rss'):8.1f}{value('non_2xx'):9.0f}"
        )
    print("Medians. CPU us, Redis us and calls (script calls of Redis) are per request.\n")


def print_goals(results):
    known = {name for _, over, under, *_ in GOALS for name in (over, under)}
    rows = GOALS + [
        (f"{name} / before", name, name + BEFORE, "cpu", None) for name in results if name + BEFORE in results
    ]
    rows += [(f"{name} / nginx", name, "nginx", "cpu", None) for name in results if name.removesuffix(BEFORE) not in known and "/" not in name]
    print(f"{'CPU per request, ratio':46}{'measured':>9}{'range':>14}{'goal':>8}")
    for label, over, under, figure, goal in rows:
        measured = ratios(results, over, under, figure)
        if not measured:
            continue
        middle = statistics.median(measured)
        goal_text = "" if goal is None else f"<= {goal:g}"
        verdict = "" if goal is None else "  met" if middle <= goal else "  missed"
        print(f"{label:46}{middle:9.2f}{f'{min(measured):.2f}..{max(measured):.2f}':>14}{goal_text:>8}{verdict}")


def print_distance(results):
    """Prints the script calls per decision with a near Redis, and the latency in round trips with a far one."""
    rows = []
    for suffix in ("", BEFORE):
        near, far = NEAR + suffix, FAR + suffix
        if results.get(near):
            rows.append((f"{near}: calls per decision", median(results, near, "calls"), None))
        if results.get(far):
            share = statistics.median(round_["undecided"] / round_["requests"] for round_ in results[far])
            rows.append((f"{far}: p50 in round trips", median(results, far, "trips"), 1.3))
            rows.append((f"{far}: share without a decision", share, 0.0))
    if rows:
        print(f"\n{f'Redis near, and {2 * make.FAR_MS} ms away at the default deadline':56}{'measured':>9}{'goal':>8}")
    for label, value, goal in rows:
        verdict = "" if goal is None else f"{f'<= {goal:g}':>8}" + ("  met" if value <= goal else "  missed")
        print(f"{label:56}{value:9.3f}{verdict}")


def print_faults(chosen, results, failures):
    """Lists the runs that failed and those with unexpected responses; returns the exit code, 1 if there is one."""
    if failures:
        print("\nFailed, and left out above:\n" + "\n".join(failures))
    faults = []
    for subject in chosen:
        for figures in results[subject.name]:
            expected = figures["requests"] if subject.refuses else 0
            if figures["non_2xx"] != expected:
                faults.append(f"{subject.name}: {figures['non_2xx']} of {figures['requests']} not 2xx, expected {expected}")
            if figures["socket_errors"]:
                faults.append(f"{subject.name}: socket errors: {figures['socket_errors']}")
    if faults:
        print("\nNot comparable:\n" + "\n".join(faults))
    return 1 if faults or failures else 0


if __name__ == "__main__":
    sys.exit(main())
