//! The commands of the guide print what it shows.

use std::path::Path;

use crate::support::manual::{Page, app};

#[test]
fn the_guide_shows_what_happens() {
    let page = Page::read("docs/guides/authentication.md");
    let users = Path::new("conf/users.htpasswd").canonicalize().unwrap();
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "0123456789abcdef".repeat(4)).unwrap();
    let mut count = 0;
    for part in page.parts.iter().filter(|part| !part.examples.is_empty()) {
        let files = [
            ("users.htpasswd", users.display().to_string()),
            ("/etc/sluicegate/staff.secret", secret.path().display().to_string()),
        ];
        let changes: Vec<(&str, &str)> = files
            .iter()
            .filter(|(name, _)| part.config.contains(name))
            .map(|(name, path)| (*name, path.as_str()))
            .collect();
        let app = app();
        let gateway = part.start_changed(&app, None, &changes);
        part.assert_true(&page.words, &gateway, None, Some(&app));
        count += 1;
    }
    assert_eq!(count, 2);
}
