//! The rule files: Prometheus accepts them, each alert is tested and has a section in the runbook, and every metric in
//! a rule is documented.

use std::collections::BTreeSet;
use std::process::Command;

use super::{DASHBOARDS, Rule, dashboard, metrics_in, panels, path, queries, read};

fn run_promtool(arguments: &[&str], files: &[&str]) {
    let output = Command::new("promtool").args(arguments).args(files.iter().map(|file| path(file))).output();
    let output =
        output.unwrap_or_else(|error| panic!("promtool: {error}; install it with: apt-get install prometheus"));
    let log = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "promtool {arguments:?}:\n{log}");
}

#[test]
fn prometheus_accepts_the_rules() {
    run_promtool(&["check", "rules", "--lint=all", "--lint-fatal"], &["recording.yml", "alerts.yml"]);
}

#[test]
fn every_alert_is_silent_fires_and_resolves() {
    run_promtool(&["test", "rules"], &["alerts_test.yml"]);
    let tests = read("alerts_test.yml");
    for Rule { name, .. } in Rule::list("alerts.yml") {
        let [firing, quiet] = ['\n', ','].map(|end| format!("alertname: {name}{end}"));
        let fires = tests.split(&firing).skip(1).filter(|rest| rest.trim_start().starts_with("exp_alerts:\n"));
        assert!(fires.count() >= 1, "{name} is tested to fire");
        let silent = tests.split(&quiet).skip(1).filter(|rest| rest.starts_with(" exp_alerts: []}"));
        assert!(silent.count() >= 2, "{name} is tested to be silent before and after");
    }
}

#[test]
fn every_alert_has_a_section_in_the_runbook() {
    let runbook = std::fs::read_to_string("docs/operating/alerts.md").unwrap();
    let sections: BTreeSet<&str> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let rules = Rule::list("alerts.yml");
    let alerts: BTreeSet<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(alerts, sections, "left: alerts, right: sections");
    for Rule { name, runbook_url, .. } in &rules {
        // The gateway that the alert is about, or one that answers.
        let (own, other) = ("http://{{ $labels.instance }}", "http://{{ . | first | label \"instance\" }}");
        let leads = |host: &str, url: &String| url.contains(&format!("{host}/-/runbook/{name}"));
        let is_right = |url: &String| leads(own, url) || leads(other, url) && url.contains(&name.to_lowercase());
        assert!(runbook_url.as_ref().is_some_and(is_right), "{name}: {runbook_url:?}");
    }
}

/// The queries that compare the versions of a canary release, as the guide gives them.
#[test]
fn the_queries_of_the_guide_compare_the_versions() {
    let guide = std::fs::read_to_string("docs/guides/canary-releases.md").unwrap();
    let queries = guide.split("```promql\n").skip(1).map(|rest| rest.split("```").next().unwrap().replace('\n', " "));
    let [errors, p99] = queries.collect::<Vec<_>>().try_into().unwrap();
    // For one minute after the other: `app` has no error in 120 requests, and `next` 30 in 120, on two gateways. Each
    // request of `app` takes up to 100 ms, and each of `next` up to 250 ms. Another route has errors only.
    let mut series = String::new();
    let mut add = |gateway: &str, route: &str, upstream: &str, more: &str, grows: u32| {
        let labels = format!("instance=\"{gateway}\",route=\"{route}\",upstream=\"{upstream}\"");
        let (name, label) = more.split_once(' ').unwrap();
        series += &format!("  - {{series: 'sluicegate_split_{name}{{{labels},{label}}}', values: '0+{grows}x20'}}\n");
    };
    for gateway in ["gw1", "gw2"] {
        for (route, upstream, ok, failed, fast) in [("site", "app", 60, 0, 60), ("site", "next", 45, 15, 0)] {
            add(gateway, route, upstream, "requests_total code=\"200\"", ok);
            add(gateway, route, upstream, "requests_total code=\"502\"", failed);
            add(gateway, route, upstream, "request_duration_seconds_bucket le=\"0.1\"", fast);
            for bound in ["0.25", "+Inf"] {
                add(gateway, route, upstream, &format!("request_duration_seconds_bucket le=\"{bound}\""), 60);
            }
        }
        add(gateway, "other", "app", "requests_total code=\"500\"", 60);
        add(gateway, "other", "app", "request_duration_seconds_bucket le=\"+Inf\"", 60);
    }
    let test = |query: &str, [app, next]: [&str; 2]| {
        format!(
            "  - expr: '{query}'\n    eval_time: 10m\n    exp_samples:\n    - {{labels: '{{upstream=\"app\"}}', value: \
             {app}}}\n    - {{labels: '{{upstream=\"next\"}}', value: {next}}}\n"
        )
    };
    let tests = test(&errors, ["0", "0.25"]) + &test(&p99, ["0.099", "0.2485"]);
    let text = format!("tests:\n- interval: 1m\n  input_series:\n{series}  promql_expr_test:\n{tests}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    run_promtool(&["test", "rules", file.path().to_str().unwrap()], &[]);
}

#[test]
fn every_metric_of_rules_and_dashboards_is_documented() {
    let page = std::fs::read_to_string("docs/reference/metrics.md").unwrap();
    let recorded: Vec<String> = Rule::list("recording.yml").into_iter().map(|rule| rule.name).collect();
    let mut all: Vec<String> =
        [Rule::list("recording.yml"), Rule::list("alerts.yml")].into_iter().flatten().map(|rule| rule.expr).collect();
    for name in DASHBOARDS {
        let dashboard = dashboard(name);
        all.extend(panels(&dashboard).flat_map(queries).map(str::to_owned));
    }
    let mut named = 0;
    for query in &all {
        for metric in metrics_in(query).into_iter().filter(|metric| !recorded.iter().any(|name| name == metric)) {
            named += 1;
            let is_documented = page.contains(&format!("| `{metric}`")) || page.contains(&format!("| `{metric}{{"));
            assert!(is_documented, "{metric} is not in docs/reference/metrics.md: {query}");
        }
    }
    assert!(named > 50, "{named}");
}
