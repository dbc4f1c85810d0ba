//! `[admin] keys` and `keys_secret`: how keys of limits are shown. Called by `server`.

use crate::config::closest::find_closest;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::{Section, find_choice};
use crate::config::schema::admin;
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::key::shown_key::{KeyDisplay, KeyHasher, KeyVisibility, SourceSelector};
use crate::limiting::source::SourceKind;

/// Shortest secret in bytes.
const SECRET_MIN: usize = 32;
/// Longest secret in bytes.
const SECRET_MAX: usize = 1024;
/// Name of the setting for all sources that have none of their own.
const DEFAULT: &str = "default";

/// Compiles both options.
pub fn compile_key_display(section: &Section) -> KeyDisplay {
    let mut display = KeyDisplay::default();
    // No message repeats the secret.
    let secret = section.parse_string(&admin::KEYS_SECRET, |text| match text.len() {
        SECRET_MIN..=SECRET_MAX => Ok(text.to_owned()),
        length => invalid_text(
            format!("the secret has {length} bytes; it needs {SECRET_MIN} to {SECRET_MAX}"),
            "create one with `openssl rand -hex 32`; without a secret, each start uses a random one",
        ),
    });
    if let Some(secret) = secret {
        display.hasher = KeyHasher::from_secret(&secret);
    }
    let Some(table) = section.read_table(&admin::KEYS) else { return display };
    let words: Vec<(&str, KeyVisibility)> =
        KeyVisibility::ALL.iter().map(|visibility| (visibility.label(), *visibility)).collect();
    for entry in &table.entries {
        let key = format!("keys.{}", entry.key);
        let visibility = section.parse_node(&key, &entry.node, |text| find_choice(text, &words));
        if entry.key == DEFAULT {
            display.default = visibility;
            continue;
        }
        match parse_selector(&entry.key) {
            Ok(selector) => display.rules.extend(visibility.map(|visibility| (selector, visibility))),
            Err(TextFault { what, help }) => {
                let message = format!("`keys` in {}: {what}", section.title);
                section.add_mistake(Diagnostic::new(entry.place, message).with_help(help));
            }
        }
    }
    display
}

/// Parses the name of a kind of sources, such as `header`, or of one source, such as `header:x-api-key`.
fn parse_selector(name: &str) -> Result<SourceSelector, TextFault> {
    if let Some(selector) = SourceSelector::parse(name) {
        return selector;
    }
    let words = SourceKind::ALL.iter().map(|kind| kind.word()).chain([DEFAULT]);
    let help = match find_closest(name, words.clone()) {
        Some(word) => format!("did you mean `{word}`?"),
        None => {
            let words = words.collect::<Vec<_>>().join(", ");
            format!("write {words}, or one source: \"header:x-api-key\"")
        }
    };
    invalid_text(format!("`{name}` is not a key part"), help)
}
