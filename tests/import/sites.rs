//! Checks how the import translates redirects to HTTPS, certificates, passwords, compression, error pages and added headers.

use std::fs;
use std::path::Path;
use std::process::Output;

use sluicegate::config;

use super::output::{import, imported};
use crate::support::app;

const TLS: &str = "ssl_certificate cert.pem; ssl_certificate_key key.pem;";
const APP: &str = "location / { proxy_pass http://127.0.0.1:3000; }";

/// Imports a config from a directory with a certificate and passwords.
#[track_caller]
fn imported_in(dir: &Path, text: &str) -> (String, i32) {
    fs::create_dir_all(dir.join("html")).unwrap();
    let path = dir.join("nginx.conf");
    for (from, to) in [("conf/tls/sample.pem", "cert.pem"), ("conf/tls/sample.key", "key.pem")] {
        fs::copy(from, dir.join(to)).unwrap();
    }
    fs::write(dir.join("html/404.html"), "<h1>gone</h1>").unwrap();
    let line = |args: &[&str]| app::run("htpasswd", "apache2-utils", args).trim().to_owned() + "\n";
    fs::write(dir.join("users"), line(&["-nbB", "-C", "4", "alice", "secret"])).unwrap();
    fs::write(dir.join("weak"), line(&["-nbm", "alice", "secret"])).unwrap();
    fs::write(&path, text.replace("TLS", TLS).replace("APP", APP).replace("DIR", dir.to_str().unwrap())).unwrap();
    let Output { status, stdout, stderr } = import("nginx", &path);
    let found = String::from_utf8(stdout).unwrap();
    config::load_text("imported", &found).unwrap_or_else(|report| panic!("{report}\n{found}"));
    let code = status.code().unwrap();
    assert!(matches!(code, 0 | 3), "{code}: {}", String::from_utf8_lossy(&stderr));
    (found, code)
}

/// Every form of the redirect leaves the site in place, and nothing redirects to itself.
#[test]
fn a_redirect_to_https_does_not_take_the_place_of_the_site() {
    let dir = tempfile::tempdir().unwrap();
    let site = "server { listen 443 ssl; server_name shop.test; TLS APP }";
    for (plain, has_more) in [
        ("server_name shop.test; return 301 https://shop.test$request_uri;", false),
        ("server_name shop.test; return 301 https://$server_name$request_uri;", false),
        ("server_name shop.test; rewrite ^ https://shop.test$request_uri? permanent;", false),
        ("server_name shop.test; location / { return 301 https://shop.test$request_uri; }", false),
        ("server_name shop.test; if ($host = shop.test) { return 301 https://$host$request_uri; } return 404;", false),
        ("server_name shop.test www.shop.test; return 301 https://shop.test$request_uri;", true),
        ("server_name _; return 301 https://shop.test$request_uri;", true),
        (
            "server_name shop.test; location /.well-known/acme-challenge/ { root /srv; } \
             location / { return 301 https://$host$request_uri; }",
            true,
        ),
    ] {
        for text in
            [format!("server {{ listen 80; {plain} }} {site}"), format!("{site} server {{ listen 80; {plain} }}")]
        {
            let (found, code) = imported_in(dir.path(), &text);
            assert!(
                found.contains("redirect_http = { listen = \"0.0.0.0:80\", https_port = 443 }"),
                "{plain}\n{found}"
            );
            assert!(found.contains("path = \"/\"\nupstream = \"127.0.0.1-3000\""), "{plain}\n{found}");
            assert!(
                !found.contains("redirect = { to = \"https://shop.test{path}\"") || plain.contains("www"),
                "{found}"
            );
            // The first comment is about the status 308.
            assert_eq!((code, found.contains("#   2. ")), (3, has_more), "{plain}\n{found}");
        }
    }
    // Redirects to other names over HTTPS are kept.
    let (found, _) = imported_in(
        dir.path(),
        &format!(
            "server {{ listen 80; server_name shop.test www.shop.test; return 301 https://shop.test$request_uri; }} {site}"
        ),
    );
    assert!(
        found.contains("host = \"www.shop.test\"\npath = \"/\"\nredirect = { to = \"https://shop.test{path}\""),
        "{found}"
    );
    // Where another server answers at the address, the redirect is left out, and a comment says so.
    let (found, code) = imported_in(
        dir.path(),
        &format!(
            "server {{ listen 80 default_server; server_name shop.test; return 301 https://shop.test$request_uri; }} \
             server {{ listen 80; server_name other.test; APP }} {site}"
        ),
    );
    assert!(found.contains("another server serves this name elsewhere"), "{found}");
    assert!(found.contains("host = \"shop.test\"\npath = \"/\"\nupstream"), "{found}");
    assert!(!found.contains("redirect = "), "{found}");
    assert_eq!(code, 3);
    // Over HTTPS, a redirect to one of its own names would lead to itself.
    let (found, _) = imported_in(
        dir.path(),
        "server { listen 443 ssl; server_name other.test; TLS APP } server { listen 80; server_name a.test; APP } \
         server { listen 80; server_name shop.test; return 301 https://shop.test$request_uri; }",
    );
    assert!(found.contains("host = \"shop.test\"\npath = \"/\"\nrespond = { status = 501"), "{found}");
}

#[test]
fn relative_paths_start_at_the_directory_of_the_config() {
    let dir = tempfile::tempdir().unwrap();
    let (found, code) = imported_in(dir.path(), "server { listen 443 ssl; TLS APP }");
    let cert = dir.path().canonicalize().unwrap().join("cert.pem");
    assert!(found.contains(&format!("cert = \"{}\"", cert.display())), "{found}");
    assert_eq!(code, 0, "{found}");
}

#[test]
fn passwords_stay_and_guesses_stay_limited() {
    let dir = tempfile::tempdir().unwrap();
    let users = dir.path().canonicalize().unwrap().join("users");
    let (found, code) = imported_in(
        dir.path(),
        "limit_req_zone $binary_remote_addr zone=z:1m rate=1r/s; server { listen 8080; auth_basic staff; \
         auth_basic_user_file users; location / { proxy_pass http://a; } location /open { auth_basic off; proxy_pass http://a; } \
         location /slow { limit_req zone=z burst=3 nodelay; allow 127.0.0.1; deny all; proxy_pass http://a; } }",
    );
    let auth = format!("auth = {{ basic = \"{}\", realm = \"staff\"", users.display());
    assert_eq!(found.matches(&auth).count(), 2, "{found}");
    let limits = "limits = [\"only-allowed-1-passwords\", \"z-passwords\"], forward_credentials = true }";
    assert!(found.contains(limits) && found.contains("\nlimits = [\"only-allowed-1\", \"z\"]\n"), "{found}");
    let open = found.split("path = \"~ ^/open\"").nth(1).unwrap().split("[[route]]").next().unwrap();
    assert!(open.contains("upstream = \"a\"") && !open.contains("auth"), "{found}");
    assert!(code == 3 && found.contains("#   1. ") && !found.contains("#   2. "), "{found}");
    for file in ["weak", "missing", "html"] {
        let (found, code) = imported_in(
            dir.path(),
            &format!("server {{ listen 8080; auth_basic staff; auth_basic_user_file {file}; APP }}"),
        );
        assert!(found.contains("respond = { status = 501") && !found.contains("\nupstream = "), "{file}:\n{found}");
        assert!(!found.contains("$apr1$"), "{found}");
        assert_eq!(code, 3);
    }
    let (found, _) = imported_in(dir.path(), "server { listen 8080; auth_request /verify; APP }");
    assert!(found.contains("write auth = { forward = \"URL\" }") && found.contains("status = 501"), "{found}");
}

#[test]
fn compression_and_its_exceptions_are_kept() {
    let (found, code) = imported(
        "gzip on; gzip_vary on; gzip_proxied any; gzip_types text/css application/json text/css; gzip_min_length 1k; server { listen 8080; \
         location / { proxy_pass http://a; } location /account/ { gzip off; proxy_pass http://a; } }",
    );
    let server = "compress = { types = [\"text/html\", \"text/css\", \"application/json\"], min_size = \"1KiB\", \
                  algorithms = [\"gzip\"] }\n";
    assert_eq!(found.matches(server).count(), 1, "{found}");
    assert!(found.split("path = \"/account/\"").nth(1).unwrap().contains("compress = false"), "{found}");
    assert_eq!(code, 0, "{found}");
    let (found, _) = imported("server { listen 8080; gzip on; gzip_types *; location / { proxy_pass http://a; } }");
    assert!(found.contains("compress = { types = [\"*/*\"], min_size = 20"), "{found}");
}

#[test]
fn files_become_error_pages() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("html/404.html");
    for (at, locations) in [
        ("root DIR/html;", "location = /404.html { internal; }"),
        ("", "location = /404.html { root DIR/html; internal; }"),
    ] {
        let (found, code) = imported_in(
            dir.path(),
            &format!(
                "server {{ listen 8080; {at} error_page 404 500 /404.html; proxy_intercept_errors on; {locations} APP }}"
            ),
        );
        let pages = format!("error_pages = {{ 404 = \"{0}\", 500 = \"{0}\" }}\nintercept = true\n", page.display());
        assert!(found.contains(&pages), "{found}");
        assert!(code == 3 && found.contains("others get a problem document"), "{found}");
    }
    // The first page would have to come from the application, and the others are not files.
    for page in
        ["404 /404.html", "404 =200 /404.html", "404 = /404.html", "404 @other", "404 https://a.test/", "302 /x"]
    {
        let (found, code) =
            imported_in(dir.path(), &format!("server {{ listen 8080; root DIR/html; error_page {page}; APP }}"));
        assert!(!found.contains("\nerror_pages"), "{page}:\n{found}");
        assert_eq!(code, 3, "{page}:\n{found}");
    }
}

/// `always` adds a header to every response, also to those of the gateway; without it, only to some statuses.
#[test]
fn headers_are_added_with_the_statuses_of_nginx() {
    let dir = tempfile::tempdir().unwrap();
    let headers =
        "add_header Strict-Transport-Security max-age=31536000 always; add_header Vary Accept; add_header Vary Origin;";
    let (found, code) = imported_in(dir.path(), &format!("server {{ listen 443 ssl; {headers} TLS APP }}"));
    let expected = "add = { \"strict-transport-security\" = \"max-age=31536000\" }, add_on_success = { \"vary\" = [\"Accept\", \"Origin\"] }, \
                    on = \"all\" }";
    assert!(found.contains(expected), "{found}");
    assert_eq!(code, 0, "{found}");
    for header in ["X-Age $age", "ETag x", "Connection close"] {
        let (found, code) =
            imported_in(dir.path(), &format!("server {{ listen 443 ssl; add_header {header}; TLS APP }}"));
        assert!(found.contains("this header is not added") && !found.contains("add_on_success ="), "{found}");
        assert_eq!(code, 3, "{found}");
    }
}

/// A server whose port a firewall may close to clients of another one is not served at the other one.
#[test]
fn a_server_at_a_port_that_a_firewall_may_hide_is_closed() {
    let serve = |listen: &str, name: &str, port: u16| {
        let listens: String = listen.split(' ').map(|address| format!("listen {address}; ")).collect();
        format!("server {{ {listens}server_name {name}.test; location / {{ proxy_pass http://127.0.0.1:{port}; }} }} ")
    };
    for (one, other, closed) in [
        ("80", "8080", vec!["other"]),
        ("443", "80", vec![]),
        ("8080", "9090", vec!["one", "other"]),
        ("8080", "127.0.0.1:9090", vec!["other"]),
        ("80 8080", "8080", vec!["other"]),
        ("80", "8080 443", vec![]),
        ("127.0.0.1:8080", "127.0.0.1:9090", vec![]),
    ] {
        let text = serve(one, "one", 3001) + &serve(other, "other", 3002);
        let (found, code) = imported(&text);
        let is_closed = |port: u16| found.contains(&format!("# upstream = \"127.0.0.1-{port}\""));
        let expected = [closed.contains(&"one"), closed.contains(&"other")];
        assert_eq!(([is_closed(3001), is_closed(3002)], code), (expected, 3), "{one} and {other}\n{found}");
    }
    // A redirect protects nothing.
    let (found, _) = imported(
        &(serve("80", "one", 3001) + "server { listen 8080; server_name r.test; return 301 https://one.test/; }"),
    );
    assert!(!found.contains("status = 501"), "{found}");
}

/// A config that only redirects needs routes. Clients of other hosts than its names get none.
#[test]
fn servers_that_only_redirect_have_routes() {
    for (server, redirect, closed) in [
        ("server_name a.test; return 301 https://$host$request_uri;", "https://{host}{path}", true),
        ("server_name a.test; rewrite ^(.*)$ https://$host$1 permanent;", "https://{host}{path}", true),
        ("server_name a.test; return 301 \"https://b.test$request_uri \";", "https://b.test{path}", false),
        (
            "server_name a.test; location / { return 301 https://$host$request_uri; } location \
             /.well-known/acme-challenge/ { proxy_pass http://127.0.0.1:3000; }",
            "https://{host}{path}",
            true,
        ),
        ("server_name _; return 301 https://$host$request_uri;", "respond = { status = 501", true),
    ] {
        let (found, code) = imported(&format!("server {{ listen 80; {server} }}"));
        assert!(found.contains(redirect) && !found.contains("redirect_http"), "{server}\n{found}");
        assert_eq!((found.contains("status = 501"), code), (closed, if closed { 3 } else { 0 }), "{server}\n{found}");
        config::load_text("imported", &found).unwrap_or_else(|report| panic!("{report}\n{found}"));
    }
}

/// A redirect to the host of the request has the names of the default server, and so have the routes around it.
#[test]
fn routes_beside_a_redirect_to_the_host_stay_in_order() {
    let (found, code) = imported(
        "server { listen 80; server_name a.test; location /old { return 301 https://$host/new; } location /old/x { return 200 x; } \
         location / { return 200 y; } }",
    );
    let named: Vec<&str> = found.split("[[route]]").filter(|route| route.contains("host = \"a.test\"")).collect();
    let path = |text: &str| named.iter().position(|route| route.contains(text));
    assert!(code == 3 && named.len() == 3 && path("~ ^/old/x") < path("https://{host}/new"), "{found}");
}

/// nginx reads the path before the host, so the first server of an address decides how its slashes are merged.
#[test]
fn slashes_are_merged_as_the_first_server_of_an_address_does() {
    const OFF: &str = "merge_slashes off;";
    let server = |name: &str, listen: &str, inner: &str| {
        format!("server {{ listen {listen}; server_name {name}; {inner} {APP} }}")
    };
    let more = "location /x/ { proxy_pass http://127.0.0.1:3001; }";
    for (text, kept, comment) in [
        (server("a.test", "80", OFF), 1, ""),
        (format!("{OFF} {}", server("a.test", "80", "")), 1, ""),
        (server("a.test", "80", &format!("{OFF} {more}")), 3, "routes are chosen by the path with merged slashes"),
        // The first server decides for both.
        (server("a.test", "80", OFF) + &server("b.test", "80", ""), 2, ""),
        (server("a.test", "80", "") + &server("b.test", "80", OFF), 0, "those of this server differ"),
    ] {
        let (found, _) = imported(&text);
        let count = found.matches("merge_slashes = false").count();
        assert!(count >= kept && (count == 0) == (kept == 0), "{text}\n{found}");
        assert!(found.contains(comment), "{text}\n{found}");
        config::load_text("imported", &found).unwrap_or_else(|report| panic!("{report}\n{found}"));
    }
}

/// Headers with underscores stay if no variable would read them in place of those with dashes.
#[test]
fn headers_with_underscores_stay() {
    let keep = "underscore_headers = \"keep\"";
    for (text, is_kept) in [
        (format!("underscores_in_headers on; server {{ listen 80; {APP} }}"), true),
        (format!("server {{ listen 80; underscores_in_headers on; {APP} }}"), true),
        (format!("server {{ listen 80; underscores_in_headers on; if ($http_x_key) {{ return 403; }} {APP} }}"), false),
        (
            format!(
                "server {{ listen 80; server_name a.test; underscores_in_headers on; {APP} }} server {{ listen 80; \
                 server_name b.test; {APP} }}"
            ),
            false,
        ),
    ] {
        let (found, code) = imported(&text);
        assert_eq!((found.contains(keep), code), (is_kept, if is_kept { 0 } else { 3 }), "{text}\n{found}");
    }
}
