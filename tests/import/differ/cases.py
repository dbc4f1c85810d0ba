"""Compares nginx with the imported config: hand-written servers, one for each way of using conditions, `map`, `geo` and `limit_except`.

    cases.py SLUICEGATE

A case is the directives of a server, or those of `http`, `====` and those of a server. An exact case has an import without comments, and behaves the
same. Any other case has comments, and serves no request that nginx refuses. Prints each difference; the exit code is 1 if there is one."""
import pathlib, socketserver, ssl, subprocess, sys, tempfile, threading, time
import run
from run import Echo, Handler, Programs, fetch, find_remarks, free_port, is_open, read_message, simplify

CERTIFICATES = pathlib.Path(__file__).parents[3] / "conf/tls"

# Methods that nginx refuses before it chooses a server, and one that it forwards.
ODD_METHODS = ("TRACE", "get", "Get", "purge", "G.T", "M1", "PROPFIND", "X_Y")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
PASS = "proxy_pass http://@UP@;"
UPSTREAMS = "upstream one_@N@ { server @UP@; } upstream two_@N@ { server @OTHER@; } "


def get(path="/", headers=None, address=2, method="GET"):
    return (address, method, None, path, headers or {}, b"")


def methods(path="/a/x", address=2):
    return [get(path, None, address, method) for method in METHODS]


PATHS = [get(path) for path in ("/", "/a", "/a/", "/a/x", "/a/x/y?q=1", "/b", "/zzz")]
COLORS = [get("/a/x", {} if color is None else {"x-color": color}) for color in (None, "red", "RED", "redx", "0", "00", "", "blue")]
AGENTS = [get("/a/x", {} if agent is None else {"user-agent": agent}) for agent in (None, "abot", "ABOT", "x", "")]
CLIENTS = [get("/a/x", None, address) for address in (2, 3, 9)]
COOKIES = [get("/", {"cookie": text}) for text in ("v=b", "x=1; V=B;z=1", "v=bb", "xv=b", "a=v=b", "v = b", "v=", "v=c; x=v")] + [get("/")]
REDIRECTS = [get(f"{path}?s=302&l={to}") for path in ("/", "/a/", "/a/x/", "/a/y/", "/b/", "/b/x/", "/b/y/", "/b/y/z/", "/b/c/", "/v/", "/v/w/") for to in ("/", "/a/1", "/b/1", "/v/1")]
PASSWORD = {"authorization": "Basic YWxpY2U6c2VjcmV0"}
# Other spellings of names and values, and several of them.
ARGUMENTS = [get(f"/?{query}") for query in ("q=1", "Q=1", "q=%31", "q=2", "q=2&Q=1", "q=1&q=2", "x=q=1", "")]
SIDS = [get("/", {"cookie": text}) for text in ("sid=1", "SID=1", "Sid = 1", "sid=%31", "sid=2", "sid=2; SID=1", "sid=1; sid=2", "x=1, sid=1", "xsid=1", "sid=0", "sid= 0", "sid")] + [get("/")]
# Cases whose responses may come in another order, as each program chooses the server of the first request.
UNORDERED = {"eject", "eject-weights"}

EXACT = {
    "type-empty": (f"location / {{ default_type ''; if ($http_x_color = red) {{ return 403 no; }} {PASS} }}", COLORS),
    "quoted-space": (f'if ($http_user_agent !~* " x") {{ return 403; }} location / {{ {PASS} }}', [get("/", {"user-agent": agent}) for agent in ("a x", "ax", "xbot")]),
    "upstream-case": ("upstream Mixed_@N@ { server @OTHER@; } ====location / { proxy_pass http://mixed_@N@; }", PATHS),
    "return-parameters": ("default_type 'text/html; charset=utf-8'; location / { return 200 x; }", PATHS[:2]),
    "return-204": ("location / { return 204 x; }", PATHS[:2]),
    "odd-methods": (f"location / {{ {PASS} }} location /a {{ return 200 fixed; }} location /b {{ deny all; }}",
                    [get(path, None, 2, method) for path in ("/", "/a", "/b") for method in ODD_METHODS]),
    # limit_except
    "except": (f"location / {{ limit_except GET {{ deny all; }} {PASS} }}", methods()),
    "except-networks": (f"location / {{ limit_except GET POST {{ allow 127.0.0.2; deny all; }} {PASS} }}", methods() + methods("/", 3)),
    "except-deny": (f"location / {{ limit_except HEAD {{ deny 127.0.0.3; }} {PASS} }}", methods() + methods("/", 3)),
    # Refusals by method
    "method": (f"location / {{ if ($request_method = POST) {{ return 405; }} {PASS} }}", methods()),
    "method-not": (f"location / {{ if ($request_method != GET) {{ return 405; }} {PASS} }}", methods()),
    "method-pattern": (f"location / {{ if ($request_method !~ ^(GET|HEAD)$) {{ return 405; }} {PASS} }}", methods()),
    "method-server": (f"if ($request_method !~ ^(GET|HEAD|POST)$) {{ return 403; }} location / {{ {PASS} }} location /a/ {{ {PASS} }} location = /b {{ return 301 /c; }}",
                      methods() + methods("/b") + methods("/a")),
    "method-text": (f"if ($request_method = POST) {{ return 405 busy; }} location / {{ {PASS} }}", methods()),
    # The first of several conditions decides.
    "several": (f"location / {{ if ($http_x_color = red) {{ return 403; }} if ($request_method = POST) {{ return 405; }} if ($http_x_b) {{ return 410; }} {PASS} }}",
                [get("/", headers, 2, method) for headers in ({}, {"x-color": "red"}, {"x-b": "1"}, {"x-color": "red", "x-b": "1"}) for method in ("GET", "POST")]),
    "several-of-server": (f"if ($request_method = POST) {{ return 405; }} location / {{ if ($http_x_color = red) {{ return 403; }} {PASS} }}",
                          [get("/", headers, 2, method) for headers in ({}, {"x-color": "red"}) for method in ("GET", "POST")]),
    "address": (f"location / {{ if ($remote_addr = 127.0.0.3) {{ return 403; }} {PASS} }}", CLIENTS),
    "address-not": (f"if ($remote_addr != 127.0.0.3) {{ return 403; }} location / {{ {PASS} }}", CLIENTS),
    # Responses to one method
    "options": (f"location / {{ if ($request_method = OPTIONS) {{ add_header X-A 1; return 204; }} add_header X-B 2; {PASS} }}", methods()),
    "options-slash": (f"location /a/ {{ if ($request_method = OPTIONS) {{ return 204; }} {PASS} }} location / {{ return 404; }}", methods() + methods("/a")),
    "options-pattern": (f"location ~ ^/a {{ if ($request_method = OPTIONS) {{ return 204; }} {PASS} }} location / {{ return 200 fixed; }}", methods() + methods("/b")),
    "options-password": (f"location / {{ if ($request_method = OPTIONS) {{ return 204; }} auth_basic x; auth_basic_user_file @DIR@/users; {PASS} }}", methods()),
    "options-refused": (f"location / {{ if ($http_x_color = red) {{ return 403; }} if ($request_method = OPTIONS) {{ return 204; }} {PASS} }}",
                        [get("/", {"x-color": color}, 2, method) for color in ("red", "blue") for method in METHODS]),
    "headers-by-method": (f"location / {{ if ($request_method = OPTIONS) {{ add_header X-A 1; return 204; }} if ($request_method = POST) {{ add_header X-A 2 always; }} "
                          f"add_header X-C 3; {PASS} }}", methods() + methods("/?s=404")),
    # Refusals by geo and map
    "geo": (f"geo $bad_@N@ {{ default 0; 127.0.0.3 1; 127.0.0.8/30 2; }}====location / {{ if ($bad_@N@) {{ return 403; }} {PASS} }}", CLIENTS),
    "geo-equal": (f"geo $bad_@N@ {{ default 0; 127.0.0.3 1; 127.0.0.8/30 2; }}====if ($bad_@N@ = 2) {{ return 404; }} location / {{ {PASS} }}", CLIENTS),
    "geo-not-equal": (f"geo $bad_@N@ {{ 127.0.0.3 1; 127.0.0.8/30 2; }}====if ($bad_@N@ != 1) {{ return 404; }} location / {{ {PASS} }}", CLIENTS),
    "map": (f"map $http_user_agent $bot_@N@ {{ default 0; ~*bot 1; }}====if ($bot_@N@) {{ return 403; }} location / {{ {PASS} }}", AGENTS),
    "map-default": (f"map $http_user_agent $bot_@N@ {{ default 1; ~*bot 0; }}====if ($bot_@N@) {{ return 403; }} location / {{ {PASS} }}", AGENTS),
    "map-empty": (f"map $http_user_agent $bot_@N@ {{ default 0; '' 1; ~*bot 1; }}====if ($bot_@N@ = 1) {{ return 403; }} location / {{ {PASS} }}", AGENTS),
    "map-path": (f"map $uri $bad_@N@ {{ default 0; ~^/a/ 1; /b 1; }}====if ($bad_@N@) {{ return 403; }} location / {{ {PASS} }}", PATHS + [get("/B"), get("/b/")]),
    # Refusals by header
    "agent": (f"if ($http_user_agent ~* bot) {{ return 403; }} location / {{ {PASS} }}", AGENTS),
    "agent-not": (f"if ($http_user_agent !~* bot) {{ return 403; }} location / {{ {PASS} }}", AGENTS),
    "agent-empty": (f"location / {{ if ($http_user_agent ~ '^$') {{ return 403; }} {PASS} }}", AGENTS),
    "header": (f"location / {{ if ($http_x_color) {{ return 403; }} {PASS} }}", COLORS),
    "header-equal": (f"location / {{ if ($http_x_color = red) {{ return 403; }} {PASS} }}", COLORS),
    "header-not-equal": (f"location / {{ if ($http_x_color != red) {{ return 403; }} {PASS} }}", COLORS),
    "header-empty": (f"location / {{ if ($http_x_color = '') {{ return 403; }} {PASS} }}", COLORS),
    "header-not-empty": (f"location / {{ if ($http_x_color != '') {{ return 403; }} {PASS} }}", COLORS),
    "header-headers": (f"add_header X-A 1 always; add_header X-B 1; location / {{ if ($http_x_color) {{ return 403; }} {PASS} }}", COLORS),
    "unreachable": ("location / { return 200 fixed; if ($http_x_color) { return 403; } }", COLORS),
    "before-slash": (f"if ($http_x_color = red) {{ return 403; }} location /a/ {{ {PASS} }} location / {{ return 404; }}", COLORS + [get("/a"), get("/a", {"x-color": "red"})]),
    "slash-exact": (f"location /a/ {{ add_header X-A 1; {PASS} }} location = /a/ {{ add_header X-B 1; return 403; }} location / {{ return 404; }}", PATHS),
    "slash-of-exact": (f"location /a/ {{ return 403; }} location = /a/ {{ {PASS} }} location / {{ return 404; }}", PATHS),
    "limit": (f"limit_req_zone $binary_remote_addr zone=z_@N@:64k rate=1r/m;====location / {{ limit_req zone=z_@N@ burst=1 nodelay; if ($http_x_color) {{ return 403; }} {PASS} }}",
              [get("/", {"x-color": "a"}, 7)] * 4 + [get("/", None, 7)] * 4),
    # A `map` of a `map`
    "tiers": ("map $http_x_color $tier_@N@ { default free; red pro; ~^bl pro; } map $tier_@N@ $lf_@N@ { default ''; FREE $binary_remote_addr; } "
              "map $tier_@N@ $lp_@N@ { default ''; ~^p $http_x_color; } limit_req_zone $lf_@N@ zone=f_@N@:64k rate=1r/m; limit_req_zone $lp_@N@ zone=p_@N@:64k rate=1r/m;===="
              f"location / {{ limit_req zone=f_@N@; limit_req zone=p_@N@ burst=2 nodelay; {PASS} }}",
              [get("/", headers, 7) for headers in [{"x-color": "red"}] * 4 + [{"x-color": "blue"}] * 4 + [{"x-color": "green"}, {}, {"x-color": ""}]]),
    "map-of-map": ("map $http_x_color $n_@N@ { default none; red One; RED2 two; } map $n_@N@ $v_@N@ { default 0; one 1; ~^tw 1; }===="
                   f"if ($v_@N@ = 0) {{ return 401; }} location / {{ {PASS} }}", COLORS + [get("/a/x", {"x-color": "red2"})]),
    "json-refusal": ("map $http_x_color $c_@N@ { default ''; red one; }===="
                     f"location / {{ if ($c_@N@ = '') {{ return 401 '{{\"error\": \"no key\", \"of\": {{\"a\": 1}}}}'; }} {PASS} }}", COLORS),
    "header-redirect": (f"if ($http_x_color = red) {{ return 302 /red; }} location / {{ {PASS} }} location = /b {{ return 200 fixed; }}", COLORS + PATHS + [get("/b", {"x-color": "red"})]),
    "rewrite-prefix": (f"location /a {{ rewrite ^/a(.*)$ /new$1 permanent; }} location /a/x/ {{ {PASS} }} location / {{ {PASS} }}", PATHS + [get("/ab?q=1"), get("/a%20b")]),
    "rewrite-own-query": (f"rewrite ^/b$ /new?a=1? permanent; location / {{ {PASS} }}", PATHS + [get("/b?q=1")]),
    "return-space": (f"location = /b {{ return 301 'https://example.com/x '; }} location / {{ {PASS} }}", PATHS),
    "request-headers": (f"location / {{ {PASS} proxy_set_header X-Method $request_method; proxy_set_header X-Address $remote_addr; }}", methods() + CLIENTS),
    "user-header": (f"location / {{ auth_basic x; auth_basic_user_file @DIR@/users; {PASS} proxy_set_header X-User $remote_user; }}", [get("/", PASSWORD), get("/", PASSWORD | {"x-user": "root"})]),
    # The server behind it by map
    "pass-header": (UPSTREAMS + "map $http_x_color $to_@N@ { default one_@N@; red two_@N@; }====location / { proxy_pass http://$to_@N@; }", COLORS),
    "pass-patterns": (UPSTREAMS + "map $http_x_color $to_@N@ { default one_@N@; ~^re two_@N@; blue two_@N@; ~e one_@N@; }====location / { proxy_pass http://$to_@N@; }", COLORS),
    "pass-empty": (UPSTREAMS + "map $http_x_color $to_@N@ { default one_@N@; '' two_@N@; red two_@N@; }====location / { proxy_pass http://$to_@N@; }", COLORS),
    "pass-except": (UPSTREAMS + "map $http_x_color $to_@N@ { default one_@N@; red two_@N@; }====location /a/ { proxy_pass http://$to_@N@; limit_except GET { deny all; } } "
                    "location / { return 404; }", COLORS + methods() + [get("/a")]),
    "pass-url": (UPSTREAMS + "map $http_x_color $to_@N@ { default http://one_@N@; red http://two_@N@; }====location / { proxy_pass $to_@N@; }", COLORS),
    "pass-cookie": (UPSTREAMS + "map $cookie_v $to_@N@ { default one_@N@; b two_@N@; }====location / { proxy_pass http://$to_@N@; }", COOKIES),
    "pass-method": (UPSTREAMS + "map $request_method $to_@N@ { default one_@N@; POST two_@N@; PUT two_@N@; }====location / { proxy_pass http://$to_@N@; }", methods()),
    "pass-host": (UPSTREAMS + "map $host $to_@N@ { default one_@N@; www.@HOST@ two_@N@; }====server_name www.@HOST@; location / { proxy_pass http://$to_@N@; }",
                  [(2, "GET", prefix, "/a", {}, b"") for prefix in ("@HOST@", "www.@HOST@", "WWW.@HOST@", "www.@HOST@.")]),
    "pass-pattern-location": (UPSTREAMS + "map $http_x_color $to_@N@ { default one_@N@; red two_@N@; }====location ~ ^/a { proxy_pass http://$to_@N@; } location / { return 200 fixed; }",
                              COLORS + PATHS),
    # Names of variables have no case.
    "set-case": ("location / { set $Up 127.0.0.1:1; set $up @UP@; proxy_pass http://$UP; }", PATHS[:2]),
    "map-case": (f"map $HTTP_X_Color $Bad_@N@ {{ default 0; red 1; }}====if ($BAD_@N@) {{ return 403; }} location / {{ {PASS} }}", COLORS),
    # A server that closes connections is left out after its first error.
    "eject": ("upstream e_@N@ { server @BROKEN@; server @UP@; } ====location / { proxy_pass http://e_@N@; }", [get("/", None, 2, "POST")] * 20),
    "eject-weights": ("upstream e_@N@ { server @BROKEN@ max_fails=1 weight=2; server @UP@ fail_timeout=10; } ====location / { proxy_pass http://e_@N@; }", [get()] * 20),
    # Names and times of servers with TLS
    "tls-name": ("upstream t@N@.test { server @TLS@; } ====location / { proxy_pass https://t@N@.test; proxy_ssl_server_name on; }", PATHS[:2]),
    "tls-no-name": ("upstream t@N@.test { server @TLS@; } ====location / { proxy_pass https://t@N@.test; }", PATHS[:2]),
    "tls-written-name": ("location / { proxy_pass https://@TLS@; proxy_ssl_server_name on; proxy_ssl_name a.test:8443; }", PATHS[:2]),
    "tls-constant-name": ("set $Name a.test; location / { proxy_pass https://@TLS@; proxy_ssl_server_name on; proxy_ssl_name $name; }", PATHS[:2]),
    "tls-verified": (f"upstream example.com {{ server @TLS@; }} ====location / {{ proxy_pass https://example.com; proxy_ssl_verify on; proxy_ssl_server_name on; "
                     f"proxy_ssl_trusted_certificate {CERTIFICATES}/sample.pem; }}", PATHS[:2]),
    "tls-verified-otherwise": (f"upstream t@N@.test {{ server @TLS@; }} ====location / {{ proxy_pass https://t@N@.test; proxy_ssl_verify on; "
                               f"proxy_ssl_trusted_certificate {CERTIFICATES}/sample.pem; }}", PATHS[:2]),
    "tls-slow": ("location / { proxy_pass https://@SLOW@; }", PATHS[:1]),
    "empty": ("location / { return 200; } location /a { return 404; } location /b { return 204; } location /z { default_type a/b; return 201; }", PATHS),
    # `Location` headers of the server: those of a location inside go by the location around, unless nothing is known there.
    "redirects-inherited": (f"set $up @UP@; set $other @OTHER@; location / {{ {PASS} location /a/ {{ proxy_pass http://$up; }} location /b/ {{ proxy_pass http://@UP@/b/; "
                            "location /b/c/ { proxy_pass http://@UP@/a/; } } } location /v/ { proxy_pass http://$up; location /v/w/ { proxy_pass http://@UP@/v/; } }", REDIRECTS),
    "redirects-written": (f"proxy_redirect http://@UP@/ /of-server/; location / {{ {PASS} }} location /a/ {{ {PASS} proxy_redirect default; location /a/x/ {{ proxy_pass http://@UP@/b/; }} "
                          f"location /a/y/ {{ {PASS} proxy_redirect off; }} }} location /b/ {{ {PASS} proxy_redirect off; location /b/x/ {{ {PASS} }} "
                          f"location /b/y/ {{ proxy_pass http://@UP@/b/; proxy_redirect default; location /b/y/z/ {{ {PASS} }} }} }}", REDIRECTS),
    # Types of `return` by extension
    "types": ("location = /x.html { return 200 fixed; } location = /y.jpg { return 200 fixed; } location = /z.json { default_type a/b; return 200 fixed; } location / { return 404; }",
              [get("/x.html"), get("/y.jpg"), get("/z.json")]),
}
OTHERS = {
    "deny-and-refusal": (f"location /a/ {{ deny 127.0.0.3; if ($http_x_color = red) {{ return 404; }} {PASS} }} location / {{ return 200; }}", CLIENTS + COLORS),
    "refusal-headers": (f"add_header X-A 1 always; if ($http_x_color = red) {{ return 403; }} location /a/ {{ add_header X-B 1 always; {PASS} }} location / {{ return 404; }}", COLORS),
    "except-both": (f"allow 127.0.0.2; deny all; location / {{ limit_except GET {{ deny all; }} {PASS} }}", methods()),
    "except-return": ("location / { limit_except GET { deny all; } return 200 fixed; }", methods()),
    "except-options": (f"location / {{ if ($request_method = OPTIONS) {{ return 204; }} limit_except GET {{ deny all; }} {PASS} }}", methods()),
    "except-limit": (f"limit_req_zone $binary_remote_addr zone=z_@N@:64k rate=1r/m;====location / {{ limit_req zone=z_@N@; limit_except GET {{ deny all; }} {PASS} }}", methods("/", 6)),
    "except-password": (f"location / {{ limit_except GET {{ auth_basic x; auth_basic_user_file @DIR@/users; }} {PASS} }}", methods()),
    "method-444": (f"if ($request_method = POST) {{ return 444; }} location / {{ {PASS} }}", methods()),
    "method-lower-case": (f"if ($request_method = post) {{ return 405; }} location / {{ {PASS} }}", methods()),
    "map-overlap": (f"map $http_user_agent $bot_@N@ {{ default 0; ~*abo 0; ~*bot 1; }}====if ($bot_@N@ = 1) {{ return 403; }} location / {{ {PASS} }}", AGENTS),
    "query": (f"location / {{ if ($arg_q = 1) {{ return 403; }} if ($arg_z) {{ return 402; }} {PASS} }}", PATHS + [get("/?q=1"), get("/?q=%31"), get("/?z=0"), get("/?z=1")]),
    "cookie": (f"location / {{ if ($cookie_v = b) {{ return 403; }} {PASS} }}", [get("/", {"cookie": text}) for text in ("v=b", "x=1; v=b", "v=bb")]),
    "argument": (f"location / {{ if ($arg_q = 1) {{ return 403; }} {PASS} }}", ARGUMENTS),
    "argument-not": (f"if ($arg_q != 1) {{ return 403; }} location / {{ {PASS} }}", ARGUMENTS),
    "argument-of-map": (f"map $arg_q $bad_@N@ {{ default 0; 1 1; }}====if ($bad_@N@) {{ return 403; }} location / {{ {PASS} }}", ARGUMENTS),
    "cookie-there": (f"location / {{ if ($Cookie_Sid) {{ return 403; }} {PASS} }}", SIDS),
    "cookie-equal": (f"if ($cookie_sid = 1) {{ return 403; }} location / {{ {PASS} }}", SIDS),
    "cookie-not": (f"location / {{ if ($cookie_sid != 1) {{ return 403; }} {PASS} }}", SIDS),
    "cookie-of-map": (f"map $cookie_sid $bad_@N@ {{ default 0; 1 1; }}====location / {{ if ($bad_@N@) {{ return 403; }} {PASS} }}", SIDS),
    "eject-different": ("upstream e_@N@ { server @UP@ max_fails=0; server @OTHER@; } ====location / { proxy_pass http://e_@N@; }", PATHS[:2]),
    "tls-name-of-host": ("location / { proxy_pass https://@TLS@; proxy_ssl_server_name on; proxy_ssl_name $host; }", PATHS[:1]),
    "authorization": (f"location / {{ if ($http_authorization != 'Bearer abc') {{ return 401; }} {PASS} }}",
                      [get("/", {"authorization": text}) for text in ("Bearer abc", "Bearer abcd", "Basic abc", "abc")] + [get("/")]),
    "unseen": (f"if ($http_x_forwarded_for) {{ return 403; }} location / {{ {PASS} }}", [get("/"), get("/", {"x-forwarded-for": "1.1.1.1"})]),
    "after-break": (f"location / {{ rewrite ^/(.*)$ /z/$1 break; if ($http_x_color) {{ return 403; }} {PASS} }}", COLORS),
    "set": (f"location / {{ set $x 0; if ($http_x_color = red) {{ set $x 1; }} if ($x = 1) {{ return 403; }} {PASS} }}", COLORS),
    "password": (f"location / {{ auth_basic x; auth_basic_user_file @DIR@/users; if ($http_x_color) {{ return 403; }} {PASS} }}",
                 COLORS + [get("/", PASSWORD), get("/", PASSWORD | {"x-color": "a"})]),
    "pass-variable": (UPSTREAMS + "map $http_x_color $to_@N@ { default one_@N@; red $http_x_up; }====location / { proxy_pass http://$to_@N@; }", COLORS),
    "set-map": (f"map $http_x_color $bad_@N@ {{ default 0; red 1; }}====if ($http_x_up = 1) {{ set $bad_@N@ 1; }} location / {{ if ($bad_@N@) {{ return 403; }} {PASS} }}",
                COLORS + [get("/", {"x-up": "1"})]),
    "set-pass": (UPSTREAMS + "map $http_x_color $to_@N@ { default one_@N@; red two_@N@; }====location / { if ($http_x_up = 1) { set $to_@N@ two_@N@; } "
                 "proxy_pass http://$to_@N@; }", COLORS + [get("/", {"x-up": "1"})]),
    "set-args": (f"location / {{ set $args x=1; {PASS} }}", PATHS),
    "set-args-server": (f"set $args ''; location / {{ {PASS} }}", PATHS),
    "set-header": (f"location / {{ set $http_x_bad 1; if ($http_x_bad) {{ return 403; }} {PASS} }}", PATHS),
    "named-group": (f"map $http_x_color $bad_@N@ {{ default 0; red 1; }}====location ~ ^/(?<bad_@N@>[01])/ {{ if ($bad_@N@) {{ return 403; }} {PASS} }} "
                    f"location / {{ {PASS} }}", PATHS + [get("/1/x"), get("/0/x")]),
    "http-host": (f"if ($http_host !~ ^@HOST@$) {{ return 403; }} location / {{ {PASS} }}", PATHS),
    "other-host": ("location / { return 301 //cdn.test/x; }", PATHS[:2]),
    "internal-method": (f"location / {{ internal; if ($request_method = OPTIONS) {{ return 200 x; }} {PASS} }}", methods("/")),
    "host-names": (f"server_name www.@HOST@ other.@HOST@; if ($host !~ ^(@HOST@|www.@HOST@)$) {{ return 403; }} location / {{ {PASS} }}",
                   [(2, "GET", prefix + "@HOST@", "/a", {}, b"") for prefix in ("", "www.", "other.", "WWW.")]),
    "user-unverified": (f"location / {{ {PASS} proxy_set_header X-User $remote_user; }}", [get("/", PASSWORD), get("/", {"x-user": "root"})]),
    "rewrite-query": (f"rewrite ^/b$ /new?a=1 permanent; location / {{ {PASS} }}", PATHS + [get("/b?q=1")]),
    "all-down": ("upstream d_@N@ { server @UP@ down; } ====location / { proxy_pass http://d_@N@; }", PATHS[:2]),
    "forwarded-proto": (f"if ($http_x_forwarded_proto = http) {{ return 301 https://$host$request_uri; }} location / {{ {PASS} }}", [get("/"), get("/", {"x-forwarded-proto": "http"})]),
    "pass-nothing": (UPSTREAMS + "map $http_x_color $to_@N@ { red one_@N@; }====location / { proxy_pass http://$to_@N@; }", COLORS),
    "zone-with-two-numbers": (f"limit_req_zone $binary_remote_addr zone=z_@N@:64k rate=1r/m;====location / {{ limit_req zone=z_@N@ burst=2 nodelay; {PASS} }} "
                              f"location /a {{ limit_req zone=z_@N@ burst=5 nodelay; {PASS} }}", [get("/", None, 8)] * 4 + [get("/a", None, 8)] * 4),
    "types-by-pattern": (r"location ~ \.(html|txt)$ { return 200 fixed; } location / { return 404; }", [get("/x.html"), get("/x.txt")]),
}


class Broken(socketserver.BaseRequestHandler):
    """Reads a request and closes the connection."""

    def handle(self):
        try:
            read_message(self.request, False)
        except (ConnectionError, ValueError, OSError):
            return


class Tls(socketserver.BaseRequestHandler):
    """A server with TLS. Its responses have the name that the handshake asked for."""
    DELAY = 0

    def handle(self):
        asked = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATES / "sample.pem", CERTIFICATES / "sample.key")
        context.sni_callback = lambda _socket, name, _context: asked.append(name)
        time.sleep(self.DELAY)
        try:
            with context.wrap_socket(self.request, server_side=True) as sock:
                while True:
                    read_message(sock, False)
                    text = f"name {asked}".encode()
                    sock.sendall(b"HTTP/1.1 200 X\r\nX-Marker: app\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        except (ConnectionError, ValueError, OSError):
            return


class SlowTls(Tls):
    """Its handshakes take longer than connections do by default in the gateway, and not as long as in nginx."""
    DELAY = 4


class Case:
    """A server with a name of its own."""

    def __init__(self, number, name, text, requests, is_exact):
        self.name, self.is_exact = name, is_exact
        self.host = f"c{number}.test"
        self.replace = lambda text: text.replace("@N@", str(number)).replace("@HOST@", self.host)
        http, _, server = text.rpartition("====")
        self.text = self.replace(f"{http}\nserver {{ listen 127.0.0.1:@PORT@; server_name {self.host}; {server} }}\n")
        self.requests = [(*one[:2], self.replace(one[2] or self.host), *one[3:]) for one in requests]


def compare(case, request, theirs, ours, ports):
    """Returns what differs, or None."""
    if not case.is_exact:
        return "served, where nginx did not" if is_open(ours) and not is_open(theirs) and theirs[0] not in (0, 503) else None
    pair = simplify(theirs, request, ports[0]), simplify(ours, request, ports[1])
    return None if pair[0] == pair[1] else f"\n  nginx: {pair[0]}\n  ours:  {pair[1]}"


def main():
    sluicegate = sys.argv[1]
    directory = pathlib.Path(tempfile.mkdtemp(prefix="import-cases-"))
    made = subprocess.run(["htpasswd", "-nbB", "-C", "4", "alice", "secret"], capture_output=True, text=True).stdout
    (directory / "users").write_text(made)
    kinds = {"@UP@": Handler, "@OTHER@": Handler, "@BROKEN@": Broken, "@TLS@": Tls, "@SLOW@": SlowTls}
    servers = {word: Echo(("127.0.0.1", 0), kind) for word, kind in kinds.items()}
    for server in servers.values():
        threading.Thread(target=server.serve_forever, daemon=True).start()
    words = {word: f"127.0.0.1:{server.server_address[1]}" for word, server in servers.items()}
    listed = [(name, *case, True) for name, case in EXACT.items()] + [(name, *case, False) for name, case in OTHERS.items()]
    cases = [Case(number, *case) for number, case in enumerate(listed)]
    ports = free_port(), free_port()
    failed = 0
    for case in cases:
        for word, value in [*words.items(), ("@DIR@", str(directory))]:
            case.text = case.text.replace(word, value)
        alone = directory / f"{case.name}.conf"
        alone.write_text(case.text.replace("@PORT@", str(ports[1])))
        done = subprocess.run([sluicegate, "import", "nginx", alone], capture_output=True, text=True)
        if done.returncode != (0 if case.is_exact else 3):
            failed += 1
            print(f"{case.name}: import ends with {done.returncode}: {find_remarks(done.stdout)} {done.stderr[:2000]}")
    # Requests for unknown hosts go to the first server.
    first = "server { listen 127.0.0.1:@PORT@; server_name first.test; location / { return 404; } }\n"
    programs = Programs(sluicegate, directory, "", first + "".join(case.text for case in cases), *ports)
    count = 0
    try:
        for case in cases:
            if case.name in UNORDERED:
                count += len(case.requests)
                responses = [sorted(repr(simplify(fetch(port, request, "plain"), request, port)) for request in case.requests) for port in ports]
                if responses[0] != responses[1]:
                    failed += 1
                    print(f"{case.name}:\n  nginx: {responses[0]}\n  ours:  {responses[1]}")
                continue
            for request in case.requests:
                count += 1
                theirs, ours = (fetch(port, request, "plain") for port in ports)
                found = compare(case, request, theirs, ours, ports)
                if found:
                    failed += 1
                    print(f"{case.name}, {request}: {found}")
    finally:
        programs.stop()
    print(f"{len(cases)} cases, {count} requests, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
