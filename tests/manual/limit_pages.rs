//! The pages on limits name every algorithm with all its options, and only metrics and options that exist.

use std::fs;

use sluicegate::limiting::algorithm::SPECS;

use crate::support::manual::{Page, app};

/// Every page on limits.
const LIMIT_PAGES: [&str; 18] = [
    "docs/guides/api-keys.md",
    "docs/guides/choosing-a-limit.md",
    "docs/guides/llm-streams.md",
    "docs/guides/login.md",
    "docs/guides/plans.md",
    "docs/guides/recipes.md",
    "docs/guarantees/bounds.md",
    "docs/guarantees/inexactness.md",
    "docs/guarantees/proofs.md",
    "docs/operating/redis-outages.md",
    "docs/reference/algorithms.md",
    "docs/reference/charges.md",
    "docs/reference/concurrency.md",
    "docs/reference/conditions.md",
    "docs/reference/keys.md",
    "docs/reference/overrides.md",
    "docs/reference/queues.md",
    "docs/reference/responses.md",
];

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The text under a heading, up to the next one of the second level.
#[track_caller]
fn section<'t>(text: &'t str, heading: &str) -> &'t str {
    let (_, rest) = text.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no section {heading}"));
    rest.split("\n## ").next().unwrap()
}

#[test]
fn named_metrics_and_options_exist() {
    let text: String = LIMIT_PAGES.map(read).concat();
    let metrics_of = |page: &str, title: &str| Page::read(page).under(title)[0].start(&app(), None).metrics();
    let metrics = metrics_of("docs/guides/recipes.md", "One budget for several routes")
        + &metrics_of("docs/guides/choosing-a-limit.md", "Try different numbers for a limit");
    let letters = |text: &str| text.find(|c: char| !(c.is_ascii_lowercase() || c == '_')).unwrap_or(text.len());
    let named: Vec<&str> = text.split("sluicegate_").skip(1).map(|rest| &rest[..letters(rest)]).collect();
    assert!(named.len() > 8);
    // Exported only with a file of overrides or of a set, as the test of the metrics page sees.
    let needs_file = |name: &str| name.starts_with("override_file_") || name.starts_with("set_file_");
    for name in named.into_iter().filter(|name| !needs_file(name)) {
        assert!(metrics.contains(&format!("# TYPE sluicegate_{name} ")), "there is no metric sluicegate_{name}");
    }

    let full = read("conf/full.toml");
    for option in [
        "max_delayed",
        "max_keys",
        "deadline",
        "prefix",
        "trusted_proxies",
        "ratelimit_headers",
        "refund_on",
        "charge_on",
        "settle",
        "resets_at",
        "week_start",
        "in_flight",
        "nodelay",
        "overrides",
        "on_error",
        "refuse",
        "after",
    ] {
        assert!(text.contains(&format!("`{option}")), "no page on limits mentions {option}");
        assert!(full.contains(&format!("{option} = ")), "there is no option {option}");
    }
}

/// A new algorithm needs a use case, a section with its bound and options, and its memory.
#[test]
fn every_algorithm_has_its_use_case_its_section_and_its_cost() {
    let (choosing, algorithms) = (read("docs/guides/choosing-a-limit.md"), read("docs/reference/algorithms.md"));
    let (concurrency, full) = (read("docs/reference/concurrency.md"), read("conf/full.toml"));
    for spec in SPECS {
        let name = spec.name;
        assert!(full.contains(&format!("\"{name}\"")), "conf/full.toml does not name {name}");
        let (target, section) = match name {
            "concurrency" => ("concurrency.md".to_owned(), concurrency.as_str()),
            _ => (format!("algorithms.md#{name}"), section(&algorithms, name)),
        };
        assert!(choosing.contains(&format!("[{name}](../reference/{target})")), "no use case leads to {name}");
        let costs = self::section(&algorithms, "Memory and time");
        assert!(costs.contains(&format!("`{name}`")), "the memory of {name} is missing");
        for row in ["| bound |", "| state |", "| Retry-After |", "| changed settings |", "| refund |"] {
            assert!(section.contains(row), "{name} has no row {row}");
        }
        for param in spec.params() {
            let variants = [format!("`{}`", param.name), format!("`{} = ", param.name), format!("\n{} = ", param.name)];
            assert!(
                variants.iter().any(|variant| section.contains(variant)),
                "the section on {name} omits {}",
                param.name
            );
        }
    }
}
