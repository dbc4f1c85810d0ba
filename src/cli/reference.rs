//! `sluicegate help` and `sluicegate schema`: the table of options as text for people, and as JSON Schema for editors.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::Command;

use crate::cli::report::report_error;
use crate::cli::{BAD_CONFIG, write_output};
use crate::config::schema::Schema;
use crate::config::schema::json_schema::{render_schema, strip_links};
use crate::config::schema::lookup::{FoundOption, OptionEntry, find_option, list_entries};
use crate::limiting::algorithm::SPECS;

/// The page of the manual that has every option.
const PAGE: &str = "docs/reference/options.md";

/// The folder in which the Debian package installs the manual. Elsewhere, paths are those of the source code.
const INSTALLED: &str = "/usr/share/doc/sluicegate";

pub const HELP: &str = "\
Examples:
  sluicegate help limit.burst      one option
  sluicegate help burst            the same, if only one section has it
  sluicegate help upstream         the options of a section
  sluicegate help check            the same as sluicegate check --help";

/// Width of the first column.
const TERM_WIDTH: usize = 12;

/// Prints the help of an option, a section or a command; without a name, that of the program.
pub fn print_help(mut program: Command, name: &[String]) -> ExitCode {
    program.build();
    if name.is_empty() {
        return write_output(Ok(program.render_help().to_string().into_bytes()));
    }
    let name = name.join(" ");
    if let Some(command) = program.find_subcommand_mut(&name) {
        return write_output(Ok(command.render_help().to_string().into_bytes()));
    }
    match find_option(&name) {
        FoundOption::One(entry) => write_output(Ok(describe_entry(&entry).into_bytes())),
        FoundOption::Several(entries) => {
            let (lines, example) = (list_lines(&entries), example_of(&entries));
            let text =
                format!("Several options are called {name}:\n\n{lines}\nOne of them: sluicegate help {example}\n");
            write_output(Ok(text.into_bytes()))
        }
        FoundOption::Unknown(similar) => {
            let remedy = match similar {
                Some(path) => format!("did you mean: sluicegate help {path}"),
                None => {
                    "sluicegate help server, admin, store, upstream, limit or route lists the options there".to_owned()
                }
            };
            report_error(format_args!("there is no option or command `{}`\n{remedy}", name.escape_debug()));
            ExitCode::from(BAD_CONFIG)
        }
    }
}

/// Prints the JSON Schema of the config.
pub fn print_schema() -> ExitCode {
    write_output(Ok(render_schema().into_bytes()))
}

/// Returns every name that `sluicegate help` knows, for completions.
pub fn list_names() -> impl Iterator<Item = &'static str> {
    static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| list_entries().iter().map(OptionEntry::path).collect());
    NAMES.iter().map(String::as_str)
}

fn describe_entry(entry: &OptionEntry) -> String {
    if let Some(section) = entry.as_section() {
        return describe_section(section);
    }
    let option = entry.option;
    let mut rows = vec![("section", entry.section.title.to_owned())];
    let algorithms: Vec<&str> = match entry.section.name {
        "limit" => SPECS.iter().filter(|spec| spec.has_param(option.name)).map(|spec| spec.name).collect(),
        _ => Vec::new(),
    };
    if !algorithms.is_empty() {
        rows.push(("algorithms", algorithms.join(", ")));
    }
    rows.push(("type", option.describe_type()));
    rows.push(("default", option.describe_default()));
    rows.push(("change", option.live_change.describe().to_owned()));
    if !option.metric.is_empty() {
        rows.push(("metric", option.metric.to_owned()));
    }
    if let Some(end) = option.end {
        rows.push(("reason", format!("{} in metrics and logs, when it refuses a request", end.label())));
    }
    let is_installed = Path::new(INSTALLED).join(PAGE).exists();
    let root = if is_installed { format!("{INSTALLED}/") } else { String::new() };
    let origin = if is_installed || Path::new(PAGE).exists() { "" } else { " in the source code" };
    rows.push(("manual", format!("{root}{PAGE}#{}{origin}", entry.anchor())));
    if !option.guide.is_empty() {
        // From a link of the options page to a path from the root of the project.
        let path = match option.guide.strip_prefix("../") {
            Some(rest) => format!("{root}docs/{rest}"),
            None => format!("{root}docs/reference/{}", option.guide),
        };
        rows.push(("", path));
    }
    if !option.sample.is_empty() {
        rows.push(("example", format!("{} = {}", option.name, option.sample)));
    }
    let mut text = format!("{}\n\n  {}.\n", entry.path(), to_plain(option.meaning));
    if !option.change_when.is_empty() {
        let _ = writeln!(text, "  {}.", to_plain(option.change_when));
    }
    text.push('\n');
    for (term, value) in rows {
        let _ = writeln!(text, "  {term:TERM_WIDTH$}{}", to_plain(&value));
    }
    text + &describe_inner(entry)
}

/// Lists the options of the tables within an option.
fn describe_inner(entry: &OptionEntry) -> String {
    let prefix = format!("{}.", entry.path());
    let inner: Vec<OptionEntry> =
        list_entries().into_iter().filter(|inner| inner.path().starts_with(&prefix)).collect();
    match inner.is_empty() {
        true => String::new(),
        false => format!("\nOptions of its table:\n{}", list_lines(&inner)),
    }
}

fn describe_section(section: &Schema) -> String {
    let own: Vec<OptionEntry> = list_entries().into_iter().filter(|entry| entry.section.name == section.name).collect();
    let intro = match section.intro {
        "" => String::new(),
        intro => format!("{}\n\n", to_plain(intro)),
    };
    let lines = list_lines(&own);
    format!("{}\n\n{intro}{lines}\nEach of them: sluicegate help {}\n", section.title, example_of(&own))
}

/// Returns the name of an option for an example.
fn example_of(entries: &[OptionEntry]) -> String {
    entries.first().map(OptionEntry::path).unwrap_or_default()
}

/// Writes a line per option: its name, then what it does.
fn list_lines(entries: &[OptionEntry]) -> String {
    let width = entries.iter().map(|entry| entry.path().len()).max().unwrap_or_default() + 2;
    entries.iter().fold(String::new(), |mut text, entry| {
        let _ = writeln!(text, "  {:width$}{}", entry.path(), to_plain(entry.option.meaning));
        text
    })
}

/// Returns a Markdown text without links and code marks.
fn to_plain(text: &str) -> String {
    strip_links(text).replace('`', "")
}
