//! `docs/reference/options.md` is generated from the table of options.

use std::collections::BTreeSet;

use sluicegate::config::schema::lookup::{OptionEntry, list_entries};
use sluicegate::config::schema::row::LiveChange;
use sluicegate::config::schema::value_type::ValueType;
use sluicegate::config::schema::{self, Schema};
use sluicegate::limiting::algorithm::SPECS;

const PAGE: &str = "docs/reference/options.md";
const COLUMNS: &str = "\n| option | type | default | meaning |\n|---|---|---|---|\n";
const ALGORITHM_COLUMNS: &str = "
These options belong to single algorithms. [Algorithms](algorithms.md) explains them:

| option | algorithms | type | default | meaning |
|---|---|---|---|---|
";

/// The text before the first section.
const HEAD: &str = include_str!("options_head.md");

/// The rate is an option of nearly all of them.
fn is_of_algorithm(entry: &OptionEntry) -> bool {
    let is_param = SPECS.iter().any(|spec| spec.has_param(&entry.key));
    entry.table.name == schema::limit::TABLE.name && is_param && entry.key != "rate"
}

/// The last column: what the option does, where the manual explains it, where its effect shows, and what a live change
/// does.
fn describe(entry: &OptionEntry) -> String {
    let option = entry.option;
    let mut text = option.meaning.to_owned();
    if !option.guide.is_empty() {
        text += &format!(" ([{}]({}))", topic_of(option.guide), option.guide);
    }
    if !option.metric.is_empty() {
        text += &format!("; metric `{}`", option.metric);
    }
    if let Some(end) = option.end {
        text += &format!(", reason `{}`", end.label());
    }
    text += match option.live_change {
        LiveChange::NextRequest => "",
        LiveChange::NewConnections => " *(new connections)*",
        LiveChange::NextStart => " *(restart)*",
    };
    if !option.change_when.is_empty() {
        text += &format!(". {}. Example: `{} = {}`", option.change_when, option.name, option.sample);
    }
    text
}

/// Returns the heading that a link of the page leads to.
fn topic_of(link: &str) -> String {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = match file.strip_prefix("../") {
        Some(rest) => format!("docs/{rest}"),
        None => format!("docs/reference/{file}"),
    };
    // Its own anchors, and those of headings.
    let page = if file.is_empty() { HEAD.to_owned() } else { std::fs::read_to_string(&path).unwrap() };
    let own_anchor = format!("<a id=\"{anchor}\">");
    let after = page.find(&own_anchor).filter(|_| !anchor.is_empty()).unwrap_or_default();
    let mut headings = page[after..].lines().filter(|line| line.starts_with('#'));
    let found = headings.find(|line| after > 0 || anchor.is_empty() || anchor_of(line) == anchor);
    found.unwrap_or_else(|| panic!("{link}: no such heading")).trim_start_matches('#').trim().replace('`', "")
}

/// Returns the anchor that mdBook and GitHub give a heading.
fn anchor_of(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn row(entry: &OptionEntry) -> String {
    let option = entry.option;
    if let Some(section) = entry.as_section() {
        return format!(
            "| [`{}`](#{}) | section `{}` | | {} |\n",
            entry.key,
            entry.anchor(),
            section.title,
            describe(entry)
        );
    }
    let algorithms = SPECS.iter().filter(|spec| spec.has_param(option.name)).map(|spec| format!("`{}`", spec.name));
    let algorithms = match is_of_algorithm(entry) {
        true => format!(" {} |", algorithms.collect::<Vec<_>>().join(", ")),
        false => String::new(),
    };
    format!(
        "| <a id=\"{}\"></a>`{}` |{algorithms} {} | {} | {} |\n",
        entry.anchor(),
        entry.key,
        option.describe_type(),
        option.describe_default(),
        describe(entry)
    )
}

fn section(section: &Schema, entries: &[OptionEntry]) -> String {
    let title = section.title;
    let mut text = match title.starts_with('[') {
        true if title.contains(".NAME") => format!("\n<a id=\"{}\"></a>\n\n## `{title}`\n", section.name),
        true => format!("\n## `{title}`\n"),
        false => format!("\n## {title}\n"),
    };
    if !section.intro.is_empty() {
        text += &format!("\n{}\n", section.intro);
    }
    let own: Vec<&OptionEntry> = entries.iter().filter(|entry| entry.section.name == section.name).collect();
    let (special, general): (Vec<&OptionEntry>, Vec<&OptionEntry>) =
        own.into_iter().partition(|entry| is_of_algorithm(entry));
    text += COLUMNS;
    text.extend(general.into_iter().map(row));
    if !special.is_empty() {
        text += ALGORITHM_COLUMNS;
        text.extend(special.into_iter().map(row));
    }
    if !section.notes.is_empty() {
        text += &format!("\n{}\n", section.notes);
    }
    text
}

/// Regenerate the page after a change of the table: `GOLDEN=write cargo test --test limiting config::`.
#[test]
fn the_options_page_is_generated_from_the_table() {
    let entries = list_entries();
    let sections = schema::ALL.iter().filter(|schema| schema.is_section());
    let page = HEAD.to_owned() + &sections.map(|schema| section(schema, &entries)).collect::<String>();
    if std::env::var_os("GOLDEN").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let written = std::fs::read_to_string(PAGE).unwrap();
    let line = page.lines().zip(written.lines()).find(|(generated, written)| generated != written);
    assert!(
        page == written,
        "{PAGE} differs from the table: run GOLDEN=write cargo test --test limiting config::\n{line:?}"
    );
}

#[test]
fn every_option_has_an_anchor_of_its_own() {
    let entries = list_entries();
    let anchors: BTreeSet<String> = entries.iter().map(OptionEntry::anchor).collect();
    assert_eq!(anchors.len(), entries.len());
    assert!(entries.len() > 270, "{}", entries.len());
    for entry in &entries {
        let (path, option) = (entry.path(), entry.option);
        assert!(!option.meaning.is_empty() && !option.meaning.ends_with('.'), "{path}: {}", option.meaning);
        assert!(!matches!(option.value_type(), ValueType::OfAlgorithm), "{path}");
    }
}
