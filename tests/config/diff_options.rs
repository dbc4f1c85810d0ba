//! The diff names each option that changes the effect of a config: for each option of the table, two values of it are
//! compared, and each value with its absence.

use std::collections::BTreeMap;

use sluicegate::config::schema::lookup::OptionEntry;
use sluicegate::config::schema::value_type::ValueType;
use sluicegate::config::{Config, load_text};
use sluicegate::reload::diff::Diff;

use super::option_frames::frame_of;
use super::option_table::{VALUES, meaning, options, words};

/// Values of options that are texts of a certain format.
const TEXTS: [&str; 35] = [
    "[\"https://a.test\", \"https://b.test\"]",
    "\"10/s\"",
    "\"20/s\"",
    "\"30/day\"",
    "\"2s\"",
    "\"31s\"",
    "\"1h\"",
    "\"2MiB\"",
    "\"127.0.0.1:8088\"",
    "[\"127.0.0.1:8081\"]",
    "\"10.9.0.0/16\"",
    "[\"10.9.0.0/16\", \"192.0.2.1\"]",
    "\"http://127.0.0.1:9/x\"",
    "[\"http://127.0.0.1:9\", \"http://127.0.0.2:9\"]",
    "\"header:x-other\"",
    "[\"header:x-other\", \"ip\"]",
    "\"Europe/Berlin\"",
    "\"04:00\"",
    "\"example.org\"",
    "[\"example.org\", \"example.net\"]",
    "\"/other/{id}\"",
    "\"= /exact/{id}\"",
    "{ x-other = \"1\" }",
    "{ sub = \"1\" }",
    "[500, 503]",
    "[\"5xx\"]",
    "503",
    "302",
    "\"text/html\"",
    "\"{retry_after}\"",
    "\"abc-def\"",
    "[\"abc-def\"]",
    "\"conf/tls/sample.pem\"",
    "\"0123456789abcdef0123456789abcdef\"",
    "\"sk-0123456789abcdef\"",
];

/// Options that name their section.
const IDENTITIES: [&str; 4] = ["listener.address", "route.name", "route.host", "route.path"];

/// Values that the option may have, as TOML.
fn candidates(of: &ValueType) -> Vec<String> {
    let numbers = of.alternatives().flat_map(|of| match of {
        ValueType::Integer { least, most } => {
            vec![least.to_string(), least.saturating_add(1).min(most).to_string(), (most / 2).to_string()]
        }
        ValueType::Size { least, most } => vec![least.to_string(), (most / 2).to_string()],
        ValueType::Duration { least_ms, most_ms } => {
            vec![format!("\"{least_ms}ms\""), format!("\"{}ms\"", most_ms / 2)]
        }
        ValueType::Fraction | ValueType::Sample | ValueType::Decimal(_) => vec!["0.25".to_owned(), "0.75".to_owned()],
        ValueType::Age => vec!["\"1y\"".to_owned(), "\"2y\"".to_owned()],
        _ => Vec::new(),
    });
    // Values of another type are mistakes, and to describe a mistake takes far longer than to read a config.
    let is_listed = of.alternatives().all(|of| {
        matches!(
            of,
            ValueType::Boolean
                | ValueType::True
                | ValueType::False
                | ValueType::Integers(_)
                | ValueType::Words(_)
                | ValueType::Integer { .. }
                | ValueType::Size { .. }
                | ValueType::Duration { .. }
                | ValueType::Fraction
                | ValueType::Sample
                | ValueType::Decimal(_)
                | ValueType::Age
        )
    });
    let others = VALUES.iter().map(|(value, _)| *value).chain(TEXTS).filter(|_| !is_listed).map(str::to_owned);
    words(of).into_iter().chain(numbers).chain(others).collect()
}

/// Up to three configs with different effects: one without the option, others with different values of it.
fn variants(entry: &OptionEntry) -> Vec<(Option<String>, Config)> {
    let (frame, key) = (frame_of(entry), entry.option.name);
    let mut found: BTreeMap<String, (Option<String>, Config)> = BTreeMap::new();
    let values = candidates(&entry.option.value_type()).into_iter().map(Some);
    for value in std::iter::once(None).chain(values) {
        if found.len() < 3
            && let Ok(config) = load_text("test", &frame.with(key, value.as_deref()))
        {
            found.entry(meaning(&config)).or_insert((value, config));
        }
    }
    found.into_values().collect()
}

#[test]
fn each_option_with_another_effect_is_named() {
    let (mut mistakes, mut compared, mut single) = (Vec::new(), 0, Vec::new());
    for entry in options() {
        let variants = variants(&entry);
        if variants.len() < 2 {
            single.push(entry.path());
            continue;
        }
        compared += 1;
        for pair in variants.windows(2) {
            let [(from, old), (to, new)] = pair else { unreachable!() };
            for (from, old, to, new) in [(from, old, to, new), (to, new, from, old)] {
                let diff = Diff::compare(old, new);
                // The diff identifies an unnamed section by these values, so a change is shown as another section.
                if IDENTITIES.contains(&&*entry.path()) && diff.lines().any(|line| line.contains(": added")) {
                    continue;
                }
                let key = entry.option.name;
                let is_named = diff
                    .lines()
                    .any(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == key));
                if !is_named {
                    let lines: Vec<String> = diff.lines().collect();
                    mistakes.push(format!("{}: {from:?} -> {to:?}: {lines:?}", entry.path()));
                }
            }
        }
    }
    assert!(
        mistakes.is_empty(),
        "{} of {compared} mistakes:\n{}\nsingle: {single:?}",
        mistakes.len(),
        mistakes.join("\n")
    );
    assert!(compared > 200, "{compared}, not: {single:?}");
}
