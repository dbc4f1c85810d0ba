//! A secret in the wrong place is never shown: messages about a text with `${...}` quote the text as written in the
//! file.

use std::ops::Range;
use std::path::Path;
use std::process::Command;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Each part of the secret contains the word `hunter`, so that the test finds it however a message cuts the value.
const SECRET: &str = "Hunter2/9s:hunter2@hunter2?hunter2=hunter2 hunter2,hunter2%zz{hunter2}[hunter2\"\\d(";
const PLAIN: &str = "Hunter2-secret";
/// Strings are replaced in so many steps.
const GROUPS: usize = 24;

/// Collects the byte ranges of the strings of a config.
fn strings(value: &Spanned<DeValue>, found: &mut Vec<Range<usize>>) {
    match value.get_ref() {
        DeValue::String(_) => found.push(value.span()),
        DeValue::Array(items) => items.iter().for_each(|item| strings(item, found)),
        DeValue::Table(table) => table.iter().for_each(|(_, value)| strings(value, found)),
        _ => {}
    }
}

/// Returns the output of `check` for this config.
fn check_output(dir: &Path, config: &str, secret: &str, format: &str) -> String {
    let path = dir.join("config.toml");
    std::fs::write(&path, config).unwrap();
    std::fs::write(dir.join("secret"), secret).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    let output = command.args(["check", "--format", format]).arg(&path).env("SECRET", secret).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Returns the text around each part of the secret that is shown.
fn shown(check_output: &str) -> Vec<String> {
    let lower = check_output.to_ascii_lowercase();
    let around = |at: usize| {
        check_output
            .get(check_output.floor_char_boundary(at.saturating_sub(120))..check_output.ceil_char_boundary(at + 40))
    };
    lower.match_indices("hunter").filter_map(|(at, _)| around(at).map(str::to_owned)).collect()
}

#[test]
fn no_string_of_the_config_shows_its_secret() {
    let full = std::fs::read_to_string("conf/full.toml").unwrap();
    let mut places = Vec::new();
    let (document, errors) = DeTable::parse_recoverable(&full);
    assert!(errors.is_empty());
    document.get_ref().iter().for_each(|(_, value)| strings(value, &mut places));
    places.sort_by_key(|place| place.start);
    assert!(places.len() > 150, "{}", places.len());
    let replaced = |places: &[Range<usize>], with: &str| {
        let mut text = full.clone();
        places.iter().rev().for_each(|place| text.replace_range(place.clone(), &format!("'{with}'")));
        text
    };
    let all_at_once = [
        "${SECRET}",
        "${file:secret}",
        "${SECRET}/s",
        "10/${SECRET}",
        "${SECRET}s",
        "/${SECRET}",
        "http://${SECRET}",
        "https://a:${SECRET}@b/",
        "unix:/${SECRET}",
        "${SECRET}:80",
        "header:${SECRET}",
        "~${SECRET}",
        "!${SECRET}",
        "redis://${SECRET}",
        "a ${SECRET} b",
        "{${SECRET}}",
    ];
    let dir = tempfile::tempdir().unwrap();
    let mut leaks = Vec::new();
    for with in all_at_once {
        for secret in [SECRET, PLAIN] {
            leaks.extend(shown(&check_output(dir.path(), &replaced(&places, with), secret, "json")));
        }
    }
    // Keys are compared with each other only if most of them are valid, so only some values are replaced.
    for first in 0..GROUPS {
        let some: Vec<_> = places.iter().skip(first).step_by(GROUPS).cloned().collect();
        leaks.extend(shown(&check_output(dir.path(), &replaced(&some, "${SECRET}"), PLAIN, "text")));
    }
    leaks.sort();
    leaks.dedup();
    assert!(leaks.is_empty(), "{} leaks:\n{}", leaks.len(), leaks[..leaks.len().min(20)].join("\n---\n"));
}

#[test]
fn a_mistake_shows_the_text_as_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let config = "[[route]]\nupstream = \"echo:\"\nlimits = [\"a\"]\n[limit.a]\nrate = \"${SECRET}/s\"\nkey = \"ip\"\n";
    let check_output = check_output(dir.path(), config, PLAIN, "text");
    assert!(check_output.contains("`${SECRET}` is not a positive whole number"), "{check_output}");
}

/// Configs with a mistake near a secret, with the literal CANARY in its place.
const NEAR_SECRETS: [&str; 21] = [
    "[admin]\ntoken = \"CANARY\"\nlisten = 3\n",
    "[admin]\nlisten = 3, token = \"CANARY\"\n",
    "admin = { listen = 3, token = \"CANARY\" }\n",
    "[admin]\ntoken = CANARY\n",
    "[admin]\ntoken = \"CANARY\n",
    "[admin]\ntoken \"CANARY\"\n",
    "[admin]\ntokn = \"CANARY\"\n",
    "[server]\ntoken = \"CANARY\"\n",
    "[admin]\ntokens = [{ name = \"a\", token = \"CANARY\", role = \"king\" }]\n",
    "[[admin.tokens]]\nname = \"a\"\nsha256 = \"CANARY\"\nrole = \"read\"\n",
    "[admin]\nkeys_secret = \"CANARY\"\n",
    "[jwt]\nkey = \"CANARY\"\nalgorithms = [\"HS256\"]\n",
    "[store]\nurl = \"redis://user:CANARY@host:99999\"\n",
    "[store]\nurl = \"redis+sentinel://h/m?sentinel_password=CANARY&x=1\"\n",
    "[[route]]\nauth = { forward = \"http://h:1/v?api_key=CANARY#x\" }\n",
    "[[route]]\nauth = { forward = \"ftp://h:1/v?token=CANARY\" }\n",
    "[[route]]\nauth = { forward = \"http://h:99999/v?k=CANARY\" }\n",
    "[[route]]\nauth = { forward = \"http://h:1/v?x=1&k=CANARY#x\" }\n",
    "[[route]]\nauth.forward = \"http://h:1/a b?CANARY\"\n",
    "[[route]]\nrequest_headers = { set = { authorization = \"CANARY\\n\" }, sett = 1 }\n",
    "[limit.a]\nrate = 1\nwhen = { cookie = { sid = \"CANARY\" }, header = { \"bad name\" = \"1\" } }\n",
];

#[test]
fn a_mistake_near_a_literal_secret_does_not_show_it() {
    for config in NEAR_SECRETS {
        let config = config.replace("CANARY", "q7canary7q");
        let report = sluicegate::config::load_text("test", &config).expect_err("the config has a mistake");
        let lines: Vec<String> = report.log_lines().collect();
        for shown in [report.render(false), report.to_json().to_string(), lines.join("\n")] {
            assert!(!shown.contains("canary"), "{config}\n{shown}");
        }
    }
}
