//! Sends the same paths to a real nginx and to the imported config: nested locations, and characters with two spellings.

use super::differential::{Nginx, get, upstream};
use super::output::{import, imported};
use crate::support::gateway::Gateway;

/// A server, the paths that are sent to it, and whether its import has no comments.
struct Case {
    server: &'static str,
    paths: &'static [&'static str],
    is_exact: bool,
}

const CASES: [Case; 27] = [
    // Slashes that stay.
    Case {
        server: "merge_slashes off; location / { PASS }",
        paths: &["/a//b", "//a", "/a//", "/a///b?x=//y", "/a/b"],
        is_exact: true,
    },
    // A `rewrite` by the prefix of its location, which continues without a slash.
    Case {
        server: "location /old { rewrite ^/old(.*)$ /new$1 permanent; } location /old/x/ { PASS } location /z { rewrite \
                 ^/z(.*)$ https://b.test/y$1? redirect; } location / { PASS }",
        paths: &["/old", "/old/a?q=1", "/older", "/old/x/y", "/old/a%20b", "/z", "/z/x?y", "/zz", "/a"],
        is_exact: true,
    },
    // A `rewrite` of the server comes before all locations, and of several the first that matches.
    Case {
        server: "rewrite ^/u/([0-9]+)/(.*)$ /users/$1/$2 permanent; rewrite ^/(a|b)/x$ https://b.test/$1? redirect; \
                 location = /a/x { return 204; } location / { PASS }",
        paths: &["/u/7/x?q=1", "/u/x/y", "/u/7/", "/a/x", "/b/x?y=z", "/c/x", "/u/7/a%20b"],
        is_exact: true,
    },
    Case {
        server: "rewrite ^/x/(.*)$ /y/$1 permanent; rewrite ^/x/a$ /z permanent; location / { PASS }",
        paths: &["/x/a", "/x/b", "/x", "/y/a"],
        is_exact: true,
    },
    Case {
        server: "location ~ ^/old/(a|b)/([^/]+)$ { return 301 /new/$2/$1; } location ~ ^/q/(.*)$ { return 302 /r/$1$is_args$args; } \
                 location ~ ^/v1/(.*)$ { PASS_TO/$1$is_args$args; } \
                 location ~ ^/w/(x|y)/(.*)$ { rewrite ^/w/(x|y)/(.*)$ /ww/$2 break; PASS } location / { PASS }",
        paths: &[
            "/old/a/7",
            "/old/c/7",
            "/old/a/7?x",
            "/q/a?b=c",
            "/q/a",
            "/v1/a/b?c=d",
            "/v1/",
            "/w/x/1",
            "/w/z/1",
            "/w/y/?q",
        ],
        is_exact: true,
    },
    // A prefix that is stripped without its slash.
    Case {
        server: "location ^~ /app/ { rewrite /app(.*) $1 break; PASS } location /two/ { rewrite ^/two(/.*)$ /v2$1 break; PASS } \
                 location / { return 204; }",
        paths: &["/app/", "/app/x?y", "/app", "/two/x", "/apps"],
        is_exact: true,
    },
    Case {
        server: "location /app { return 301 $scheme://$host/app/; } location ^~ /app/ { PASS }",
        paths: &["/app", "/app/", "/apps"],
        is_exact: false,
    },
    Case {
        server: "if ($http_x_no) { return 403; } rewrite ^/u/([0-9]+)$ /users/$1 permanent; location / { PASS }",
        paths: &["/u/7", "/"],
        is_exact: true,
    },
    // A condition that is not available may refuse what a later `rewrite` redirects.
    Case {
        server: "if ($ssl_cipher) { return 403; } rewrite ^/u/([0-9]+)$ /users/$1 permanent; location / { PASS }",
        paths: &["/u/7", "/"],
        is_exact: false,
    },
    // The `set` after a `rewrite` counts only if that does not match.
    Case {
        server: "location /k/ { set $to UP; rewrite ^/k/(.*)$ /$1 break; set $to 127.0.0.1:1; proxy_pass http://$to; }",
        paths: &["/k/x"],
        is_exact: false,
    },
    // A `^~` inside of another location does not keep the server's regular expressions away.
    Case {
        server: r"location / { PASS location ^~ /static/ { PASS } } location ~ /\.(git|env) { deny all; }",
        paths: &["/static/.env", "/static/x", "/.git/config", "/x"],
        is_exact: true,
    },
    // That of the outermost location counts for all locations inside of it.
    Case {
        server: "location ^~ /a/ { PASS location /a/b/ { deny all; } } location ~ x$ { return 204; } location / { PASS }",
        paths: &["/a/x", "/a/b/x", "/a/b/", "/x", "/a/b", "/a"],
        is_exact: true,
    },
    Case {
        server: "location ^~ /a/ { PASS } location /a/b/ { PASS } location ~ secret { deny all; } location / { PASS }",
        paths: &["/a/b/secret", "/a/secret", "/secret"],
        is_exact: false,
    },
    // A longer location beside the outer one takes the requests of the inner one.
    Case {
        server: "location /a { PASS location /a/b/c { PASS } location = /a/b/e { PASS } } location /a/b { deny all; } location / { PASS }",
        paths: &["/a/b/c", "/a/b/e", "/a/b", "/a/x", "/a"],
        is_exact: true,
    },
    Case {
        server: "location /a { PASS location /a { deny all; } } location /b/ { PASS location /b/ { PASS } } location / { return 204; }",
        paths: &["/a", "/ab", "/b", "/b/"],
        is_exact: true,
    },
    // The redirect to a slash comes before locations inside of others.
    Case {
        server: "location / { return 204; location /e { PASS } location = /f { PASS } location /a { PASS location /a/ { PASS } } } \
                 location /e/ { PASS } location /f/ { PASS }",
        paths: &["/e", "/e/", "/f", "/f/", "/a", "/a/", "/ab"],
        is_exact: true,
    },
    Case {
        server: "location /a { PASS location /a/b/ { PASS } } location = /a/b { return 204; } location / { PASS }",
        paths: &["/a/b", "/a/b/", "/a"],
        is_exact: true,
    },
    Case {
        server: "location /a/ { internal; PASS } location / { PASS }",
        paths: &["/a", "/a/", "/b"],
        is_exact: false,
    },
    Case {
        server: "location ~ /api { PASS location /api/admin { deny all; } } location / { PASS }",
        paths: &["/api/admin", "/api/x", "/x"],
        is_exact: false,
    },
    // The inner regular expression comes before the outer ones.
    Case {
        server: r"location / { PASS location ~ \.php$ { deny all; } } location ~ ^/a { PASS } location ^~ /s/ { PASS }",
        paths: &["/a.php", "/b.php", "/s/x", "/x"],
        is_exact: false,
    },
    Case {
        server: "location /@fs/ { deny all; } location / { PASS }",
        paths: &["/@fs/x", "/%40fs/x", "/%40%66s/x", "/x", "/@f"],
        is_exact: true,
    },
    Case {
        server: "location = /a+b { deny all; } location ^~ /(x)/ { deny all; } location /$a { return 204; } location / { PASS }",
        paths: &["/a+b", "/a%2Bb", "/a%2bb", "/%28x)/y", "/(x%29/y", "/$a", "/%24ab", "/a%20b", "/%2Ab"],
        is_exact: true,
    },
    Case {
        server: "location ~ ^/a.c/ { deny all; } location ~ [@~]x$ { return 204; } location / { PASS }",
        paths: &["/a@c/", "/a%40c/", "/a%20c/", "/abc/", "/%C3c/", "/a%C3%A9c/", "/@x", "/%40x", "/~x", "/%7Ex", "/0x"],
        is_exact: true,
    },
    Case {
        server: r#"location ~ "^/[^/]{2}$" { return 204; } location ~* "^/É b" { deny all; } location ~ [0-9] { return 202; } location / { PASS }"#,
        paths: &[
            "/ab",
            "/%40%40",
            "/%C3%A9",
            "/a",
            "/abc",
            "/%C3%89%20b",
            "/%C3%89",
            "/a%2Ab%2A",
            "/%40%40%40",
            "/a1b",
        ],
        is_exact: true,
    },
    Case {
        server: r"location ~ 40$ { deny all; } location ~* admin { return 204; } location / { PASS }",
        paths: &["/x%40", "/x40", "/%2Admin", "/ADMIN", "/xadmin"],
        is_exact: true,
    },
    Case {
        server: r"location ~ \badmin { deny all; } location / { PASS }",
        paths: &["/admin", "/%40admin", "/x"],
        is_exact: false,
    },
    Case {
        server: "location = /e/ { PASS } location /@e/ { PASS } location / { return 204; }",
        paths: &["/e", "/e/", "/e/x", "/@e", "/%40e", "/@e/", "/%40e/x?q=1"],
        is_exact: true,
    },
];

#[test]
fn paths_lead_to_the_location_that_nginx_finds() {
    let upstream = upstream();
    let pass = format!("proxy_pass http://{}; proxy_set_header Host $host;", upstream.addr);
    let mut differ = Vec::new();
    for Case { server, paths, is_exact } in CASES {
        let dir = tempfile::tempdir().unwrap();
        let to = format!("proxy_set_header Host $host; proxy_pass http://{}", upstream.addr);
        let own = server.replace("PASS_TO", &to).replace("PASS", &pass).replace("UP", &upstream.addr.to_string());
        let text = format!("server {{ listen 127.0.0.1:0; {own} }}");
        let path = dir.path().join("nginx.conf");
        std::fs::write(&path, &text).unwrap();
        let output = import("nginx", &path);
        let config = String::from_utf8(output.stdout).unwrap();
        let expected = if is_exact { 0 } else { 3 };
        assert_eq!(output.status.code(), Some(expected), "{server}\n{config}");
        let nginx = Nginx::start(dir.path(), &text);
        let gateway = Gateway::with_config(&format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
        for path in paths {
            let [theirs, ours] = [nginx.addr, gateway.addr].map(|addr| get(path).send(addr));
            let is_closed = !is_exact && ours.starts_with("501");
            if ours != theirs && !is_closed {
                differ.push(format!("{server} {path}: ours {ours}, nginx's {theirs}"));
            }
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}

/// An `if` on `$host` is for the hosts that reach its server, also by a wildcard, and for no host of another server.
#[test]
fn conditions_on_the_host_are_for_the_hosts_of_their_server() {
    let upstream = upstream();
    let pass = format!("location / {{ proxy_pass http://{}; }}", upstream.addr);
    let mut differ = Vec::new();
    for (names, condition) in [
        (".a.test", "= www.a.test"),
        ("*.a.test", "!= www.a.test"),
        ("a.test *.a.test", "= x.b.test"),
        ("a.test", "!= b.test"),
        ("*.test", "= b.test"),
        ("*.test", "= x.b.test"),
    ] {
        for is_first in [true, false] {
            let own = format!(
                "server {{ listen 127.0.0.1:0; server_name {names}; if ($host {condition}) {{ return 302 https://c.test/; }} {pass} }}"
            );
            let other = "server { listen 127.0.0.1:0; server_name .b.test; location / { return 204; } }";
            let text = if is_first { format!("{own} {other}") } else { format!("{other} {own}") };
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("nginx.conf");
            std::fs::write(&path, &text).unwrap();
            let output = import("nginx", &path);
            let config = String::from_utf8(output.stdout).unwrap();
            assert_eq!(output.status.code(), Some(0), "{text}\n{config}");
            let nginx = Nginx::start(dir.path(), &text);
            let gateway = Gateway::with_config(&format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
            for host in ["a.test", "www.a.test", "x.a.test", "b.test", "x.b.test", "unknown.test"] {
                let [theirs, ours] = [nginx.addr, gateway.addr].map(|addr| get("/").host(host).send(addr));
                if ours != theirs {
                    differ.push(format!("{names} {condition} {is_first} {host}: ours {ours}, nginx's {theirs}"));
                }
            }
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}

/// Of the names that match a host, nginx takes the exact one, then the longest `*.a.test`, then the longest `app.*`.
#[test]
fn names_with_any_ending_come_after_all_others() {
    let names = ["app.a.test", "*.b.test", "app.*", "app.x.*", "app.x.y.test", "_"];
    let mut differ = Vec::new();
    for first in 0..names.len() {
        let mut ordered = names;
        ordered.rotate_left(first);
        let server = |(number, name): (usize, &&str)| {
            format!("server {{ listen 127.0.0.1:0; server_name {name}; location / {{ return 200 \"{number}\"; }} }}")
        };
        let text = ordered.iter().enumerate().map(server).collect::<Vec<_>>().join("\n");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nginx.conf");
        std::fs::write(&path, &text).unwrap();
        let output = import("nginx", &path);
        let config = String::from_utf8(output.stdout).unwrap();
        let is_kept = matches!(output.status.code(), Some(0 | 3));
        assert!(is_kept, "{text}\n{config}");
        let nginx = Nginx::start(dir.path(), &text);
        let gateway = Gateway::with_config(&format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
        for host in [
            "app.a.test",
            "app.b.test",
            "app.c.test",
            "app.x.test",
            "app.x.y.test",
            "app.x.y.z.test",
            "app",
            "app.x",
            "unknown.test",
            "b.test",
            "my.app.c.test",
            "APP.c.test",
        ] {
            let [theirs, ours] = [nginx.addr, gateway.addr].map(|addr| get("/").host(host).send(addr));
            if ours != theirs {
                differ.push(format!("{first} {host}: ours {ours}, nginx's {theirs}"));
            }
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}

/// An expression on the host is evaluated for each name of the server, with its groups. Unknown hosts are closed.
#[test]
fn expressions_on_the_host_are_evaluated_for_each_name() {
    let upstream = upstream();
    let pass = format!("location / {{ proxy_pass http://{}; }}", upstream.addr);
    let mut differ = Vec::new();
    for (condition, response) in [
        (r"$host ~* ^WWW\.(.*)$", "return 302 https://$1/x;"),
        (r"$host !~ ^www\.", "return 302 https://c.test/;"),
        (r"$host ~ ^(?<sub>[a-z]+)\.a", "return 302 https://${sub}.test/;"),
        (r"$host ~ ^none", "return 204;"),
    ] {
        for is_first in [true, false] {
            let own = format!(
                "server {{ listen 127.0.0.1:0; server_name a.test www.a.test; rewrite ^/old$ https://d.test/new? permanent; \
                 if ({condition}) {{ {response} }} {pass} }}"
            );
            let other = "server { listen 127.0.0.1:0; server_name b.test; location / { return 204; } }";
            let text = if is_first { format!("{own} {other}") } else { format!("{other} {own}") };
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("nginx.conf");
            std::fs::write(&path, &text).unwrap();
            let output = import("nginx", &path);
            let config = String::from_utf8(output.stdout).unwrap();
            assert_eq!(output.status.code(), Some(if is_first { 3 } else { 0 }), "{text}\n{config}");
            let nginx = Nginx::start(dir.path(), &text);
            let gateway = Gateway::with_config(&format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
            for host in ["a.test", "www.a.test", "b.test", "unknown.test"] {
                for path in ["/", "/old"] {
                    let [theirs, ours] = [nginx.addr, gateway.addr].map(|addr| get(path).host(host).send(addr));
                    let is_closed = is_first && host == "unknown.test" && ours == "501";
                    if ours != theirs && !is_closed {
                        differ.push(format!("{condition} {is_first} {host}{path}: ours {ours}, nginx's {theirs}"));
                    }
                }
            }
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}

/// nginx tries the addresses of a hostname one after another, and SRV records are servers of their own.
#[test]
fn names_with_several_addresses_are_tried() {
    let retry = "retry = { attempts = 10, on = [\"connect\", \"reset\", \"timeout\"] }";
    for (http, pass, servers, is_tried) in [
        ("", "http://app.test:3000", "servers = \"http://app.test:3000\"", true),
        ("", "http://10.0.0.1:3000", "servers = \"http://10.0.0.1:3000\"", false),
        ("upstream app { server app.test:3000; }", "http://app", "url = \"http://app.test:3000\"", true),
        (
            "upstream app { zone app 64k; server app.test service=http resolve; }",
            "http://app",
            "url = \"srv:_http._tcp.app.test\"",
            true,
        ),
    ] {
        let (found, code) = imported(&format!("{http} server {{ listen 80; location / {{ proxy_pass {pass}; }} }}"));
        assert!(found.contains(servers) && found.contains(retry) == is_tried, "{pass}\n{found}");
        assert_eq!(code, 0, "{found}");
        sluicegate::config::load_text("imported", &found).unwrap_or_else(|report| panic!("{report}\n{found}"));
    }
}

/// nginx answers 502 if all servers of an `upstream` are down.
#[test]
fn an_upstream_without_servers_answers_502() {
    let (found, code) = imported(
        "upstream app { server 127.0.0.1:1 down; server 127.0.0.1:2 down; } server { listen 80; location / { proxy_pass \
         http://app; } }",
    );
    assert!(code == 3 && found.contains("respond = { status = 502 }") && !found.contains("[upstream"), "{found}");
    sluicegate::config::load_text("imported", &found).unwrap_or_else(|report| panic!("{report}\n{found}"));
}
