//! `sluicegate help` and `sluicegate schema`, and the schema on the admin listener.

use crate::support::gateway::{Gateway, program};

fn output(args: &[&str]) -> (i32, String, String) {
    // Nowhere is a manual beside the program.
    let output = program().args(args).current_dir("/").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn help_describes_options_sections_and_commands() {
    for (name, words) in [
        (
            &["limit.burst"][..],
            &["limit.burst\n", "token_bucket, gcra", "count of the rate", "options.md#limit-burst"][..],
        ),
        (&["burst"], &["limit.burst\n"]),
        (&["[limit.per-ip]", "burst"], &["limit.burst\n"]),
        (&["server.spans.to"], &["server.spans.to\n", "required", "the collector"]),
        (&["server.spans"], &["server.spans.sample", "sluicegate_spans_total"]),
        (&["upstream"], &["[upstream.NAME]\n", "upstream.health.every"]),
        (&["workers"], &["next start", "0 to 1024"]),
        (&["max_body"], &["Several options", "server.max_body", "route.max_body"]),
        (&["check"], &["Usage: sluicegate check"]),
        (&[], &["Commands:", "Exit codes:"]),
    ] {
        let (code, stdout, stderr) = output(&[&["help"], name].concat());
        assert_eq!((code, stderr.as_str()), (0, ""), "{name:?}");
        for word in words {
            assert!(stdout.contains(word), "{name:?}: {word:?} is missing:\n{stdout}");
        }
        assert!(!stdout.contains(['`', '\u{1b}']) && !stdout.contains("]("), "{name:?}:\n{stdout}");
    }
}

#[test]
fn help_for_an_unknown_name_is_code_2() {
    for (name, remedy) in [
        ("limit.brust", "sluicegate help limit.burst"),
        ("\u{1b}[31mred", "lists the options"),
        ("", "lists the options"),
    ] {
        let (code, stdout, stderr) = output(&["help", name]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{name:?}");
        assert!(stderr.contains(remedy) && !stderr.contains('\u{1b}'), "{name:?}: {stderr}");
    }
}

/// The blocks of a page that show commands, each with what it prints.
fn shown(page: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(page).unwrap();
    let blocks = text.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next());
    let commands = blocks.flat_map(|block| block.split("$ sluicegate help ").skip(1));
    let command = |text: &str| text.split_once('\n').map(|(name, shown)| (name.to_owned(), shown.to_owned()));
    commands.filter_map(command).collect()
}

#[test]
fn the_manual_shows_what_help_prints() {
    let shown: Vec<_> =
        ["docs/reference/command-line.md", "docs/start/editors.md"].into_iter().flat_map(shown).collect();
    assert_eq!(shown.len(), 3);
    for (name, shown) in shown {
        let (_, stdout, stderr) = output(&["help", &name]);
        assert_eq!(stdout + &stderr, shown, "{name}");
    }
}

#[test]
fn completions_list_the_options() {
    // Those of fish list no values of arguments.
    for shell in ["bash", "zsh"] {
        let (code, script, _) = output(&["completions", shell]);
        assert!(code == 0 && script.contains("upstream.health.every"), "{shell}");
    }
}

#[test]
fn the_schema_is_the_same_everywhere() {
    let (code, printed, _) = output(&["schema"]);
    assert_eq!(code, 0);
    assert_eq!(printed, std::fs::read_to_string("conf/schema.json").unwrap());
    let gateway = Gateway::start("[[route]]\nrespond = {}\n");
    let response = gateway.admin("/-/schema.json");
    assert_eq!((response.status(), response.get("content-type")), (200, Some("application/schema+json")));
    let served = response.json();
    assert_eq!(served, serde_json::from_str::<serde_json::Value>(&printed).unwrap());
}
