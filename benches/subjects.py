"""The subjects of the comparison: each proxy in each role, with its config. Used by compare.py.

Every proxy forwards to one upstream over keep-alive connections, adds X-Forwarded-For and passes Host on.
Subjects called `+fields` add all headers that Sluicegate adds by default, so that both do the same work. Limits are
so high that they refuse nothing, except in the subjects that measure refusals."""
import json
import os
import random
import shutil
import socket
import subprocess
from dataclasses import dataclass, field, replace

BODY = "hello from the upstream, " + "x" * 103  # 128 bytes
KEYS = 1000
# Delay of each direction between the gateway and the far Redis.
FAR_MS = 10
# Round-trip time to a Redis in another zone of a data centre. All of it is added in one direction, because the timers
# of the delay line have a resolution of a millisecond.
AWAY_MS = 1
NGINX_MODULES = "/usr/lib/nginx/modules"
LUA_MODULES = ["ndk_http_module.so", "ngx_http_lua_module.so"]
# The module has another name in Debian than in its own project.
LUA_DRIVERS = ["resty.redis", "nginx.redis"]

# Seconds that a load may exceed its duration by, and the limit of commands without a duration.
GRACE_S = 20
COMMAND_TIMEOUT_S = 120


class Failed(Exception):
    """One run of one subject failed; the others continue."""


def output(command, limit=COMMAND_TIMEOUT_S):
    """Runs a command and returns its standard output. Raises Failed if it fails or takes more than `limit` seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"`{' '.join(command)}` did not end within {limit} s") from error
    if done.returncode:
        raise Failed(f"`{' '.join(command)}`: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def pair_rounds(over, under):
    """Pairs the figures of two subjects by round, for the rounds in which both were measured."""
    by_round = {figures["round"]: figures for figures in under}
    return [(figures, by_round[figures["round"]]) for figures in over if figures["round"] in by_round]


@dataclass
class Subject:
    """One proxy in one role: its command, its port and its load."""
    name: str
    command: list
    port: int
    # Path and Host of every request.
    target: tuple = ("/", "bench.test")
    # Path and Host as Lua expressions of the request's number `i`, instead of `target`.
    target_expressions: tuple | None = None
    # True if all requests but the first of each key are refused.
    refuses: bool = False
    # Number of keys, which the requests use in turn.
    keys: int = KEYS
    # Further headers of every request.
    headers: dict = field(default_factory=dict)
    # Number of client connections; None for that of the command line.
    conns: int | None = None
    # The port of its metrics, if it has one.
    admin: int | None = None
    # Its row of wire.py, which defines its load.
    row: str | None = None
    # The command of its load, for subjects of rpc.py.
    command_of_load: list | None = None

    def with_load(self, load):
        """The same proxy under another load, which is a key of LOADS."""
        return replace(self, name=f"{self.name}~{load}", **LOADS[load])


# The headers of a browser. With those of every load they are 15 headers of 800 bytes in all.
BROWSER = {
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 Safari/537.36",
    "Accept-Language": "en-GB,en;q=0.9,de;q=0.8",
    "Accept-Encoding": "gzip, deflate, br, zstd",
    "Referer": "https://shop.example.com/catalogue/shoes?page=3&sort=price",
    "Cookie": "session=" + "a1b2c3d4" * 16 + "; theme=dark; consent=yes",
    "Cache-Control": "no-cache",
    "Sec-Ch-Ua": '"Chromium";v="141", "Not?A_Brand";v="8"',
    "Sec-Ch-Ua-Mobile": "?0",
    "Sec-Ch-Ua-Platform": '"Linux"',
    "Sec-Fetch-Dest": "empty",
    "Sec-Fetch-Mode": "cors",
    "Sec-Fetch-Site": "same-origin",
}
LOADS = {
    "browser": {"headers": BROWSER},
    "chunked": {"target": ("/chunked", "bench.test")},
    "256": {"conns": 256},
}


@dataclass
class Bench:
    """The directory and the ports of one comparison."""
    dir: str
    upstream: int = field(default_factory=lambda: free_port())
    redis: int = field(default_factory=lambda: free_port())
    # The same Redis behind delay lines: FAR_MS in each direction, and AWAY_MS in one direction.
    far_redis: int = field(default_factory=lambda: free_port())
    away_redis: int = field(default_factory=lambda: free_port())

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path


_used_ports = set()


def free_port():
    """A port that nothing listens on, never the same twice. It is below the range from which the system takes the ports
    of outgoing connections, because a load may leave thousands of those in TIME_WAIT."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe:
            if port not in _used_ports and probe.connect_ex(("127.0.0.1", port)):
                _used_ports.add(port)
                return port


def programs():
    """Program -> Debian package, for all programs that the comparison needs."""
    same_name = {name: name for name in ("haproxy", "wrk", "redis-server")}
    return {"nginx": "nginx-light", "taskset": "util-linux", **same_name}


BUCKET = 'rate = "1000000/s"\nburst = 1000000\nkey = ["header:x-api-key"]\n'


def sluicegate(bench, binary, suffix=""):
    """Every role of Sluicegate, the simplest first."""
    route = '[[route]]\npath = "/"\nupstream = "app"\n'
    limited = route + 'limits = ["per-key"]\n\n[limit.per-key]\n' + BUCKET
    three = (
        route + 'limits = ["per-key", "per-key-daily", "per-ip"]\n\n[limit.per-key]\n' + BUCKET
        + '\n[limit.per-key-daily]\nalgorithm = "fixed_window"\nrate = "1000000000/day"\nkey = ["header:x-api-key"]\n'
        + '\n[limit.per-ip]\nrate = "1000000/s"\nburst = 1000000\nkey = "ip"\n'
    )
    spent = route + 'limits = ["spent"]\n\n[limit.spent]\nrate = "1/day"\nburst = 1\nkey = ["header:x-api-key"]\n'
    redis = f'[store]\nurl = "redis://127.0.0.1:{bench.redis}"\ndeadline = "500ms"\n\n'

    # Without `deadline`: the default.
    far = f'[store]\nurl = "redis://127.0.0.1:{bench.far_redis}"\n\n'
    away = redis.replace(str(bench.redis), str(bench.away_redis))
    lease = "lease = {}\n"
    # One budget that all clients share, with and without `fair` between a thousand tenants.
    fair = 'fair = { key = "header:x-api-key" }\n'
    everyone = limited.replace('key = ["header:x-api-key"]', 'key = "all"')

    def role(name, text, server="[server]\n", **more):
        port, admin = free_port(), free_port()
        head = (
            f'{server}listen = ["127.0.0.1:{port}"]\n\n[admin]\nlisten = "127.0.0.1:{admin}"\n\n'
            f'[upstream.app]\nservers = ["http://127.0.0.1:{bench.upstream}"]\n\n'
        )
        path = bench.write(f"{name}{suffix}.toml", head + text)
        return Subject(name, [binary, "run", "-c", path], port, admin=admin, **more)

    plain = role("sluicegate", route)
    roles = [
        plain,
        *(plain.with_load(load) for load in LOADS),
        role("sluicegate-fields", route, '[server]\nforwarded_headers = ["x-forwarded-for"]\n'),
        role("sluicegate+memory", limited),
        role("sluicegate+redis", redis + limited),
        role("sluicegate+redis-3", redis + three),
        role("sluicegate+redis-far", far + limited, conns=50),
        role("sluicegate+hot-key", redis + limited, keys=1),
        role("sluicegate+hot-key+lease", redis + limited + lease, keys=1),
        role("sluicegate+hot-key-away", away + limited, keys=1),
        role("sluicegate+hot-key+lease-away", away + limited + lease, keys=1),
        role("sluicegate+shared", everyone),
        role("sluicegate+fair", everyone + fair),
        role("sluicegate+redis+shared", redis + everyone),
        role("sluicegate+redis+fair", redis + everyone + fair),
        role("sluicegate+refusal", redis + spent, refuses=True),
        role("sluicegate-10-routes", routes(10), target_expressions=route_targets(10)),
        role("sluicegate-10k-routes", routes(10_000), target_expressions=route_targets(10_000)),
    ]
    return [replace(subject, name=subject.name + suffix) for subject in roles]


HOSTS = 100


def routes(count):
    """The config of `count` routes on at most a hundred hosts, so that the cost of changing the host is about the same for
    all counts."""
    hosts = min(count, HOSTS)
    return "\n".join(
        f'[[route]]\nhost = ["h{i % hosts}.test"]\npath = "/r{i // hosts}/"\nupstream = "app"\n' for i in range(count)
    )


def route_targets(count):
    """Target expressions that visit all routes equally often, consecutive requests far apart."""
    hosts = min(count, HOSTS)
    route = f"((i * 617) % {count})"
    return (f"'/r' .. math.floor({route} / {hosts}) .. '/x'", f"'h' .. {route} % {hosts} .. '.test'")


NGINX_PASS = (
    'proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; '
    "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header Host $host;"
)


# The headers that Sluicegate adds by default to requests and, as Via, to responses.
NGINX_FIELDS = NGINX_PASS + (
    " proxy_set_header X-Real-IP $remote_addr; proxy_set_header X-Forwarded-Proto $scheme;"
    " proxy_set_header X-Forwarded-Host $http_host; proxy_set_header X-Forwarded-Port $server_port;"
    ' proxy_set_header X-Request-Id $request_id; proxy_set_header Via "1.1 peer-c5184ba0"; add_header Via "1.1 peer-c5184ba0";'
)


def nginx_config(bench, name, http, modules=()):
    """Writes a config of nginx with `http` in its http block. Returns the command."""
    temp = " ".join(
        f"{kind}_temp_path {bench.dir}/{name}-{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    load = "".join(f"load_module {NGINX_MODULES}/{module};\n" for module in modules)
    text = f"""{load}worker_processes 1; daemon off; master_process off;
pid {bench.dir}/{name}.pid; error_log {bench.dir}/{name}.err;
events {{ worker_connections 20000; }}
http {{
  access_log off; {temp}
  keepalive_requests 1000000000; keepalive_timeout 600s;
  upstream app {{ server 127.0.0.1:{bench.upstream}; keepalive 512; keepalive_requests 1000000000; }}
  {http}
}}
"""
    return ["nginx", "-c", bench.write(f"{name}.conf", text)]


def upstream(bench):
    """The command of the server behind all proxies."""
    return nginx_config(
        bench, "upstream",
        f'server {{ listen 127.0.0.1:{bench.upstream} backlog=4096; '
        f'location / {{ default_type text/plain; return 200 "{BODY}"; }} '
        # With a filter that may change the length, nginx sends the response in chunks.
        f'location /chunked {{ default_type text/html; ssi on; return 200 "{BODY}"; }} }}',
    )


def nginx(bench):
    """nginx with and without a limit, each with X-Forwarded-For only and with the headers of Sluicegate."""
    roles = {
        name + fields: (free_port(), limit + passed)
        for fields, passed in (("", NGINX_PASS), ("+fields", NGINX_FIELDS))
        for name, limit in (("nginx", ""), ("nginx+limit", NGINX_LIMIT))
    }
    servers = [f"server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ {text} }} }}" for port, text in roles.values()]
    zone = "limit_req_zone $http_x_api_key zone=keys:64m rate=1000000r/s;"
    command = nginx_config(bench, "nginx", "\n  ".join([zone, *servers]))
    subjects = [Subject(name, command, port) for name, (port, _) in roles.items()]
    equal = next(subject for subject in subjects if subject.name == "nginx+fields")
    return subjects + [equal.with_load(load) for load in LOADS]


NGINX_LIMIT = "limit_req zone=keys burst=1000000 nodelay; limit_req_status 429; "


# The usual way to share a limit between nginx servers: a counter script over kept connections.
LUA = r"""
  lua_package_path "%(path)s";
  init_worker_by_lua_block {
    redis = require("%(driver)s")
    script = [[
      local n = redis.call('INCR', KEYS[1])
      if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
      if n > tonumber(ARGV[1]) then return {0, 0, redis.call('PTTL', KEYS[1])} end
      return {1, tonumber(ARGV[1]) - n, 0}
    ]]
  }
  server { listen 127.0.0.1:%(port)d backlog=4096; location / {
    access_by_lua_block {
      local link = redis:new()
      link:set_timeout(500)
      if not link:connect("127.0.0.1", %(redis)d, { pool_size = 256 }) then return ngx.exit(500) end
      sha = sha or link:script("LOAD", script)
      local key = "bench:" .. (ngx.var.http_x_api_key or ngx.var.remote_addr)
      local verdict = link:evalsha(sha, 1, key, 1000000000, 60000)
      link:set_keepalive(60000, 256)
      if not verdict then return ngx.exit(500) end
      ngx.header["X-RateLimit-Remaining"] = verdict[2]
      if verdict[1] == 0 then return ngx.exit(429) end
    }
    %(pass)s
  } }
"""


def nginx_lua(bench):
    """nginx with a limit script on Redis. Returns (subjects, None), or ([], what to install)."""
    if not all(os.path.exists(f"{NGINX_MODULES}/{module}") for module in LUA_MODULES):
        return [], "libnginx-mod-http-lua"
    roots = [root for root in os.environ.get("RESTY_PATH", "").split(":") if root] + ["/usr/share/lua/5.1"]
    found = [name for root in roots for name in LUA_DRIVERS if os.path.exists(f"{root}/{name.replace('.', '/')}.lua")]
    if not found:
        return [], "lua-nginx-redis (or lua-resty-redis in a directory named by RESTY_PATH)"
    path, subjects = ";".join(f"{root}/?.lua" for root in roots) + ";;", []
    for name, redis, keys in (("redis", bench.redis, KEYS), ("hot-key", bench.redis, 1), ("hot-key-away", bench.away_redis, 1)):
        port = free_port()
        block = LUA % {"path": path, "driver": found[0], "port": port, "redis": redis, "pass": NGINX_PASS}
        command = nginx_config(bench, f"nginx-lua+{name}", block, LUA_MODULES)
        subjects.append(Subject(f"nginx-lua+{name}", command, port, keys=keys))
    return subjects, None


HAPROXY_FIELDS = """  unique-id-format %[rand,hex]%[rand,hex]%[rand,hex]%[rand,hex]
  unique-id-header X-Request-Id
  http-request set-header X-Real-IP %[src]
  http-request set-header X-Forwarded-Proto http
  http-request set-header X-Forwarded-Host %[req.hdr(host)]
  http-request set-header X-Forwarded-Port %[dst_port]
  http-request add-header Via "1.1 peer-c5184ba0"
  http-response add-header Via "1.1 peer-c5184ba0\""""


def haproxy(bench):
    plain, fields, limited = free_port(), free_port(), free_port()
    path = bench.write("haproxy.cfg", f"""global
  nbthread 1
  maxconn 4096
defaults
  mode http
  timeout client 60s
  timeout server 60s
  timeout connect 5s
backend app
  option forwardfor
  http-reuse always
  server s1 127.0.0.1:{bench.upstream} maxconn 2048
frontend plain
  bind 127.0.0.1:{plain}
  default_backend app
frontend fields
  bind 127.0.0.1:{fields}
{HAPROXY_FIELDS}
  default_backend app
frontend limited
  bind 127.0.0.1:{limited}
  stick-table type string len 64 size 1m expire 60s store http_req_rate(1s)
  http-request track-sc0 req.hdr(x-api-key)
  http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt 100000000 }}
  default_backend app
""")
    command = ["haproxy", "-f", path]
    ports = {"haproxy": plain, "haproxy+fields": fields, "haproxy+limit": limited}
    return [Subject(name, command, port) for name, port in ports.items()]


def load_script(bench, subject):
    """Writes the wrk script of a subject, which sends KEYS requests in turn. Returns its path."""
    path, host = subject.target_expressions or tuple(f"'{part}'" for part in subject.target)
    more = "".join(f", [{json.dumps(name)}] = {json.dumps(value)}" for name, value in subject.headers.items())
    return bench.write(f"{subject.name}.lua", f"""local turn, requests = 0, {{}}
init = function()
  for i = 1, {KEYS} do
    requests[i] = wrk.format("GET", {path}, {{ ["Host"] = {host}, ["X-Api-Key"] = "client-" .. i % {subject.keys}, ["Accept"] = "*/*"{more} }})
  end
end
request = function()
  turn = turn % #requests + 1
  return requests[turn]
end
""")


def missing_programs():
    return {program: package for program, package in programs().items() if not shutil.which(program)}
