//! The commands of the rollout guide that need files of their own: each prints what the page shows.

use std::fs;
use std::process::Command;

use crate::support::manual::{Page, changed, examples};

const PAGE: &str = "docs/operating/rollout.md";

/// An access log of nginx: one client, ten requests in each of six seconds.
fn access_log() -> String {
    let line = |second| {
        format!("203.0.113.7 - - [29/Nov/2026:12:00:{second:02} +0000] \"GET /a HTTP/1.1\" 200 12 \"-\" \"curl/8\"\n")
    };
    (0..60).map(|request| line(request / 10)).collect()
}

#[test]
fn the_steps_before_the_rollout_print_what_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let page = Page::read(PAGE);
    let cases = page.blocks.iter().find(|block| block.language == "toml,fragment").unwrap();
    let files = [
        ("next.toml", &page.parts[0].config),
        ("sluicegate.toml", &page.parts[0].config),
        ("cases.toml", &cases.text),
        ("access.log", &access_log()),
    ];
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_sluicegate")).parent().unwrap().display();
    let mut compared = 0;
    for block in page.blocks.iter().filter(|block| block.language == "text") {
        for example in examples(&block.text) {
            // These ask the running gateway.
            if [" top ", " rollback ", " key reset "].iter().any(|name| example.command.contains(name)) {
                continue;
            }
            let path = format!("{program}:{}", env!("PATH"));
            let command = format!("{} 2>&1", example.command);
            let output = Command::new("sh").args(["-c", &command]).current_dir(dir.path()).env("PATH", path).output();
            let found = String::from_utf8(output.unwrap().stdout).unwrap();
            assert_eq!(found.trim(), example.shown.trim(), "{}", example.command);
            compared += usize::from(!example.shown.is_empty());
        }
    }
    assert_eq!(compared, 4);
    // What was enforced is the second config of the page.
    let enforced = changed(&page.parts[0].config, "mode = \"shadow\"\n", "");
    assert_eq!(enforced, page.parts[1].config);
    assert_eq!(fs::read_to_string(dir.path().join("sluicegate.toml")).unwrap(), enforced);
}
