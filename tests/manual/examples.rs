//! The configs in `examples/`: each loads unchanged, and enforces its limits when it runs on other ports.

use std::path::{Path, PathBuf};

use super::admitted;
use crate::support::ca::Ca;
use crate::support::client::{Client, get};
use crate::support::gateway::{Gateway, program};
use crate::support::limiting::RedisServer;
use crate::support::manual::{Page, app, changed, examples};
use crate::support::tls::Trust;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const NAMES: [&str; 6] =
    ["api-keys.toml", "first-limit.toml", "llm-tokens.toml", "login.toml", "several-gateways.toml", "tls.toml"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// Starts an example in front of `app`, on free ports, with further changes: a text of the config and its replacement.
#[track_caller]
fn start(name: &str, app: &Upstream, changes: &[(&str, &str)]) -> Gateway {
    let config = std::fs::read_to_string(path(name)).unwrap();
    let config = changed(&config, "127.0.0.1:3000", &app.addr.to_string());
    let config = changed(&config, "127.0.0.1:9900", "127.0.0.1:0");
    let config = changes.iter().fold(config, |config, (from, to)| changed(&config, from, to));
    Gateway::with_config(&config.replace("127.0.0.1:8080", "127.0.0.1:0"))
}

#[test]
fn every_example_is_valid_and_has_a_test() {
    let files = std::fs::read_dir(path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = files.collect();
    files.sort();
    assert_eq!(files, NAMES);
    for name in NAMES {
        let output = program().args(["check", "--config"]).arg(path(name)).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_first_limit_admits_its_burst() {
    let app = app();
    let gateway = start("first-limit.toml", &app, &[("\"10/s\"", "\"10/h\"")]);
    assert_eq!(admitted(&gateway, 25, "/", ""), 20);
}

#[test]
fn failed_logins_are_limited_per_account_and_good_ones_are_free() {
    let app = app();
    let gateway = start("login.toml", &app, &[]);
    let mut client = gateway.client();
    let mut login = |user: &str, password: &str| {
        let body = format!("user={user}&password={password}");
        let form = "content-type: application/x-www-form-urlencoded\r\n";
        let head = format!("POST /login HTTP/1.1\r\nhost: a.test\r\n{form}content-length: {}\r\n\r\n", body.len());
        client.fetch(&head, body).status()
    };
    assert_eq!([0; 8].map(|_| login("anna", "right")), [200; 8]);
    assert_eq!([0; 6].map(|_| login("anna", "wrong")), [401, 401, 401, 401, 401, 429]);
    assert_eq!(login("bert", "wrong"), 401, "another account has a budget of its own");
    assert_eq!(gateway.get("/login").status(), 200, "the form itself is not limited per account");
    assert_eq!(gateway.get("/").status(), 200);
}

#[test]
fn api_keys_have_their_budgets() {
    let app = app();
    let gateway = start("api-keys.toml", &app, &[("\"60/min\"", "\"60/h\"")]);
    assert_eq!(gateway.get("/v1/items").status(), 403, "no key");
    assert_eq!(admitted(&gateway, 65, "/v1/items", "x-api-key: a\r\n"), 60);
    assert_eq!(admitted(&gateway, 3, "/v1/items", "x-api-key: b\r\n"), 3);
    assert_eq!(admitted(&gateway, 3, "/v1/items", "x-api-key: revoked-key\r\n"), 0);
    assert_eq!(gateway.get("/other").status(), 404);
}

#[test]
fn tokens_are_charged_as_the_app_states_them() {
    let app = app();
    let gateway = start("llm-tokens.toml", &app, &[("\"1000/min\"", "\"1000/h\"")]);
    let fetch = |tokens: u32| gateway.fetch(&get(&format!("/v1/chat?tokens={tokens}"), "x-api-key: a\r\n")).status();
    let remaining = || gateway.admin("/-/limits/tokens/state?key=a&cost=0").json()["remaining"].as_i64().unwrap();
    assert_eq!(fetch(400), 200);
    wait_until("400 tokens are charged", || (600..=601).contains(&remaining()));
    assert_eq!(fetch(1800), 200);
    wait_until("the budget is overdrawn", || remaining() == 0);
    assert_eq!(fetch(1), 429);
    assert_eq!(gateway.get("/v1/chat").status(), 403, "no key");
}

#[test]
fn several_gateways_share_a_limit() {
    let (first, second, redis) = (app(), app(), RedisServer::start(&[]));
    let changes = [
        ("127.0.0.1:3001", second.addr.to_string()),
        ("127.0.0.1:6379", redis.url().trim_start_matches("redis://").to_owned()),
        ("\"30ms\"", "\"2s\"".to_owned()),
        ("\"100/min\"", "\"100/h\"".to_owned()),
    ];
    let changes = changes.each_ref().map(|(from, to)| (*from, to.as_str()));
    let gateways = [0; 2].map(|_| start("several-gateways.toml", &first, &changes));
    gateways.iter().for_each(Gateway::wait_for_store);
    assert_eq!(gateways.each_ref().map(|gateway| admitted(gateway, 30, "/", "")).iter().sum::<usize>(), 50);
    assert!(first.connections() > 0 && second.connections() > 0);
}

/// Both ways of the page to start two gateways lead to the result that it shows: its config, and its Compose file.
#[test]
fn the_check_of_several_gateways_passes_with_the_files_that_the_page_names() {
    let page = Page::read("docs/guides/several-gateways.md");
    let check = page.blocks.iter().find(|block| block.text.contains("x-api-key: try")).unwrap();
    let shown: Vec<u16> =
        examples(&check.text)[0].shown.split_whitespace().map(|status| status.parse().unwrap()).collect();
    assert_eq!(shown.len(), 12);
    let composed = std::fs::read_to_string("conf/compose-scaled/sluicegate.toml").unwrap();
    let composed = ["http://app:", "redis:6379", "0.0.0.0:"]
        .iter()
        .zip(["http://127.0.0.1:", "127.0.0.1:6379", "127.0.0.1:"])
        .fold(composed, |config, (from, to)| changed(&config, from, to));
    let own = page.under("Try it on one machine")[0].config.replace("${PORT:-8080}", "8080");
    for config in [composed, own.replace("${ADMIN_PORT:-9900}", "9900")] {
        let (app, redis) = (app(), RedisServer::start(&[]));
        let store = redis.url().trim_start_matches("redis://").to_owned();
        let config = changed(&config, "127.0.0.1:3000", &app.addr.to_string());
        let config = changed(&config, "127.0.0.1:6379\"", &format!("{store}\"\ndeadline = \"5s\""));
        let config = changed(&changed(&config, "127.0.0.1:8080", "127.0.0.1:0"), "127.0.0.1:9900", "127.0.0.1:0");
        let gateways = [0; 2].map(|_| Gateway::with_config(&config));
        gateways.iter().for_each(Gateway::wait_for_store);
        let statuses =
            gateways.iter().flat_map(|gateway| [0; 6].map(|_| gateway.fetch(&get("/", "x-api-key: try\r\n")).status()));
        assert_eq!(statuses.collect::<Vec<u16>>(), shown, "{config}");
    }
}

#[test]
fn tls_is_served_and_http_is_redirected() {
    let (app, ca, dir) = (app(), Ca::new("test"), tempfile::tempdir().unwrap());
    ca.issue(&["www.example.com"], "").save(dir.path(), "sample");
    // Two addresses, so that the log tells which port is which.
    let changes = [
        ("127.0.0.1:8080", "127.0.0.2:0"),
        ("127.0.0.1:8443", "127.0.0.1:0"),
        ("\"../conf/tls/", &format!("\"{}/", dir.path().display())),
        ("\"50/s\"", "\"50/h\""),
        ("burst = 200", "burst = 5"),
    ];
    let gateway = start("tls.toml", &app, &changes);
    let listener = |ip: &str| *gateway.listeners().iter().find(|addr| addr.ip().to_string() == ip).unwrap();
    let redirect = Client::connect(listener("127.0.0.2")).fetch("GET /a HTTP/1.1\r\nhost: www.example.com\r\n\r\n", "");
    assert_eq!((redirect.status(), redirect.get("location")), (308, Some("https://www.example.com:8443/a")));
    let mut client = Trust::in_ca(&ca).connect(listener("127.0.0.1"), "www.example.com");
    let responses = [0; 6].map(|_| client.fetch("GET / HTTP/1.1\r\nhost: www.example.com\r\n\r\n", ""));
    assert_eq!(responses.each_ref().map(|response| response.status()), [200, 200, 200, 200, 200, 429]);
    assert_eq!(responses[0].get("strict-transport-security"), Some("max-age=86400"));
}
