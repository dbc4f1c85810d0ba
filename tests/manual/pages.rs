//! The README.

use sluicegate::config::load_text;

use crate::support::manual::Page;

/// The listener and the trusted proxies are additions to the first config.
#[test]
fn the_configs_of_the_readme_are_one() {
    let page = Page::read("README.md");
    assert_eq!(page.parts.len(), 3);
    let text: String = page.parts.iter().map(|part| format!("{}\n", part.config)).collect();
    let text = text.replace("www.pem", "conf/tls/sample.pem").replace("www.key", "conf/tls/sample.key");
    if let Err(report) = load_text("README.md", &text) {
        panic!("{}", report.render(false));
    }
}
