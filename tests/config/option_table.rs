//! The table of options agrees with the reader: each default means the same as leaving the option out, each bound and
//! word is accepted, and everything that the table does not allow is rejected.

use std::fmt::Debug;

use sluicegate::config::schema::lookup::{OptionEntry, list_entries};
use sluicegate::config::schema::row::DefaultValue;
use sluicegate::config::schema::value_type::ValueType;
use sluicegate::config::{Config, load_text};

use super::option_frames::frame_of;

/// One value of each type that TOML has.
pub const VALUES: [(&str, TomlType); 9] = [
    ("true", TomlType::Boolean),
    ("5", TomlType::Integer),
    ("0.5", TomlType::Float),
    ("\"zz\"", TomlType::Text),
    ("[5]", TomlType::List(&TomlType::Integer)),
    ("[\"zz\"]", TomlType::List(&TomlType::Text)),
    ("[{ zz = 1 }]", TomlType::List(&TomlType::Table)),
    ("{ zz = 1 }", TomlType::Table),
    ("1979-05-27", TomlType::Date),
];

#[derive(Clone, Copy, PartialEq)]
pub enum TomlType {
    Boolean,
    Integer,
    Float,
    Text,
    List(&'static TomlType),
    Table,
    Date,
}

/// The options, without the sections.
pub fn options() -> Vec<OptionEntry> {
    let mut entries = list_entries();
    entries.retain(|entry| entry.as_section().is_none());
    entries
}

/// Returns whether the table allows a value of the type at all.
pub fn allows(of: &ValueType, value: TomlType) -> bool {
    let is_text = value == TomlType::Text;
    match *of {
        ValueType::Boolean | ValueType::True | ValueType::False => value == TomlType::Boolean,
        ValueType::Integer { .. } => value == TomlType::Integer,
        ValueType::Integers(numbers) => value == TomlType::Integer && numbers.contains(&5),
        ValueType::Size { .. } => matches!(value, TomlType::Integer),
        ValueType::Fraction | ValueType::Sample => value == TomlType::Float,
        ValueType::Decimal(_) => matches!(value, TomlType::Float | TomlType::Integer),
        // "zz" is none of these.
        ValueType::Duration { .. } | ValueType::Age | ValueType::Rate | ValueType::CalendarRate => false,
        ValueType::Words(_) => false,
        ValueType::Text(_) | ValueType::Path(_) => is_text,
        ValueType::List { item, .. } => {
            allows(item, value) || matches!(value, TomlType::List(inner) if allows(item, *inner))
        }
        ValueType::Array { item, .. } => matches!(value, TomlType::List(inner) if allows(item, *inner)),
        ValueType::Map(item) => value == TomlType::Table && allows(item, TomlType::Integer),
        // None has an option `zz`.
        ValueType::Table(_) => false,
        ValueType::Named(_) | ValueType::TableOrNamed(_) => value == TomlType::Table,
        ValueType::Either(types) => types.iter().any(|of| allows(of, value)),
        ValueType::OfAlgorithm => unreachable!(),
    }
}

/// Returns the meaning of a config: everything except its files and lines.
pub fn meaning(config: &Config) -> String {
    let parts: [&dyn Debug; 17] = [
        &config.server,
        &config.listeners,
        &config.admin.listen,
        &config.admin.tokens,
        &config.admin.metrics_need_token,
        &config.admin.shows_unused_series,
        &config.admin.environment,
        &config.admin.edit,
        &config.admin.audit,
        &config.acme,
        &config.store,
        &config.ratelimit_headers,
        &config.jwt,
        &config.routes,
        &config.decide,
        &config.upstreams,
        &config.limits,
    ];
    let text: String = parts.iter().map(|part| format!("{part:#?}\n")).collect();
    // A timeout says in explanations where it was written.
    text.lines().filter(|line| !line.trim().ends_with(": Server,") && !line.trim().ends_with(": Default,")).collect()
}

#[track_caller]
fn assert_none(mistakes: &[String]) {
    assert!(mistakes.is_empty(), "{} mistakes:\n{}", mistakes.len(), mistakes.join("\n"));
}

#[test]
fn each_default_is_the_value_of_an_absent_option() {
    let (mut mistakes, mut compared) = (Vec::new(), 0);
    for entry in options() {
        let DefaultValue::Value(default) = entry.option.default else { continue };
        let (frame, key) = (frame_of(&entry), entry.option.name);
        let [absent, written] = [None, Some(default)].map(|value| frame.with(key, value));
        match (load_text("test", &absent), load_text("test", &written)) {
            (Ok(absent), Ok(written)) if meaning(&absent) == meaning(&written) => compared += 1,
            (Ok(one), Ok(other)) => {
                let (one, other) = (meaning(&one), meaning(&other));
                let line = one.lines().zip(other.lines()).find(|(one, other)| one != other);
                mistakes.push(format!("{}: {default} is not the default: {line:?}", entry.path()));
            }
            (Err(report), _) | (_, Err(report)) => mistakes.push(format!("{}: {report}\n{written}", entry.path())),
        }
    }
    assert_none(&mistakes);
    assert!(compared > 120, "{compared}");
}

const TOKEN: &str = "\"0123456789abcdef\"";

/// Texts of examples, and what stands for them in the frames: files of this repository, names that the frames define, and
/// values of variables.
const STAND_INS: [(&str, &str); 21] = [
    ("\"/var/log/sluicegate/", "\"/tmp/"),
    ("\"404.html\"", "\"conf/error.html\""),
    ("\"5xx.html\"", "\"conf/error.html\""),
    ("\"example.com.pem\"", "\"conf/tls/sample.pem\""),
    ("\"example.com.key\"", "\"conf/tls/sample.key\""),
    ("\"clients-ca.pem\"", "\"conf/tls/sample-ca.pem\""),
    ("\"countries.mmdb\"", "\"conf/countries.mmdb\""),
    ("\"blocked.txt\"", "\"conf/blocked.txt\""),
    ("\"prices.toml\"", "\"conf/prices.toml\""),
    ("\"users.htpasswd\"", "\"conf/users.htpasswd\""),
    ("\"redirects.txt\"", "\"conf/redirects.txt\""),
    ("\"/srv/www\"", "\"conf\""),
    ("[\"per-ip\", \"per-user\"]", "[\"l\"]"),
    ("[\"failed-logins\"]", "[\"l\"]"),
    ("\"included\"", "\"first\""),
    ("candidate_of = \"per-ip\"", "candidate_of = \"first\""),
    ("replaces = [\"per-ip\"]", "replaces = [\"a\"]"),
    ("limits = [\"per-ip\"]", "limits = [\"l\"]"),
    ("\"${JWT_SECRET}\"", "\"0123456789012345678901234567890123456789012345678901234567890123\""),
    ("\"${GRAFANA_TOKEN_SHA256}\"", "\"0000000000000000000000000000000000000000000000000000000000000001\""),
    ("\"${KEYS_SECRET}\"", "\"0123456789abcdef0123456789abcdef\""),
];

/// The options that people change have an example that loads and changes something, and say who would choose it.
#[test]
fn each_example_loads_and_is_not_the_default() {
    let mut mistakes = Vec::new();
    let entries: Vec<OptionEntry> = options().into_iter().filter(|entry| !entry.option.sample.is_empty()).collect();
    for entry in &entries {
        let (frame, key, sample) = (frame_of(entry), entry.option.name, entry.option.sample);
        let text =
            frame.with(key, Some(sample)).replace("\"${ADMIN_TOKEN}\"", TOKEN).replace("\"${GRAFANA_TOKEN}\"", TOKEN);
        let text = STAND_INS.iter().fold(text, |text, (written, stand_in)| text.replace(written, stand_in));
        if let Err(report) = load_text("test", &text) {
            mistakes.push(format!("{} = {sample}: {report}\n{text}", entry.path()));
        }
        let why = entry.option.change_when;
        if why.len() < 20 || why.ends_with('.') || !why.starts_with(|c: char| c.is_uppercase() || c == '`') {
            mistakes.push(format!("{}: {why:?} is no sentence without its period", entry.path()));
        }
        if entry.option.default == DefaultValue::Value(sample) {
            mistakes.push(format!("{}: the example is the default", entry.path()));
        }
    }
    assert_none(&mistakes);
    assert!(entries.len() >= 260, "{}", entries.len());
}

#[test]
fn a_type_that_the_table_does_not_have_is_rejected() {
    let mut mistakes = Vec::new();
    for entry in options() {
        let (frame, key) = (frame_of(&entry), entry.option.name);
        for (value, _) in VALUES.iter().filter(|(_, of)| !allows(&entry.option.value_type(), *of)) {
            let text = frame.with(key, Some(value));
            let Err(report) = load_text("test", &text) else {
                mistakes.push(format!("{} = {value} is accepted", entry.path()));
                continue;
            };
            let line = text.lines().position(|line| line.contains(&format!("{key} = {value}"))).unwrap() + 1;
            let names = report.to_json().as_array().unwrap().iter().any(|mistake| mistake["line"] == line);
            if !names {
                mistakes.push(format!("{} = {value}: no mistake on line {line}:\n{text}\n{report}", entry.path()));
            }
        }
    }
    assert_none(&mistakes);
}

/// Returns values at a bound, each with one beyond it, as TOML.
fn bounds(of: &ValueType) -> Vec<(String, String)> {
    let both = |inside: &dyn Fn(i128) -> String, least: i128, most: i128| {
        let lower = (least > i128::from(i64::MIN)).then(|| (inside(least), inside(least - 1)));
        let upper = (most < i128::from(i64::MAX)).then(|| (inside(most), inside(most + 1)));
        lower.into_iter().chain(upper).collect::<Vec<_>>()
    };
    of.alternatives()
        .flat_map(|of| match of {
            ValueType::Integer { least, most } => both(&|n| n.to_string(), least.into(), most.into()),
            ValueType::Size { least, most } => both(&|n| n.to_string(), least.into(), most.into()),
            ValueType::Duration { least_ms, most_ms } => {
                let mut pairs = both(&|n| format!("\"{n}ms\""), least_ms.into(), most_ms.into());
                pairs.retain(|(_, beyond)| !beyond.contains('-'));
                pairs
            }
            ValueType::Fraction => vec![("0.001".to_owned(), "0.0004".to_owned()), ("1".to_owned(), "1.1".to_owned())],
            ValueType::Sample => vec![("0".to_owned(), "-0.1".to_owned()), ("1".to_owned(), "1.1".to_owned())],
            ValueType::Decimal(most) => {
                vec![("0.001".to_owned(), "0.0004".to_owned()), (most.to_string(), format!("{most}.1"))]
            }
            ValueType::Age => vec![("\"10y\"".to_owned(), "\"11y\"".to_owned())],
            _ => Vec::new(),
        })
        .collect()
}

#[test]
fn each_bound_is_accepted_and_the_next_value_is_rejected() {
    let (mut mistakes, mut tried) = (Vec::new(), 0);
    for entry in options() {
        let (frame, key) = (frame_of(&entry), entry.option.name);
        for (inside, beyond) in bounds(&entry.option.value_type()) {
            let is_out_of_bounds = |value: &str| match load_text("test", &frame.with(key, Some(value))) {
                Ok(_) => false,
                Err(report) => {
                    let text = report.to_string();
                    let named = text.contains(&format!("`{key}`"));
                    named
                        && ["it must be from", "not negative", "is not a time", "must be at"]
                            .iter()
                            .any(|what| text.contains(what))
                }
            };
            tried += 1;
            if is_out_of_bounds(&inside) {
                mistakes.push(format!("{} = {inside} is rejected", entry.path()));
            }
            if !is_out_of_bounds(&beyond) {
                mistakes.push(format!("{} = {beyond} is accepted", entry.path()));
            }
        }
    }
    assert_none(&mistakes);
    assert!(tried > 150, "{tried}");
}

/// Returns the minimum number of items, if a list may be written.
fn least_items(of: &ValueType) -> Option<usize> {
    of.alternatives().find_map(|of| match of {
        ValueType::List { least, .. } | ValueType::Array { least, .. } => Some(least),
        _ => None,
    })
}

#[test]
fn empty_lists_are_accepted_where_the_table_says_so() {
    let mut mistakes = Vec::new();
    for entry in options() {
        let Some(least) = least_items(&entry.option.value_type()) else { continue };
        let text = frame_of(&entry).with(entry.option.name, Some("[]"));
        match load_text("test", &text) {
            Ok(_) if least > 0 => mistakes.push(format!("{} = [] is accepted", entry.path())),
            Err(report) if least == 0 => mistakes.push(format!("{} = []: {report}\n{text}", entry.path())),
            _ => {}
        }
    }
    assert_none(&mistakes);
}

/// Returns item `number` of a list with a maximum length, as TOML.
fn item_of(path: &str, number: usize) -> Option<String> {
    let address = format!("10.0.{}.{}", number / 256, number % 256);
    Some(match path {
        "limit.key" | "limit.fair.key" | "limit.distinct" | "upstream.hash_on" | "route.split_by" => {
            format!("\"header:x-{number}\"")
        }
        "route.split" => format!("{{ upstream = \"http://127.0.0.1:{}\" }}", 3000 + number),
        "limit.rate_within" => format!("\"{}/day\"", number + 1),
        "limit.overrides" => format!("{{ key = \"{address}\", rate = \"5/s\" }}"),
        "admin.tokens" => format!("{{ name = \"t{number}\", token = \"0123456789abcdef{number}\", role = \"read\" }}"),
        "server.resolver" => format!("\"{address}\""),
        "acme.contact" => format!("\"mailto:a{number}@example.com\""),
        "rls.descriptor" => format!("{{ e{number} = \"*\" }}"),
        "route.limits" | "route.auth.limits" | "decide.limits" | "rls.limits" => format!("\"l{number}\""),
        _ => return None,
    })
}

#[test]
fn a_list_may_have_as_many_items_as_the_table_says() {
    const FAULTS: [&str; 6] = ["not two rates", "parts", "never used", "more than", "limits on one route", "entries"];
    let mut tried = 0;
    for entry in options() {
        let most = entry.option.value_type().alternatives().find_map(|of| match of {
            ValueType::List { most, .. } | ValueType::Array { most, .. } if most < usize::MAX => Some(most),
            _ => None,
        });
        let Some(most) = most else { continue };
        tried += 1;
        for (count, is_allowed) in [(most, true), (most + 1, false)] {
            let items: Vec<String> = (0..count).map(|at| item_of(&entry.path(), at).unwrap()).collect();
            let text = frame_of(&entry).with(entry.option.name, Some(&format!("[{}]", items.join(", "))));
            let report = load_text("test", &text).err().map(|report| report.to_json().to_string()).unwrap_or_default();
            let is_too_long = FAULTS.iter().any(|fault| report.contains(fault));
            assert_eq!(is_too_long, !is_allowed, "{} with {count} items: {report}", entry.path());
        }
    }
    assert!(tried >= 6, "{tried}");
}

/// The words of a type, each as TOML.
pub fn words(of: &ValueType) -> Vec<String> {
    match *of {
        ValueType::Words(words) => words.iter().map(|word| format!("\"{word}\"")).collect(),
        ValueType::Integers(numbers) => numbers.iter().map(i64::to_string).collect(),
        ValueType::Boolean => vec!["true".to_owned(), "false".to_owned()],
        ValueType::True => vec!["true".to_owned()],
        ValueType::False => vec!["false".to_owned()],
        ValueType::List { item, .. } => words(item),
        ValueType::Either(types) => types.iter().flat_map(words).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn each_word_of_the_table_is_known() {
    let (mut mistakes, mut tried) = (Vec::new(), 0);
    for entry in options() {
        let (frame, key) = (frame_of(&entry), entry.option.name);
        for word in words(&entry.option.value_type()) {
            tried += 1;
            let Err(report) = load_text("test", &frame.with(key, Some(&word))) else { continue };
            let text = report.to_string();
            let unknown = ["unknown value", "unknown algorithm", "it must be", "is not the status"];
            if unknown.iter().any(|what| text.contains(what)) {
                mistakes.push(format!("{} = {word}: {text}", entry.path()));
            }
        }
    }
    assert_none(&mistakes);
    assert!(tried > 150, "{tried}");
}
