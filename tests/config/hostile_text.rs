//! Texts at random: each loads, or is explained in every form, and none makes the loader panic.

use proptest::prelude::*;
use sluicegate::config;

use super::loading::ROUTE;

/// Loads, or explains itself in every form, but never panics.
fn survives(text: &str) {
    if let Err(report) = config::load_text("test", text) {
        assert!(!report.render(false).is_empty());
        assert!(!report.render(true).is_empty());
        assert!(!report.to_json().as_array().unwrap().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_text_is_survived(text in "\\PC{0,200}") {
        survives(&text);
    }

    #[test]
    fn anything_like_toml_is_survived(
        text in "(\\[{1,2}(route|limit\\.a|server|store|é)\\]{1,2}|(path|rate|key|upstream|host|listen|include)|[ =\"'\\[\\]{},.#\r\n\t\0/~*:$-]|10/s|\\$\\{|ä|🦀){0,60}",
    ) {
        survives(&text);
    }

    #[test]
    fn any_value_in_any_place_is_survived(
        section in prop::sample::select(vec!["server", "store", "admin", "jwt", "limit.a", "upstream.a", "set.a", "headers", "[route]"]),
        key in prop::sample::select(vec![
            "rate", "burst", "debt", "key", "cost", "listen", "url", "path", "host", "upstream", "allow", "respond", "refuse",
            "values", "file", "servers", "max_body", "deadline", "limits", "request_headers", "methods", "name", "rewrite",
            "when", "overrides", "after", "algorithms", "audience",
        ]),
        value in prop_oneof![
            any::<i64>().prop_map(|n| n.to_string()),
            "\\PC{0,40}".prop_map(|s| format!("{s:?}")),
            "[/=~ a-z{}*%0-9:.,-]{0,40}".prop_map(|s| format!("{s:?}")),
            "[0-9]{1,25}/[0-9]{0,25}(ms|s|day)".prop_map(|s| format!("{s:?}")),
            Just("[[], {}, 1.5]".to_owned()),
            "[!=<>* a0-9:.-]{0,12}".prop_map(|s| format!("{{ client = {s:?}, path = {s:?}, query = {{ a = [{s:?}] }} }}")),
            "[*,a0-9]{0,3}".prop_map(|s| format!("[{{ key = {s:?}, rate = \"0\" }}, {{ key = [{s:?}], burst = 5 }}]")),
            Just("{ status = 200, set = { a = 1 }, url = [] }".to_owned()),
        ],
    ) {
        survives(&format!("[{section}]\n{key} = {value}\nrate = \"5/s\"\n"));
        survives(&format!("[{section}]\n{key} = {value}\n{ROUTE}"));
    }
}

proptest! {
    // Each case is the largest config there is.
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn mutated_configs_are_survived(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..30, "(\\PC|[\"\\[\\]{}=\n$]){0,6}"), 1..4),
    ) {
        let mut text = std::fs::read_to_string("conf/full.toml").unwrap().replace("blocked.txt", "conf/blocked.txt");
        for (at, length, with) in cuts {
            let start = text.floor_char_boundary(at.index(text.len()));
            let end = text.floor_char_boundary((start + length).min(text.len())).max(start);
            text.replace_range(start..end, &with);
        }
        survives(&text);
    }
}
