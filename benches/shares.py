#!/usr/bin/env python3
"""Requests per second that each server of an upstream gets, beside nginx and Envoy. `make shares` runs it.

    benches/shares.py                          everything, about two minutes
    benches/shares.py --markdown               the shares as a table for the documentation
    benches/shares.py --weights 9:1 99:1       other weights
    benches/shares.py --binary OLD --only sluicegate

Every server responds after 2 ms. Each client sends its next request when it has the response to its last one, on a
keep-alive connection. Sluicegate, nginx and Envoy run with two workers each. The servers and the clients share this
process, so a proxy could reach higher rates; only the shares are meaningful.

Envoy is the program named by the environment variable ENVOY; otherwise it comes from PyPI, as for compare.py.
"""
import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time

import subjects as make
import wire

SERVICE_S = 0.002
REQUEST = b"GET %s HTTP/1.1\r\nHost: bench.test\r\n\r\n"
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
# Proxy -> its balancers, named as in its configuration.
BALANCERS = {
    "sluicegate": ["p2c", "least_requests", "round_robin"],
    "nginx": ["least_conn", "round_robin"],
    "envoy": ["LEAST_REQUEST", "ROUND_ROBIN"],
}


class Server(asyncio.Protocol):
    """One connection to a server. `served` is a list of one number: the requests to that server."""
    def __init__(self, served):
        self.served, self.data = served, b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.data += data
        while b"\r\n\r\n" in self.data:
            _, self.data = self.data.split(b"\r\n\r\n", 1)
            self.served[0] += 1
            asyncio.get_running_loop().call_later(SERVICE_S, self.respond)

    def respond(self):
        if not self.transport.is_closing():
            self.transport.write(RESPONSE)


def path(balancer, weights):
    return f"/{balancer}/{'-'.join(map(str, weights))}"


def sluicegate(bench, binary, ports, cases):
    port, text = make.free_port(), ""
    for balancer, weights in cases:
        name = f"{balancer}-{'-'.join(map(str, weights))}"
        servers = ", ".join(
            f'{{ url = "http://127.0.0.1:{at}", weight = {weight} }}' for at, weight in zip(ports, weights)
        )
        text += f'[[route]]\npath = "{path(balancer, weights)}"\nupstream = "{name}"\n\n'
        text += f'[upstream.{name}]\nservers = [{servers}]\nbalance = "{balancer}"\n\n'
    head = f'[server]\nlisten = ["127.0.0.1:{port}"]\nworkers = 2\naccess_log = {{ enabled = false }}\n\n'
    head += f'[admin]\nlisten = "127.0.0.1:{make.free_port()}"\n\n'
    return [binary, "run", "-c", bench.write("shares.toml", head + text)], port


def nginx(bench, _, ports, cases):
    port, upstreams, locations = make.free_port(), "", ""
    for i, (balancer, weights) in enumerate(cases):
        servers = " ".join(f"server 127.0.0.1:{at} weight={weight};" for at, weight in zip(ports, weights))
        method = "least_conn;" if balancer == "least_conn" else ""
        upstreams += f"upstream u{i} {{ zone u{i} 64k; {method} {servers} keepalive 64; }}\n"
        locations += f"location = {path(balancer, weights)} {{ proxy_pass http://u{i}; }}\n"
    text = f"""worker_processes 2; daemon off; pid {bench.dir}/shares.pid; error_log {bench.dir}/shares.err;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000; proxy_http_version 1.1; proxy_set_header Connection "";
  {upstreams}
  server {{ listen 127.0.0.1:{port}; {locations} }}
}}
"""
    return ["nginx", "-c", bench.write("shares.conf", text)], port


def envoy(bench, program, ports, cases):
    port, types = make.free_port(), "type.googleapis.com/envoy.extensions"
    routes, clusters = [], []
    for balancer, weights in cases:
        ends = [
            {"endpoint": {"address": wire.address(at)}, "load_balancing_weight": weight}
            for at, weight in zip(ports, weights)
        ]
        name = path(balancer, weights)
        routes.append({"match": {"path": name}, "route": {"cluster": name, "timeout": "0s"}})
        clusters.append({
            "name": name, "connect_timeout": "5s", "type": "STATIC", "lb_policy": balancer,
            "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": ends}]},
        })
    manager = {"name": "envoy.filters.network.http_connection_manager", "typed_config": {
        "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "shares", "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {
            "@type": f"{types}.filters.http.router.v3.Router"}}],
    }}
    listener = {"name": "shares", "address": wire.address(port), "filter_chains": [{"filters": [manager]}]}
    config = {"static_resources": {"listeners": [listener], "clusters": clusters}}
    command = [program, "-c", bench.write("shares.json", json.dumps(config))]
    return [*command, "--concurrency", "2", "--disable-hot-restart", "-l", "error"], port


async def request(reader, writer, target):
    writer.write(REQUEST % target.encode())
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        sys.exit(f"{target}: {head!r}")
    if b"chunked" in head.lower():
        sys.exit(f"{target}: a chunked response was not expected")
    await reader.readexactly(2)


async def client(port, target, end):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < end:
        await request(reader, writer, target)
    writer.close()


async def measure(port, target, clients, secs, served):
    """Runs `clients` clients for `secs` seconds. Returns the requests per second to each server."""
    for count in served:
        count[0] = 0
    start = time.monotonic()
    await asyncio.gather(*(client(port, target, start + secs) for _ in range(clients)))
    secs = time.monotonic() - start
    return [count[0] / secs for count in served]


async def await_port(process, port):
    for _ in range(1000):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        except OSError:
            if process.poll() is not None:
                sys.exit(f"`{' '.join(process.args)}` ended with code {process.returncode}")
            await asyncio.sleep(0.01)
    sys.exit(f"`{' '.join(process.args)}` does not listen on port {port}")


async def run(options, bench):
    """Measures all cases. Returns a dict of (proxy, balancer, weights, clients) -> requests per second to each server."""
    served = [[0] for _ in range(max(len(weights) for weights in options.weights))]
    loop, ports = asyncio.get_running_loop(), []
    for count in served:
        server = await loop.create_server(lambda count=count: Server(count), "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
    programs = {"sluicegate": lambda: os.path.abspath(options.binary), "nginx": lambda: "nginx"}
    programs["envoy"] = lambda: os.environ.get("ENVOY") or wire.envoy_program()
    results = {}
    for proxy in options.only:
        program = programs[proxy]()
        if program is None:
            continue
        cases = [(balancer, weights) for balancer in BALANCERS[proxy] for weights in options.weights]
        command, port = {"sluicegate": sluicegate, "nginx": nginx, "envoy": envoy}[proxy](bench, program, ports, cases)
        with open(os.path.join(bench.dir, f"{proxy}.log"), "wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            await await_port(process, port)
            for balancer, weights in cases:
                print(f"{proxy} {balancer} {':'.join(map(str, weights))}", file=sys.stderr)
                for clients in options.clients:
                    rates = await measure(port, path(balancer, weights), clients, options.secs, served)
                    results[proxy, balancer, tuple(weights), clients] = rates[:len(weights)]
        finally:
            process.terminate()
            process.wait(10)
    return results


def shares(rates):
    total = sum(rates) or 1
    return ":".join(f"{100 * rate / total:.0f}" for rate in rates)


def print_rates(results):
    print(f"{'weights':>8} {'clients':>7}  {'proxy':10} {'balancer':14} {'requests/s of each server':>28}  shares, %")
    order = lambda key: (key[2], key[3], list(BALANCERS).index(key[0]))  # noqa: E731
    for proxy, balancer, weights, clients in sorted(results, key=order):
        rates = results[proxy, balancer, weights, clients]
        each = " ".join(f"{rate:8.1f}" for rate in rates)
        print(f"{':'.join(map(str, weights)):>8} {clients:7}  {proxy:10} {balancer:14} {each:>28}  {shares(rates)}")


def print_markdown(results):
    columns = sorted({key[:2] for key in results}, key=lambda key: (list(BALANCERS).index(key[0]), BALANCERS[key[0]].index(key[1])))
    print("| weights | clients | " + " | ".join(f"{proxy} `{balancer}`" for proxy, balancer in columns) + " |")
    print("|---|---|" + "---|" * len(columns))
    for weights, clients in dict.fromkeys(key[2:] for key in results):
        cells = [shares(results[proxy, balancer, weights, clients]) for proxy, balancer in columns]
        print(f"| {':'.join(map(str, weights))} | {clients} | " + " | ".join(cells) + " |")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    weights = lambda text: [int(weight) for weight in text.split(":")]  # noqa: E731
    default = [[1, 1], [2, 1], [9, 1], [95, 5], [5, 3, 2]]
    parser.add_argument("--binary", default=f"{target}/release/sluicegate")
    parser.add_argument("--only", nargs="+", choices=list(BALANCERS), default=list(BALANCERS), help="some of the proxies")
    parser.add_argument("--weights", nargs="+", type=weights, default=default, help="such as 9:1 5:3:2")
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 2, 4, 10, 20], help="clients at once")
    parser.add_argument("--secs", type=float, default=0.6, help="seconds of load for each line of the table")
    parser.add_argument("--markdown", action="store_true", help="print the shares as a table in Markdown, too")
    return parser.parse_args()


def main():
    options = arguments()
    if "sluicegate" in options.only and not os.access(options.binary, os.X_OK):
        sys.exit(f"{options.binary} is not there; build it: cargo build --release")
    with tempfile.TemporaryDirectory() as dir_:
        results = asyncio.run(run(options, make.Bench(dir_)))
    print_rates(results)
    if options.markdown:
        print()
        print_markdown(results)


if __name__ == "__main__":
    main()
