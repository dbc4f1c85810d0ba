//! Chromium logs in with a user and a password in the URL, and sends them again with the requests of the page.

use std::process::Command;

use super::{bcrypt, start_with};

#[test]
fn a_browser_logs_in_and_loads_what_the_page_needs() {
    let page = "<body><script>fetch(location.origin + '/who').then(r => r.text()).then(t => document.body.textContent = t)</script></body>";
    let config = format!(
        "[[route]]\npath = \"= /\"\nauth = {{ basic = \"users\" }}\n\
         respond = {{ body = \"{page}\", content_type = \"text/html; charset=utf-8\" }}\n\
         [[route]]\npath = \"= /who\"\nupstream = \"echo:\"\nauth = {{ basic = \"users\" }}\n"
    );
    let gateway = start_with("access_log = true", &bcrypt("jos\u{e9}", "p\u{e4}ss:w\u{f6}rd"), &config);
    let open = |user: &str| {
        let dir = tempfile::tempdir().unwrap();
        let output = Command::new("chromium")
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--no-proxy-server", "--disable-background-networking", "--disable-component-update"])
            .args(["--virtual-time-budget=10000", "--dump-dom"])
            .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
            .arg(format!("http://{user}{}/", gateway.addr))
            .env("HOME", dir.path())
            .output()
            .unwrap_or_else(|error| panic!("chromium: {error}; install it: apt-get install chromium"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let shown = open("jos%C3%A9:p%C3%A4ss%3Aw%C3%B6rd@");
    assert!(shown.contains("GET /who HTTP/1.1") && shown.contains("x-forwarded-user: "), "{shown}");
    assert!(!shown.contains("authorization"), "{shown}");
    let log = gateway.stdout();
    let of_who = log.lines().find(|line| line.contains("\"path\":\"/who\"")).unwrap();
    assert!(of_who.contains("\"user\":\"jos\u{e9}\"") && of_who.contains("\"status\":200"), "{log}");
    let refused = open("");
    assert!(!refused.contains("/who"), "{refused}");
}
