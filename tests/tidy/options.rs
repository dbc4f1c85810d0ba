//! An option is named by its row: no other file of the config or of the diff spells it, so that it cannot drift.

use std::collections::BTreeSet;

use sluicegate::config::schema;

use super::source::root;

/// Literals that are no options: what they are, by file.
const OTHER_WORDS: &[(&str, &[&str], &str)] = &[
    ("src/config/admin_tokens.rs", &["keys", "limits", "edit", "token"], "grants, and a name of a token"),
    ("src/config/compile/cors.rs", &["ratelimit"], "a header"),
    ("src/config/compile/edit.rs", &["host"], "a header"),
    ("src/config/compile/lint.rs", &["password"], "a word in paths of logins"),
    ("src/config/compile/limits/cost.rs", &["default"], "a key of the tables of costs"),
    ("src/config/compile/limits/over.rs", &["refuse"], "a value of `over`"),
    ("src/config/compile/limits/refuse.rs", &["limit", "route"], "placeholders"),
    ("src/config/compile/limits/prices.rs", &["default"], "the name of other models"),
    ("src/config/compile/limits/overrides/key_rate.rs", &["default"], "the rate of other plans"),
    ("src/config/compile/limits/settlement.rs", &["header"], "a kind of source"),
    ("src/config/compile/pages/mod.rs", &["status"], "a placeholder"),
    ("src/config/compile/routes/forward_auth.rs", &["host"], "a header"),
    ("src/config/compile/routes/redirect.rs", &["host", "path", "query"], "placeholders"),
    ("src/config/compile/server/internal.rs", &["ca"], "a directory"),
    ("src/config/compile/server/keys.rs", &["default"], "a name for all sources"),
    ("src/config/compile/upstreams/mod.rs", &["timeout"], "a value of `retry.on`"),
    ("src/config/diagnostics/report.rs", &["file"], "a field of the report"),
    (
        "src/config/diagnostics/secret_options.rs",
        &["token", "secret", "auth", "cookie", "sha256"],
        "parts of names of secrets",
    ),
    ("src/config/compile/routes/files.rs", &["path"], "a placeholder of `try`"),
    (
        "src/config/habits.rs",
        &["address", "client", "country", "host", "method", "min", "path", "qps", "server_name", "service", "url"],
        "key parts, units, and their names in other programs",
    ),
    ("src/config/effective/render.rs", &["default"], "the origin of a value"),
    ("src/config/examples.rs", &["internal", "timeout"], "a value that people write, and the end of names"),
    ("src/config/hints/foreign_words.rs", &["hash", "source"], "balancers of other programs"),
    ("src/config/hints/mod.rs", &["cert", "key"], "names that people write"),
    ("src/config/mod.rs", &["decide"], "a value of `serve`"),
    ("src/config/shorthand.rs", &["burst"], "a word of the short form of a limit"),
    ("src/config/syntax.rs", &["on", "enabled"], "ways to write `true`"),
    ("src/reload/diff/line.rs", &["name"], "a field of the change"),
    ("src/reload/diff/mod.rs", &["limits", "rls"], "plurals of sections"),
    ("src/reload/diff/options.rs", &["default"], "the text for a missing value"),
];

/// Returns the text literals of a file outside comments and tests, each with its line.
fn literals(text: &str) -> Vec<(usize, String)> {
    let text = text.split("#[cfg(test)]").next().unwrap();
    let mut literals = Vec::new();
    for (line, text) in text.lines().enumerate() {
        let mut rest = text;
        while let Some(at) = rest.find(['"', '/', '\'']) {
            let (sign, after) = (rest.as_bytes()[at], &rest[at + 1..]);
            rest = match sign {
                b'/' if after.starts_with('/') => break,
                b'"' => {
                    let mut end = 0;
                    while let Some(next) = after[end..].find(['"', '\\']) {
                        end += next;
                        if after.as_bytes()[end] == b'"' {
                            break;
                        }
                        end = (end + 2).min(after.len());
                    }
                    literals.push((line + 1, after[..end].to_owned()));
                    after.get(end + 1..).unwrap_or_default()
                }
                b'\'' if after.starts_with("\"'") => &after[2..],
                _ => after,
            };
        }
    }
    literals
}

fn rust_files(folder: &str) -> Vec<String> {
    let mut folders = vec![root().join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            match path.is_dir() {
                true if name != "src/config/schema" => folders.push(path),
                false if name.ends_with(".rs") => files.push(name),
                _ => {}
            }
        }
    }
    files
}

#[test]
fn options_are_spelled_in_their_rows_only() {
    let names: BTreeSet<&str> = schema::ALL.iter().flat_map(|table| table.keys()).collect();
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for file in ["src/config", "src/reload/diff"].into_iter().flat_map(rust_files) {
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        let allowed = OTHER_WORDS.iter().filter(|(name, ..)| *name == file).flat_map(|(_, words, _)| *words);
        let allowed: BTreeSet<&str> = allowed.copied().collect();
        for (line, literal) in literals(&text).into_iter().filter(|(_, literal)| names.contains(literal.as_str())) {
            match allowed.get(literal.as_str()) {
                Some(word) => drop(used.insert((file.clone(), *word))),
                None => wrong.push(format!("{file}:{line}: \"{literal}\"")),
            }
        }
    }
    let stale: Vec<_> = OTHER_WORDS
        .iter()
        .flat_map(|(file, words, _)| words.iter().map(|word| ((*file).to_owned(), *word)))
        .filter(|word| !used.contains(word))
        .collect();
    assert!(
        wrong.is_empty(),
        "write the row in place of its name, like `server::MAX_BODY.name`:\n{}",
        wrong.join("\n")
    );
    assert!(stale.is_empty(), "no longer needed in OTHER_WORDS: {stale:?}");
}

#[test]
fn literals_are_found_as_the_compiler_finds_them() {
    let text = "let a = \"x\"; // \"no\"\nlet b = ['\"', 'c']; f(\"http://y\", \"q\\\"z\");\n#[cfg(test)]\n\"w\"";
    let literals: Vec<String> = literals(text).into_iter().map(|(_, literal)| literal).collect();
    assert_eq!(literals, ["x", "http://y", "q\\\"z"]);
}
