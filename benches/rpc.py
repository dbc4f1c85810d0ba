"""Decisions over gRPC (Envoy's rate limit service) beside proxied requests with the same limit, both over HTTP/2
without TLS. Used by compare.py."""
import os
import re
import statistics

import subjects as make

# Connections of h2load, and concurrent requests on each.
CLIENTS, STREAMS = 16, 4
SERVICE = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
LIMIT = '[limit.everyone]\nrate = "1000000/s"\nburst = 1000000\nkey = "all"\n'


def field(number, value):
    """Encodes a length-delimited field of a protobuf message."""
    return bytes([number << 3 | 2, len(value)]) + value


def message():
    """Encodes a RateLimitRequest with one descriptor of two entries, with the prefix of a gRPC message."""
    entries = (field(1, b"path") + field(2, b"/login")), (field(1, b"remote_address") + field(2, b"192.0.2.1"))
    request = field(1, b"edge") + field(2, b"".join(field(1, entry) for entry in entries))
    return b"\0" + len(request).to_bytes(4, "big") + request


def subjects(bench, binary, suffix=""):
    """The decision over gRPC and the proxied request, each with the limit in memory and in Redis."""
    body = os.path.join(bench.dir, "rpc.body")
    with open(body, "wb") as file:
        file.write(message())
    stores = {"": "", "+redis": f'[store]\nurl = "redis://127.0.0.1:{bench.redis}"\ndeadline = "500ms"\n\n'}
    result = []
    for store, text in stores.items():
        ports, admin = {name: make.free_port() for name in ("rpc", "proxied")}, make.free_port()
        path = bench.write(
            f"rpc{store}{suffix}.toml",
            f'[server]\nlisten = ["127.0.0.1:{ports["proxied"]}"]\ntrusted_proxies = ["127.0.0.1"]\n\n{text}'
            f'[admin]\nlisten = "127.0.0.1:{admin}"\n\n'
            f'[[listener]]\naddress = "127.0.0.1:{ports["rpc"]}"\nserve = "grpc"\n\n'
            '[[rls]]\ndomain = "edge"\ndescriptor = { path = "/login", remote_address = "*" }\nlimits = ["everyone"]\n\n'
            f'[[route]]\npath = "/"\nupstream = "http://127.0.0.1:{bench.upstream}"\nlimits = ["everyone"]\n\n{LIMIT}',
        )
        for name, port in ports.items():
            more = ["-d", body, "-H", "content-type: application/grpc", "-H", "te: trailers"] if name == "rpc" else []
            url = f"http://127.0.0.1:{port}{SERVICE if name == 'rpc' else '/'}"
            command = ["h2load", "-c", str(CLIENTS), "-m", str(STREAMS), *more, url]
            result.append(make.Subject(f"sluicegate+{name}{store}{suffix}", [binary, "run", "-c", path], port, admin=admin, command_of_load=command))
    return result


def load(bench, subject, core, secs):
    """Runs the load of a subject. The percentiles include all its requests."""
    log = os.path.join(bench.dir, "rpc.log")
    if os.path.exists(log):
        os.remove(log)
    program, *rest = subject.command_of_load
    text = make.output(["taskset", "-c", str(core), program, "-D", str(secs), f"--log-file={log}", *rest], secs + make.GRACE_S)
    with open(log, encoding="ascii") as file:
        times = sorted(int(line.split()[2]) / 1000 for line in file)
    total, bad = (int(re.search(pattern, text)[1]) for pattern in (r"(\d+) succeeded", r"(\d+) failed"))
    percentiles = statistics.quantiles(times, n=100)
    return {
        "requests": total, "rate": total / secs, "p50": percentiles[49], "p99": percentiles[98],
        "non_2xx": sum(int(count) for count in re.findall(r"(\d+) [345]xx", text)),
        "socket_errors": f"{bad} failed" if bad else "",
    }
