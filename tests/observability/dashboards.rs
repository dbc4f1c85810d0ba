//! The dashboards follow the rules of Grafana's dashboard linter, so that they work with any data source and job.

use serde_json::Value;

use super::{DASHBOARDS, dashboard, panels, queries};

#[test]
fn dashboards_work_with_any_data_source() {
    for name in DASHBOARDS {
        let text = super::read(name);
        for not_portable in ["__inputs", "__requires", "DS_PROMETHEUS"] {
            assert!(!text.contains(not_portable), "{name}: {not_portable}");
        }
        let dashboard = dashboard(name);
        let variables = dashboard["templating"]["list"].as_array().unwrap();
        let kind = |wanted: &str| variables.iter().find(|variable| variable["name"] == wanted).map(|it| &it["type"]);
        assert_eq!(kind("datasource"), Some(&Value::from("datasource")), "{name}");
        for variable in ["job", "instance"] {
            assert_eq!(kind(variable), Some(&Value::from("query")), "{name}: {variable}");
        }
        let sources = panels(&dashboard).flat_map(|panel| {
            let targets = panel["targets"].as_array().unwrap().iter().map(|target| &target["datasource"]);
            targets.chain([&panel["datasource"]])
        });
        for source in sources {
            assert_eq!(source["uid"], "${datasource}", "{name}");
        }
    }
}

#[test]
fn panels_have_a_title_a_description_a_unit_and_a_place() {
    let mut ids = std::collections::BTreeSet::new();
    for name in DASHBOARDS {
        let dashboard = dashboard(name);
        let mut places: Vec<[u64; 4]> = Vec::new();
        for panel in panels(&dashboard) {
            let title = panel["title"].as_str().unwrap();
            assert!(
                title.len() > 2 && panel["description"].as_str().is_some_and(|text| text.ends_with('.')),
                "{title}"
            );
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
            assert!(ids.insert((name, panel["id"].as_u64().unwrap())), "{title} has the id of another panel");
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
            assert!(w > 0 && h > 0 && x + w <= 24, "{title}");
            for [x2, y2, w2, h2] in &places {
                assert!(x + w <= *x2 || x2 + w2 <= x || y + h <= *y2 || y2 + h2 <= y, "{title} overlaps another panel");
            }
            places.push([x, y, w, h]);
        }
    }
}

#[test]
fn queries_select_the_job_and_the_instance_and_adapt_to_the_scrape_interval() {
    for name in DASHBOARDS {
        let dashboard = dashboard(name);
        for query in panels(&dashboard).flat_map(queries) {
            for selector in query.split('{').skip(1) {
                let selector = selector.split('}').next().unwrap();
                assert!(selector.starts_with(r#"job=~"$job", instance=~"$instance""#), "{query}");
            }
            for range in query.split('[').skip(1) {
                let range = range.split(']').next().unwrap();
                assert!(["$__rate_interval", "$__range"].contains(&range), "{query}");
            }
            assert!(
                query.matches('{').count() >= super::metrics_in(query).len(),
                "a metric without a selector: {query}"
            );
        }
    }
}
