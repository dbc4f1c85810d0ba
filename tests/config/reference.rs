//! docs/reference/options.md lists every option of the config, and nothing else.

use std::collections::BTreeSet;
use std::path::Path;

use sluicegate::config;

/// The options of the page, each under its heading: "[server] access_log.format".
fn documented() -> BTreeSet<String> {
    let (mut heading, mut options) = (String::new(), BTreeSet::new());
    for line in std::fs::read_to_string("docs/reference/options.md").unwrap().lines() {
        if let Some(title) = line.strip_prefix("## ") {
            heading = title.replace('`', "");
        }
        let Some(names) = line.strip_prefix("| `").and_then(|rest| rest.split(" | ").next()) else { continue };
        if !heading.is_empty() {
            options.extend(names.split(", ").map(|name| format!("{heading} {}", name.replace('`', ""))));
        }
    }
    options
}

/// The places on the page where the option `key` of a section of the schema must be.
fn expected(section: &str, key: &str) -> Vec<String> {
    let (kind, inner) = section.split_once('.').unwrap_or((section, ""));
    let heading = match kind {
        "root" => "Top level".to_owned(),
        "listener" | "route" => format!("[[{kind}]]"),
        "upstream" | "set" | "limit" => format!("[{kind}.NAME]"),
        _ => format!("[{kind}]"),
    };
    match inner {
        "" => vec![format!("{heading} {key}")],
        "headers" => ["request", "response"].map(|side| format!("{heading} {side}_headers.{key}")).to_vec(),
        inner => vec![format!("{heading} {inner}.{key}")],
    }
}

#[test]
fn the_options_page_lists_every_option() {
    let (known, _) = config::known_and_used_keys(Path::new("conf/full.toml"));
    let expected: BTreeSet<String> = known.iter().flat_map(|(section, key)| expected(section, key)).collect();
    let documented = documented();
    let missing: Vec<_> = expected.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/reference/options.md lacks {missing:#?}");
    let unknown: Vec<_> = documented.difference(&expected).collect();
    assert!(unknown.is_empty(), "there are no such options: {unknown:#?}");
}
