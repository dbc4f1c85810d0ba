//! Login in the manner of oauth2-proxy: an auth server with a login page, a provider and sessions, in front of an
//! Express application. curl and Chromium log in.

use std::fs;

use serde_json::Value;

use super::browser::{Browser, read_report};
use super::curl::curl;
use super::site::Site;
use crate::support::app::App;
use crate::support::wait_until;

/// A site whose pages need a login. The login pages themselves and the report of the browser do not.
fn start() -> (Site, App) {
    let auth = App::script("auth_server.py");
    let rest = format!(
        "auth = {{ forward = \"{url}/oauth2/auth\", copy_headers = [\"x-auth-request-user\", \"x-auth-request-email\", \"x-checked\"] }}\n\
         [[route]]\nname = \"login\"\npath = \"/oauth2\"\nupstream = \"{url}\"\n\
         [[route]]\nname = \"reports\"\npath = \"= /reports\"\nupstream = \"app\"\n\
         [[route]]\nname = \"limited\"\npath = \"/limited\"\nrespond = {{ body = \"once more\" }}\nlimits = [\"two\"]\n\
         auth = {{ forward = \"{url}/oauth2/auth\", copy_headers = [\"x-auth-request-user\"] }}\n\
         [limit.two]\nrate = \"2/day\"\nkey = \"user\"\n",
        url = auth.url()
    );
    (Site::start(&rest), auth)
}

#[test]
fn curl_logs_in_and_stays_logged_in() {
    let (site, _auth) = start();
    let dir = tempfile::tempdir().unwrap();
    let [jar, body] = ["jar", "body"].map(|name| dir.path().join(name).display().to_string());
    fs::write(&body, vec![b'x'; 1_000_000]).unwrap();
    let (ca, url) = (site.ca_file(), site.url(""));
    for version in ["--http1.1", "--http2"] {
        let _ = fs::remove_file(&jar);
        let fetch =
            |arguments: &[&str]| curl(&[&[version, "--cacert", &ca, "-c", &jar, "-b", &jar], arguments].concat());
        let first = fetch(&["-i", &format!("{url}/seen?a=b%20c")]).to_ascii_lowercase();
        assert!(first.contains(" 302"), "{first}");
        assert!(first.contains("location: /oauth2/sign_in?rd=%2fseen%3fa%3db%2520c\r\n"), "{first}");
        assert!(first.contains("cache-control: no-store\r\n") && first.ends_with("log in first"), "{first}");
        // A forged session and a forged identity have no effect.
        let forged =
            ["-o", "/dev/null", "-w", "%{http_code}", "-H", "x-auth-request-user: alice", "-H", "cookie: session=x"];
        assert_eq!(fetch(&[&forged[..], &[&format!("{url}/seen")]].concat()), "302");
        assert_eq!(
            fetch(&[
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "-d",
                "user=alice&password=no",
                &format!("{url}/oauth2/sign_in")
            ]),
            "403"
        );
        let login = ["-L", "-d", "user=alice&password=secret&rd=/seen?a=b", &format!("{url}/oauth2/sign_in")];
        let seen: Value = serde_json::from_str(&fetch(&login)).unwrap();
        assert_eq!((&seen["url"], &seen["headers"]["x-auth-request-user"]), (&"/seen?a=b".into(), &"alice".into()));
        assert_eq!(seen["headers"]["x-checked"], "GET https /seen?a=b");
        let posted = fetch(&[
            "-H",
            "x-auth-request-user: mallory",
            "--data-binary",
            &format!("@{body}"),
            &format!("{url}/seen"),
        ]);
        let posted: Value = serde_json::from_str(&posted).unwrap();
        assert_eq!(
            (&posted["length"], &posted["headers"]["x-auth-request-user"]),
            (&1_000_000.into(), &"alice".into())
        );
        assert_eq!(posted["headers"]["x-checked"], "POST https /seen");
        let cookies = fs::read_to_string(&jar).unwrap();
        assert!(cookies.contains("\tchecks\t") && cookies.contains("\tsession\t"), "the session is renewed: {cookies}");
    }
    wait_until("the user is logged", || site.gateway.stdout().contains("\"user\":\"alice\""));
}

#[test]
fn a_browser_logs_in_and_its_page_works() {
    let (site, auth) = start();
    let browser = Browser::open(&site.url("/page"));
    let report = read_report(&site);
    assert_eq!(report["error"], Value::Null);
    assert_eq!(report["parts"], serde_json::json!([1, 4, 7, 10]));
    assert_eq!(report["events"], serde_json::json!(["event 0", "event 1", "event 2", "event 3"]));
    assert_eq!(report["socket"]["lengths"], serde_json::json!([5, 50_000, 100_000]));
    assert_eq!(report["upload"], 500_000);
    assert_eq!(report["limited"]["statuses"], serde_json::json!([200, 200, 429]));
    drop(browser);
    wait_until("the tunnel is logged", || site.gateway.stdout().contains("\"path\":\"/socket\""));
    let log = site.gateway.stdout();
    let logged = |path: &str, words: &[&str]| {
        let path = format!("\"path\":\"{path}\"");
        log.lines().any(|line| line.contains(&path) && words.iter().all(|word| line.contains(word)))
    };
    assert!(logged("/page", &["\"status\":302", "\"reason\":\"auth_refused\""]), "{log}");
    for path in ["/oauth2/sign_in", "/oauth2/provider", "/oauth2/callback"] {
        assert!(logged(path, &["\"route\":\"login\""]), "{path}: {log}");
    }
    for path in ["/page", "/socket", "/seen", "/report", "/limited"] {
        assert!(logged(path, &["\"user\":\"alice\""]), "{path}: {log}");
    }
    assert!(
        logged("/socket", &["\"protocol\":\"HTTP/2.0\"", "\"status\":101"]) || logged("/socket", &["\"status\":200"]),
        "{log}"
    );
    assert!(auth.log().contains("GET /oauth2/auth"), "{}", auth.log());
}
