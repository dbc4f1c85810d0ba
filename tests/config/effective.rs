//! The effective config: it means the same as the files, shows no secret, and anonymous it identifies nobody.

use std::path::Path;

use sluicegate::config;
use sluicegate::config::{Config, EffectiveFormat};
use sluicegate::reload::diff::Diff;

const PLAIN: EffectiveFormat =
    EffectiveFormat { has_origins: false, is_anonymous: false, has_defaults: false, is_for_readers: false };

fn load(path: &str) -> Config {
    config::load_config(Path::new(path)).unwrap_or_else(|report| panic!("{report}"))
}

fn load_text(text: &str) -> Config {
    config::load_text("test", text).unwrap_or_else(|report| panic!("{report}\n{text}"))
}

/// Masked secrets with values that load: those of the reference config.
fn unmask(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        lines.push(match line {
            "token = \"***\"" => "token = \"change-me-to-something-random\"".to_owned(),
            "keys_secret = \"***\"" => "keys_secret = \"change-me-to-the-output-of-openssl-rand-hex-32\"".to_owned(),
            "key = \"***\"" => "key = \"change-me-to-64-random-characters\"".to_owned(),
            "dns.secret = \"***\"" => "dns.secret = \"c2x1aWNlZ2F0ZS1zbHVpY2VnYXRlLXNsdWljZWdhdGU=\"".to_owned(),
            line if line.starts_with("tokens = ") => {
                line.replace("token = \"***\"", "token = \"change-me-to-something-random-too\"").replace(
                    "sha256 = \"***\"",
                    "sha256 = \"2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\"",
                )
            }
            line if line.starts_with("when.cookie") => line.replace("***", "*"),
            line => line.replace("spans.headers.x-tenant = \"***\"", "spans.headers.x-tenant = \"a\""),
        });
    }
    lines.join("\n") + "\n"
}

#[test]
fn the_effective_config_means_the_same() {
    for path in ["conf/full.toml", "conf/sluicegate.toml", "conf/demo.toml", "tests/config/good/main.toml"] {
        let config = load(path);
        let text = unmask(&config.effective_toml(PLAIN));
        let reloaded =
            config::load_text("effective", &text).unwrap_or_else(|report| panic!("{path}: {report}\n{text}"));
        let diff = Diff::compare(&config, &reloaded);
        // The token of one of them is in a file.
        let differences: Vec<String> = diff.lines().filter(|line| line != "admin: token changed").collect();
        assert!(differences.is_empty(), "{path}: {differences:#?}\n{text}");
        assert_eq!(unmask(&reloaded.effective_toml(PLAIN)), text, "{path}");
    }
}

#[test]
fn defaults_mean_the_same_as_nothing() {
    for path in ["conf/sluicegate.toml", "conf/demo.toml", "tests/config/good/main.toml"] {
        let config = load(path);
        let text = config.effective_toml(EffectiveFormat { has_defaults: true, ..PLAIN });
        assert!(text.lines().any(|line| line == "# max_connections = 8192  # default"), "{text}");
        let reloaded =
            config::load_text("effective", &text).unwrap_or_else(|report| panic!("{path}: {report}\n{text}"));
        let differences: Vec<String> =
            Diff::compare(&config, &reloaded).lines().filter(|line| line != "admin: token changed").collect();
        assert!(differences.is_empty(), "{path}: {differences:#?}\n{text}");
    }
    let json =
        load("conf/demo.toml").effective_json(EffectiveFormat { has_origins: true, has_defaults: true, ..PLAIN });
    assert_eq!(json["server"]["max_connections"], serde_json::json!({ "value": 8192, "origin": "default" }));
}

#[test]
fn each_value_has_its_origin() {
    let config = load("tests/config/good/main.toml");
    let text = config.effective_toml(EffectiveFormat { has_origins: true, ..PLAIN });
    let options = text.lines().filter(|line| line.contains(" = "));
    for line in options {
        let (_, origin) = line.rsplit_once("  # ").unwrap_or_else(|| panic!("{line}"));
        let (file, number) = origin.rsplit_once(':').unwrap();
        let source = std::fs::read_to_string(file).unwrap();
        let written = source.lines().nth(number.parse::<usize>().unwrap() - 1).unwrap();
        let key = line.split([' ', '.']).next().unwrap();
        let last = line.split(" = ").next().unwrap().rsplit('.').next().unwrap();
        assert!(written.contains(key) || written.contains(last), "{line} is not at {written}");
    }
    let json = config.effective_json(EffectiveFormat { has_origins: true, ..PLAIN });
    let route = &json["route"][0];
    assert!(route["path"]["value"].is_string() && route["path"]["origin"].is_string(), "{route}");
}

/// Secrets in every place where one may be.
const SECRETS: &str = r#"
[server]
spans = { enabled = true, to = "http://127.0.0.1:4318", headers = { x-any = "canary-span" } }
[admin]
token = "canary-token"
keys_secret = "canary-canary-canary-canary-canary-canary"
[store]
url = "redis://user:canary-password@127.0.0.1:1/0"
[jwt]
key = "canary-canary-canary-canary-canary-canary"
algorithms = ["HS256"]
[jwt.other]
key = "canary-canary-canary-canary-canary-CANARY"
algorithms = ["HS256"]
[limit.x]
rate = "1/s"
when = { header = { x-secret = "canary-when" }, cookie = { sid = "canary-cookie" } }
[[route]]
upstream = "echo:"
limits = ["x"]
header = { x-origin-token = "canary-origin" }
request_headers = { set = { authorization = "Bearer canary-header" } }
[[route]]
path = "/b"
upstream = "echo:"
response_headers = { set = { x-b = "${SLUICEGATE_TEST_NONE:-canary-default}" } }
"#;

#[test]
fn no_output_contains_a_secret() {
    let config = load_text(SECRETS);
    let other = load_text(&SECRETS.replace("canary", "kanari"));
    for format in [PLAIN, EffectiveFormat { has_origins: true, is_anonymous: true, ..PLAIN }] {
        let (toml, json) = (config.effective_toml(format), config.effective_json(format).to_string());
        assert!(!toml.to_lowercase().contains("canary"), "{toml}");
        assert!(!json.to_lowercase().contains("canary"), "{json}");
    }
    let diff = Diff::compare(&config, &other);
    let text = format!("{:?} {} {}", diff.lines().collect::<Vec<_>>(), diff.lines_json(), diff.to_json());
    assert!(!text.to_lowercase().contains("canary") && !text.contains("kanari"), "{text}");
    for option in ["token", "keys_secret", "url", "spans.headers.x-any", "when.cookie.sid", "header.x-origin-token"] {
        assert!(text.contains(option), "{option} is not in {text}");
    }
}

/// A config in which every word that the operator chose contains `canary`, and every address is of 203.0.113.0/24.
const IDENTIFYING: &str = r#"
[server]
listen = ["203.0.113.5:8080"]
trusted_proxies = ["203.0.113.0/24"]
resolver = ["203.0.113.53"]
[admin]
listen = "127.0.0.1:9900"
[upstream.canary-app]
servers = ["http://canary.example.com:3000", { url = "http://203.0.113.9:1", weight = 2 }, "unix:/run/canary.sock"]
balance = "consistent_hash"
hash_on = ["header:x-canary"]
health = { path = "/canary", body = "canary" }
[set.canary-office]
values = ["203.0.113.0/24"]
[set.canary-customers]
values = ["4714", "open", "4715/s"]
[limit.canary-limit]
rate = "10/s"
key = ["header:x-canary | cookie:canary", "path"]
when = { path = "/canary/*", query = { canary = "~ canary|x", a = 904711470, b = ["4712", "13-4713"] }, client = "!set:canary-office", header = { user-agent = "canary" } }
overrides = [{ key = ["4716", "*"], burst = 6 }, { key = ["canary-customer", "*"], rate = "unlimited" }, { key = ["20301138888", "/canary"], burst = 5 }]
refuse = { status = 403, body = "canary", content_type = "text/plain" }
[[route]]
name = "canary-route"
host = ["*.canary.example.com", "canary.test"]
path = "/canary/{canary_id}/x"
upstream = "canary-app"
limits = ["canary-limit"]
allow = ["set:canary-office", "203.0.113.77"]
rewrite = { add_prefix = "/canary" }
request_headers = { set = { x-canary = "canary" }, remove = ["x-canary-2"] }
[[route]]
path = "~ ^/canary/[0-9]+$"
redirect = { to = "https://canary.example.com{path}" }
"#;

#[test]
fn an_anonymous_config_identifies_nobody() {
    let config = load_text(IDENTIFYING);
    let format = EffectiveFormat { has_origins: true, is_anonymous: true, ..PLAIN };
    for text in [config.effective_toml(format), config.effective_json(format).to_string()] {
        assert!(!text.to_lowercase().contains("canary"), "{text}");
        assert!(!text.contains("203.0.113") && !text.contains("20301138888"), "{text}");
        for value in ["904711470", "\"4712\"", "13-4713", "\"4714\"", "\"open\"", "4715/s", "\"4716\""] {
            assert!(!text.contains(value), "{value} is in\n{text}");
        }
        assert!(!text.contains("example") && !text.contains("office"), "{text}");
        for kept in ["10/s", "consistent_hash", "unlimited", "403", "127.0.0.1:9900", "header:x"] {
            assert!(text.contains(kept), "{kept} is not in\n{text}");
        }
    }
    // The same name has the same hash everywhere, so the structure can be read.
    let text = config.effective_toml(EffectiveFormat { is_anonymous: true, ..PLAIN });
    let name = text.split("[limit.").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    assert!(text.contains(&format!("limits = [\"{name}\"]")), "{name} is not used in\n{text}");
    assert!(text.contains("allow = [\"set:") && text.contains("client = \"!set:"), "{text}");
}
