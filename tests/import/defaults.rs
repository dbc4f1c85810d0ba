//! What nginx does without a directive is written, too, where the gateway does otherwise by default: ejection, timeouts, names
//! of servers with TLS, and names of variables without case.

use super::output::imported;

const PASS: &str = "proxy_pass http://127.0.0.1:3000;";

/// Imports a server with one location, after the directives of `http`.
#[track_caller]
fn location(http: &str, text: &str) -> (String, i32) {
    imported(&format!("{http} server {{ listen 8080; server_name a.test; location / {{ {text} }} }}"))
}

#[test]
fn servers_are_ejected_as_by_default() {
    let eject = |fails: u32, time: &str| {
        Some(format!("eject = {{ consecutive_errors = {fails}, for = \"{time}\", max = 1.0 }}"))
    };
    for (servers, expected, code) in [
        ("server 10.0.0.1; server 10.0.0.2;", eject(1, "10s"), 0),
        ("server 10.0.0.1 max_fails=1; server 10.0.0.2 fail_timeout=10;", eject(1, "10s"), 0),
        (
            "server 10.0.0.1 max_fails=3 fail_timeout=30s; server 10.0.0.2 max_fails=3 fail_timeout=30;",
            eject(3, "30s"),
            0,
        ),
        ("server 10.0.0.1 max_fails=3; server 10.0.0.2;", eject(3, "10s"), 3),
        ("server 10.0.0.1 max_fails=0; server 10.0.0.2;", eject(1, "10s"), 3),
        ("server 10.0.0.1 max_fails=0; server 10.0.0.2 max_fails=0;", None, 0),
        ("server 10.0.0.1 max_fails=0 down; server 10.0.0.2; server 10.0.0.3;", eject(1, "10s"), 0),
        ("server 10.0.0.1 fail_timeout=1d; server 10.0.0.2 fail_timeout=24h;", eject(1, "86400s"), 0),
        ("server 10.0.0.1 fail_timeout=1w; server 10.0.0.2 fail_timeout=1w;", eject(1, "86400s"), 3),
        ("server 10.0.0.1;", None, 0),
        // A name may have several addresses.
        ("server app.internal;", eject(1, "10s"), 0),
        ("server app.internal max_fails=0;", None, 0),
    ] {
        let (found, exit) = location(&format!("upstream app {{ {servers} }}"), "proxy_pass http://app;");
        let line = found.lines().find(|line| line.starts_with("eject")).map(str::to_owned);
        assert_eq!((line, exit), (expected, code), "{servers}\n{found}");
    }
    let (found, code) = location("", "proxy_pass http://app.internal;");
    assert!(eject(1, "10s").is_some_and(|line| found.contains(&line)) && code == 0, "{found}");
    let (found, code) = location("upstream app { server 10.0.0.1 fail_timeout=1x; }", "proxy_pass http://app;");
    assert!(
        code == 3 && found.contains("fail_timeout=1x is not a time") && !found.contains("\nupstream = "),
        "{found}"
    );
}

#[test]
fn timeouts_are_those_of_nginx() {
    let (found, code) = location("", PASS);
    assert!(found.contains("\nconnect_timeout = \"60s\"\nbody_timeout = \"60s\"\n") && code == 0, "{found}");
    for (written, line, exit) in [
        ("proxy_read_timeout 1d;", "response_timeout = \"86400s\"", 0),
        ("proxy_read_timeout 7d;", "response_timeout = \"86400s\"", 3),
        ("proxy_read_timeout 1w;", "response_timeout = \"86400s\"", 3),
        ("proxy_connect_timeout 1m30;", "connect_timeout = \"90s\"", 0),
        ("client_body_timeout 5s;", "body_timeout = \"5s\"", 0),
    ] {
        let (found, code) = location("", &format!("{written} {PASS}"));
        let route = found.split("[[route]]").nth(1).unwrap();
        assert!(route.contains(line) && code == exit, "{written}\n{found}");
    }
    let (found, code) = location("keepalive_timeout 1w;", PASS);
    assert!(found.contains("keepalive_timeout = \"86400000ms\"") && code == 3, "{found}");
}

#[test]
fn servers_with_tls_get_the_names_of_nginx() {
    let ca = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/tls/sample.pem");
    let key = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/tls/sample.key");
    let app = "upstream app.test { server 127.0.0.1:443; }";
    let verify = format!("proxy_ssl_verify on; proxy_ssl_trusted_certificate {ca};");
    let unverified = "{ verify = false }";
    let named = "{ server_name = \"app.test\", verify = false }";
    let (with_ca, with_name) =
        (format!("{{ ca = \"{ca}\" }}"), format!("{{ ca = \"{ca}\", server_name = \"app.test\" }}"));
    let with_pair = format!("{{ cert = \"{ca}\", key = \"{key}\", verify = false }}");
    let with_host = format!("{verify} proxy_ssl_name $host;");
    let unused_ca = format!("proxy_ssl_trusted_certificate {ca};");
    let pair = format!("proxy_ssl_certificate {ca}; proxy_ssl_certificate_key {key};");
    let (block, server) = ("https://app.test", "https://10.0.0.1");
    for (url, written, expected, code) in [
        (block, "", unverified, 0),
        (block, verify.as_str(), with_name.as_str(), 0),
        (block, "proxy_ssl_server_name on;", named, 0),
        (block, "proxy_ssl_server_name on; proxy_ssl_name $proxy_host;", named, 0),
        (server, "proxy_ssl_server_name on; proxy_ssl_name app.test:8443;", named, 0),
        (server, "set $name app.test; proxy_ssl_server_name on; proxy_ssl_name $Name;", named, 0),
        (server, "proxy_ssl_name app.test;", unverified, 0),
        (server, with_host.as_str(), with_ca.as_str(), 3),
        (server, unused_ca.as_str(), unverified, 0),
        (server, pair.as_str(), with_pair.as_str(), 0),
        (server, "proxy_ssl_verify_depth 2;", unverified, 3),
    ] {
        let (found, exit) = location(app, &format!("{written} proxy_pass {url};"));
        let line = format!("\ntls = {expected}\n");
        assert!(found.contains(&line) && exit == code, "{url} {written}\n{found}");
        assert!(found.contains("\nupstream = "), "{found}");
    }
    // Without the right certificate, the server would refuse the gateway, or the gateway would trust others.
    for written in [
        "proxy_ssl_certificate $http_x.pem; proxy_ssl_certificate_key $http_x.key;",
        "proxy_ssl_certificate missing.pem; proxy_ssl_certificate_key missing.key;",
        "proxy_ssl_verify on; proxy_ssl_trusted_certificate missing.pem;",
    ] {
        let (found, code) = location("", &format!("{written} proxy_pass https://10.0.0.1;"));
        assert!(code == 3 && !found.contains("\nupstream = "), "{written}\n{found}");
    }
    // gRPC has directives of its own.
    let grpc = "grpc_ssl_verify on; grpc_ssl_name b.test; grpc_pass grpcs://10.0.0.1;";
    let (found, code) = location("", &format!("proxy_ssl_name c.test; {grpc}"));
    assert!(found.contains("\ntls = { server_name = \"b.test\" }\n") && code == 0, "{found}");
    let (found, _) = location("", "proxy_ssl_verify on; grpc_pass grpcs://10.0.0.1;");
    assert!(found.contains("\ntls = { verify = false }\n"), "{found}");
}

#[test]
fn hashes_read_what_nginx_reads() {
    for (directive, key, code) in [
        ("ip_hash;", "\"ip/24/128\"", 0),
        ("hash $remote_addr;", "\"ip/32/128\"", 0),
        ("hash $request_uri consistent;", "\"target\"", 0),
        ("hash $cookie_Sid;", "\"cookie:Sid\"", 3),
    ] {
        let http = format!("upstream app {{ {directive} server 10.0.0.1; server 10.0.0.2; }}");
        let (found, exit) = location(&http, "proxy_pass http://app;");
        assert!(found.contains(&format!("\nhash_on = {key}\n")) && exit == code, "{directive}\n{found}");
    }
}

/// A client that writes the name or the value in another way would be served.
#[test]
fn conditions_that_a_client_could_avoid_close_the_route() {
    for condition in [
        "($arg_debug)",
        "($arg_token != secret)",
        "($ARG_token = a)",
        "($cookie_sid = '')",
        "($cookie_sid != a)",
        "($cookie_sid ~ a)",
        "($bad)",
        "($odd = 1)",
    ] {
        let maps = "map $arg_x $bad { default 0; a 1; } map $cookie_x $odd { default 0; a 1; }";
        let refusal = format!("if {condition} {{ return 403; }}");
        for (of_server, of_location) in [(refusal.as_str(), ""), ("", refusal.as_str())] {
            let text = format!("{maps} server {{ listen 8080; {of_server} location / {{ {of_location} {PASS} }} }}");
            let (found, code) = imported(&text);
            assert!(code == 3 && !found.contains("\nupstream = "), "{text}\n{found}");
        }
    }
    // A cookie that must not be there is one of the header, whose name has no case.
    let (found, code) = location("", &format!("if ($Cookie_Sid) {{ return 403; }} {PASS}"));
    assert!(found.contains("when = { header = { \"cookie\" = [\"~"), "{found}");
    assert!(found.contains("\nupstream = ") && code == 3, "{found}");
}

#[test]
fn names_of_variables_have_no_case() {
    let (found, code) = location("", "set $App 10.0.0.1:1; set $app 10.0.0.2:2; proxy_pass http://$App;");
    assert!(found.contains("servers = \"http://10.0.0.2:2\"") && code == 0, "{found}");
    let zone = "limit_req_zone $Key zone=z:1m rate=1r/s; limit_req zone=z;";
    for block in ["geo $key { default x; 10.0.0.0/8 ''; }", "map $REQUEST_METHOD $KEY { POST x; }"] {
        let (found, code) = location(&format!("{zone} {block}"), PASS);
        assert!(found.contains("\nwhen = { ") && code == 0, "{block}\n{found}");
    }
    let redirect = "if ($HOST ~ ^(?<Name>a)\\.test$) { return 301 https://$Name.example.com$Request_URI; }";
    let (found, _) =
        imported(&format!("server {{ listen 8080; server_name a.test; {redirect} location / {{ {PASS} }} }}"));
    assert!(found.contains("to = \"https://a.example.com{path}\""), "{found}");
}

/// What the config cannot have is a comment, and the config loads.
#[test]
fn values_that_do_not_load_are_comments() {
    for value in ["{request_id}", "{User}", "a%REQ(x)%", "%PROTOCOL%"] {
        for directive in ["add_header X-A", "proxy_set_header X-A"] {
            let (found, code) = location("", &format!("{directive} \"{value}\"; {PASS}"));
            assert!(code == 3 && !found.contains(&format!("= \"{value}\"")), "{directive} {value}\n{found}");
        }
    }
    let (found, code) = location("", &format!("add_header X-A '{{\"a\": 1}}'; add_header X-B '20%'; {PASS}"));
    assert!(code == 0 && found.contains("\"x-b\" = \"20%\""), "{found}");
    let server = |http: &str| {
        imported(&format!(
            "{http} server {{ listen 8080 proxy_protocol; server_name a.test; location / {{ {PASS} }} }}"
        ))
    };
    let (found, code) = server("");
    assert!(code == 3 && found.contains("listen = \"0.0.0.0:8080\"") && !found.contains("\nproxy_protocol"), "{found}");
    let (found, code) = server("set_real_ip_from 10.0.0.1; real_ip_header proxy_protocol;");
    assert!(code == 0 && found.contains("\nproxy_protocol = true"), "{found}");
}

/// Remarks name listeners as the config writes them.
#[test]
fn remarks_name_the_written_address() {
    let (found, code) = imported(&format!(
        "server {{ listen 80; location / {{ {PASS} }} }} server {{ listen 10.0.0.1:81; server_name b.test; location / {{ {PASS} }} }}"
    ));
    assert!(code == 3 && found.contains("clients at 0.0.0.0:80 do not reach this server in nginx"), "{found}");
}

/// nginx accepts chains with one intermediate certificate, and the gateway longer ones.
#[test]
fn chains_of_clients_are_not_bounded_in_silence() {
    let (cert, key) = (
        concat!(env!("CARGO_MANIFEST_DIR"), "/conf/tls/sample.pem"),
        concat!(env!("CARGO_MANIFEST_DIR"), "/conf/tls/sample.key"),
    );
    let server = |more: &str| {
        imported(&format!(
            "server {{ listen 8443 ssl; server_name a.test; ssl_certificate {cert}; ssl_certificate_key {key}; {more} location / {{ {PASS} }} }}"
        ))
    };
    assert_eq!(server("").1, 0);
    for (more, why) in [
        ("", "nginx accepts chains with one intermediate certificate at most"),
        ("ssl_verify_depth 1;", "the length of the chain of a client's certificates is not bounded"),
    ] {
        let check = format!("ssl_verify_client on; ssl_client_certificate {cert}; {more}");
        let (found, code) = server(&check);
        assert!(code == 3 && found.contains(why), "{more}\n{found}");
        assert!(found.contains("client_auth = \"required\"") && found.contains("\nupstream = "), "{found}");
    }
}
