//! An incident, seen by a real Prometheus: a store and a server fail, a config is rejected, a client is refused. Every
//! query of every panel and rule returns data.

use std::time::Instant;

use super::{DASHBOARDS, Rule, dashboard, panels, path, queries};
use crate::support::app::App;
use crate::support::ca::Ca;
use crate::support::client::{Client, get};
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::limiting::RedisServer;
use crate::support::ports;
use crate::support::tls::Trust;
use crate::support::upstream::Upstream;
use crate::support::{WAIT_MAX, wait_until};

/// The gateway that shares a store. STORE, GOOD and DEAD are addresses.
const SHARED: &str = r#"
[server]
listen = ["127.0.0.1:0"]
workers = 1

[admin]
listen = "127.0.0.1:0"

[store]
url = "STORE"
deadline = "500ms"
on_error = "local"

[[route]]
name = "app"
path = "/"
upstream = "app"
limits = ["per-ip", "strict", "new"]

[[route]]
name = "dead"
path = "/dead"
upstream = "dead"

[limit.per-ip]
rate = "1000/s"

[limit.strict]
rate = "3/h"
key = "query:user"
missing = "skip"
usage = "2d"

[limit.new]
rate = "1/h"
mode = "shadow"

[upstream.app]
servers = ["GOOD"]
max_in_flight = 10
max_connections = 10

[upstream.dead]
servers = ["DEAD"]
breaker = { error_ratio = 1.0, min_requests = 1000000 }
retry = { attempts = 2, budget = 0.2 }
health = { path = "/", every = "100ms", timeout = "100ms", unhealthy_after = 1, healthy_after = 1 }
"#;

/// The gateway with certificates and a memory store. DIR is its directory.
const ALONE: &str = r#"
[server]
workers = 1

[admin]
listen = "127.0.0.1:0"

[acme]
directory = "https://127.0.0.1:9/"
state = "DIR/acme"
terms_agreed = true

[[listener]]
address = "127.0.0.1:0"
[listener.tls]
certificates = [{ cert = "DIR/www.pem", key = "DIR/www.key" }]
acme = ["acme.example.com"]

[[route]]
path = "/"
respond = { body = "ok" }
limits = ["per-user"]

[limit.per-user]
rate = "1/h"
key = "query:user"
missing = "skip"
"#;

struct Incident {
    shared: Gateway,
    alone: Gateway,
    prometheus: App,
    trust: Trust,
    redis: Option<RedisServer>,
    _app: Upstream,
}

impl Incident {
    fn start() -> Incident {
        let redis = RedisServer::start(&[]);
        let app = Upstream::text("ok");
        let config = SHARED
            .replace("STORE", &redis.url())
            .replace("GOOD", &app.url())
            .replace("DEAD", &format!("http://{}", ports::closed_addr()));
        let shared = Gateway::with_config(&config);
        let ca = Ca::new("incident");
        let alone = Gateway::launch(&[], |dir| {
            ca.issue(&["www.example.com"], "").save(dir, "www");
            config_arguments(dir, &ALONE.replace("DIR", &dir.display().to_string()))
        });
        let prometheus = App::prometheus(&prometheus_config(&[&shared, &alone]));
        Incident { shared, alone, prometheus, trust: Trust::in_ca(&ca), redis: Some(redis), _app: app }
    }

    /// Sends some requests of each kind.
    fn send_requests(&self) {
        for number in 0..6 {
            self.shared.get("/?user=loop");
            self.shared.get(&format!("/?user={number}"));
            self.shared.get("/dead");
        }
        let mut client = self.trust.connect(self.alone.listeners()[0], "www.example.com");
        client.fetch(&get("/?user=loop", ""), b"");
    }

    /// Returns the samples that a query returns.
    fn query(&self, query: &str) -> Vec<f64> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let mut client = Client::connect(self.prometheus.addr);
        let response = client.fetch(&get(&format!("/api/v1/query?query={encoded}"), ""), b"");
        let json = response.json();
        assert_eq!(json["status"], "success", "{query}: {json}");
        let samples = json["data"]["result"].as_array().unwrap().iter();
        samples.filter_map(|sample| sample["value"][1].as_str()?.parse().ok()).collect()
    }

    /// Waits until each query returns a number. `queries` has pairs of a name and a query.
    #[track_caller]
    fn assert_data(&self, mut queries: Vec<(String, String)>) {
        let end = Instant::now() + WAIT_MAX;
        while !queries.is_empty() {
            queries.retain(|(_, query)| self.query(query).iter().all(|value| value.is_nan()));
            assert!(Instant::now() < end, "no data: {queries:#?}");
        }
    }
}

fn prometheus_config(gateways: &[&Gateway]) -> String {
    let targets: Vec<String> = gateways.iter().map(|gateway| format!("'{}'", gateway.admin)).collect();
    let rules = [path("recording.yml"), path("alerts.yml")].map(|rule| rule.display().to_string());
    format!(
        "global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}\nrule_files: [{}]\nscrape_configs:\n  \
         - job_name: sluicegate\n    static_configs: [{{targets: [{}]}}]\n",
        rules.join(", "),
        targets.join(", ")
    )
}

/// Replaces what Grafana would.
fn filled_in(query: &str) -> String {
    query
        .replace("$__rate_interval", "30s")
        .replace("$__range", "1m")
        .replace("\"$job\"", "\".+\"")
        .replace("\"$instance\"", "\".+\"")
        .replace("\"$limit\"", "\".+\"")
}

/// A comparison that returns 0 or 1 where the alert returns only what fires. An hour ago, there was no data.
fn always_answering(expr: &str) -> String {
    let expr = ["==", ">", "<"]
        .iter()
        .fold(expr.to_owned(), |expr, sign| expr.replace(&format!(" {sign} "), &format!(" {sign} bool ")));
    expr.replace("offset 1h", "offset 1s")
}

#[test]
fn every_query_of_every_panel_and_rule_returns_data() {
    let mut incident = Incident::start();
    incident.send_requests();
    // Prometheus needs a sample from before the failures.
    wait_until("both gateways are scraped", || incident.query("sluicegate_requests_total > 0").len() > 1);
    let config = incident.shared.config();
    let before = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, before.replace("on_error = \"local\"", "on_error = \"lcoal\"")).unwrap();
    incident.send_requests();
    drop(incident.redis.take());
    incident.send_requests();
    for (alert, wanted) in [
        ("sluicegate_config_last_reload_successful == 0", 1),
        ("sluicegate_store_up == 0", 1),
        ("sluicegate_upstream_up{upstream=\"dead\"} == 0", 1),
        ("sluicegate_upstream_fail_open == 1", 1),
        ("sum(sluicegate_limit_decisions_total{decision=~\"local_.*\"}) > 0", 1),
        ("sum(sluicegate_rejections_total{limit=\"strict\"}) > 0", 1),
    ] {
        wait_until(alert, || incident.query(alert).len() == wanted);
    }
    incident.send_requests();
    let mut all = Vec::new();
    for rule in Rule::list("recording.yml") {
        all.push((rule.name.clone(), rule.name.clone()));
        all.push((rule.name, rule.expr));
    }
    for rule in Rule::list("alerts.yml") {
        all.push((rule.name, always_answering(&rule.expr)));
    }
    for name in DASHBOARDS {
        let dashboard = dashboard(name);
        for panel in panels(&dashboard) {
            let title = panel["title"].as_str().unwrap();
            all.extend(queries(panel).map(|query| (title.to_owned(), filled_in(query))));
        }
        let listed = dashboard["templating"]["list"].as_array().unwrap().iter();
        for query in listed.filter_map(|variable| variable["query"]["query"].as_str()) {
            let query = query.trim_start_matches("label_values(").trim_end_matches(')').replace("$job", ".+");
            let (selector, label) = query.rsplit_once(", ").unwrap();
            all.push((query.clone(), format!("count by ({label}) ({selector})")));
        }
    }
    assert!(all.len() > 80, "{}", all.len());
    incident.assert_data(all);
}
