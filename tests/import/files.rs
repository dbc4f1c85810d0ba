//! Folders that nginx serves: the same requests to a real nginx and to a gateway with the imported config, and what closes a
//! route.

use std::fs;
use std::path::Path;

use super::differential::{Nginx, Request, get, upstream};
use super::output::{import, imported};
use crate::support::gateway::Gateway;

const CONFIG: &str = "server {
    listen 127.0.0.1:0 default_server;
    server_name main.test;
    root DIR/www;
    index index.html;
    location / { try_files $uri $uri/ /index.html; add_header X-Site a; }
    location /static/ { alias DIR/static/; }
    location /assets { alias DIR/static; }
    location ~* \\.(css|js)$ { add_header Cache-Control public; }
    location = /one.txt { alias DIR/static/s.txt; }
    location = /a.txt { log_not_found off; }
    location /pages { try_files $uri $uri/ $uri.html =404; }
    location /private/ { deny 127.0.0.3; try_files $uri $uri/ =404; }
    location /only/ { root DIR/other; }
    location /api/ { proxy_pass http://UPSTREAM; }
}
server {
    listen 127.0.0.1:0;
    server_name bare.test;
    root DIR/www;
    deny 127.0.0.3;
    location /api/ { proxy_pass http://UPSTREAM; }
}
";

fn write_site(dir: &Path) {
    for (name, text) in [
        ("www/index.html", "home"),
        ("www/a.txt", "text of a"),
        ("www/b c.txt", "with a space"),
        ("www/app.js", "script"),
        ("www/sub/index.html", "sub"),
        ("www/sub/x.css", "style"),
        ("www/.env", "secret"),
        ("www/pages/about.html", "about"),
        ("www/private/p.txt", "private"),
        ("static/s.txt", "static s"),
        ("static/deep/d.txt", "deep"),
        ("other/only/o.txt", "other"),
        ("outside.txt", "outside"),
    ] {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn post(path: &'static str) -> Request {
    get(path).method("POST")
}

#[test]
fn files_are_those_of_nginx() {
    let (dir, upstream) = (tempfile::tempdir().unwrap(), upstream());
    write_site(dir.path());
    let text = CONFIG.replace("UPSTREAM", &upstream.addr.to_string()).replace("DIR", &dir.path().display().to_string());
    let path = dir.path().join("nginx.conf");
    fs::write(&path, &text).unwrap();
    // Its workers run as another user.
    std::process::Command::new("chmod").args(["-R", "a+rX"]).arg(dir.path()).status().unwrap();
    let nginx = Nginx::start(dir.path(), &text);
    let output = import("nginx", &path);
    let config = String::from_utf8(output.stdout).unwrap();
    // Files always have a comment on what differs.
    assert_eq!(output.status.code(), Some(3), "{config}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!config.contains("status = 501"), "{config}");
    let gateway = Gateway::with_config(&format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));

    let mut differ = Vec::new();
    let paths = [
        "/",
        "/a.txt",
        "/b%20c.txt",
        "/missing",
        "/missing/",
        "/sub",
        "/sub/",
        "/sub/index.html",
        "/sub/x.css",
        "/app.js",
        "/gone.js",
        "/static/s.txt",
        "/static/deep/d.txt",
        "/static/missing",
        "/static/deep/gone.txt",
        "/assets/s.txt",
        "/assets/missing",
        "/one.txt",
        "/pages/about",
        "/pages/about.html",
        "/pages/missing",
        "/private/p.txt",
        "/private/missing",
        "/only/o.txt",
        "/only/missing",
        "/api/x",
        "/api",
        "/../outside.txt",
        "/static/../outside.txt",
        "/static/%2e%2e/outside.txt",
        "/a.txt?x=1",
        "/index.html",
        "/a.txt/",
        "/sub/x.css/y",
    ];
    let requests = paths.into_iter().flat_map(|path| {
        [get(path), get(path).from(3), get(path).host("bare.test"), get(path).host("bare.test").from(3)]
    });
    let more = [
        get("/a.txt").with("range: bytes=1-3\r\n"),
        get("/a.txt").with("range: bytes=99-\r\n"),
        get("/a.txt").with("if-modified-since: Fri, 01 Jan 2010 00:00:00 GMT\r\n"),
        get("/a.txt").method("HEAD"),
        post("/a.txt"),
        post("/app.js"),
    ];
    for request in requests.chain(more) {
        let [theirs, ours] = [nginx.addr, gateway.addr].map(|addr| request.send(addr));
        if ours != theirs {
            differ.push(format!("{request:?}: ours {ours:?}, nginx's {theirs:?}"));
        }
    }
    assert!(differ.is_empty(), "{config}\n{differ:#?}");
    for (path, name, value) in
        [("/a.txt", "cache-control", None), ("/app.js", "cache-control", Some("public")), ("/", "x-site", Some("a"))]
    {
        let head = format!("GET {path} HTTP/1.1\r\nhost: main.test\r\n\r\n");
        for addr in [nginx.addr, gateway.addr] {
            let found = crate::support::client::Client::connect(addr).fetch(&head, "");
            assert_eq!(found.get(name), value, "{path} {}", found.head);
        }
    }
    // This is one of the differences that the comment names.
    assert_eq!(get("/.env").host("bare.test").send(gateway.addr), "404");
}

#[test]
fn what_a_route_cannot_serve_as_nginx_does_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    write_site(dir.path());
    let base = dir.path().display();
    for (location, why) in [
        ("location / { root html; }".to_owned(), "is not an absolute path"),
        (format!("location / {{ root {base}/$host; }}"), "is not an absolute path"),
        (format!("location / {{ root {base}/nowhere; }}"), "cannot be read on this machine"),
        (format!("location /a/ {{ alias {base}/static; }}"), "its `alias` does not"),
        (format!("location ~ ^/a/(.*)$ {{ alias {base}/static/$1; }}"), "is not an absolute path"),
        (format!("location ~ ^/a {{ root {base}/www; }}"), "index of its folders"),
        (format!("location /a/ {{ alias {base}/static/; location /a/b/ {{ expires 1d; }} }}"), "a `root` of its own"),
        (format!("root {base}/www; location / {{ try_files $uri @app; }}"), "`@app`"),
        (format!("root {base}/www; location / {{ try_files $uri/ /index.html; }}"), "`$uri/`"),
        (format!("root {base}/www; location / {{ try_files $uri /$arg_page; }}"), "`/$arg_page`"),
        (
            format!("root {base}/www; location / {{ try_files $uri /i.php; }} location ~ \\.php$ {{ return 403; }}"),
            "another location serves `/i.php`",
        ),
        (
            format!(
                "root {base}/www; location / {{ try_files $uri /login.html; }} location = /login.html {{ deny all; }}"
            ),
            "another location serves `/login.html`",
        ),
        (
            format!("root {base}/www; location / {{ }} location = /sub/index.html {{ deny 127.0.0.2; }}"),
            "another location serves `/sub/index.html`",
        ),
        (
            format!("root {base}/www; location / {{ }} location ~ ^/sub/(.+)$ {{ deny all; }}"),
            "another location serves `index.html`",
        ),
        (
            format!(
                "root {base}/www; location / {{ }} location ^~ /sub/index {{ auth_basic a; auth_basic_user_file x; }}"
            ),
            "another location serves `/sub/index.html`",
        ),
        (
            format!("root {base}/www; location /su {{ }} location ~ b/in {{ deny 127.0.0.2; }}"),
            "another location serves `index.html`",
        ),
        (format!("root {base}/www; location / {{ try_files $uri =404; }}"), "without `$uri/` refuses folders"),
        (
            format!("root {base}/www; location / {{ }} location ~ (?!x)y {{ return 403; }}"),
            "regular expression that cannot be read",
        ),
        (format!("root {base}/www; index index.php index.html; location / {{ }}"), "begins with `index.php`"),
        (format!("root {base}/www; location / {{ types {{ }} default_type text/plain; }}"), "types of its own"),
    ] {
        let (config, code) = imported(&format!("server {{ listen 8080; {location} }}"));
        assert_eq!(code, 3, "{config}");
        assert!(config.contains("nginx serves files here") && config.contains(why), "{location}\n{config}");
        assert!(config.contains("respond = { status = 501"), "{location}\n{config}");
        let is_served = config.split("[[route]]").any(|route| route.contains("\"/\"") && route.contains("\nfiles = "));
        assert!(!is_served, "{location}\n{config}");
    }
}

#[test]
fn a_location_beside_does_not_close_files_that_it_cannot_take() {
    let dir = tempfile::tempdir().unwrap();
    write_site(dir.path());
    let base = dir.path().display();
    for beside in [
        "location ~ /\\.ht { deny all; }",
        "location ~ /\\. { deny all; }",
        "location ~ \\.php$ { return 403; }",
        "location ~ ^/admin { deny all; }",
        "location ~* \\.(html|css|js)$ { expires 7d; }",
        "location /admin/ { deny all; }",
        "location = /login.html { deny all; }",
    ] {
        let (config, _) = imported(&format!("server {{ listen 8080; root {base}/www; location / {{ }} {beside} }}"));
        assert!(config.contains("files = ") && !config.contains("status = 501"), "{beside}\n{config}");
    }
}

/// An expression that cannot be read may take what no location has, which the server would otherwise serve.
#[test]
fn an_expression_that_cannot_be_read_closes_the_files_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    write_site(dir.path());
    let base = dir.path().display();
    let many = "location ~ ^/x[0-9]+y$ { return 403; }\n".repeat(1000);
    for locations in [
        "location ~* \\.(html|css|js)$ { expires 7d; } location ~ ^(.+)(?i:\\.php)$ { fastcgi_pass 127.0.0.1:9000; }",
        "location ~ (?!x)\\.php$ { fastcgi_pass 127.0.0.1:9000; }",
        &format!("{many} location ~ \\.php$ {{ fastcgi_pass 127.0.0.1:9000; }}"),
    ] {
        let (config, code) = imported(&format!("server {{ listen 8080; root {base}/www; {locations} }}"));
        assert_eq!(code, 3, "{locations}");
        let last = config.rsplit("[[route]]").next().unwrap();
        assert!(!last.contains("\nfiles = "), "{last}");
    }
}

#[test]
fn a_folder_that_is_missing_on_this_machine_is_said() {
    let text =
        "access_log /nowhere/access.log; server { listen 8080; location / { proxy_pass http://127.0.0.1:3000; } }";
    let (config, code) = imported(text);
    assert_eq!(code, 3);
    assert!(config.contains("there is no folder /nowhere on this machine"), "{config}");
    assert!(!config.contains("access_log ="), "{config}");
}
