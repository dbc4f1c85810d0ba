//! The rules for Prometheus and the dashboards for Grafana in `conf/observability`.

mod dashboards;
mod incident;
mod rules;

use std::fs;
use std::path::{Path, PathBuf};

use saphyr_parser::{Event, Parser};
use serde_json::Value;

const DASHBOARDS: [&str; 2] = ["overview.json", "limits.json"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/observability").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A rule of a rule file.
struct Rule {
    /// Name of the alert or of the recorded series.
    name: String,
    expr: String,
    runbook_url: Option<String>,
}

impl Rule {
    /// Lists the rules of a file, in order.
    fn list(file: &str) -> Vec<Rule> {
        let text = read(file);
        let mut rules: Vec<Rule> = Vec::new();
        let scalars = Parser::new_from_str(&text).filter_map(|event| match event.unwrap().0 {
            Event::Scalar(value, ..) => Some(value.into_owned()),
            _ => None,
        });
        let scalars: Vec<String> = scalars.collect();
        for pair in scalars.windows(2) {
            match (pair[0].as_str(), rules.last_mut()) {
                ("alert" | "record", _) => {
                    rules.push(Rule { name: pair[1].clone(), expr: String::new(), runbook_url: None });
                }
                ("expr", Some(rule)) => rule.expr.clone_from(&pair[1]),
                ("runbook_url", Some(rule)) => rule.runbook_url = Some(pair[1].clone()),
                _ => {}
            }
        }
        assert!(rules.len() > 3 && rules.iter().all(|rule| !rule.expr.is_empty()), "{file}");
        rules
    }
}

fn dashboard(name: &str) -> Value {
    serde_json::from_str(&read(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The panels of a dashboard that show data.
fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row")
}

/// The queries of a panel.
fn queries(panel: &Value) -> impl Iterator<Item = &str> {
    panel["targets"].as_array().unwrap().iter().map(|target| target["expr"].as_str().unwrap())
}

/// The metrics of this gateway that `query` names, without the suffixes of histograms.
fn metrics_in(query: &str) -> Vec<&str> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let own = words.filter(|word| word.starts_with("sluicegate_") || word.starts_with("process_"));
    own.map(|word| ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word))
        .collect()
}
