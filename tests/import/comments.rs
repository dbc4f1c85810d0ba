//! Directives that behave differently get a comment. Each case is beside one that gets none.

use super::output::imported;

/// Imports both texts of each pair, in a server that forwards everything else. The first has comments, the second has none.
#[track_caller]
fn assert_commented(http: &str, pairs: &[(&str, &str)]) {
    for (commented, exact) in pairs {
        for (text, code) in [(commented, 3), (exact, 0)] {
            let server = match text.contains("location / ") {
                true => format!("{http} server {{ listen 8080; {text} }}"),
                false => format!(
                    "{http} server {{ listen 8080; location / {{ {text} proxy_pass http://127.0.0.1:3000; }} }}"
                ),
            };
            let (found, exit) = imported(&server);
            assert_eq!(exit, code, "{server}\n{found}");
        }
    }
}

const PASS: &str = "proxy_pass http://127.0.0.1:3000;";

#[test]
fn trusted_proxies_of_a_part_of_the_config_close_what_depends_on_the_address() {
    let recursive = "real_ip_recursive on; limit_req_zone $binary_remote_addr zone=z:1m rate=1r/s;";
    let trust = "set_real_ip_from 0.0.0.0/0; real_ip_header X-Forwarded-For;";
    let server = |host: &str, more: &str, location: &str| {
        format!("server {{ listen 8080; server_name {host}; {more} location / {{ {location} {PASS} }} }}")
    };
    for (rule, depends) in [("limit_req zone=z;", true), ("deny 192.0.2.1;", true), ("", false)] {
        for (servers, is_same) in [
            (server("a.test", trust, rule) + &server("b.test", trust, rule), true),
            (trust.to_owned() + &server("a.test", "", rule) + &server("b.test", "", rule), true),
            (server("a.test", trust, rule) + &server("b.test", "", rule), false),
            (
                trust.to_owned()
                    + &server("a.test", "set_real_ip_from 10.0.0.0/8;", rule)
                    + &server("b.test", "", rule),
                false,
            ),
            (server("a.test", "", &format!("{trust} {rule}")), false),
            (server("a.test", "", &format!("location /x {{ {trust} {PASS} }} {rule}")), false),
        ] {
            let (found, exit) = imported(&format!("{recursive} {servers}"));
            assert_eq!(exit, if is_same { 0 } else { 3 }, "{servers}\n{found}");
            assert_eq!(found.contains("status = 501"), depends && !is_same, "{servers}\n{found}");
        }
    }
}

#[test]
fn a_location_inside_another_one_has_the_redirects_of_the_one_around() {
    let (app, other) = ("proxy_pass http://127.0.0.1:3000", "proxy_pass http://127.0.0.1:3001");
    let (of_app, of_other) = ("\"http://127.0.0.1:3000/\" = \"/\"", "\"http://127.0.0.1:3001/\" = \"/\"");
    // Without comments. `None`: headers stay as they are.
    for (outer, inner, expected) in [
        (format!("{app};"), format!("{app};"), Some(of_app)),
        (format!("{app};"), format!("{other};"), Some(of_app)),
        (format!("{app};"), "set $up 127.0.0.1:3001; proxy_pass http://$up;".to_owned(), Some(of_app)),
        ("set $up 127.0.0.1:3000; proxy_pass http://$up;".to_owned(), format!("{other};"), Some(of_other)),
        (format!("{app}/a/;"), format!("{app}/a/;"), Some("\"http://127.0.0.1:3000/a/\" = \"/\"")),
        (format!("{app};"), format!("{other}; proxy_redirect default;"), Some(of_other)),
        (format!("{app}; proxy_redirect default;"), format!("{other};"), Some(of_app)),
        (format!("{app}; proxy_redirect off;"), format!("{other};"), None),
        ("return 204;".to_owned(), format!("{other};"), Some(of_other)),
    ] {
        let server = format!("server {{ listen 8080; location / {{ {outer} location /a/ {{ {inner} }} }} }}");
        let (found, code) = imported(&server);
        let (_, route) = found.split_once("\npath = \"/a/\"\n").unwrap_or_else(|| panic!("{server}\n{found}"));
        let route = route.split("[[route]]").next().unwrap();
        let pairs = expected.map_or_else(|| "false".to_owned(), |pair| format!("{{ {pair} }}"));
        let line = format!("rewrite_location = {pairs}");
        let written = route.lines().find(|line| line.starts_with("rewrite_location"));
        assert_eq!((written, code), (Some(line.as_str()), 0), "{server}\n{found}");
    }
}

#[test]
fn headers_that_a_trusted_proxy_sends_are_not_those_of_nginx() {
    let trusted = "set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For; real_ip_recursive on;";
    let headers = [
        "X-Forwarded-For $remote_addr",
        "X-Forwarded-For $proxy_add_x_forwarded_for",
        "X-Real-IP $realip_remote_addr",
        "X-Forwarded-Host $http_host",
        "X-Request-ID $request_id",
    ];
    for header in headers {
        let set = format!("proxy_set_header {header};");
        assert_commented(trusted, &[(&set, "proxy_set_header X-Real-IP $remote_addr;")]);
        assert_commented("", &[("proxy_set_header X-Forwarded-For $http_x;", &set)]);
    }
    // Addresses that clients choose do not take the place of the one that nginx sends.
    for header in ["X-Forwarded-For $remote_addr", "X-Real-IP $realip_remote_addr"] {
        let (found, _) = imported(&format!(
            "{trusted} server {{ listen 8080; location / {{ proxy_set_header {header}; {PASS} }} }}"
        ));
        let name = header.split(' ').next().unwrap().to_ascii_lowercase();
        assert!(found.contains(&format!("remove = \"{name}\"")), "{found}");
    }
    // One location sets a header that another one forwards.
    let both = format!("location / {{ proxy_set_header X-Real-IP $remote_addr; {PASS} }} location /a/ {{ {PASS} }}");
    let same = both.replace("/a/ {", "/a/ { proxy_set_header X-Real-IP $remote_addr;");
    assert_commented(trusted, &[(&both, &same)]);
    assert_commented("", &[("proxy_set_header X-Forwarded-For $http_x;", &both)]);
}

#[test]
fn pages_and_internal_locations_are_not_left_out_in_silence() {
    let other = format!("location / {{ {PASS} }}");
    for answer in ["return 404;", "internal;", "deny all;"] {
        let status = if answer.starts_with("deny") { 403 } else { 404 };
        let text = |status: u16| format!("{other} location /x/ {{ {answer} error_page {status} /404.html; }}");
        let (found, code) = imported(&format!("server {{ listen 8080; {} }}", text(status)));
        assert!(code == 3 && found.contains("such a response has no page"), "{answer}\n{found}");
    }
    assert_commented("", &[(&format!("{other} location /x/ {{ internal; {PASS} }}"), &other)]);
}

#[test]
fn passwords_depend_on_no_variable() {
    let (found, code) = imported(&format!(
        "map $http_x $realm {{ default off; a staff; }} server {{ listen 8080; location / {{ auth_basic $realm; auth_basic_user_file u; {PASS} }} }}"
    ));
    assert!(code == 3 && found.contains("with a variable, some requests may need no password"), "{found}");
    assert!(found.contains("\nrespond = { status = 501"), "{found}");
}

#[test]
fn compression_differs_without_gzip_proxied() {
    let gzip = "gzip on; gzip_vary on;";
    assert_commented(
        "",
        &[(gzip, &format!("{gzip} gzip_proxied any;")), (&format!("{gzip} gzip_proxied off;"), "gzip off;")],
    );
}

#[test]
fn redirects_to_https_lose_their_headers_with_a_comment() {
    let text = |headers: &str| {
        format!(
            "server {{ listen 80; {headers} return 308 https://$host$request_uri; }} server {{ listen 8080; location / {{ {PASS} }} }}"
        )
    };
    assert_eq!(imported(&text("")).1, 0);
    let (found, code) = imported(&text("add_header X-Frame-Options DENY;"));
    assert!(code == 3 && found.contains("left out at `redirect_http`"), "{found}");
}

/// nginx ignores the case of the names of query parameters and cookies.
#[test]
fn names_of_parameters_have_a_case_here() {
    for (key, code) in [("$arg_token", 3), ("$cookie_sid", 3), ("$http_x_token", 0)] {
        let (found, exit) = imported(&format!(
            "limit_req_zone {key} zone=z:1m rate=1r/s; server {{ listen 8080; location / {{ limit_req zone=z; {PASS} }} }}"
        ));
        assert_eq!(exit, code, "{found}");
    }
}

/// Servers whose cleaned names are equal are different upstreams, and so are equal servers with other settings.
#[test]
fn every_upstream_has_its_own_servers() {
    let (found, code) = imported(
        "upstream app { server 10.0.0.1; server 10.0.0.2; } server { listen 8080; \
         location / { proxy_pass http://unix:/run/app/web.sock; } location /a/ { proxy_pass http://unix:/run/app-web.sock; } \
         location /b/ { proxy_pass http://app; } location /c/ { proxy_pass http://app; proxy_next_upstream off; } \
         location /d/ { proxy_pass http://app; } location /e/ { proxy_pass https://x; proxy_ssl_verify on; } \
         location /f/ { proxy_pass https://x; proxy_ssl_verify on; proxy_ssl_name y; } }",
    );
    let upstream = |path: &str| {
        let route = found.split(&format!("path = \"{path}\"\nupstream = \"")).nth(1).unwrap();
        let name = route.split('"').next().unwrap();
        let quoted = if name.contains('.') { format!("\"{name}\"") } else { name.to_owned() };
        found.split(&format!("[upstream.{quoted}]\n")).nth(1).unwrap().split("\n\n").next().unwrap()
    };
    assert_eq!(upstream("/"), "servers = \"unix:/run/app/web.sock\"");
    assert_eq!(upstream("/a/"), "servers = \"unix:/run/app-web.sock\"");
    assert_eq!(upstream("/b/"), upstream("/d/"));
    assert!(upstream("/b/").contains("attempts = 2") && upstream("/c/").contains("attempts = 1"), "{found}");
    assert!(!upstream("/e/").contains("server_name") && upstream("/f/").contains("server_name = \"y\""), "{found}");
    // Without `error`, nginx answers 502 if a server is away.
    assert!(found.contains("`proxy_next_upstream off`: if a server does not accept"), "{found}");
    assert_eq!(code, 3, "{found}");
}

/// nginx closes the connection, or refuses a body before it counts the request.
#[test]
fn limits_that_refuse_in_another_way_have_a_comment() {
    let zone = "limit_req_zone $binary_remote_addr zone=z:1m rate=1r/s;";
    let limited = "limit_req zone=z;";
    assert_commented(
        zone,
        &[
            (&format!("{limited} limit_req_status 444;"), &format!("{limited} limit_req_status 429;")),
            (&format!("{limited} client_max_body_size 1m;"), "client_max_body_size 1m;"),
            (&format!("{limited} client_max_body_size 1m;"), &format!("{limited} client_max_body_size 0;")),
            (&format!("{limited} client_max_body_size 1m;"), limited),
        ],
    );
}

/// The config has only one of equal routes, and one of equal servers of an upstream.
#[test]
fn what_appears_twice_is_written_once() {
    let (found, code) = imported(
        "upstream app { server 10.0.0.1 weight=2; server 10.0.0.1:80; server 10.0.0.2 down; } \
         server { listen 8080; location ~ ^/admin { deny all; } location /admin { proxy_pass http://app; } \
         location / { proxy_pass http://app; } }",
    );
    assert_eq!(code, 3, "{found}");
    assert!(
        found.contains("{ url = \"http://10.0.0.1:80\", weight = 3 }, { url = \"http://10.0.0.2:80\", weight = 0 }")
    );
    assert_eq!(found.matches("path = \"~ ^/admin\"").count(), 1, "{found}");
    sluicegate::config::load_text("imported", &found).unwrap();
}
