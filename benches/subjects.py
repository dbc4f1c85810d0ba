"""What is compared: each proxy in each role, with the config it runs on. Used by compare.py.

Every proxy forwards to one upstream over kept connections, adds X-Forwarded-For and passes Host on;
those called `+fields` add all that Sluicegate adds by default, for the same work. Limits are so high
that they refuse nothing, except where refusing is what is measured."""
import json
import os
import random
import shutil
import socket
import subprocess
from dataclasses import dataclass, field, replace

BODY = "hello from the upstream, " + "x" * 103  # 128 bytes
KEYS = 1000
FAR_MS = 10
# To a Redis in another zone of a data centre, all of it on one way: the line has steps of a millisecond.
AWAY_MS = 1
NGINX_MODULES = "/usr/lib/nginx/modules"
LUA_MODULES = ["ndk_http_module.so", "ngx_http_lua_module.so"]
# Debian keeps the driver under another name than its project does.
LUA_DRIVERS = ["resty.redis", "nginx.redis"]

# Seconds that a load may take beyond its own time, and a load that has no time of its own.
GRACE_S = 20
LONGEST_S = 120


class Failed(Exception):
    """One run of one subject failed; the others continue."""


def output(command, limit=LONGEST_S):
    """The standard output of a command that has to succeed within `limit` seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"`{' '.join(command)}` did not end within {limit} s") from error
    if done.returncode:
        raise Failed(f"`{' '.join(command)}`: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def pair_rounds(over, under):
    """The figures of two subjects, by the rounds in which both were measured."""
    known = {one["round"]: one for one in under}
    return [(one, known[one["round"]]) for one in over if one["round"] in known]


@dataclass
class Subject:
    """One proxy in one role: its command, where it listens, and what is asked of it."""
    name: str
    command: list
    port: int
    # The request that number i of the load is: (path, Host).
    target: tuple = ("/", "bench.test")
    # Lua expressions in `i` for targets that differ from request to request.
    spread: tuple | None = None
    # All answers but the first per key are refusals.
    refuses: bool = False
    # Keys that the load visits in turn.
    keys: int = KEYS
    # More fields of every request.
    head: dict = field(default_factory=dict)
    # Client connections, where it is not the number chosen for all.
    conns: int | None = None
    # Where it tells its metrics, if it does.
    admin: int | None = None
    # Its row of wire.py, which has loads of its own.
    row: str | None = None
    # Its load, if it is one of rpc.py.
    command_of_load: list | None = None

    def asked(self, how):
        """The same proxy under another load."""
        return replace(self, name=f"{self.name}~{how}", **LOADS[how])


# What a browser sends: 15 fields of 800 bytes in all, with those of every load.
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
    "browser": {"head": BROWSER},
    "chunked": {"target": ("/chunked", "bench.test")},
    "256": {"conns": 256},
}


@dataclass
class Bench:
    """The directory and the ports of one comparison."""
    dir: str
    upstream: int = field(default_factory=lambda: free_port())
    redis: int = field(default_factory=lambda: free_port())
    # The same Redis, FAR_MS away each way, and AWAY_MS there and back.
    far_redis: int = field(default_factory=lambda: free_port())
    away_redis: int = field(default_factory=lambda: free_port())

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path


_taken = set()


def free_port():
    """A port that nothing listens on, never the same twice. Clients are not given it either, as the system gives
    them higher ones: a load may leave thousands of those behind, each not to be listened on for a minute."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe:
            if port not in _taken and probe.connect_ex(("127.0.0.1", port)):
                _taken.add(port)
                return port


def programs():
    """Program -> Debian package, of everything the comparison cannot do without."""
    same = {name: name for name in ("haproxy", "wrk", "redis-server")}
    return {"nginx": "nginx-light", "taskset": "util-linux", **same}


BUCKET = 'rate = "1000000/s"\nburst = 1000000\nkey = ["header:x-api-key"]\n'


def sluicegate(bench, binary, suffix=""):
    """Every role of Sluicegate, from the smallest."""
    route = '[[route]]\npath = "/"\nupstream = "app"\n'
    limited = route + 'limits = ["per-key"]\n\n[limit.per-key]\n' + BUCKET
    three = (
        route + 'limits = ["per-key", "per-key-daily", "per-ip"]\n\n[limit.per-key]\n' + BUCKET
        + '\n[limit.per-key-daily]\nalgorithm = "fixed_window"\nrate = "1000000000/day"\nkey = ["header:x-api-key"]\n'
        + '\n[limit.per-ip]\nrate = "1000000/s"\nburst = 1000000\nkey = "ip"\n'
    )
    spent = route + 'limits = ["spent"]\n\n[limit.spent]\nrate = "1/day"\nburst = 1\nkey = ["header:x-api-key"]\n'
    redis = f'[store]\nurl = "redis://127.0.0.1:{bench.redis}"\ndeadline = "500ms"\n\n'

    # With the deadline that a config has which says nothing of it.
    far = f'[store]\nurl = "redis://127.0.0.1:{bench.far_redis}"\n\n'
    away = redis.replace(str(bench.redis), str(bench.away_redis))
    lease = "lease = {}\n"
    # One budget of a thousand tenants, and the same without them.
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
        *(plain.asked(how) for how in LOADS),
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
        role("sluicegate-10-routes", routes(10), spread=spread(10)),
        role("sluicegate-10k-routes", routes(10_000), spread=spread(10_000)),
    ]
    return [replace(subject, name=subject.name + suffix) for subject in roles]


HOSTS = 100


def routes(count):
    """`count` routes under up to a hundred hosts: what a change of the host costs is no cost of many routes."""
    hosts = min(count, HOSTS)
    return "\n".join(
        f'[[route]]\nhost = ["h{i % hosts}.test"]\npath = "/r{i // hosts}/"\nupstream = "app"\n' for i in range(count)
    )


def spread(count):
    """Requests visit routes evenly, neighbours far apart."""
    hosts = min(count, HOSTS)
    route = f"((i * 617) % {count})"
    return (f"'/r' .. math.floor({route} / {hosts}) .. '/x'", f"'h' .. {route} % {hosts} .. '.test'")


NGINX_PASS = (
    'proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; '
    "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header Host $host;"
)


# The fields that Sluicegate adds by default, on requests and (Via) on answers.
NGINX_FIELDS = NGINX_PASS + (
    " proxy_set_header X-Real-IP $remote_addr; proxy_set_header X-Forwarded-Proto $scheme;"
    " proxy_set_header X-Forwarded-Host $http_host; proxy_set_header X-Forwarded-Port $server_port;"
    ' proxy_set_header X-Request-Id $request_id; proxy_set_header Via "1.1 peer-c5184ba0"; add_header Via "1.1 peer-c5184ba0";'
)


def nginx_config(bench, name, http, modules=()):
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
        # A filter that may change the length makes the answer chunked.
        f'location /chunked {{ default_type text/html; ssi on; return 200 "{BODY}"; }} }}',
    )


def nginx(bench):
    """With and without a limit, and both again with the same fields."""
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
    return subjects + [equal.asked(how) for how in LOADS]


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
    """nginx with a limit script on Redis, or why not: (subjects, what is missing)."""
    if not all(os.path.exists(f"{NGINX_MODULES}/{module}") for module in LUA_MODULES):
        return [], "libnginx-mod-http-lua"
    roots = [root for root in os.environ.get("RESTY_PATH", "").split(":") if root] + ["/usr/share/lua/5.1"]
    found = [name for root in roots for name in LUA_DRIVERS if os.path.exists(f"{root}/{name.replace('.', '/')}.lua")]
    if not found:
        return [], "lua-nginx-redis (or lua-resty-redis in a directory named by RESTY_PATH)"
    path, made = ";".join(f"{root}/?.lua" for root in roots) + ";;", []
    for name, redis, keys in (("redis", bench.redis, KEYS), ("hot-key", bench.redis, 1), ("hot-key-away", bench.away_redis, 1)):
        port = free_port()
        block = LUA % {"path": path, "driver": found[0], "port": port, "redis": redis, "pass": NGINX_PASS}
        command = nginx_config(bench, f"nginx-lua+{name}", block, LUA_MODULES)
        made.append(Subject(f"nginx-lua+{name}", command, port, keys=keys))
    return made, None


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
    """The wrk script of a subject's load: KEYS requests in turn, with the client keys of the subject."""
    path, host = subject.spread or tuple(f"'{part}'" for part in subject.target)
    more = "".join(f", [{json.dumps(name)}] = {json.dumps(value)}" for name, value in subject.head.items())
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
