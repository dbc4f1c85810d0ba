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

/// Replaces the links of a section, which lead nowhere in a plain text: by the path of another alert, or the name of a
/// page of the manual.
fn resolve_links(text: &str) -> String {
    let mut resolved = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("](") {
        let (before, after) = rest.split_at(at);
        let (Some(start), Some((target, left))) = (before.rfind('['), after[2..].split_once(')')) else { break };
        let label = &before[start + 1..];
        resolved.push_str(&before[..start]);
        match target.strip_prefix('#').map(find_section) {
            Some(Some((name, _))) if name == label => resolved.push_str(&format!("/-/runbook/{name}")),
            Some(Some((name, _))) => resolved.push_str(&format!("{label} (/-/runbook/{name})")),
            _ if target.contains("://") => resolved.push_str(&format!("{label} ({target})")),
            _ => resolved.push_str(&format!("{label} ({} in the manual)", locate_page(target))),
        }
        rest = left;
    }
    resolved + rest
}

/// Returns the path in the manual of a page that the page of the alerts links to.
fn locate_page(target: &str) -> String {
    let page = target.split('#').next().filter(|page| !page.is_empty()).unwrap_or("alerts.md");
    page.strip_prefix("../").map_or_else(|| format!("operating/{page}"), str::to_owned)
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
    Ok(typed_response(StatusCode::OK, TEXT, format!("{name}\n{}", resolve_links(text))))
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
    }

    #[test]
    fn links_become_paths_and_pages() {
        let alert = list_sections().next().unwrap().0;
        let text = format!("See [{alert}](#{}), [the\npage](a.md#b) or [x](../reference/c.md).", alert.to_lowercase());
        assert_eq!(
            resolve_links(&text),
            format!(
                "See /-/runbook/{alert}, the\npage (operating/a.md in the manual) or x (reference/c.md in the manual)."
            )
        );
        let links = list_sections().map(|(_, text)| resolve_links(text)).filter(|text| text.contains("]("));
        assert_eq!(links.collect::<Vec<_>>(), [""; 0]);
        assert!(find_section("").is_none() && find_section("Sluicegate").is_none());
    }
}
