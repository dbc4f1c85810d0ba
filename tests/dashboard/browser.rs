//! The screens in a real Chromium. The scripts fail on errors of the page and violations of its policy as well.

use std::path::Path;

use serde_json::Value;

use crate::support::app::run;
use crate::support::client::get;
use crate::support::gateway::{Gateway, config, config_arguments};

const ROUTES: &str = r#"
[limit.per-key]
rate = "1/h"
burst = 2
key = "header:x-key"
missing = "skip"

[limit.watched]
rate = "1/h"
burst = 1
key = "ip"
mode = "shadow"

[upstream.app]
servers = ["http://127.0.0.1:1"]
health = { path = "/", every = "1s", unhealthy_after = 1 }

[[route]]
path = "/"
upstream = "echo:"
limits = ["per-key", "watched"]

[[route]]
path = "/app"
upstream = "app"
"#;

/// Limits of each kind, with a route of the same name.
const KINDS: &str = r#"
[limit.tenants]
rate = "1/h"
burst = 2
key = "all"
fair = { key = "header:x-tenant" }

[limit.shared]
rate = "1/h"
key = "header:x-shared"

[limit.pin]
rate = "1/h"
key = "header:x-pin"
missing = "skip"

[limit.noted]
rate = "1/h"
key = "header:x-note"
missing = "skip"
over = "annotate"

[limit.watched]
rate = "1/h"
key = "ip"
mode = "shadow"

[limit.tiers]
rate = "1000/h"
burst = 1000
key = "ip6tiers/64/56x2/48x3"

[[route]]
path = "/"
upstream = "echo:"
limits = ["tenants", "shared", "pin", "noted", "watched"]

[[route]]
path = "/tiers"
upstream = "echo:"
limits = ["tiers"]
"#;

fn run_script(name: &str, arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dashboard").join(name);
    run("node", "nodejs", &[&[script.to_str().unwrap()], arguments].concat())
}

/// A gateway that has refused requests of the key `gold`, with further lines in `[admin]`.
fn refusing_gateway(admin: &str) -> Gateway {
    let keys = format!("[admin]\nkeys = {{ \"header:x-key\" = \"plain\" }}\n{admin}");
    let gateway = Gateway::with_config(&config("", ROUTES).replace("[admin]\n", &keys));
    for status in [200, 200, 429, 429, 429] {
        assert_eq!(gateway.fetch(&get("/", "x-key: gold\r\n")).status(), status);
    }
    gateway
}

fn address(gateway: &Gateway) -> String {
    format!("http://{}/", gateway.admin)
}

/// Checks all screens. Set `SCREENSHOTS` to a directory to look at them.
fn check_screens(scheme: &str) {
    let gateway = refusing_gateway("");
    let shots = gateway.dir.path().join("shots");
    std::fs::create_dir(&shots).unwrap();
    run_script("screens.js", &[&address(&gateway), shots.to_str().unwrap(), scheme]);
    let taken: Vec<_> = std::fs::read_dir(&shots).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(taken.len(), 26, "there are 13 screens, wide and narrow");
    if let Some(kept) = std::env::var_os("SCREENSHOTS") {
        for shot in taken {
            std::fs::copy(&shot, Path::new(&kept).join(shot.file_name().unwrap())).unwrap();
        }
    }
}

/// A limit with bans, in addition to [`ROUTES`].
const BANS: &str = r#"
[limit.logins]
algorithm = "fixed_window"
rate = "1/h"
key = "ip"
ban = { after = 1, within = "1h", for = "1h" }

[limit.watchlist]
rate = "1/s"
key = "header:x-key"

[[route]]
path = "/login"
respond = { body = "in" }
limits = ["logins", "watchlist"]
"#;

#[test]
fn what_was_changed_is_listed_over_all_limits_and_ended_from_its_row() {
    let text = config("", &format!("{ROUTES}{BANS}"));
    let gateway =
        Gateway::with_config(&text.replace("[admin]\n", "[admin]\nkeys = { \"header:x-key\" = \"plain\" }\n"));
    let set = |limit: &str, key: &str, body: &str| {
        let path = format!("/-/limits/{limit}/override?key={key}");
        let answer = gateway.admin_request("PUT", &path, "content-type: application/json\r\n", body);
        assert_eq!(answer.status(), 200, "{}", answer.text());
    };
    (0..101).for_each(|n| set("watchlist", &format!("many-{n}"), r#"{"block": true}"#));
    set("per-key", "gold", r#"{"block": true, "for": "1h", "note": "ticket 17"}"#);
    set("per-key", "silver", r#"{"rate": "100/min"}"#);
    let statuses = [0; 3].map(|_| gateway.fetch(&get("/login", "x-key: a\r\n")).status());
    assert_eq!(statuses, [200, 429, 429]);
    run_script("overrides.js", &[&address(&gateway)]);
    assert_eq!(gateway.fetch(&get("/login", "x-key: a\r\n")).status(), 200, "the ban is lifted");
    assert_eq!(gateway.fetch(&get("/", "x-key: gold\r\n")).status(), 200);
}

#[test]
fn text_that_is_not_saved_is_not_lost_without_a_question() {
    let gateway = refusing_gateway("edit = true\ntoken = \"hush-hush-hush-hush\"\n");
    run_script("unsaved.js", &[&address(&gateway), "hush-hush-hush-hush"]);
}

#[test]
fn every_light_screen_is_accessible() {
    check_screens("light");
}

#[test]
fn every_dark_screen_is_accessible() {
    check_screens("dark");
}

#[test]
fn the_first_sentence_says_what_is_wrong() {
    let gateway = refusing_gateway("");
    run_script("verdict.js", &[&address(&gateway)]);
}

#[test]
fn the_most_refused_key_is_reset_with_the_keyboard() {
    let gateway = refusing_gateway("");
    let left = || gateway.admin("/-/limits/per-key/state?key=gold").json()["remaining"].clone();
    assert_eq!(left(), Value::from(0));
    let keystrokes = run_script("walk.js", &[&address(&gateway)]);
    assert!(keystrokes.contains("keystrokes"), "{keystrokes}");
    assert_eq!(left(), Value::from(2));
}

#[test]
fn a_customer_is_found_by_a_request_id_and_helped() {
    let gateway = refusing_gateway("");
    let refused = gateway.fetch(&get("/", "x-key: gold\r\n"));
    let id = refused.json()["request_id"].as_str().unwrap().to_owned();
    run_script("customer.js", &[&address(&gateway), &id]);
    assert_eq!(gateway.fetch(&get("/", "x-key: gold\r\n")).status(), 200);
}

/// Limits of which logs show keys in other spellings than requests have.
const SPELLINGS: &str = r#"
[limit.per-secret]
rate = "1/h"
key = "header:x-secret"
missing = "skip"

[limit.per-net]
rate = "1/h"
key = "ip"

[[route]]
path = "/net"
upstream = "echo:"
limits = ["per-net"]
"#;

#[test]
fn keys_and_customers_are_found_by_what_people_type() {
    let keys = "[admin]\nkeys = { \"header:x-key\" = \"plain\" }\n";
    let routes = ROUTES.replacen("limits = [\"per-key\", \"watched\"]", "limits = [\"per-key\", \"per-secret\"]", 1);
    let text = config("trusted_proxies = [\"127.0.0.1\"]\n", &format!("{SPELLINGS}{routes}"));
    let gateway = Gateway::with_config(&text.replace("[admin]\n", keys));
    for (path, header) in [
        ("/", "x-key: anna smith"),
        ("/", "x-key: 0123456789abcdef"),
        ("/", "x-secret: secret key"),
        ("/net", "x-forwarded-for: 2001:db8::7"),
    ] {
        let statuses: Vec<u16> = (0..3).map(|_| gateway.fetch(&get(path, &format!("{header}\r\n"))).status()).collect();
        assert_eq!(statuses[2], 429, "{header}: {statuses:?}");
    }
    run_script("finders.js", &[&address(&gateway)]);
}

#[test]
fn what_an_outage_left_out_is_loaded_afterwards_and_changes_are_followed() {
    let gateway = refusing_gateway("edit = true\ntoken = \"hush-hush-hush-hush\"\n");
    run_script("outage.js", &[&address(&gateway), "hush-hush-hush-hush"]);
}

#[test]
fn keys_are_blocked_and_overridden_by_an_edit() {
    let gateway = refusing_gateway("edit = true\ntoken = \"hush-hush-hush-hush\"\n");
    let statuses = |key: &str| [0; 5].map(|_| gateway.fetch(&get("/", &format!("x-key: {key}\r\n"))).status());
    run_script("override.js", &[&address(&gateway), "hush-hush-hush-hush"]);
    assert_eq!(statuses("gold"), [429; 5]);
    for free in ["silver", "a\"]#, \u{e9}"] {
        assert_eq!(statuses(free), [200; 5], "{free}");
    }
    assert_eq!(statuses("bronze"), [200, 200, 429, 429, 429]);
    let text = std::fs::read_to_string(gateway.config()).unwrap();
    assert_eq!(text.matches("overrides = [").count(), 1, "{text}");
}

/// Limits in an included file, with comments and their own layout.
const INCLUDED: &str = r#"# Reviewed by operations.
[limit.per-account]   # each customer
key = ["header:x-account", "ip"]
missing = "shared"
  rate = "2/h"   # from the contract
  "overrides" = [   # paid
    { key = ["acme-secret", "*"], rate = "3/h" },
  ]

[limit.queue]
fair = { key = "header:x-tenant", reserve = 1, weights = { big = 5 } }
rate = "1/h"
burst = 5
key = "all"
"#;

#[test]
fn a_hashed_key_is_blocked_in_an_included_file() {
    let settings = "[admin]\nkeys = { default = \"hashed\", ip = \"plain\" }\nedit = true\ntoken = \"hush-hush-hush-hush\"\n\
                    keys_secret = \"0123456789abcdef0123456789abcdef\"\n";
    let routes = "[[route]]\npath = \"/\"\nupstream = \"echo:\"\nlimits = [\"per-account\"]\n\
                  [[route]]\npath = \"/queue\"\nupstream = \"echo:\"\nlimits = [\"queue\"]\n";
    let gateway = Gateway::launch(&[], |dir| {
        std::fs::create_dir(dir.join("conf.d")).unwrap();
        std::fs::write(dir.join("conf.d/limits.toml"), INCLUDED).unwrap();
        config_arguments(dir, &format!("include = \"conf.d/*.toml\"\n{}", config("", &format!("{settings}{routes}"))))
    });
    let fetch = |path: &str, fields: &str| gateway.fetch(&get(path, fields)).status();
    let statuses = |account: &str| [0; 4].map(|_| fetch("/", &format!("x-account: {account}\r\n")));
    assert_eq!(statuses("mallory-secret"), [200, 200, 429, 429]);
    assert_eq!([0; 3].map(|_| fetch("/", "")), [200, 200, 429]);
    assert_eq!([0; 6].map(|_| fetch("/queue", "x-tenant: big\r\n"))[5], 429);
    let file = gateway.dir.path().join("conf.d/limits.toml");
    run_script("hashed_override.js", &[&address(&gateway), "hush-hush-hush-hush", file.to_str().unwrap()]);
    assert_eq!(statuses("mallory-secret"), [429; 4]);
    assert_eq!(statuses("acme-secret"), [200, 200, 200, 429]);
    // Nothing else in the file has changed, and the edit of somebody else is there too.
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once("{ key = [{ hash = \"").unwrap();
    let after = &rest[16..].strip_prefix("\" }, { percent = \"127.0.0.1\" }], rate = 0 }, ").unwrap();
    assert_eq!(format!("{before}{after}"), format!("{INCLUDED}# edited by somebody else\n"));
}

#[test]
fn only_keys_whose_block_means_them_are_blocked() {
    let keys = "[admin]\nkeys = { header = \"plain\", \"header:x-pin\" = \"hidden\" }\n\
                edit = true\ntoken = \"hush-hush-hush-hush\"\n";
    let text = config("trusted_proxies = [\"127.0.0.0/8\"]", KINDS).replace("[admin]\n", keys);
    let gateway = Gateway::with_config(&text);
    let file = gateway.config();
    run_script("kinds.js", &[&address(&gateway), "hush-hush-hush-hush", file.to_str().unwrap()]);
    let status = |client: &str| gateway.fetch(&get("/tiers", &format!("x-forwarded-for: {client}\r\n"))).status();
    let clients = ["2001:db8:1:1::1", "2001:db8:1:ff::1", "2001:db8:2::1", "192.0.2.1"];
    assert_eq!(clients.map(status), [429, 429, 200, 200]);
    let text = std::fs::read_to_string(file).unwrap();
    assert_eq!(text.matches("overrides = [").count(), 1, "{text}");
}

#[test]
fn secrets_of_a_file_stay_hidden_and_whole() {
    let gateway = refusing_gateway("edit = true\ntoken = \"hush-hush-hush-hush\"\n");
    let file = gateway.config();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        format!("{text}\n[jwt.main]\nkey = \"signing-key-of-at-least-32-bytes!\"\nalgorithms = [\"HS256\"]\n"),
    )
    .unwrap();
    let arguments = [&address(&gateway), "hush-hush-hush-hush", file.to_str().unwrap()];
    run_script("secrets.js", &arguments);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("token = \"hush-hush-hush-hush\" # <img")
            && text.ends_with("32-bytes!\"\nalgorithms = [\"HS256\"]\n# mine\n"),
        "{text}"
    );
}

#[test]
fn entries_mean_the_key_that_is_shown() {
    run_script("entries.js", &[concat!(env!("CARGO_MANIFEST_DIR"), "/ui")]);
}

#[test]
fn logins_leave_no_trace_and_old_numbers_say_so() {
    let gateway = refusing_gateway("token = \"hush-hush-hush-hush\"\n");
    run_script("login.js", &[&address(&gateway), "hush-hush-hush-hush"]);
}

#[test]
fn two_hundred_hostile_texts_are_inert() {
    let gateway = refusing_gateway("");
    run_script("hostile.js", &[&address(&gateway)]);
}
