//! Chromium: a page with its parts, an event stream, a WebSocket, an upload and a limit, over HTTP/2 and
//! HTTP/3; refused uploads over HTTP/3; and a page with a development certificate.

use std::fs;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::site::{Site, route, secured_with};
use crate::support::client::{fetch, get};
use crate::support::gateway::{Gateway, config_arguments, program};
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// A browser without a window; ended with the value.
pub struct Browser {
    child: Child,
    dir: TempDir,
}

impl Browser {
    /// Opens a page. Certificates are not verified, because the browser has its own store of CAs.
    pub fn open(url: &str) -> Browser {
        Browser::open_with(url, &[])
    }

    /// The same, with further arguments.
    fn open_with(url: &str, arguments: &[&str]) -> Browser {
        let dir = tempfile::tempdir().unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let own = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--no-proxy-server",
            "--disable-background-networking",
            "--disable-component-update",
            "--ignore-certificate-errors",
            "--remote-debugging-port=0",
        ];
        let child = Command::new("chromium")
            .args(own)
            .args(arguments)
            .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
            .arg(url)
            .env("HOME", dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("chromium: {error}; install it: apt-get install chromium"));
        Browser { child, dir }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- log of the browser ---\n{}",
                fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
            );
        }
        // On SIGTERM, Chromium ends its own processes as well.
        let term = format!("kill -TERM {}", self.child.id());
        let _ = Command::new("sh").args(["-c", &term]).status();
        let _ = self.child.wait();
    }
}

/// Waits for the report of the page, and returns it.
pub fn read_report(site: &Site) -> Value {
    let mut reports = Value::Null;
    wait_until("the page has reported", || {
        reports = fetch(site.plain(), &get("/reports", "")).json();
        reports[0].is_object()
    });
    reports[0].take()
}

#[test]
fn a_page_is_loaded_and_alive_over_one_connection() {
    let site = Site::start(LIMITED);
    let browser = Browser::open(&site.url("/page"));
    assert_alive(&site, browser, "h2", "HTTP/2.0");
}

#[test]
fn a_page_is_loaded_and_alive_over_one_connection_of_http3() {
    let site = Site::start_with("http3 = true\n", LIMITED);
    let origin = format!("127.0.0.1:{}", site.gateway.addr.port());
    let [force, trust] = force_http3(&origin, &site.digest);
    // Chromium opens WebSockets over HTTP/2 or HTTP/1.1 otherwise.
    let arguments = [&*force, &trust, "--enable-features=EnableWebsocketsOverHttp3"];
    let browser = Browser::open_with(&format!("https://{origin}/page"), &arguments);
    assert_alive(&site, browser, "h3", "HTTP/3.0");
}

/// Arguments by which a browser uses HTTP/3 from the first request, though no public CA has signed the certificate.
fn force_http3(origin: &str, digest: &str) -> [String; 2] {
    [format!("--origin-to-force-quic-on={origin}"), format!("--ignore-certificate-errors-spki-list={digest}")]
}

/// A route with a limit, beside the application.
const LIMITED: &str = "[[route]]\nname = \"limited\"\npath = \"/limited\"\nrespond = { body = \"once more\" }\nlimits = [\"two\"]\n\
                       [limit.two]\nrate = \"2/day\"\nkey = \"ip\"\n";

/// Fails unless the page has all of its parts, over one connection of the protocol that the browser, and the log, call so.
fn assert_alive(site: &Site, browser: Browser, protocol: &str, version: &str) {
    let report = read_report(site);
    assert_eq!(report["error"], Value::Null);
    assert_eq!(report["parts"], serde_json::json!([1, 4, 7, 10]));
    assert_eq!(report["styles"], serde_json::json!([1, 1, 1, 1]));
    assert_eq!(report["images"], serde_json::json!([3, 6, 9, 12]));
    assert_eq!(report["events"], serde_json::json!(["event 0", "event 1", "event 2", "event 3"]));
    let socket = &report["socket"];
    assert_eq!((&socket["code"], &socket["reason"]), (&4001.into(), &"as asked".into()));
    assert_eq!(socket["lengths"], serde_json::json!([5, 50_000, 100_000]));
    assert!(socket["extensions"].as_str().unwrap().contains("permessage-deflate"), "{socket}");
    assert_eq!(report["upload"], 500_000);
    let limited = &report["limited"];
    assert_eq!(limited["statuses"], serde_json::json!([200, 200, 429]));
    assert_eq!(limited["violated"], serde_json::json!(["two"]));
    assert!(limited["retryAfter"].as_str().unwrap().parse::<u32>().unwrap() > 0, "{limited}");
    let protocols: Vec<&str> =
        report["protocols"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    assert!(
        protocols.len() > 20 && protocols.iter().all(|one| one.ends_with(&format!(" {protocol}"))),
        "{protocols:?}"
    );
    // The tunnel is a stream like the others, and a speculative connection is closed again.
    let log = site.gateway.stdout();
    let socket = log.lines().find(|line| line.contains("\"path\":\"/socket\"")).expect("the tunnel is logged");
    assert!(socket.contains(&format!("\"protocol\":\"{version}\"")), "{socket}");
    let [listener, open] = [("listener", "127.0.0.1:0"), ("protocol", protocol)];
    site.gateway.assert_metric("connections", &[listener, open], 1.0);
    drop(browser);
    site.gateway.assert_metric("tunnels", &[], 0.0);
}

/// Over HTTP/3, the browser reads responses to uploads that have not ended: of the gateway, and of a server.
#[test]
fn a_page_sees_why_its_uploads_are_refused_over_http3() {
    let server = Upstream::start(|peer| {
        while let Some(head) = peer.head()? {
            match head.start_line() {
                line if line.starts_with("POST /early") => {
                    return peer.send("HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\nconnection: close\r\n\r\ngone");
                }
                line if line.starts_with("POST /report") => {
                    let report = peer.body(&head)?;
                    peer.note(std::str::from_utf8(&report).unwrap());
                    peer.send(ok("seen"))?;
                }
                _ => {
                    let page = include_str!("programs/refused_uploads.html");
                    let length = page.len();
                    peer.send(format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {length}\r\n\r\n{page}"
                    ))?;
                }
            }
        }
        Ok(())
    });
    let rest = format!(
        "[[route]]\nname = \"spent\"\npath = \"/spent\"\nupstream = \"app\"\nlimits = [\"one\"]\n\
         [[route]]\nname = \"spend\"\npath = \"/spend\"\nrespond = {{}}\nlimits = [\"one\"]\n\
         [[route]]\nname = \"small\"\npath = \"/small\"\nupstream = \"app\"\nmax_body = \"10KiB\"\n{}\
         [limit.one]\nrate = \"1/day\"\nkey = \"all\"\n",
        route(&server.url(), "")
    );
    let (gateway, digest) = secured_with("http3 = true\n", &rest);
    assert_eq!(fetch(gateway.listeners()[1], &get("/spend", "")).status(), 200);
    let origin = format!("127.0.0.1:{}", gateway.addr.port());
    let arguments = force_http3(&origin, &digest);
    let _browser = Browser::open_with(&format!("https://{origin}/"), &arguments.each_ref().map(String::as_str));
    let report: Value = loop {
        if let Ok(report) = serde_json::from_str(&server.request().head) {
            break report;
        }
    };
    assert_eq!(report["protocols"], serde_json::json!(["h3"]));
    for (path, response) in [("/spent", "429 with a problem"), ("/small", "413 with a problem"), ("/early", "404 gone")]
    {
        assert_eq!(report[path], serde_json::json!([response, response, response]), "{path}: {report}");
    }
}

/// Returns the page at `url` as shown by a browser that trusts the CAs in the store of `home_dir`.
fn dump(home_dir: &std::path::Path, url: &str) -> String {
    let own = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"];
    let quiet = ["--no-proxy-server", "--disable-background-networking", "--disable-component-update", "--dump-dom"];
    let profile = format!("--user-data-dir={}", home_dir.join("profile").display());
    let mut browser = Command::new("timeout");
    browser.args(["60", "chromium"]).args(own).args(quiet).args([&profile, url]).env("HOME", home_dir);
    let output = browser.stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_browser_that_trusts_the_local_ca_shows_the_page() {
    let home_dir = tempfile::tempdir().unwrap();
    let state = home_dir.path().join("ca");
    let gateway = Gateway::launch(&[], |dir| {
        let config = format!(
            "[server]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
             tls = {{ internal = {{ state = \"{}\" }} }}\n[[route]]\nhost = \"app.localhost\"\n\
             respond = {{ body = \"a page of the test\" }}\n",
            state.display()
        );
        config_arguments(dir, &config)
    });
    let url = format!("https://app.localhost:{}/", gateway.addr.port());
    assert!(!dump(home_dir.path(), &url).contains("a page of the test"));
    // The command that `trust` prints, for a store of the test.
    let shown = program().args(["trust", "--state"]).arg(&state).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let add = shown.lines().find_map(|line| line.trim_start().strip_prefix("Chrome on Linux")).unwrap();
    let script = format!(
        "mkdir -p $HOME/.pki/nssdb && certutil -d sql:$HOME/.pki/nssdb -N --empty-password && {}",
        add.trim_start()
    );
    let added = Command::new("sh").args(["-c", &script]).env("HOME", home_dir.path()).output().unwrap();
    assert!(added.status.success(), "apt-get install libnss3-tools\n{}", String::from_utf8_lossy(&added.stderr));
    let page = dump(home_dir.path(), &url);
    assert!(page.contains("a page of the test"), "{page}\n{}", gateway.log());
}
