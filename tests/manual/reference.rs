//! The reference pages of the manual name what the program has, and nothing else: metrics and the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::support::gateway::{Gateway, config_arguments};
use crate::support::wait_until;

/// A config with which every metric has a series.
const CONFIG: &str = r#"
[server]
overload = { in_flight = 10000 }
listen = ["127.0.0.1:0"]
workers = 1
spans = { to = "http://127.0.0.1:9" }

[admin]
listen = "127.0.0.1:0"

[acme]
directory = "https://127.0.0.1:9/"
state = "DIR/acme"
terms_agreed = true

[[listener]]
address = "127.0.0.2:0"
[listener.tls]
certificates = [{ cert = "CONF/tls/sample.pem", key = "CONF/tls/sample.key" }]
acme = ["www.example.com"]

[jwt]
issuer = "http://127.0.0.1:9"

[set.blocked]
file = "CONF/blocked.txt"

[[route]]
path = "/"
upstream = "app"
limits = ["shared"]
mirror = { upstream = "app" }
auth = { forward = "app" }

[[route]]
path = "/split"
split = [{ upstream = "app", weight = 1 }]

[[route]]
path = "/leased"
respond = {}
limits = ["per-ip", "banning"]

[upstream.app]
servers = ["http://localhost:9"]
max_in_flight = 10
max_connections = 10
breaker = { errors = 5 }
adaptive = { min = 3 }

[limit.per-ip]
rate = "1000/s"
lease = {}

[limit.banning]
rate = "1000/s"
key = ["header:x-tenant", "path"]
overrides = { file = "CONF/overrides.txt" }
ban = { after = 3, within = "1m", for = "1m" }
usage = "2d"

[limit.shared]
rate = "1000/s"
key = "all"
fair = { key = "header:x-tenant" }

[limit.stricter]
rate = "5/s"
candidate_of = "per-ip"
"#;

/// The type and the labels of each metric that a gateway exports; labels only where there is a series.
fn exported(gateway: &Gateway) -> BTreeMap<String, (String, Option<BTreeSet<String>>)> {
    let (text, mut metrics) = (gateway.metrics(), BTreeMap::new());
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            metrics.insert(name.to_owned(), (kind.to_owned(), None));
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        // Each label but the first follows the end of a value and a comma.
        let labels = labels.replace("\",", "\"\n");
        let labels = labels.lines().filter_map(|label| label.split_once('=')).map(|(label, _)| label.to_owned());
        let labels: BTreeSet<String> = labels.filter(|label| label != "le").collect();
        let families = ["", "_bucket", "_sum", "_count"].map(|part| name.strip_suffix(part));
        let family = families.into_iter().flatten().find(|name| metrics.contains_key(*name)).unwrap();
        metrics.entry(family.to_owned()).and_modify(|(_, shown)| *shown = Some(labels));
    }
    metrics
}

/// The same of docs/reference/metrics.md: rows such as "| `name{label,label}` | type | meaning |".
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let text = std::fs::read_to_string("docs/reference/metrics.md").unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `sluicegate_") || line.starts_with("| `process_"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(" | ").collect();
        let name = cells[0].trim_start_matches("| ").replace(['`', '}'], "");
        let (name, labels) = name.split_once('{').unwrap_or((&name, ""));
        let labels = labels.split(',').filter(|label| !label.is_empty()).map(str::to_owned).collect();
        assert!(cells.len() == 3 && cells[2].len() > 10, "{line}");
        (name.to_owned(), (cells[1].to_owned(), labels))
    };
    rows.map(row).collect()
}

#[test]
fn the_metrics_page_lists_every_metric_with_its_type_and_labels() {
    let gateway = Gateway::launch(&[], |dir| {
        let conf = std::env::current_dir().unwrap().join("conf");
        let config = CONFIG.replace("DIR", &dir.display().to_string()).replace("CONF", &conf.display().to_string());
        config_arguments(dir, &config)
    });
    wait_until("the file with overrides was looked at", || gateway.metrics().contains("override_file_rows"));
    let (exported, documented) = (exported(&gateway), documented());
    let names: (Vec<_>, Vec<_>) = (exported.keys().collect(), documented.keys().collect());
    assert_eq!(names.0, names.1, "left: what a gateway exports, right: docs/reference/metrics.md");
    for (name, (kind, labels)) in &exported {
        let labels = labels.as_ref().unwrap_or_else(|| panic!("{name} has no series"));
        assert_eq!((kind, labels), (&documented[name].0, &documented[name].1), "{name}");
    }
}

#[test]
fn the_reasons_page_lists_every_reason_of_a_refused_request() {
    let gateway = Gateway::start("[[route]]\nrespond = { body = \"x\" }\n");
    let page = std::fs::read_to_string("docs/reference/reasons.md").unwrap();
    let text = gateway.metrics();
    let reasons = text.lines().filter_map(|line| line.strip_prefix("sluicegate_http_rejected_total{reason=\""));
    let reasons: Vec<&str> = reasons.filter_map(|rest| rest.split('"').next()).collect();
    assert!(reasons.len() > 50, "{reasons:?}");
    for reason in reasons {
        assert!(page.contains(&format!("| `{reason}` |")), "{reason} is not documented");
    }
}

#[test]
fn no_page_of_the_manual_names_a_metric_that_does_not_exist() {
    let known: BTreeSet<String> = documented().into_keys().collect();
    let mut pages = vec![std::path::PathBuf::from("docs")];
    let mut named = 0;
    while let Some(path) = pages.pop() {
        if path.is_dir() {
            pages.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for rest in text.split("sluicegate_").skip(1) {
            let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '_')).unwrap_or(rest.len());
            let name = format!("sluicegate_{}", &rest[..end]);
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
            named += 1;
            // Such as a file name.
            let is_metric = end > 0 && !rest[end..].starts_with(['*', '.']);
            let exists = known.contains(&name) || family.is_some_and(|family| known.contains(family));
            assert!(exists || !is_metric, "{}: there is no metric {name}", path.display());
        }
    }
    assert!(named > 50, "{named}");
}

#[test]
fn the_logs_page_lists_every_field_of_the_access_log() {
    let gateway = Gateway::with("access_log = true", "[[route]]\nrespond = { body = \"x\" }\n");
    assert_eq!(gateway.get("/").status(), 200);
    wait_until("the line is written", || gateway.stdout().contains('\n'));
    let line: serde_json::Value = serde_json::from_str(gateway.stdout().lines().next().unwrap()).unwrap();
    let logged: BTreeSet<String> = line.as_object().unwrap().keys().cloned().collect();
    let page = std::fs::read_to_string("docs/reference/log-fields.md").unwrap();
    let table = page.split("### Fields").nth(1).and_then(|rest| rest.split("###").next()).unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let documented: BTreeSet<String> =
        rows.flat_map(|cell| cell.split(", ")).map(|name| name.replace('`', "")).collect();
    assert_eq!(logged, documented, "left: a line of the log, right: docs/reference/log-fields.md");
}

/// The options of a `--help` text, such as "--log" and "-c".
fn options(help: &str) -> BTreeSet<String> {
    let lines = help.lines().skip_while(|line| !line.ends_with("guments:") && *line != "Options:");
    let lines = lines.filter(|line| line.starts_with("  "));
    let words = lines.filter_map(|line| {
        let term = line.trim_start().split("  ").next()?;
        (term.starts_with(['-', '<', '['])).then(|| term.to_owned())
    });
    words
        .flat_map(|term| term.split([',', ' ']).map(str::to_owned).collect::<Vec<_>>())
        .filter(|w| is_option(w))
        .collect()
}

/// Returns true for an option, such as `--log`. The value of an option, such as `<FILE>`, and the dash before a
/// possible value are none.
fn is_option(word: &str) -> bool {
    word.starts_with('-') && word != "-"
}

fn help(command: &str) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    let arguments: Vec<&str> = [command, "--help"].into_iter().filter(|word| !word.is_empty()).collect();
    String::from_utf8(program.args(arguments).output().unwrap().stdout).unwrap()
}

#[test]
fn the_command_line_page_has_every_command_and_option() {
    let pages = ["docs/reference/command-line.md", "docs/reference/operator-commands.md"];
    let page = pages.map(|page| std::fs::read_to_string(page).unwrap()).concat();
    let section = |title: &str| {
        let start = page.find(&format!("\n## {title}\n")).unwrap_or_else(|| panic!("no section {title:?}"));
        let rest = &page[start + 4..];
        rest[..rest.find("\n## ").unwrap_or(rest.len())].to_owned()
    };
    let in_rows = |text: &str| -> BTreeSet<String> {
        let rows = text.lines().filter(|line| line.starts_with("| `"));
        let firsts = rows.filter_map(|line| line.trim_start_matches("| ").split(" | ").next().map(str::to_owned));
        let words =
            firsts.flat_map(|cell| cell.replace('`', "").split([',', ' ']).map(str::to_owned).collect::<Vec<_>>());
        words.filter(|word| is_option(word)).collect()
    };
    let general = in_rows(&section("Options of every command"));
    let whole = help("");
    assert_eq!(general, options(&whole), "the options of every command");

    let listed = whole.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: BTreeSet<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() >= 9, "{commands:?}");
    let titles = page.lines().filter_map(|line| line.strip_prefix("## sluicegate "));
    assert_eq!(titles.collect::<BTreeSet<_>>(), commands, "the commands");
    for command in commands {
        let text = section(&format!("sluicegate {command}"));
        let of_help: BTreeSet<String> = options(&help(command)).difference(&general).cloned().collect();
        assert_eq!(in_rows(&text), of_help, "{command}");
        // `[[` starts a section of an example.
        let is_argument = |line: &&str| line.starts_with("  <") || line.starts_with("  [") && !line.starts_with("  [[");
        for argument in help(command).lines().filter(is_argument) {
            let argument = argument.split_whitespace().next().unwrap();
            assert!(text.contains(&format!("| `{argument}`")), "{command}: {argument}");
        }
        for default in help(command).split("[default: ").skip(1).filter_map(|rest| rest.split(']').next()) {
            let is_there = text.contains(&format!("`{default}`")) || text.contains(&format!("| {default} |"));
            assert!(is_there || ["info", "text"].contains(&default), "{command}: the default {default}");
        }
    }
}
