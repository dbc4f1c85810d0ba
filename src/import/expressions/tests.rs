//! Tests of the translation of regular expressions.

use proptest::prelude::*;
use regex::Regex;

use super::*;
use crate::import::encoding::is_plain;

fn translated(pattern: &str) -> Option<String> {
    translate_path_regex(pattern, false, Reading::Exact).ok().map(|(written, _)| written)
}

#[test]
fn common_expressions_stay_as_they_are() {
    for pattern in [
        r"\.php$",
        r"^/api/(v1|v2)/[^/]+/x$",
        r"^/users/[0-9]+$",
        "admin",
        r"\.(?:png|jpe?g)$",
        "^/.*$",
        r"^/a/.*\.js$",
        "/[a-z_-]+/edit",
        "^/@fs/",
        r"^/[\+a]",
        r"^/(?<id>\d+)/?$",
        r"^/\w+/(.*?)/x",
        "^/[[:alpha:]]+$",
    ] {
        assert_eq!(translated(pattern).as_deref(), Some(pattern));
    }
    let ignoring = translate_path_regex(r"\.PHP$", true, Reading::Exact);
    assert_eq!(ignoring, Ok((r"\.PHP$".to_owned(), true)));
}

#[test]
fn other_characters_are_encoded() {
    for (pattern, written) in [
        ("^/a b", "^/a%20b"),
        ("^/é$", "^/%C3%A9$"),
        ("^/a.c$", "^/a(?:[^%]|%..)c$"),
        ("^/[^/]{2}$", "^/(?:(?:[^%/]|%..)){2}$"),
        ("[0-9]", "^(?:[^%]|%..)*(?:[0-9])"),
        ("^/[ a]", "^/(?:[a]|%20)"),
        ("^/(?:é|4)", "^/(?:4|%C3%A9)"),
        // nginx repeats the last byte.
        ("^/é+$", "^/%C3(?:%A9)+$"),
        ("^/[é]$", "^/(?:%A9|%C3)$"),
        // In Rust, these are operations on sets.
        ("^/[a-z&&]+$", r"^/[\&a-z]+$"),
        ("^/[a~~]x", r"^/[a\~]x"),
        ("^/[+--]x", r"^/[\+-\-]x"),
        (r"^/a\_b\Z", "^/a_b$"),
    ] {
        assert_eq!(translated(pattern).as_deref(), Some(written), "{pattern}");
    }
    for pattern in [r"\badmin", "(?m)^/a", "(?=a)", r"(a)\1", "^/a++b"] {
        assert_eq!(translated(pattern), None, "{pattern}");
    }
}

#[test]
fn values_are_compared_with_the_same_characters() {
    for (pattern, ignore_case, written) in [
        ("bot", true, Some("~i bot")),
        ("^gold$", true, Some("~i ^gold$")),
        ("(curl|wget)/.*", false, Some("~ (curl|wget)/.*")),
        ("^Mozilla/5\\.0 \\(.*\\)$", false, Some("~ ^Mozilla/5\\.0 \\(.*\\)$")),
        (".", false, Some("~ .")),
        ("[^/]+$", false, Some("~ [^/]+$")),
        ("é", false, Some("~ é")),
        // `K` is also the sign of kelvin, and `s` a long s, where Unicode counts.
        ("semrush", true, Some("~i (?-u)semrush")),
        (r"^v\d+$", false, Some(r"~ (?-u)^v\d+$")),
        (r"^\S+$", false, Some(r"~ ^[^\x{9}-\x{d} ]+$")),
        ("[a-z&&]bot", true, Some(r"~ [\&A-Za-z][Bb][Oo][Tt]")),
        // É and é have no case in nginx.
        ("É", true, Some("~ É")),
        // PCRE counts bytes.
        ("^.{4}$", false, None),
        ("^.$", false, None),
        ("é+", false, None),
        ("[é]", false, None),
        (".*.+x", false, None),
        ("\u{fffd}", false, None),
        (r"\xE9", false, None),
        (r"\bbot", false, None),
    ] {
        let found = translate_value_regex(pattern, ignore_case).ok();
        let found = found.map(|(regex, ignores)| format!("{} {regex}", if ignores { "~i" } else { "~" }));
        assert_eq!(found.as_deref(), written, "{pattern}");
    }
}

#[test]
fn nested_groups_end_soon() {
    let nested = format!("{}.*{}", "(".repeat(22), ")*".repeat(22));
    for _ in 0..1000 {
        assert_eq!(translated(&nested).as_deref(), Some(nested.as_str()));
        assert!(translate_value_regex(&nested, false).is_ok());
    }
    let deep = format!("{}.x{}", "(".repeat(49), ")".repeat(49));
    assert!(translated(&deep).is_some());
}

/// Spells bytes as a canonical path.
fn spell(decoded: &[u8]) -> String {
    decoded
        .iter()
        .map(|byte| if is_plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Compiles a pattern for bytes as nginx reads it.
fn compile_original(pattern: &str, ignore_case: bool) -> Option<regex::bytes::Regex> {
    let tree = read_pattern(pattern, ignore_case, Reading::Exact).ok()?;
    regex::bytes::RegexBuilder::new(&tree.to_string()).unicode(false).build().ok()
}

fn parts() -> impl Strategy<Value = Vec<&'static str>> {
    let parts = vec![
        "^",
        "$",
        "/",
        "a",
        "b",
        "k",
        "4",
        "0",
        "2",
        "A",
        "F",
        "@",
        r"\+",
        r"\$",
        "%",
        " ",
        "é",
        r"\.",
        "-",
        ".",
        ".*",
        ".+",
        ".?",
        "[^/]",
        "[^/]+",
        "[^a]",
        "[^@]*",
        "[0-9]",
        "[a-f]",
        "[@a]",
        r"\w",
        r"\d+",
        r"\s",
        r"\S",
        r"\W*",
        "[^0]{2}",
        "(?:a|@)",
        "(4|b)?",
        "(?:/a)*",
        "(?:0|.)",
        "|",
        "é+",
        "é?",
        "[é]",
        "[^é]",
        "[a&&]",
        "[%--]",
        "[a~~b]",
        "[a[b]]",
        "[]a]",
        r"\xC3",
        r"[\w-]",
        "(?:é|è)",
        "(.+|a)",
        r"\A",
        r"\z",
    ];
    prop::collection::vec(prop::sample::select(parts), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The written expression matches a canonical path if and only if the original matches the decoded path.
    #[test]
    fn written_expressions_match_the_same_paths(
        parts in parts(),
        ignore_case in any::<bool>(),
        decoded in prop::collection::vec(prop::sample::select(b"/ab40@A%+2F \xc3\xa9$.-&~[]".to_vec()), 0..8),
    ) {
        let pattern = parts.concat();
        let path = [b"/", decoded.as_slice()].concat();
        let Some(original) = compile_original(&pattern, ignore_case) else { return Ok(()) };
        let (written, ignores) = translate_path_regex(&pattern, ignore_case, Reading::Exact).unwrap();
        let written = Regex::new(&format!("{}{written}", if ignores { "(?i)" } else { "" })).unwrap();
        let spelled = spell(&path);
        prop_assert_eq!(written.is_match(&spelled), original.is_match(&path), "{} as {}: {}", pattern, written, spelled);
    }

    /// The written expression matches a value, read as `when` reads it, if and only if the original matches its bytes.
    #[test]
    fn written_expressions_match_the_same_values(
        parts in parts(),
        ignore_case in any::<bool>(),
        value in prop::collection::vec(prop::sample::select(vec![
            "/", "a", "b", "k", "K", "4", "A", "@", " ", "é", "É", "è", "\u{212a}", "%", "&", "~", "[", "\u{fffd}", "�",
        ]), 0..6),
        broken in prop::option::of(prop::sample::select(b"\xc3\xa9\xe2\x84".to_vec())),
    ) {
        let pattern = parts.concat();
        let value = [value.concat().as_bytes(), broken.as_slice()].concat();
        let Some(original) = compile_original(&pattern, ignore_case) else { return Ok(()) };
        let Ok((written, ignores)) = translate_value_regex(&pattern, ignore_case) else { return Ok(()) };
        let regex = regex::RegexBuilder::new(&written).case_insensitive(ignores).dot_matches_new_line(true).build().unwrap();
        let read = String::from_utf8_lossy(&value);
        prop_assert_eq!(regex.is_match(&read), original.is_match(&value), "{} as {}: {}", pattern, written, read);
    }
}
