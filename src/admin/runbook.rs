//! The runbook of the alerts, a page of the manual, so that `runbook_url` of an alert can lead to a gateway. It holds
//! no data of the gateway. Listed in `admin::pages`.

use http::StatusCode;

use crate::admin::page_request::PageRequest;
use crate::admin::problem::Problem;
use crate::admin::response::{AdminResponse, typed_response};
use crate::config::find_closest;

/// The page, with one section for each alert.
const PAGE: &str = include_str!("../../docs/operating/alerts.md");
const TEXT: &str = "text/plain; charset=utf-8";

/// Returns the name and the text of each section.
fn list_sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    let sections = PAGE.split("\n## ").skip(1);
    sections.map(|section| section.split_once('\n').unwrap_or((section, "")))
}

/// Finds the section of an alert. Links of the manual have names in lower case.
fn find_section(name: &str) -> Option<(&'static str, &'static str)> {
    list_sections().find(|(alert, _)| alert.eq_ignore_ascii_case(name))
}

pub async fn list_alerts(_: PageRequest) -> Result<AdminResponse, Problem> {
    let names: String = list_sections().map(|(name, _)| format!("/-/runbook/{name}\n")).collect();
    Ok(typed_response(StatusCode::OK, TEXT, names))
}

pub async fn show_alert(request: PageRequest) -> Result<AdminResponse, Problem> {
    let Some((name, text)) = find_section(&request.name) else {
        let close = find_closest(&request.name, list_sections().map(|(name, _)| name));
        let help = close.map_or("GET /-/runbook lists them".to_owned(), |close| format!("did you mean `{close}`?"));
        return Err(Problem::new(StatusCode::NOT_FOUND, format!("there is no such alert; {help}")));
    };
    Ok(typed_response(StatusCode::OK, TEXT, format!("{name}\n{text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_alert_has_a_section() {
        let alerts = include_str!("../../conf/observability/alerts.yml");
        let names: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
        assert!(names.len() > 30, "{names:?}");
        for name in names {
            let (found, text) = find_section(&name.to_lowercase()).unwrap_or_else(|| panic!("{name}"));
            assert!(found == name && text.len() > 80, "{name}: {text}");
        }
        assert!(find_section("").is_none() && find_section("Sluicegate").is_none());
    }
}
