//! Checks the config that an import writes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use sluicegate::config;

use crate::support::gateway::program;

/// Runs an import that may use 20 s of CPU time: how long it takes depends on what else the machine does.
pub fn import(from: &str, path: &Path) -> Output {
    let program = program();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -t 20; exec \"$@\"", "sh"]).arg(program.get_program()).args(["import", from]).arg(path);
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited.stdin(Stdio::null()).output().unwrap()
}

/// Imports a config of nginx. Returns the written config and the exit code.
#[track_caller]
pub fn imported(text: &str) -> (String, i32) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nginx.conf");
    std::fs::write(&path, text).unwrap();
    let output = import("nginx", &path);
    let code = output.status.code().unwrap();
    assert!(matches!(code, 0 | 3), "{code}: {}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8(output.stdout).unwrap(), code)
}

/// Each sample `NAME` in `tests/import/DIR` gives exactly `NAME.toml`, which loads. The first line of a sample states
/// the exit code. To update the files after a change: `GOLDEN=write cargo test --test proxying import::`. Then review
/// them.
#[test]
fn every_sample_gives_its_config() {
    let mut wrong = Vec::new();
    for (from, dir, extension) in [
        ("nginx", "tests/import/nginx", "conf"),
        ("ingress-nginx", "tests/import/ingress", "yaml"),
        ("ratelimit", "tests/import/ratelimit", "yaml"),
    ] {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|own| own == extension));
        assert!(!paths.is_empty());
        for path in paths {
            let text = std::fs::read_to_string(&path).unwrap();
            let expected = text.lines().next().unwrap().trim_start_matches("# exit code ").parse::<i32>().unwrap();
            let output = import(from, &path);
            let found = String::from_utf8(output.stdout).unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(expected), "{}: {stderr}\n{found}", path.display());
            config::load_text("imported", &found)
                .unwrap_or_else(|report| panic!("{}: {report}\n{found}", path.display()));
            let golden = path.with_extension("toml");
            if std::env::var_os("GOLDEN").is_some() {
                std::fs::write(&golden, &found).unwrap();
            } else if std::fs::read_to_string(&golden).unwrap_or_default() != found {
                wrong.push(format!("--- {} gives\n{found}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn zones_become_limits_of_the_same_verdicts() {
    let server = "server { listen 8080; location / { limit_req zone=z BURST; proxy_pass http://127.0.0.1:3000; } }";
    let zone = "limit_req_zone $binary_remote_addr zone=z:1m rate=10r/s;";
    for (burst, expected) in [
        ("", "rate = \"10/s\"\nburst = 1\n"),
        ("burst=20 nodelay", "rate = \"10/s\"\nburst = 21\n"),
        ("burst=20", "algorithm = \"leaky_bucket\"\nrate = \"10/s\"\nqueue = \"2s\"\n"),
        ("burst=20 delay=8", "algorithm = \"leaky_bucket\"\nrate = \"10/s\"\nqueue = \"2s\"\ndelay_after = 8\n"),
        ("burst=20 delay=20", "rate = \"10/s\"\nburst = 21\n"),
    ] {
        let (text, code) = imported(&format!("{zone}\n{}", server.replace("BURST", burst)));
        assert!(text.contains(expected), "{burst}:\n{text}");
        assert!(text.contains("refuse = { status = 503 }"), "nginx's default:\n{text}");
        assert_eq!(code, 0, "{text}");
    }
}

#[test]
fn keys_keep_their_meaning() {
    for (key, before, expected) in [
        (
            "$http_x_api_key",
            "",
            "key = \"header:x-api-key\"\nrepeated = \"first\"\nwhen = { header = { \"x-api-key\" = \"*\" } }",
        ),
        ("$server_name", "", "key = \"all\""),
        ("$binary_remote_addr$request_uri", "", "key = [\"ip/32/128\", \"target\"]"),
        ("$binary_remote_addr$uri", "", "key = [\"ip/32/128\", \"path\"]"),
        ("$binary_remote_addr$args", "", "key = [\"ip/32/128\", \"query_string\"]"),
        ("$scheme$host", "", "key = \"host\""),
        ("constant", "", "key = \"all\""),
        ("$k", "map $request_method $k { default ''; POST $binary_remote_addr; }", "when = { method = [\"= POST\"] }"),
        ("$k", "map $http_x_plan $k { default $binary_remote_addr; gold ''; }", "\"!~i ^gold$\""),
        ("$k", "geo $k { default 1; 10.0.0.0/8 ''; }", "when = { client = [\"!10.0.0.0/8\"] }"),
        (
            "$k",
            "geo $g { default 0; 192.0.2.0/24 1; } map $g $k { 0 ''; 1 $host; }",
            "key = \"host\"\nwhen = { client = [\"192.0.2.0/24\"] }",
        ),
    ] {
        let (text, code) = imported(&format!(
            "{before} limit_req_zone {key} zone=z:1m rate=1r/s; server {{ location / {{ limit_req zone=z; \
             proxy_pass http://127.0.0.1:3000; }} }}"
        ));
        assert!(text.contains(expected), "{key}:\n{text}");
        assert_eq!(code, 0, "{text}");
    }
    for (key, line) in [("$arg_a", "key = \"query:a\""), ("$cookie_a", "key = \"cookie:a\"")] {
        let (text, code) = imported(&format!(
            "limit_req_zone {key} zone=z:1m rate=1r/s; server {{ location / {{ limit_req zone=z; proxy_pass http://127.0.0.1:3000; }} }}"
        ));
        assert!(code == 3 && text.contains(line) && text.contains("\nupstream = "), "{key}:\n{text}");
    }
    for key in [
        "$remote_user",
        "$http_a$http_b",
        "$undefined",
        "$args",
        "$host$request_id",
        // The gateway removes or rewrites these headers before limits read them.
        "$http_x_forwarded_for",
        "$http_X_Real_IP",
        "$binary_remote_addr$http_forwarded",
        "$http_upgrade",
        "$http_te",
        "$http_proxy_authorization",
        "$http_x_request_id",
    ] {
        let (text, code) = imported(&format!(
            "limit_req_zone {key} zone=z:1m rate=1r/s; server {{ location / {{ limit_req zone=z; proxy_pass http://127.0.0.1:3000; }} }}"
        ));
        assert!(code == 3 && text.contains("this limit is left out"), "{key}:\n{text}");
        assert!(text.contains("\nrespond = { status = 501") && !text.contains("\nupstream = "), "{key}:\n{text}");
    }
}

/// A `map` or `geo` with several keys becomes a limit for each, with the condition of its requests.
#[test]
fn several_keys_become_several_limits() {
    let import = |map: &str| {
        imported(&format!(
            "{map} limit_req_zone $k zone=z:1m rate=1r/s; server {{ location / {{ limit_req zone=z; proxy_pass http://127.0.0.1:3000; }} }}"
        ))
    };
    let cases: [(&str, &[&str], bool); 11] = [
        (
            "map $http_x_api_key $k { '' $binary_remote_addr; default $http_x_api_key; }",
            &[
                "key = \"header:x-api-key\"\nrepeated = \"first\"\nwhen = { header = { \"x-api-key\" = \"*\" } }",
                "key = \"ip/32/128\"\nrepeated = \"first\"\nwhen = { header = { \"x-api-key\" = [\"!*\"] } }",
            ],
            true,
        ),
        (
            "map $http_user_agent $k { default ''; ~*(semrush|ahrefs) $http_user_agent; }",
            &["when = { header = { \"user-agent\" = [\"~i (?-u)(semrush|ahrefs)\"] } }"],
            true,
        ),
        (
            "map $http_x_plan $k { default $binary_remote_addr; gold ''; free shared; }",
            &[
                "key = \"all\"\nrepeated = \"first\"\nwhen = { header = { \"x-plan\" = [\"~i ^free$\"] } }",
                "[\"!~i ^gold$\", \"!~i ^free$\"]",
            ],
            true,
        ),
        (
            "map $http_user_agent $k { default ''; ~*bot bots; ~*curl tools; }",
            &["[\"~i bot\"]", "[\"~i curl\"]"],
            false,
        ),
        (
            "geo $k { default $binary_remote_addr; 10.0.0.0/8 office; 10.1.0.0/16 ''; }",
            &["key = \"all\"\nwhen = { client = [", "\"!10.0.0.0/8\""],
            true,
        ),
        ("map $http_a $k { '' x; b y; default z; }", &["respond = { status = 501"], false),
        (
            "map $http_x_forwarded_for $k { '' $binary_remote_addr; default $http_x_forwarded_for; }",
            &["removes `x-forwarded-for`, unless", "respond = { status = 501"],
            false,
        ),
        ("map $http_a $k { '' $binary_remote_addr; default $http_x_real_ip; }", &["respond = { status = 501"], false),
        // Values of parameters are decoded.
        ("map $arg_a $k { 'a%20b' $host; default ''; }", &["respond = { status = 501"], false),
        ("map $cookie_a $k { '~a\\+b' $host; default ''; }", &["respond = { status = 501"], false),
        ("map $http_a $k { ~^.*$ x; default y; }", &["respond = { status = 501"], false),
    ];
    for (map, parts, is_exact) in cases {
        let (text, code) = import(map);
        for part in parts {
            assert!(text.contains(part), "{map}: {part}\n{text}");
        }
        assert_eq!(code == 0, is_exact, "{map}\n{text}");
    }
}

/// Nothing that could be a protection is lost in silence.
#[test]
fn unknown_and_missing_parts_are_comments_or_close_the_route() {
    let server = |http: &str, server: &str, location: &str| {
        imported(&format!("{http} server {{ {server} location / {{ {location} proxy_pass http://127.0.0.1:3000; }} }}"))
    };
    for (http, in_server, location, is_closed) in [
        ("", "", "strange on;", false),
        ("", "strange on;", "", false),
        ("strange on;", "", "", false),
        ("", "", "expires 1h;", false),
        ("", "include missing.conf;", "", true),
        ("include missing.conf;", "", "", true),
        ("", "", "include missing.conf;", true),
        ("", "auth_ldap x;", "", true),
        ("modsecurity on;", "", "", true),
        ("", "if ($cookie_a = '') { return 302 /login; }", "", true),
        ("", "rewrite ^/x/(.*)$ /$1 last;", "", true),
        ("", "listen 80; listen 443 ssl; if ($scheme = http) { return 301 https://$host$request_uri; }", "", true),
        ("set_real_ip_from 10.0.0.1; real_ip_header Forwarded;", "", "deny 192.0.2.1;", true),
        ("set_real_ip_from 10.0.0.1; real_ip_header X_Real_IP;", "", "deny 192.0.2.1;", true),
        ("set_real_ip_from 10.0.0.1;", "} server { listen 81; real_ip_header X-B;", "deny 192.0.2.1;", true),
        (
            "set_real_ip_from 10.0.0.1; real_ip_header Forwarded;",
            "",
            "if ($remote_addr = 192.0.2.1) { return 403; }",
            true,
        ),
        (
            "set_real_ip_from 10.0.0.1; real_ip_header Forwarded;",
            "if ($remote_addr != 192.0.2.1) { return 403; }",
            "",
            true,
        ),
        ("set_real_ip_from 10.0.0.1; real_ip_header Forwarded;", "", "", false),
    ] {
        let (text, code) = server(http, in_server, location);
        assert_eq!(code, 3, "{http} {in_server} {location}\n{text}");
        assert_eq!(!text.contains("\nupstream = "), is_closed, "{http} {in_server} {location}\n{text}");
    }
    for (http, in_server, location) in [
        ("modsecurity off;", "auth_request off;", "satisfy all;"),
        ("include /etc/nginx/mime.types;", "merge_slashes on;", "proxy_buffering off;"),
        ("sendfile on;", "if ($host = www.a.test) { set $x 1; }", "expires off;"),
        ("set_real_ip_from 10.0.0.1; real_ip_header X-A;", "real_ip_header X-B;", "deny 192.0.2.1;"),
    ] {
        let (text, code) = server(http, in_server, location);
        assert_eq!(code, 0, "{http} {in_server} {location}\n{text}");
    }
}

/// The client is the one that nginx finds in the header of `real_ip_header`, which is `X-Real-IP` without one.
#[test]
fn the_header_with_the_client_is_translated() {
    for (directive, line) in [
        ("real_ip_header CF-Connecting-IP;", "client_address = \"cf-connecting-ip\"\n"),
        ("real_ip_header X-Real-IP;", "client_address = \"x-real-ip\"\n"),
        ("", "client_address = \"x-real-ip\"\n"),
    ] {
        let (text, code) = imported(&format!(
            "set_real_ip_from 10.0.0.1; real_ip_recursive on; {directive} server {{ listen 80; \
             location / {{ deny 192.0.2.1; proxy_pass http://127.0.0.1:3000; }} }}"
        ));
        assert_eq!(code, 0, "{directive}\n{text}");
        assert!(text.contains(line) && text.contains("\nupstream = "), "{directive}\n{text}");
    }
}

/// nginx asks `resolver` for hostnames in variables and with `resolve`, and the servers of the system for all others.
#[test]
fn dns_servers_are_those_of_the_hostnames_in_use() {
    let variable = "set $app app.internal.test; proxy_pass http://$app:3000;";
    let written = Some("resolver = [\"10.0.0.53\"]");
    for (resolver, location, line, code) in [
        ("10.0.0.53 valid=30s", variable, written, 0),
        ("10.0.0.53:5353", variable, Some("resolver = [\"10.0.0.53:5353\"]"), 0),
        ("[fd00::53]", variable, Some("resolver = [\"fd00::53\"]"), 0),
        // Docker's is that of the system.
        ("127.0.0.11", variable, None, 0),
        ("dns.internal.test", variable, None, 3),
        // Nothing asks it.
        ("10.0.0.53", "proxy_pass http://app.internal.test:3000;", None, 0),
        ("10.0.0.53", "set $app 10.0.0.7; proxy_pass http://127.0.0.1:3000;", None, 0),
        // Two kinds of hostnames, and one list of servers for all.
        (
            "10.0.0.53",
            "proxy_pass http://web.internal.test; } location /a { set $app b; proxy_pass http://$app:1;",
            written,
            3,
        ),
        (
            "10.0.0.53",
            "set $app a; proxy_pass http://$app:1; } location /a { resolver 10.0.0.54; set $app b; proxy_pass http://$app:1;",
            None,
            3,
        ),
    ] {
        let (text, exit) =
            imported(&format!("resolver {resolver}; server {{ listen 80; location / {{ {location} }} }}"));
        assert_eq!(text.lines().find(|line| line.starts_with("resolver")), line, "{resolver} {location}\n{text}");
        assert_eq!(exit, code, "{resolver} {location}\n{text}");
    }
    let (text, exit) = imported(
        "resolver 10.0.0.53; upstream app { zone z 64k; server app.internal.test resolve; } \
         server { listen 80; location / { proxy_pass http://app; } }",
    );
    assert!(text.lines().any(|line| Some(line) == written), "{text}");
    assert_eq!(exit, 0, "{text}");
}

/// Without `real_ip_recursive`, nginx takes the last address of a list, even that of a trusted proxy.
#[test]
fn the_last_address_is_the_client_without_recursion() {
    let rule = "location / { deny 192.0.2.1; proxy_pass http://127.0.0.1:3000; }";
    for (directive, is_last) in [
        ("real_ip_header X-Forwarded-For;", true),
        ("real_ip_header X-Forwarded-For; real_ip_recursive off;", true),
        ("real_ip_header X-Forwarded-For; real_ip_recursive on;", false),
        ("real_ip_header X-Real-IP;", false),
    ] {
        for (http, server) in [(directive, ""), ("", directive)] {
            let (text, code) =
                imported(&format!("set_real_ip_from 10.0.0.1; {http} server {{ listen 80; {server} {rule} }}"));
            assert_eq!(code, 0, "{directive}\n{text}");
            assert_eq!(text.contains("\nmax_forwarded_hops = 1\n"), is_last, "{directive}\n{text}");
        }
    }
    // Of two servers that differ, one would see other clients.
    let (text, code) = imported(&format!(
        "set_real_ip_from 10.0.0.1; real_ip_header X-Forwarded-For; server {{ listen 80; {rule} }} \
         server {{ listen 80; server_name a.test; real_ip_recursive on; {rule} }}"
    ));
    assert!(code == 3 && !text.contains("\nupstream = "), "{text}");
}

/// Two sockets cannot have one port, if one of them has all addresses. Servers of the other one are closed if more
/// clients would reach them.
#[test]
fn an_address_besides_all_addresses_is_left_out() {
    let app = "location / { proxy_pass http://127.0.0.1:3000; }";
    for (wide, narrow) in [("8080", "127.0.0.1:8080"), ("[::]:8080", "10.0.0.1:8080"), ("[::]:8080", "[::1]:8080")] {
        let (text, code) = imported(&format!(
            "server {{ listen {wide}; server_name a.test; {app} }} server {{ listen {narrow}; server_name b.test; {app} }}"
        ));
        assert!(code == 3 && text.contains(&format!("{narrow}: left out, because")), "{text}");
        assert!(text.contains("host = \"b.test\"\npath = \"/\"\nrespond = { status = 501"), "{text}");
    }
}

/// Headers whose value cannot be translated are removed, so that clients do not choose them.
#[test]
fn clients_choose_no_header_of_the_gateway() {
    for value in ["$remote_user", "$ssl_client_s_dn", "$upstream_http_x", "$request_id-x", "'{user}'"] {
        let (text, code) = imported(&format!(
            "server {{ location / {{ proxy_set_header X-User {value}; proxy_pass http://127.0.0.1:3000; }} }}"
        ));
        assert!(code == 3 && text.contains("request_headers = { remove = \"x-user\" }"), "{value}: {text}");
    }
}

/// Requests for a server that cannot be told apart, or that others could not reach, are not served by another one.
#[test]
fn servers_are_not_opened_to_other_clients() {
    let open = "location / { proxy_pass http://127.0.0.1:3000; }";
    let secret = "location / { proxy_pass http://127.0.0.1:4000; }";
    for servers in [
        format!(
            "server {{ listen 80; server_name a.test; {open} }} server {{ listen 127.0.0.1:81; server_name b.test; {secret} }}"
        ),
        format!(
            "server {{ listen 80; server_name a.test; {open} }} server {{ listen 10.0.0.1:81; server_name b.test; {secret} }}"
        ),
        format!(
            "server {{ listen 80; server_name a.test; {open} }} server {{ listen unix:/run/x.sock; server_name b.test; {secret} }}"
        ),
        format!(
            "server {{ listen 80; server_name a.test; {open} }} server {{ listen 443 ssl; server_name b.test; ssl_verify_client on; \
             ssl_client_certificate none.pem; {secret} }}"
        ),
        format!("server {{ listen 80; server_name a.test; {open} }} server {{ listen 80; server_name ~^b; {secret} }}"),
        format!("server {{ listen 80; server_name a.test; {open} }} server {{ listen 81; {secret} }}"),
    ] {
        let (text, code) = imported(&servers);
        assert_eq!(code, 3, "{servers}");
        assert!(!text.contains("\nupstream = \"127.0.0.1-4000\""), "{servers}\n{text}");
    }
    // The same content at several addresses is one server; different content is none.
    let (text, _) = imported(&format!(
        "server {{ listen 80; server_name a.test; {open} }} server {{ listen 81; server_name a.test; {open} }}"
    ));
    assert!(text.contains("\nupstream = \"127.0.0.1-3000\"") && !text.contains("501"), "{text}");
    let (text, _) = imported(&format!(
        "server {{ listen 80; server_name a.test; {open} }} server {{ listen 81; server_name a.test; {secret} }}"
    ));
    assert!(text.contains("host = \"a.test\"\npath = \"/\"\nrespond = { status = 501"), "{text}");
}

#[test]
fn servers_keep_their_parameters() {
    let (text, code) = imported(
        "upstream a { server 10.0.0.1; server 10.0.0.2:81 weight=5 down; server 10.0.0.3 weight=2 max_conns=9; server 10.0.0.4 \
         backup; ip_hash; } server { location / { proxy_pass https://a; } }",
    );
    let expected = "servers = [{ url = \"https://10.0.0.1:80\" }, { url = \"https://10.0.0.2:81\", weight = 0 }, \
                    { url = \"https://10.0.0.3:80\", max_in_flight = 9, weight = 2 }]\nbalance = \"consistent_hash\"\nhash_on = \"ip/24/128\"\n";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("backup servers are not available"), "{text}");
    assert_eq!(code, 3);
}

/// One listener serves both address families, because a second one could not bind the port.
#[test]
fn listeners_of_both_families_are_one() {
    let (text, code) = imported(
        "server { listen 80; listen [::]:80; return 308 https://$host$request_uri; } server { listen 8080; listen [::]:8080; \
         location / { proxy_pass http://127.0.0.1:3000; } }",
    );
    assert!(text.contains("listen = \"[::]:8080\"\n"), "{text}");
    assert!(text.contains("redirect_http = { listen = \"[::]:80\", https_port = 443 }"), "{text}");
    assert_eq!(code, 0, "{text}");
}

/// A listener on all addresses takes the connections of a single one, and serves what that one redirected.
#[test]
fn a_redirect_at_a_covered_address_is_lost_with_a_comment() {
    let site = "location / { proxy_pass http://127.0.0.1:3000; }";
    let redirect = "server { listen 10.0.0.1:80; server_name a.test; return 301 https://$host$request_uri; }";
    let (text, code) = imported(&format!("{redirect} server {{ listen 80; {site} }}"));
    let lost = "10.0.0.1:80: left out, because 0.0.0.0:80 accepts its connections, too; its redirect to HTTPS is lost";
    assert!(text.contains(lost) && !text.contains("status 308"), "{text}");
    assert_eq!(code, 3);
    let (text, _) = imported(&format!("{redirect} server {{ listen 8080; {site} }}"));
    assert!(text.contains("redirect_http = { listen = \"10.0.0.1:80\"") && text.contains("status 308"), "{text}");
}

/// A location that loses its protection must not become open.
#[test]
fn protected_locations_are_closed() {
    for guard in [
        "auth_basic 'staff';",
        "auth_basic 'staff'; auth_basic_user_file missing;",
        "auth_request /verify;",
        "satisfy any; allow 10.0.0.0/8; deny all;",
        "limit_except GET { auth_basic 'staff'; auth_basic_user_file missing; }",
        "limit_except GET { deny all; } allow 10.0.0.0/8; deny all;",
        "if ($ssl_client_verify != SUCCESS) { return 403; }",
        "if ($http_x_forwarded_for != '10.0.0.1') { return 403; }",
        "if ($http_x_key != secret) { rewrite ^ /denied; }",
        "limit_except GET { deny all; } if ($http_x_key != secret) { return 403; }",
        "rewrite ^/(.*)$ /public/$1 break;",
        "access_by_lua_block { if x == '}' then return ngx.exit(403) end }",
        "location ~ ^/secret { deny all; }",
    ] {
        let (text, code) =
            imported(&format!("server {{ location / {{ {guard} proxy_pass http://127.0.0.1:3000; }} }}"));
        assert!(text.contains("\nrespond = { status = 501") && text.contains("\n# upstream = "), "{guard}:\n{text}");
        assert!(!text.contains("\nupstream = "), "{guard}:\n{text}");
        assert_eq!(code, 3);
    }
    // A guard of the server protects all its locations.
    let (text, _) = imported(
        "server { auth_basic on; location / { proxy_pass http://a; } location /x { auth_basic off; proxy_pass http://a; } }",
    );
    assert!(text.contains("path = \"~ ^/x\"\nupstream = \"a\""), "{text}");
    assert!(text.contains("path = \"~ ^/\"\nrespond = { status = 501"), "{text}");
}

/// No input can end a string, start a section or be substituted.
#[test]
fn values_stay_values() {
    let (text, _) = imported(
        "server { listen 127.0.0.1:8080; location / { return 200 '\"}\\n[admin]\\nlisten = \"0.0.0.0:1\" ${file:/etc/passwd}'; } \
         location = /b { return 200 'a $${b}'; } }\n\
         server { server_name a.test; strange_directive 'x\n[admin]\n'; location / { proxy_pass http://127.0.0.1:1; add_header x-a '\"]'; } }",
    );
    let config = config::load_text("imported", &text).unwrap_or_else(|report| panic!("{report}\n{text}"));
    assert_eq!(config.admin.listen.to_string(), "127.0.0.1:9900");
    assert!(!text.contains("root:"));
}
