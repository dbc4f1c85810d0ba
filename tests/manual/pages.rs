//! The README.

use sluicegate::config::load_text;

use crate::support::manual::Page;

/// The trusted proxies are an addition to the first config.
#[test]
fn the_configs_of_the_readme_are_one() {
    let page = Page::read("README.md");
    assert_eq!(page.parts.len(), 2);
    let text: String = page.parts.iter().map(|part| format!("{}\n", part.config)).collect();
    if let Err(report) = load_text("README.md", &text) {
        panic!("{}", report.render(false));
    }
}
