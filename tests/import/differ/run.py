"""Compares nginx with the imported config: random servers, the same requests to both, and every field of the responses and of what the server
behind them receives.

    run.py SLUICEGATE PAIRS [SEED]

A pair is one nginx server and its import. A pair without comments must behave the same. A pair with comments may differ, but it never serves a
request that nginx refuses. Prints each difference with the config; the exit code is 1 if there is one."""
import collections, gzip, os, pathlib, random, re, shutil, socket, socketserver, ssl, subprocess, sys, tempfile, threading, time, urllib.parse
from grammar import MAPS, PROFILES, UNSEEN, Grammar

BATCH = 50
REQUESTS = 10
# Headers that belong to the connection, to the program, or to the moment.
OWN_RESPONSE = {"date", "server", "connection", "keep-alive", "transfer-encoding", "content-length", "retry-after"}
LIMITED = (503, 429, 420)
OWN_REQUEST = {"connection", "keep-alive", "x-marker"}


def free_port():
    """Returns a port below those that the system gives to connections, which could take it before a program binds it."""
    while True:
        port = random.SystemRandom().randrange(10000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def read_message(sock, is_response, method="GET"):
    """Reads a message: its first line, its headers in order, and its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            raise ConnectionError(f"closed after {data[:200]!r}")
        data += piece
    head, body = data.split(b"\r\n\r\n", 1)
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = [(line.split(":", 1)[0].lower(), line.split(":", 1)[1].strip()) for line in lines]
    named = dict(headers)
    status = int(first.split()[1]) if is_response else 0
    if is_response and (method == "HEAD" or status in (204, 304) or status < 200):
        return first, headers, b""
    if "content-length" in named:
        while len(body) < int(named["content-length"]):
            piece = sock.recv(65536)
            if not piece:
                break
            body += piece
    elif "chunked" in named.get("transfer-encoding", ""):
        while not (body == b"0\r\n\r\n" or body.endswith(b"\r\n0\r\n\r\n")):
            piece = sock.recv(65536)
            if not piece:
                break
            body += piece
        whole, rest = b"", body
        while rest:
            size, rest = rest.split(b"\r\n", 1)
            length = int(size, 16)
            whole, rest = whole + rest[:length], rest[length + 2:]
            if length == 0:
                break
        body = whole
    elif is_response:
        while piece := sock.recv(65536):
            body += piece
    return first, headers, body


class Echo(socketserver.ThreadingTCPServer):
    """The server behind both proxies. Its responses have the request that it received."""
    allow_reuse_address = daemon_threads = True
    request_queue_size = 256


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        try:
            while True:
                first, headers, body = read_message(self.request, False)
                method, target, _ = first.split(" ", 2)
                query = dict(part.split("=", 1) for part in target.partition("?")[2].split("&") if "=" in part)
                status = int(query.get("s", "200"))
                shown = sorted(f"{name}: {value}" for name, value in headers if name not in OWN_REQUEST and not name.startswith("content-length") and name != "transfer-encoding")
                text = "\n".join([f"{method} {target}", *shown, f"body {len(body)}"]).encode()
                host = dict(headers).get("host", "")
                lines = [f"HTTP/1.1 {status} X", "X-Marker: app", "Content-Type: text/plain"]
                if query.get("h") == "1":
                    lines += ["Cache-Control: no-store", "Vary: Cookie", "Set-Cookie: a=1", "Set-Cookie: b=2", "Server: app", "X-Accel-Expires: 5", "X-App: 1", "ETag: \"x\"",
                              "Content-Security-Policy: default-src 'self'", "Strict-Transport-Security: max-age=1"]
                if "l" in query:
                    lines.append(f"Location: http://{host}{query['l']}")
                elif 300 < status < 304 or query.get("h") == "2":
                    lines += [f"Location: http://{host}/after{'?x' if query.get('h') == '2' else ''}"]
                bodiless = method == "HEAD" or status in (204, 304)
                if status not in (204, 304):
                    lines.append(f"Content-Length: {len(text)}")
                self.request.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if bodiless else text))
                if "close" in dict(headers).get("connection", "") or first.endswith("1.0"):
                    return
        except (ConnectionError, ValueError, OSError):
            return


TLS = ssl.create_default_context()
TLS.check_hostname, TLS.verify_mode = False, ssl.CERT_NONE


def fetch(port, request, profile):
    """Sends a request. Returns status, headers and body; a status of 0 means that the connection was closed."""
    address, method, host, target, headers, body = request
    try:
        with socket.create_connection(("127.0.0.1", port), 10, (f"127.0.0.{address}", 0)) as plain, \
                (TLS.wrap_socket(plain, server_hostname=host) if profile == "tls" else plain) as sock:
            lines = [f"{method} {target} HTTP/1.1", f"Host: {host}:{port}"] + [f"{name}: {value}" for name, value in headers.items()]
            if "connection" not in headers:
                lines.append("Connection: close")
            if method in ("POST", "PUT"):
                lines.append(f"Content-Length: {len(body)}")
            sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            first, found, text = read_message(sock, True, method)
            return int(first.split()[1]), found, text
    except (ConnectionError, socket.timeout, OSError) as error:
        return 0, [], str(error).encode()


def simplify(response, request, port):
    """Reduces a response to what must be equal."""
    status, headers, body = response
    own = dict(headers).get("x-marker") is None
    # The lines of `Vary` are one list.
    vary = {value.strip().lower() for name, value in headers if name == "vary" for value in value.split(",")}
    vary = {"*"} if "*" in vary else vary
    headers = [(name, value) for name, value in headers if name != "vary"] + [("vary", value) for value in sorted(vary)]
    if dict(headers).get("content-encoding") == "gzip":
        body = gzip.decompress(body) if body else body
    # nginx compresses responses of three statuses only, and its own pages, too.
    if status not in (200, 403, 404) or dict(headers).get("x-marker") is None:
        headers = [(name, value) for name, value in headers if (name, value) not in (("content-encoding", "gzip"), ("vary", "accept-encoding"))]
        headers = [(name, value.removeprefix("W/") if name == "etag" else value) for name, value in headers]
    host = request[2]
    lines = []
    for name, value in headers:
        if name in OWN_RESPONSE or name == "x-marker":
            continue
        # Error pages of the gateway depend on `Accept` and are not stored.
        if own and (name, value) in (("cache-control", "no-store"), ("vary", "accept")):
            continue
        if name == "www-authenticate":
            value = value.replace(', charset="UTF-8"', "")
        if name == "location":
            # A relative location leads to the same place.
            value = urllib.parse.unquote(re.sub(rf"(?i)^https?://{re.escape(host)}(:{port})?/", "/", value))
        # Each program has error pages of its own.
        if name == "content-type" and own and (status >= 400 or 300 < status < 309) and not is_text(body, headers):
            continue
        lines.append(f"{name}: {value}")
    text = body.decode("latin-1").replace(str(port), "PORT")
    # The path has another spelling, ids are random, and lists of addresses of clients that are not trusted are removed.
    text = re.sub(r"\A[A-Z]+ \S+", lambda line: urllib.parse.unquote(line[0]), text)
    text = re.sub(r"(?m)^x-request-id: [0-9a-f]{32}$", "x-request-id: ID", text)
    # So are other headers of such clients.
    for name in UNSEEN.keys() & request[4].keys():
        text = re.sub(rf"(?m)^{name}: .*\n", "", text)
    # The host is canonical.
    text = re.sub(r"(?m)^(host|x-forwarded-host): .*$", lambda line: line[0].lower().replace("port", "PORT"), text)
    if own and status >= 300 and not is_text(body, headers):
        text = "own page"
    return status, sorted(line.replace(f":{port}", ":PORT") for line in lines), text


def is_text(body, headers):
    """Returns whether a body comes from the config rather than from the program."""
    return body in (b"busy", b"fixed", b"page")


class Programs:
    """nginx and the gateway with one config."""

    def __init__(self, sluicegate, directory, http, text, port, gateway_port):
        self.directory = directory
        temp = " ".join(f"{kind}_temp_path {directory}/t_{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (directory / "nginx.conf").write_text(f"daemon off; master_process off; pid {directory}/pid; error_log {directory}/error.log;\nevents {{ worker_connections 1024; }}\n"
                                              f"http {{ access_log off; {temp}\n{http}\n{text.replace('@PORT@', str(port))}\n}}\n")
        (directory / "in.conf").write_text(f"{http}\n{text.replace('@PORT@', str(gateway_port))}\n")
        done = subprocess.run([sluicegate, "import", "nginx", directory / "in.conf"], capture_output=True, text=True)
        self.code, self.config = done.returncode, done.stdout
        if done.returncode not in (0, 3):
            raise SystemExit(f"import ends with {done.returncode}: {done.stderr[:3000]}\n{directory}")
        own = done.stdout if "\n[server]\n" in done.stdout else f"\n[server]\n{done.stdout}"
        (directory / "gateway.toml").write_text(own.replace("\n[server]\n", "\n[server]\nworkers = 1\n", 1) + f'\n[admin]\nlisten = "127.0.0.1:{free_port()}"\n')
        self.running = [subprocess.Popen(["nginx", "-c", directory / "nginx.conf", "-e", directory / "error.log"], stderr=open(directory / "nginx.log", "w")),
                        subprocess.Popen([sluicegate, "run", "-c", directory / "gateway.toml"], stdout=subprocess.DEVNULL, stderr=open(directory / "gateway.log", "w"))]
        for one in (port, gateway_port):
            deadline = time.time() + 30
            while True:
                try:
                    socket.create_connection(("127.0.0.1", one), 1).close()
                    break
                except OSError:
                    if time.time() > deadline:
                        self.stop()
                        raise SystemExit(f"a program does not start: {(directory / 'nginx.log').read_text()[-500:]} {(directory / 'error.log').read_text()[-500:]} "
                                         f"{(directory / 'gateway.log').read_text()[-1500:]} {directory}")
                    time.sleep(0.05)

    def stop(self):
        for program in self.running:
            program.terminate()
        for program in self.running:
            program.wait()


def find_remarks(config):
    return "\n".join(re.findall(r"^#   \d+\. .*", config, re.M))


def is_open(response):
    """Returns whether the server behind the proxy answered."""
    status, headers, body = response
    # An error page in place of its response keeps its headers.
    is_page = status >= 400 and body and b"\nbody " not in body
    return dict(headers).get("x-marker") == "app" and not is_page


def compare(theirs, ours, request, ports, remarks):
    """Returns what differs, or None."""
    is_exact = not remarks
    # nginx refuses it before it chooses a location, with the headers of the server.
    if request[1] == "TRACE":
        return None if theirs[0] == ours[0] else (theirs[0], ours[0], "the status of TRACE")
    if is_exact:
        # Of several reasons to refuse a request, each program may find another one first.
        refuses = ours[0] in (401, 403, *LIMITED) and theirs[0] in LIMITED or theirs[0] == 413
        if refuses and not is_open(theirs) and not is_open(ours):
            return None
        a, b = simplify(theirs, request, ports[0]), simplify(ours, request, ports[1])
        return None if a == b else (a, b)
    # A comment may say that budgets differ.
    if theirs[0] in LIMITED and any(word in remarks for word in ("own budget", "copies", "not counted", "the first", "closed")):
        return None
    if is_open(ours) and not is_open(theirs) and theirs[0] != 0:
        return (theirs[0], ours[0], "served, where nginx did not")
    return None


def run_batch(sluicegate, rng, first, count, totals):
    directory = pathlib.Path(tempfile.mkdtemp(prefix="import-diff-"))
    echo = Echo(("127.0.0.1", 0), Handler)
    threading.Thread(target=echo.serve_forever, daemon=True).start()
    upstream = f"127.0.0.1:{echo.server_address[1]}"
    (directory / "users").write_text("alice:$2b$04$" + HASH + "\n")
    (directory / "pages").mkdir()
    for page in ("404.html", "50x.html"):
        (directory / "pages" / page).write_text("page")
    for kind, name in (("pem", "cert.pem"), ("key", "key.pem")):
        shutil.copy(pathlib.Path(__file__).parents[3] / "conf/tls" / f"sample.{kind}", directory / name)
    profile = rng.choice(["plain", "plain", "tls", "trusted", "last"])
    http = PROFILES[profile].replace("@DIR@", str(directory)) + MAPS
    port, gateway_port = free_port(), free_port()
    grammars, texts, remarks = [], [], []
    for number in range(first, first + count):
        grammar = Grammar(rng, number, upstream, directory, profile)
        text = grammar.server("127.0.0.1:@PORT@" + (" ssl" if profile == "tls" else ""))
        alone = directory / f"{number}.conf"
        alone.write_text(f"{http}\n{text.replace('@PORT@', str(gateway_port))}")
        done = subprocess.run([sluicegate, "import", "nginx", alone], capture_output=True, text=True)
        if done.returncode not in (0, 3):
            print(f"pair {number}: import ends with {done.returncode}: {done.stderr[:2000]}\n{text}")
            totals["failed"] += 1
            continue
        assert (done.returncode == 0) == (find_remarks(done.stdout) == "")
        grammars.append(grammar), texts.append(text), remarks.append(find_remarks(done.stdout))
    programs = Programs(sluicegate, directory, http, "".join(texts), port, gateway_port)
    try:
        for grammar, text, said in zip(grammars, texts, remarks):
            totals["commented" if said else "exact"] += 1
            has_large = has_denied = False
            for request in grammar.requests(REQUESTS):
                theirs, ours = fetch(port, request, profile), fetch(gateway_port, request, profile)
                totals["requests"] += 1
                # nginx does not count requests with too large bodies; the gateway does.
                has_large |= theirs[0] == 413
                if has_large and ours[0] in LIMITED:
                    break
                # nginx counts requests that `deny` refuses, or that a closed route does not serve; the gateway does not.
                has_denied |= ours[0] in (403, 501)
                if has_denied and not grammar.has_patterns and theirs[0] in LIMITED and ours[0] not in LIMITED:
                    break
                found = compare(theirs, ours, request, (port, gateway_port), said)
                if found:
                    totals["differ"] += 1
                    print(f"--- pair {grammar.number}, {profile} ({'commented' if said else 'no comments'}), {request}\n  nginx: {found[0]}\n  ours:  {found[1:]}\n{said}\n{text}", flush=True)
                    break
    finally:
        programs.stop()
        echo.shutdown()
        if not totals["differ"]:
            shutil.rmtree(directory, ignore_errors=True)


HASH = ""


def main():
    global HASH
    sluicegate, pairs = sys.argv[1], int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else int.from_bytes(os.urandom(4), "big")
    made = subprocess.run(["htpasswd", "-nbB", "-C", "4", "alice", "secret"], capture_output=True, text=True).stdout
    HASH = made.strip().split("$", 3)[3]
    print(f"seed {seed}", flush=True)
    totals = collections.Counter()
    for first in range(0, pairs, BATCH):
        run_batch(sluicegate, random.Random(f"{seed}/{first}"), first, min(BATCH, pairs - first), totals)
    print(f"{pairs} pairs: {totals['exact']} without comments, {totals['commented']} with comments, {totals['requests']} requests, {totals['differ']} differ, {totals['failed']} not imported")
    sys.exit(1 if totals["differ"] or totals["failed"] else 0)


if __name__ == "__main__":
    main()
