//! Every config and every command of the pages.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use sluicegate::config::from_text;
use sluicegate::limit::algo::SPECS;

use crate::stores::RedisServer;
use crate::support::manual::{Page, app};

#[test]
fn every_config_loads() {
    let pages = [
        ("docs/limits.md", 31),
        ("docs/admin.md", 1),
        ("docs/upstreams.md", 4),
        ("docs/logs.md", 3),
        ("docs/restarts.md", 1),
    ];
    for (path, least) in pages {
        let page = Page::read(path);
        assert!(page.parts.len() >= least, "{path}: {} configs", page.parts.len());
        for part in &page.parts {
            if let Err(report) = from_text(path, &part.config) {
                panic!("{path}, {}:\n{}", part.title, report.render(false));
            }
        }
    }
}

/// What it adds for HTTPS and behind a proxy belongs to the file it begins with.
#[test]
fn the_configs_of_the_readme_are_one() {
    let page = Page::read("README.md");
    assert_eq!(page.parts.len(), 3);
    let text: String = page.parts.iter().map(|part| format!("{}\n", part.config)).collect();
    let text = text.replace("www.pem", "conf/tls/sample.pem").replace("www.key", "conf/tls/sample.key");
    if let Err(report) = from_text("README.md", &text) {
        panic!("{}", report.render(false));
    }
}

#[test]
fn every_command_of_the_limits_does_what_is_shown() {
    let page = Page::read("docs/limits.md");
    let parts: Vec<_> = page.parts.iter().filter(|part| !part.examples.is_empty()).collect();
    assert!(parts.len() >= 27, "{}", parts.len());
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Most of the time is spent waiting for commands.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // A part that fails does not hide the others.
                while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let run = || {
                        let redis = part.needs_redis().then(|| RedisServer::start(&[]));
                        let port = redis.as_ref().map(|server| server.port);
                        let app = app();
                        let gateway = part.start(&app, port);
                        part.assert_true(&page.words, &gateway, port);
                    };
                    failed.fetch_add(usize::from(catch_unwind(AssertUnwindSafe(run)).is_err()), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(failed.into_inner(), 0, "parts of the manual are wrong; see above");
}

#[test]
fn what_the_page_names_exists() {
    let text = std::fs::read_to_string("docs/limits.md").unwrap();
    let anchors: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .map(|heading| heading.trim_start_matches('#').trim().to_lowercase().replace(',', "").replace(' ', "-"))
        .collect();
    for link in text.split("](#").skip(1) {
        let anchor = link.split(')').next().unwrap();
        assert!(anchors.iter().any(|heading| heading == anchor), "no heading is #{anchor}");
    }

    let page = Page::read("docs/limits.md");
    let app = app();
    let metrics = page.under("One budget for several routes")[0].start(&app, None).metrics();
    let letters = |text: &str| text.find(|c: char| !(c.is_ascii_lowercase() || c == '_')).unwrap_or(text.len());
    let named: Vec<&str> = text.split("sluicegate_").skip(1).map(|rest| &rest[..letters(rest)]).collect();
    assert!(named.len() > 8);
    for name in named {
        assert!(metrics.contains(&format!("# TYPE sluicegate_{name} ")), "there is no metric sluicegate_{name}");
    }

    let full = std::fs::read_to_string("conf/full.toml").unwrap();
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
        assert!(text.contains(&format!("`{option}")), "{option} is not told");
        assert!(full.contains(&format!("{option} = ")), "{option} is no option");
    }
}

/// Whoever adds an algorithm says what it does, and to whom it is of use.
#[test]
fn the_page_tells_every_algorithm_and_all_its_options() {
    let text = std::fs::read_to_string("docs/limits.md").unwrap();
    let full = std::fs::read_to_string("conf/full.toml").unwrap();
    for spec in SPECS {
        let name = spec.name;
        assert!(full.contains(&format!("\"{name}\"")), "conf/full.toml does not name {name}");
        let wishes = text.split("## Which algorithm when").nth(1).unwrap().split("\n## ").next().unwrap();
        let costs = text.split("## What a limit costs").nth(1).unwrap().split("\n## ").next().unwrap();
        assert!(wishes.contains(&format!("[{name}](#{name})")), "no wish leads to {name}");
        assert!(costs.contains(&format!("`{name}`")), "it is not told what {name} costs");
        let section = text.split(&format!("\n## {name}\n")).nth(1).unwrap_or_else(|| panic!("no section on {name}"));
        let section = section.split("\n## ").next().unwrap();
        for row in ["| most admitted |", "| state |", "| Retry-After |", "| new numbers |", "| refund |"] {
            assert!(section.contains(row), "{name} has no row {row}");
        }
        for param in spec.params() {
            let told = [format!("`{}`", param.name), format!("`{} = ", param.name), format!("\n{} = ", param.name)];
            assert!(told.iter().any(|form| section.contains(form)), "{name} does not tell {}", param.name);
        }
    }
}
