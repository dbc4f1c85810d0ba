//! The rows say which change of an option weakens protection. Each such change is marked in the diff, with the default in
//! place of a missing value, and the opposite change is not.

use sluicegate::config::schema;
use sluicegate::config::schema::lookup::OptionEntry;
use sluicegate::config::schema::row::{DefaultValue, Weaker};
use sluicegate::config::schema::value_type::ValueType;
use sluicegate::config::{Config, load_text};
use sluicegate::reload::diff::Diff;

use super::option_frames::frame_of;
use super::option_table::options;

/// Lists, each with one that has another item too.
const LISTS: [(&str, &str); 6] = [
    ("[\"https://a.test\"]", "[\"https://a.test\", \"https://b.test\"]"),
    ("[\"10.0.0.0/8\"]", "[\"10.0.0.0/8\", \"192.0.2.0/24\"]"),
    ("[500]", "[500, 503]"),
    ("[\"HS256\"]", "[\"HS256\", \"HS384\"]"),
    (
        "[{ name = \"a\", token = \"0123456789abcdef\", role = \"read\" }]",
        "[{ name = \"a\", token = \"0123456789abcdef\", role = \"read\" }, \
          { name = \"b\", token = \"fedcba9876543210\", role = \"read\" }]",
    ),
    ("[\"a\"]", "[\"a\", \"b\"]"),
];

/// Values of options whose presence counts.
const VALUES: [&str; 20] = [
    "\"zz\"",
    "\"example.com\"",
    "\"/zz\"",
    "\"GET\"",
    "\"DE\"",
    "\"192.0.2.1\"",
    "\"08:00-18:00\"",
    "\"mon\"",
    "\"header:x-id\"",
    "\"json:/a\"",
    "\"first\"",
    "\"conf/tls/sample-ca.pem\"",
    "{}",
    "{ x-a = \"1\" }",
    "{ subject = \"1\" }",
    "{ method = \"1\" }",
    "{ tool = \"1\" }",
    "{ operation = \"1\" }",
    "{ id = \"1\" }",
    "[500]",
];

/// Options that the test cannot change in both ways, and why.
const UNCHECKED: [(&str, &str); 6] = [
    ("limit.cost.method", "its values are tables, whose integers are compared one by one"),
    ("limit.cost.status", "the same"),
    ("limit.cost.graphql.weights", "the same"),
    ("listener.tls.internal.allow_remote", "it has no effect on the address of the frame"),
    ("limit.when.descriptor", "the route of the frame has no descriptors"),
    ("limit.when.route", "the frame has one route, and each name must be that of a route"),
];

/// An option with a value, or without one, and how much that is.
type Variant = (Option<String>, f64, Config);

/// Values of the option, with the amount that each is.
fn amounts(entry: &OptionEntry) -> Vec<(String, f64)> {
    if let Weaker::Later(values) = entry.option.weaker {
        return values.iter().zip(0_u32..).map(|(value, place)| ((*value).to_owned(), place.into())).collect();
    }
    let number = |number: f64| (format!("{number}"), number);
    let amounts = |of: ValueType| match of {
        ValueType::Boolean => vec![("false".to_owned(), 0.0), ("true".to_owned(), 1.0)],
        ValueType::Words(words) => {
            words.iter().zip(0_u32..).map(|(word, place)| (format!("\"{word}\""), place.into())).collect()
        }
        ValueType::Integer { least, .. } => {
            [1_u32, 2, 7].map(|more| number((least + i64::from(more) - 1) as f64)).to_vec()
        }
        ValueType::Size { least, most } => vec![number(least as f64), number((least + 1) as f64), number(most as f64)],
        ValueType::Duration { least_ms, .. } => {
            [1_u64, 50, 5000].map(|ms| (format!("\"{}ms\"", least_ms + ms), (least_ms + ms) as f64)).to_vec()
        }
        ValueType::Fraction | ValueType::Decimal(_) => vec![number(0.25), number(0.75)],
        ValueType::Rate => vec![("\"10/s\"".to_owned(), 10.0), ("\"20/s\"".to_owned(), 20.0)],
        _ => Vec::new(),
    };
    entry.option.value_type().alternatives().flat_map(amounts).collect()
}

/// How much the option is without a value.
fn default_amount(entry: &OptionEntry, amounts: &[(String, f64)]) -> f64 {
    let default = match (entry.option.unset, entry.option.default) {
        ("", DefaultValue::Value(text)) => text,
        ("", _) => return f64::INFINITY,
        (unset, _) => unset,
    };
    let known = amounts.iter().find(|(text, _)| text == default).map(|(_, amount)| *amount);
    let size = || default.trim_matches('"').strip_suffix("KiB").map(|count| count.parse::<f64>().unwrap() * 1024.0);
    known.or_else(size).unwrap_or_else(|| default.parse().unwrap_or_else(|_| panic!("{}: {default}", entry.path())))
}

fn load_variants(entry: &OptionEntry) -> Vec<Variant> {
    let (frame, amounts) = (frame_of(entry), amounts(entry));
    let unset = default_amount(entry, &amounts);
    let written = amounts.into_iter().map(|(text, amount)| match amount {
        0.0 if entry.option.unset == "inf" => (Some(text), f64::INFINITY),
        _ => (Some(text), amount),
    });
    let load = |(value, amount): (Option<String>, f64)| {
        let config = load_text("test", &frame.with(entry.option.name, value.as_deref())).ok()?;
        Some((value, amount, config))
    };
    let absent = can_be_absent(entry).then_some((None, unset));
    absent.into_iter().chain(written).filter_map(load).collect()
}

/// Returns whether the config around the option loads without it.
fn can_be_absent(entry: &OptionEntry) -> bool {
    let text = frame_of(entry).with(entry.option.name, None);
    text.matches(&format!("\n{} =", entry.option.name)).count() < 1 && load_text("test", &text).is_ok()
}

/// Returns whether the line about the option is marked; `None` if there is none.
fn mark(entry: &OptionEntry, old: &Config, new: &Config) -> Option<bool> {
    let lines = Diff::compare(old, new).lines_json();
    let is_own = |line: &&serde_json::Value| {
        line["option"].as_str().is_some_and(|path| path.split('.').any(|key| key == entry.option.name))
    };
    lines.as_array().unwrap().iter().find(is_own).map(|line| line["weaker"].as_bool().unwrap())
}

#[test]
fn changes_to_a_weaker_value_are_marked_and_others_are_not() {
    let (mut mistakes, mut checked) = (Vec::new(), 0);
    for entry in options() {
        let rule = entry.option.weaker;
        let (mut marked, mut unmarked) = (0, 0);
        let mut check = |from: &str, to: &str, found: Option<bool>, expected: bool| {
            let Some(found) = found else { return };
            if found != expected {
                mistakes.push(format!("{}: {from} -> {to} is marked: {found}, not {expected}", entry.path()));
            }
            *if expected { &mut marked } else { &mut unmarked } += 1;
        };
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        match rule {
            Weaker::Never | Weaker::Compiled => continue,
            Weaker::More | Weaker::Less | Weaker::Later(_) => {
                let variants = load_variants(&entry);
                for (from, before, old) in &variants {
                    for (to, after, new) in &variants {
                        let is_weaker = if rule == Weaker::Less { after < before } else { after > before };
                        check(&shown(from), &shown(to), mark(&entry, old, new), is_weaker);
                    }
                }
            }
            Weaker::Removed | Weaker::Added => {
                if !can_be_absent(&entry) {
                    continue;
                }
                let frame = frame_of(&entry);
                let Ok(without) = load_text("test", &frame.with(entry.option.name, None)) else { continue };
                for value in VALUES {
                    let Ok(with) = load_text("test", &frame.with(entry.option.name, Some(value))) else { continue };
                    let (gone, came) = (mark(&entry, &with, &without), mark(&entry, &without, &with));
                    check(value, "nothing", gone, rule == Weaker::Removed);
                    check("nothing", value, came, rule == Weaker::Added);
                }
            }
            Weaker::NewItem => {
                let frame = frame_of(&entry);
                let load = |value: &str| load_text("test", &frame.with(entry.option.name, Some(value))).ok();
                for (few, many) in LISTS {
                    let (Some(less), Some(more)) = (load(few), load(many)) else { continue };
                    check(few, many, mark(&entry, &less, &more), true);
                    check(many, few, mark(&entry, &more, &less), false);
                }
            }
        }
        let path = entry.path();
        if (marked == 0 || unmarked == 0) && UNCHECKED.iter().all(|(unchecked, _)| *unchecked != path) {
            mistakes.push(format!("{}: {marked} changes are weaker, {unmarked} are not", entry.path()));
        }
        checked += 1;
    }
    assert!(mistakes.is_empty(), "{} mistakes in {checked} options:\n{}", mistakes.len(), mistakes.join("\n"));
    assert!(checked > 40, "{checked}");
}

#[test]
fn options_that_sections_inherit_are_marked_as_such() {
    let inherits = |name: &str, section: &str| {
        let rows = schema::ALL.iter().flat_map(|table| table.options);
        rows.filter(|row| row.name.ends_with(name) || row.name.starts_with(name))
            .any(|row| matches!(row.default, DefaultValue::Described(text) if text.contains(&format!("`[{section}]`"))))
    };
    for table in schema::ALL {
        let section = table.name.split('.').next().unwrap();
        for row in table.options {
            assert_eq!(row.is_inherited, inherits(row.name, section), "{}.{}", table.name, row.name);
        }
    }
}
