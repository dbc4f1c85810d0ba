//! The JSON Schema of the config agrees with `sluicegate check`: linters accept the good configs, and report structural
//! mistakes on the same lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sluicegate::config::load_config;
use sluicegate::config::schema::json_schema::render_schema;
use sluicegate::config::schema::value_type::ValueType;

use super::option_frames::frame_of;
use super::option_table::{VALUES, allows, options};
use crate::support::app::venv;
use crate::support::manual::Page;

const SCHEMA: &str = "conf/schema.json";

/// Mistakes that a schema cannot see, by their text: a schema knows no value of a string but its format, and no file.
const BEYOND_SCHEMAS: [&str; 9] = [
    // A single entry names a file.
    "it must be a list of tables, or { file",
    // Bounds of durations, and of a size with a unit.
    "`max_header_bytes` in [server]: it must be from 8192",
    "it must be from 1ms",
    "it must be from 100ms",
    "it must be from 1s",
    "it must be from 0s",
    "it must be from 10ms",
    "it must be \"stdout\" or a file",
    "`audit` in [admin]: it must be a file",
];

/// Lints the files of a folder. Returns the lines with errors of each file.
fn lint(folder: &Path) -> BTreeMap<String, BTreeSet<u64>> {
    let settings = "[[schemas]]\npath = \"schema.json\"\ninclude = [\"*-case.toml\"]\n";
    fs::write(folder.join("tombi.toml"), settings).unwrap();
    fs::write(folder.join("schema.json"), render_schema()).unwrap();
    let diagnostics = folder.join("diagnostics.json");
    let output = Command::new(venv().join("bin/tombi"))
        .args(["lint", "--offline", "--diagnostics-format", "json", "--diagnostics-file"])
        .arg(&diagnostics)
        .current_dir(folder)
        .output()
        .unwrap();
    if output.status.success() {
        return BTreeMap::new();
    }
    let text = fs::read_to_string(&diagnostics).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let found: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut lines: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for diagnostic in found.iter().filter(|diagnostic| is_error(diagnostic)) {
        let name = Path::new(diagnostic["path"].as_str().unwrap()).file_name().unwrap().to_str().unwrap();
        lines.entry(name.to_owned()).or_default().insert(diagnostic["range"]["start"]["line"].as_u64().unwrap());
    }
    lines
}

/// Returns whether the diagnostic is about a config, not about the linter's own settings.
fn is_error(diagnostic: &Value) -> bool {
    diagnostic["level"] == "error" && diagnostic["path"].as_str().unwrap().ends_with("-case.toml")
}

fn toml_files(folder: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => folders.push(path),
                // Test cases and prices are no config.
                false if path.ends_with("cases.toml") || path.ends_with("prices.toml") => {}
                false if path.extension().is_some_and(|extension| extension == "toml") => files.push(path),
                false => {}
            }
        }
    }
    files.sort();
    files
}

/// Regenerate the schema after a change of the table: `GOLDEN=write cargo test --test limiting config::`.
#[test]
fn the_schema_of_the_repository_is_that_of_the_program() {
    let text = render_schema();
    if std::env::var_os("GOLDEN").is_some() {
        fs::write(SCHEMA, &text).unwrap();
    }
    assert!(fs::read_to_string(SCHEMA).unwrap() == text, "run GOLDEN=write cargo test --test limiting config::");
    let checked =
        Command::new(venv().join("bin/check-jsonschema")).args(["--check-metaschema", SCHEMA]).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn every_config_of_the_repository_names_the_schema() {
    for path in toml_files("conf") {
        let text = fs::read_to_string(&path).unwrap();
        let named = text.lines().next().and_then(|line| line.strip_prefix("#:schema ")).unwrap_or_default();
        let installed = named == "/usr/share/sluicegate/schema.json" && path == Path::new("conf/sluicegate.toml");
        let near = path.parent().unwrap().join(named);
        assert!(installed || near.canonicalize().unwrap().ends_with(SCHEMA), "{}: #:schema {named}", path.display());
    }
}

#[test]
fn linters_accept_good_configs() {
    let folder = tempfile::tempdir().unwrap();
    let mut count = 0;
    let mut add = |text: &str| {
        count += 1;
        fs::write(folder.path().join(format!("{count}-case.toml")), text).unwrap();
    };
    let files = ["conf", "examples", "tests/config/good"].into_iter().flat_map(toml_files);
    for path in files.filter(|path| !path.file_name().unwrap().to_str().unwrap().starts_with('.')) {
        // The schema of this folder counts.
        add(&fs::read_to_string(path).unwrap().replace("#:schema", "# schema"));
    }
    let pages = fs::read_dir("docs").unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let pages = pages.flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    for page in pages.filter(|path| path.extension() == Some("md".as_ref())) {
        for part in Page::read(page.to_str().unwrap()).parts {
            add(&part.config);
        }
    }
    for entry in options() {
        let (frame, key) = (frame_of(&entry), entry.option.name);
        add(&frame.with(key, None));
        // A variable may stand for any string.
        if allows_text(&entry.option.value_type()) {
            add(&frame.with(key, Some("\"${VALUE:-a}\"")));
        }
    }
    let rejected = lint(folder.path());
    let texts: Vec<String> = rejected
        .iter()
        .map(|(name, lines)| format!("{lines:?} of\n{}", fs::read_to_string(folder.path().join(name)).unwrap()))
        .collect();
    assert!(texts.is_empty(), "{}", texts.join("\n"));
    assert!(count > 400, "{count}");
}

/// Returns whether a value may be a string.
fn allows_text(of: &ValueType) -> bool {
    match *of {
        ValueType::Boolean
        | ValueType::True
        | ValueType::False
        | ValueType::Integer { .. }
        | ValueType::Integers(_) => false,
        ValueType::Decimal(_)
        | ValueType::Fraction
        | ValueType::Sample
        | ValueType::Array { .. }
        | ValueType::Map(_) => false,
        ValueType::Table(_) | ValueType::Named(_) | ValueType::TableOrNamed(_) => false,
        ValueType::List { item, .. } => allows_text(item),
        ValueType::Either(types) => types.iter().any(allows_text),
        _ => true,
    }
}

#[test]
fn linters_reject_what_check_rejects_on_the_same_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut expected: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for path in toml_files("tests/config/bad").iter().filter(|path| is_toml(path)) {
        let name = format!("{}-case.toml", path.file_stem().unwrap().to_str().unwrap());
        let Err(report) = load_config(path) else { continue };
        let mistakes = report.to_json();
        let of_file = |mistake: &&Value| mistake["file"] == path.to_str().unwrap();
        let structural = mistakes.as_array().unwrap().iter().filter(of_file).filter(|mistake| is_structural(mistake));
        let lines: BTreeSet<u64> = structural.filter_map(|mistake| mistake["line"].as_u64()).collect();
        if !lines.is_empty() {
            fs::copy(path, folder.path().join(&name)).unwrap();
            expected.insert(name, lines);
        }
    }
    assert!(expected.len() > 30, "{}", expected.len());
    for entry in options() {
        let (frame, key, of) = (frame_of(&entry), entry.option.name, entry.option.value_type());
        for (at, (value, _)) in VALUES.iter().enumerate().filter(|(_, (_, kind))| !allows(&of, *kind)) {
            let (text, name) = (frame.with(key, Some(value)), format!("{}-{at}-case.toml", entry.anchor()));
            let line = text.lines().position(|line| line.contains(&format!("{key} = {value}"))).unwrap() + 1;
            fs::write(folder.path().join(&name), text).unwrap();
            expected.insert(name, BTreeSet::from([line as u64]));
        }
    }
    let found = lint(folder.path());
    let none = BTreeSet::new();
    let missed = expected.iter().filter_map(|(name, lines)| {
        let missed: Vec<_> = lines.difference(found.get(name).unwrap_or(&none)).collect();
        let text = fs::read_to_string(folder.path().join(name)).unwrap();
        let shown: Vec<&str> = missed.iter().filter_map(|line| text.lines().nth(**line as usize - 1)).collect();
        (!missed.is_empty()).then(|| format!("{name} {missed:?}: {shown:?}"))
    });
    let missed: Vec<String> = missed.collect();
    assert!(missed.is_empty(), "{} mistakes are not found:\n{}", missed.len(), missed.join("\n"));
}

/// Returns whether a file is TOML. Linters report only syntax errors of other files.
fn is_toml(path: &Path) -> bool {
    !path.file_name().unwrap().to_str().unwrap().starts_with("syntax")
}

/// Returns whether a schema can describe the mistake: an unknown key or word, a wrong type, or a number out of bounds.
fn is_structural(mistake: &Value) -> bool {
    let text = mistake["message"].as_str().unwrap();
    let kinds = ["unknown key `", "unknown value", "it must be "];
    kinds.iter().any(|kind| text.contains(kind)) && !BEYOND_SCHEMAS.iter().any(|beyond| text.contains(beyond))
}
