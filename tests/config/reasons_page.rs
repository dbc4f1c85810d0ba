//! `docs/reference/reasons.md` is generated from the table of ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use sluicegate::config::schema::lookup::list_entries;
use sluicegate::ends::{Blame, Counted, End, MinStrictness, Refund};

const PAGE: &str = "docs/reference/reasons.md";
const HEAD: &str = include_str!("reasons_head.md");
const COLUMNS: &str = "
## Reasons of refused and incomplete requests

| reason | status | gRPC | what happened | to blame | setting | counted in | consequences |
|---|---|---|---|---|---|---|---|
";
const HEAD_FAULTS: &str = "
## Reasons of ambiguous requests

`strictness` decides which of these requests are refused. The column *refused* says by which modes: *strict*: only by `\"strict\"`;
*defensive*: also by `\"defensive\"`; *always*: by every mode. The setting is `strictness` if another value would admit the request, and
`encoded_slashes` for `path_slash`. All are counted in `sluicegate_http_rejected_total`, and those that `\"monitor\"` admits in
`sluicegate_http_would_reject_total`.

| reason | status | refused | the request |
|---|---|---|---|
";

/// Returns the ends of each reason, in the order of the table.
fn by_reason(ends: impl Iterator<Item = End>) -> Vec<(&'static str, Vec<End>)> {
    let mut reasons: Vec<(&str, Vec<End>)> = Vec::new();
    for end in ends {
        match reasons.iter_mut().find(|(reason, _)| *reason == end.label()) {
            Some((_, ends)) => ends.push(end),
            None => reasons.push((end.label(), vec![end])),
        }
    }
    reasons
}

/// Lists what `describe` returns for the ends, each once.
fn list(ends: &[End], describe: impl Fn(End) -> Option<String>) -> String {
    let mut texts = Vec::new();
    for text in ends.iter().filter_map(|end| describe(*end)) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.join(", ")
}

fn meaning(ends: &[End]) -> &'static str {
    ends.iter().map(|end| end.row().meaning()).find(|text| !text.is_empty()).unwrap_or_default()
}

fn row((reason, ends): &(&str, Vec<End>)) -> String {
    let status = list(ends, |end| Some(end.row().status).filter(|status| *status > 0).map(|status| status.to_string()));
    let blame = list(ends, |end| {
        Some(match end.row().blame {
            Blame::Client => "client".to_owned(),
            Blame::Limit => "limit".to_owned(),
            Blame::Gateway => "gateway".to_owned(),
            Blame::Upstream => "upstream".to_owned(),
            Blame::Operator => "operator".to_owned(),
        })
    });
    let setting = list(ends, |end| end.row().setting.map(|setting| format!("`{setting}`")));
    let counted = list(ends, |end| match end.row().counted {
        Counted::No => None,
        Counted::Http => Some("http".to_owned()),
        Counted::Route => Some("route".to_owned()),
        Counted::Limit => Some("limit".to_owned()),
    });
    let grpc = list(ends, |end| end.row().grpc.map(|code| code.label().to_owned()));
    let consequences = list(ends, consequences);
    let meaning = meaning(ends);
    format!("| `{reason}` | {status} | {grpc} | {meaning} | {blame} | {setting} | {counted} | {consequences} |\n")
}

/// What the end means for charges, for retries and for the server.
fn consequences(end: End) -> Option<String> {
    let row = end.row();
    let refund = match row.refund {
        Refund::Response => None,
        Refund::Unsent => Some("`connect_error`"),
        Refund::Abort => Some("`client_abort`"),
        Refund::Overload => Some("refund"),
    };
    let retry = row.retry.map(|_| "retry");
    let failure = row.is_upstream_failure.then_some("failure");
    let texts: Vec<&str> = refund.into_iter().chain(retry).chain(failure).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

fn head_fault((reason, ends): &(&str, Vec<End>)) -> String {
    let status = list(ends, |end| Some(end.row().status.to_string()));
    let refused = list(ends, |end| {
        end.row().min_strictness.map(|min_strictness| match min_strictness {
            MinStrictness::Always => "always".to_owned(),
            MinStrictness::Defensive => "defensive".to_owned(),
            MinStrictness::Strict => "strict".to_owned(),
        })
    });
    format!("| `{reason}` | {status} | {refused} | {} |\n", meaning(ends))
}

/// Regenerate the page after a change of the table: `GOLDEN=write cargo test --test limiting config::`.
#[test]
fn the_reasons_page_is_generated_from_the_table() {
    let is_head_fault = |end: &End| end.row().min_strictness.is_some();
    let ends = || End::ALL.iter().copied();
    let rows: String = by_reason(ends().filter(|end| !is_head_fault(end))).iter().map(row).collect();
    let faults: String = by_reason(ends().filter(is_head_fault)).iter().map(head_fault).collect();
    let page = [HEAD, COLUMNS, &rows, HEAD_FAULTS, &faults].concat();
    if std::env::var_os("GOLDEN").is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let written = fs::read_to_string(PAGE).unwrap_or_default();
    let line = page.lines().zip(written.lines()).find(|(generated, written)| generated != written);
    assert!(
        page == written,
        "{PAGE} differs from the table: run GOLDEN=write cargo test --test limiting config::\n{line:?}"
    );
}

/// The text of all files below `path` with this extension, each with its path.
fn read_files(path: &Path, extension: &str, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_files(&path, extension, files);
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
}

/// Returns the part of a source file before its unit tests.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or_default()
}

#[test]
fn every_row_is_complete_and_every_end_is_used() {
    let mut sources = Vec::new();
    read_files(Path::new("src"), "rs", &mut sources);
    sources.retain(|(path, _)| !path.starts_with("src/ends/"));
    let settings: BTreeSet<&str> = list_entries().iter().map(|entry| entry.option.name).collect();
    let mut mistakes = Vec::new();
    for end in End::ALL.iter().copied() {
        let (name, row) = (end.name(), end.row());
        let is_used = |(_, text): &(String, String)| {
            without_tests(text)
                .split(&format!("End::{name}"))
                .skip(1)
                .any(|rest| !rest.starts_with(char::is_alphanumeric))
        };
        if !sources.iter().any(is_used) {
            mistakes.push(format!("{name}: nothing ends so"));
        }
        if let Some(setting) = row.setting.filter(|setting| !settings.contains(setting)) {
            mistakes.push(format!("{name}: there is no option {setting}"));
        }
        if row.status != 0 && !(400..600).contains(&row.status) {
            mistakes.push(format!("{name}: {} is no status of an error", row.status));
        }
        if !row.label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
            mistakes.push(format!("{name}: `{}` is no label", row.label));
        }
        if row.min_strictness.is_some() && !row.text.ends_with('.') {
            mistakes.push(format!("{name}: the text is no sentence"));
        }
    }
    for (reason, ends) in by_reason(End::ALL.iter().copied()) {
        if meaning(&ends).is_empty() {
            mistakes.push(format!("{reason}: the manual does not say what happened"));
        }
    }
    assert!(mistakes.is_empty(), "{mistakes:#?}");
}

/// Reasons that no test of the built program provokes: they need a machine without memory or under load, or a head that
/// another proxy describes. Unit tests name the rows of the latter.
const UNPROVOKED: [&str; 5] =
    ["compression_failed", "header_character", "overload_load", "target_character", "transfer_encoding_version"];

/// Returns whether a test has a literal that ends with the reason.
fn names(text: &str, reason: &str) -> bool {
    text.match_indices(reason).any(|(at, _)| {
        let is_longer = text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        !is_longer && text[at + reason.len()..].starts_with(['"', '\\'])
    })
}

#[test]
fn every_reason_occurs_in_a_test() {
    let mut tests = Vec::new();
    read_files(Path::new("tests"), "rs", &mut tests);
    read_files(Path::new("tests"), "golden", &mut tests);
    tests.retain(|(path, _)| !path.ends_with("reasons_page.rs"));
    let mut unprovoked: BTreeMap<&str, &str> = End::ALL.iter().map(|end| (end.label(), end.name())).collect();
    unprovoked.retain(|reason, _| !tests.iter().any(|(_, text)| names(text, reason)));
    let reasons: Vec<&str> = unprovoked.into_keys().collect();
    assert_eq!(reasons, UNPROVOKED, "left: reasons that occur in no test");
}
