"""Random nginx servers from a grammar of directives, and requests to them."""
from patterns import quote, random_path, random_pattern, random_text

METHODS = ["GET"] * 6 + ["HEAD", "POST", "PUT", "DELETE"]
ODD_METHODS = ["TRACE", "PROPFIND", "M-SEARCH"]
PATHS = ["/", "/a", "/a/", "/a/x", "/a/x/y", "/ab", "/s/x.php", "/x.php", "/X.PHP", "/v1", "/v1/", "/v1/y", "/old/z", "/e", "/e/", "/zzz",
         "/a/i/x.php", "/a/e", "/s/i/x", "/s/i", "/v1/i/x", "/@fs/x", "/%40fs/x", "/@fs", "/%40fs", "/a+b", "/a%2Bb", "/b%40c", "/b@c", "/b%20c/x", "/b%20c", "/%C3%A9",
         "/x1", "/%40", "/%40%40", "/xy", "/x%2A1", "/%2Admin", "/admin", "/s/.git", "/.git/x", "/E%C3%A91"]
STATUSES = [200, 200, 200, 200, 201, 204, 301, 302, 304, 400, 401, 403, 404, 429, 500, 502, 503]
ADDRESSES = [2, 2, 2, 3, 5, 9]
LOCATIONS = ["/", "/", "/a", "/a/", "= /a/x", "^~ /s/", r"~ \.php$", r"~* \.php$", "/v1/", "= /e", "/e/", "~ ^/v", "/old/",
             "= /e/", "/@fs/", "= /a+b", '"/b c/"', '"/b c"', "/é", "~ ^/[@~x]", '~ "^/[^/]{2}$"', "~* ^/b.c", "~ [0-9]$", "~* admin", r"~ /\.git", '~ "é.$"', "^~ /a/", "~ ^/b[^@]*c"]
VALUES = ["1", '"two words"', "prod", "$scheme", '""']
INEXACT_VALUES = ["$host", "$http_x_color", "$remote_addr", "$request_uri"]
AGENTS = ["", "curl/8", "SemrushBot", "abot", "Mozilla/5.0 bot"]
KEYS = ["$binary_remote_addr", "$http_x_api_key", "$binary_remote_addr$request_uri", "$server_name",
        "constant", "$key_or_address", "$bots", "$posts", "$paths", "$tiers", "$binary_remote_addr$args", "$scheme$binary_remote_addr", "$request_method"]
INEXACT_KEYS = ["$binary_remote_addr$uri", "$http_host", "$classes", "$args", "$remote_user"]
# Headers that the gateway removes or rewrites before limits read them.
UNSEEN = {"x-forwarded-for": ["10.1.1.1", "10.1.1.2"], "x-real-ip": ["10.1.1.1"], "x-forwarded-proto": ["http"], "forwarded": ["for=10.1.1.1"],
          "x-request-id": ["r1"], "proxy-authorization": ["Basic eDp5"], "te": ["trailers"]}
# The keys that read them.
UNSEEN_KEYS = {"$http_" + name.replace("-", "_"): name for name in UNSEEN} | {
    "$http_upgrade": "upgrade", "$forwarded_or_address": "x-forwarded-for", "$plain": "x-forwarded-proto", "$binary_remote_addr$http_x_real_ip": "x-real-ip"}
MAPS = """
map $http_x_forwarded_for $forwarded_or_address { "" $binary_remote_addr; default $http_x_forwarded_for; }
map $http_x_forwarded_proto $plain { default ""; http $binary_remote_addr; }
map $http_x_api_key $key_or_address { "" $binary_remote_addr; default $http_x_api_key; }
map $http_user_agent $bots { default ""; ~*(semrush|ahrefs) $http_user_agent; }
map $http_user_agent $classes { default ""; ~*semrush semrush; ~*curl tools; }
map $request_method $posts { default ""; POST $binary_remote_addr; PUT $binary_remote_addr; }
geo $near { default 0; 127.0.0.2/31 1; 127.0.0.9 2; }
map $uri $paths { default ""; ~[@+] $binary_remote_addr; "/b c" $binary_remote_addr; ~^/b.c$ $binary_remote_addr; }
map $near $tiers { 0 $binary_remote_addr; 1 ""; 2 constant; }
"""


PROFILES = {
    "plain": "",
    "tls": "ssl_certificate @DIR@/cert.pem; ssl_certificate_key @DIR@/key.pem;",
    "trusted": "set_real_ip_from 127.0.0.2; set_real_ip_from 127.0.0.8/31; real_ip_header X-Forwarded-For; real_ip_recursive on;",
    # Without recursion, the last address counts.
    "last": "set_real_ip_from 127.0.0.2; set_real_ip_from 127.0.0.8/31; real_ip_header X-Forwarded-For;",
}
FORWARDED = ["127.0.0.3", "127.0.0.9, 127.0.0.5", "127.0.0.5, 127.0.0.9", "bad", "127.0.0.3:80", "127.0.0.9", "127.0.0.3, bad, 127.0.0.8", "::1"]


class Grammar:
    """Writes one server with a name of its own. `rng` decides; `upstream` is the address of the server behind it."""

    def __init__(self, rng, number, upstream, directory, profile):
        self.rng, self.number, self.upstream, self.directory, self.profile = rng, number, upstream, directory, profile
        self.name = f"s{number}.test"
        # Most servers have only directives that are translated, so that their import has no comments.
        self.is_tame = rng.random() < 0.85
        self.http = []
        # The headers of keys that the gateway does not see.
        self.unseen = []
        # Such a server has random regular expressions, and few other directives.
        self.has_patterns = rng.random() < 0.4

    def maybe(self, chance):
        return self.rng.random() < chance

    def choose(self, exact, inexact):
        return self.rng.choice(exact if self.is_tame else exact + inexact)

    def add_header(self):
        name = self.choose(["X-One", "X-Two", "Cache-Control", "Vary", "Set-Cookie", "Content-Security-Policy", "X-Frame-Options", "Link",
                            "Strict-Transport-Security", "Access-Control-Allow-Origin"], ["ETag"])
        value = self.choose(["1", '"a b"', "public", '""', '"max-age=60; includeSubDomains"', "*"], ["$host"])
        return f"add_header {name} {value}{self.rng.choice(['', '', ' always'])};"

    def proxy_header(self):
        return self.choose([
            "proxy_set_header Host $host;", "proxy_set_header Host $http_host;", "proxy_set_header Host $proxy_host;", "proxy_set_header Host app.internal;",
            "proxy_set_header X-Real-IP $remote_addr;", "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;", "proxy_set_header X-Forwarded-For $remote_addr;",
            "proxy_set_header X-Forwarded-Proto $scheme;", "proxy_set_header X-Forwarded-Proto https;", "proxy_set_header X-Forwarded-Host $http_host;",
            "proxy_set_header X-Real-IP $realip_remote_addr;", "proxy_set_header X-Request-ID $request_id;", "proxy_set_header X-Scheme $scheme;", "proxy_set_header X-Server $server_name;",
            "proxy_set_header Accept-Encoding '';", "proxy_set_header X-Color '';", "proxy_set_header X-Color $http_x_color;", "proxy_set_header X-Color blue;",
            f"proxy_set_header X-Var {self.choose(VALUES, INEXACT_VALUES)};", "proxy_set_header Authorization '';", "proxy_set_header Upgrade $http_upgrade;",
        ], ["proxy_set_header X-Forwarded-Port $server_port;", "proxy_set_header X-Forwarded-Proto $http_x_forwarded_proto;", "proxy_set_header X-Forwarded-Host $host;", "proxy_set_header X-User $remote_user;"])

    def zone(self):
        """Defines a zone and returns the directive that uses it."""
        zone = f"z{self.number}_{len(self.http)}"
        key = self.choose(KEYS, INEXACT_KEYS)
        if self.maybe(0.1):
            key = self.rng.choice(list(UNSEEN_KEYS))
            self.unseen.append(UNSEEN_KEYS[key])
        if self.maybe(0.15):
            self.http.append(f"limit_conn_zone {key} zone={zone}:64k;")
            return f"limit_conn {zone} {self.rng.choice([1, 5])};"
        self.http.append(f"limit_req_zone {key} zone={zone}:64k rate={self.rng.choice([1, 2])}r/m;")
        burst = self.rng.choice([0, 1, 3])
        return f"limit_req zone={zone}{f' burst={burst} nodelay' if burst else ''};"

    def settings(self, chance):
        """Directives that servers and locations may have."""
        lines = []
        for _ in range(self.rng.choice([0, 0, 1, 2, 3])):
            lines.append(self.add_header())
        for _ in range(self.rng.choice([0, 0, 1, 2, 4])):
            lines.append(self.proxy_header())
        for odds, choices in [
            (chance, ["allow 127.0.0.2; deny all;", "deny 127.0.0.3;", "deny 127.0.0.9; allow 127.0.0.0/29; deny all;", "allow all;", "deny all;"]),
            (chance, [f"auth_basic staff; auth_basic_user_file {self.directory}/users;", "auth_basic off;", *([] if self.is_tame else [f"auth_basic x; auth_basic_user_file {self.directory}/none;"])]),
            (chance, ["limit_req_status 429;", "limit_req_status 420;", "limit_req_dry_run on;"]),
            (chance, ["client_max_body_size 10;", "client_max_body_size 0;", "client_max_body_size 1k;"]),
            (chance, ["proxy_hide_header X-App;", "proxy_hide_header Set-Cookie;", "proxy_pass_header Server;", "proxy_pass_header X-Accel-Expires;"]),
            (chance, ["proxy_redirect off;", f"proxy_redirect http://{self.upstream}/ /elsewhere/;", "proxy_redirect / /x/;", *([] if self.is_tame else ["proxy_redirect ~x y;"])]),
            (chance, ["proxy_intercept_errors on;", *([] if self.is_tame else ["error_page 404 /404.html;"]), f"error_page 502 503 /50x.html; root {self.directory}/pages;", "proxy_buffering off;", "proxy_http_version 1.1;",
                      f"error_page 403 404 /50x.html; root {self.directory}/pages;",
                      "default_type text/html;", "default_type application/json;", "keepalive_requests 7;", "sendfile on;", "etag off;", "absolute_redirect off;"]),
            (chance, ["gzip on; gzip_vary on; gzip_proxied any; gzip_types text/plain; gzip_min_length 1;", "gzip on; gzip_vary on; gzip_proxied any;", "gzip off;",
                      *([] if self.is_tame else ["gzip on;"])]),
            (0 if self.is_tame else chance / 2, ["auth_request /auth;", "satisfy any;", "expires 1h;", "sub_filter a b;", "limit_rate 1m;", "proxy_cookie_path / /x;", "charset utf-8;",
                          "proxy_pass_request_headers off;", "proxy_set_body x;", "proxy_method POST;", "chunked_transfer_encoding off;", "if_modified_since off;"]),
        ]:
            if self.maybe(odds):
                lines.append(self.rng.choice(choices))
        for _ in range(self.rng.choice([0, 0, 0, 1, 2])):
            lines.append(self.zone())
        return lines

    def content(self, path):
        """The directive that answers the requests of a location."""
        up = self.upstream
        bare = path.split()[-1]
        choices = [f"proxy_pass http://{up};"] * 6 + [f"proxy_pass http://app{self.number};", "return 200 fixed;", "return 404;", "return 204;", "return 301 /a/x;",
                   "return 302 https://example.com$request_uri;", "return 403;", f"set $up {up}; proxy_pass http://$up;", "return 503 busy;", "deny all;"]
        choices += [f"if ($http_x_color = red) {{ return 403; }} proxy_pass http://{up};", f"limit_except GET POST {{ deny all; }} proxy_pass http://{up};",
                    f"limit_except GET {{ allow 127.0.0.2; deny all; }} proxy_pass http://{up};", f"if ($near) {{ return 404; }} proxy_pass http://{up};",
                    f"if ($request_method = PUT) {{ return 204; }} proxy_pass http://{up};", f"proxy_pass http://$to{self.number};"]
        if not path.startswith("~") and bare.endswith("/"):
            choices += [f"proxy_pass http://{up}{path_of};" for path_of in ("/base/", "/v2/")] + [f"proxy_pass http://app{self.number}/b/;"]
            if bare != "/":
                choices += [f"proxy_pass http://{up}/;", f"rewrite ^{bare}(.*)$ /$1 break; proxy_pass http://{up};", f"rewrite ^{bare}(.*)$ /new/$1 permanent;"]
        if not self.is_tame:
            pattern = quote("^" + bare.strip('~^"') + "x")
            choices += ["return 200 $host;", "internal; return 200 x;", "empty_gif;", f"if ($arg_q) {{ return 403; }} proxy_pass http://{up};", f"limit_except GET {{ auth_basic x; }} proxy_pass http://{up};",
                        f"rewrite {pattern} /$1 last; proxy_pass http://{up};"]
        return self.rng.choice(choices)

    def nested(self, path):
        """A location inside of a location, or nothing. One inside of a regular expression, or one itself, is not translated."""
        bare = path.split()[-1]
        if not self.maybe(0.3) or path.startswith("=") or '"' in path:
            return ""
        if path.startswith("~"):
            return "" if self.is_tame or not bare.startswith("/") else f"location {bare}x {{ {self.content(bare)} }}"
        inner = bare + self.rng.choice(["i/", "x", "e"] if bare.endswith("/") else ["", "/i/", "/e"])
        kinds = ["", "", "", "= ", "^~ "] + ([] if self.is_tame else ["~ "])
        inner = self.rng.choice(kinds) + inner
        return f"location {inner} {{ {' '.join(self.settings(0.1))} {self.content(inner)} {self.nested(inner)} }}"

    def expressions(self, listen):
        """Returns the text of a server whose locations and limit have random regular expressions."""
        lines = [f"listen {listen};", f"server_name {self.name} www.{self.name};", f"location / {{ proxy_pass http://{self.upstream}; }}"]
        for _ in range(self.rng.choice([1, 1, 2])):
            content = self.rng.choice(["deny all;", "return 204;", f"proxy_pass http://{self.upstream};"])
            lines.append(f"location {self.rng.choice(['~', '~', '~*'])} {quote(random_pattern(self.rng, '^/'))} {{ {content} }}")
        source, start = self.rng.choice([("$http_x_probe", "^"), ("$http_x_probe", "^"), ("$uri", "^/")])
        keys = self.rng.choice([('""', "$binary_remote_addr"), ("$binary_remote_addr", '""')])
        entry = quote(self.rng.choice(["~", "~*"]) + random_pattern(self.rng, start))
        self.http += [f"map {source} $found{self.number} {{ default {keys[0]}; {entry} {keys[1]}; }}",
                      f"limit_req_zone $found{self.number} zone=z{self.number}:64k rate=1r/m;"]
        lines.append(f"limit_req zone=z{self.number};")
        return "\n".join(self.http) + "\nserver {\n  " + "\n  ".join(lines) + "\n}\n"

    def server(self, listen):
        """Returns the text of the server, with the directives of `http` that it needs before it."""
        if self.has_patterns:
            return self.expressions(listen)
        names = self.rng.choice([f"{self.name} www.{self.name}", f".{self.name}", f"{self.name} *.{self.name}"])
        if not self.is_tame and self.maybe(0.1):
            names += f" ~^x{self.number}"
        lines = [f"listen {listen};", f"server_name {names};"] + self.settings(0.15)
        if self.maybe(0.08):
            lines.append(self.rng.choice([f"if ($host = www.{self.name}) {{ return 301 http://{self.name}$request_uri; }}", "if ($scheme = https) { return 403; }",
                                          f"if ($host != {self.name}) {{ return 302 http://{self.name}/; }}",
                                          "rewrite ^/old/(.*)$ /new/$1 permanent;", "merge_slashes on;", "return 204;",
                                          "if ($http_x_color = red) { return 403; }", "if ($request_method ~ ^(PUT|DELETE)$) { return 405; }", "if ($near = 2) { return 403; }",
                                          *([] if self.is_tame else ["if ($http_x_color ~ re) { set $a 1; return 403; }"])]))
        # Without this location, nginx serves files.
        paths = ["/"] if self.is_tame else []
        for path in self.rng.sample(LOCATIONS, self.rng.choice([1, 2, 3, 4])):
            # nginx accepts each path once, with or without `^~`.
            if path.removeprefix("^~ ") not in [known.removeprefix("^~ ") for known in paths]:
                paths.append(path)
        for path in paths:
            inner = self.settings(0.12)
            lines.append(f"location {path} {{ {' '.join(inner)} {self.content(path)} {self.nested(path)} }}")
        self.http.append(f"upstream app{self.number} {{ server {self.upstream}; }} upstream red{self.number} {{ server {self.upstream}; }}")
        self.http.append(f"map $http_x_color $to{self.number} {{ default app{self.number}; red red{self.number}; ~e app{self.number}; }}")
        return "\n".join(self.http) + "\nserver {\n  " + "\n  ".join(lines) + "\n}\n"

    def requests(self, count):
        """Returns requests to the server: address of the client, method, host, target, headers and body."""
        found = []
        for _ in range(count):
            method, path = self.rng.choice(ODD_METHODS if self.maybe(0.05) else METHODS), self.rng.choice(PATHS)
            query = self.rng.choice(["", "", f"s={self.rng.choice(STATUSES)}", f"s={self.rng.choice(STATUSES)}&h=1", "h=1", "h=2", "q=1"])
            headers = {}
            if self.has_patterns:
                # Each client has a budget of its own, so that a limit shows what it counts.
                headers["x-probe"] = random_text(self.rng, 5).strip() or "a"
                found += [(10 + len(found), "GET", self.name, random_path(self.rng), headers, b"")] * 2
                continue
            if self.maybe(0.3):
                headers["x-api-key"] = self.rng.choice(["k1", "k2"])
            if self.maybe(0.3):
                headers["user-agent"] = self.rng.choice(AGENTS)
            if self.maybe(0.3):
                headers["authorization"] = self.rng.choice(["Basic YWxpY2U6c2VjcmV0", "Basic YWxpY2U6d3Jvbmc=", "Bearer x"])
            if self.maybe(0.2):
                headers["x-color"] = self.rng.choice(["red", "blue"])
            if self.maybe(0.3):
                headers["accept-encoding"] = "gzip"
            if self.profile in ("trusted", "last") and self.maybe(0.5):
                headers["x-forwarded-for"] = self.rng.choice(FORWARDED)
            if self.maybe(0.4 if "upgrade" in self.unseen else 0.05):
                headers["upgrade"], headers["connection"] = "websocket", "upgrade"
            if self.maybe(0.6 if self.unseen else 0.1):
                # Behind trusted proxies, the gateway reads `Forwarded`, too.
                known = [name for name in UNSEEN if name != "forwarded" or self.profile not in ("trusted", "last")]
                name = self.rng.choice([name for name in self.unseen if name in known] or known)
                headers.setdefault(name, self.rng.choice(UNSEEN[name]))
            body = b"x" * self.rng.choice([0, 5, 50, 2000]) if method in ("POST", "PUT") else b""
            host = self.rng.choice([self.name, self.name, self.name, "www." + self.name, self.name.upper()])
            found.append((self.rng.choice(ADDRESSES), method, host, path + ("?" + query if query else ""), headers, body))
            # Limits show only if a client returns.
            if self.maybe(0.3):
                found += [found[-1]] * self.rng.choice([1, 3])
        return found
