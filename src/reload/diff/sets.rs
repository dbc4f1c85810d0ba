//! Lists the changes in the files of named sets: one line for each set, however many routes and limits use it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::config::Config;
use crate::config::WrittenSection;
use crate::config::schema::set;
use crate::limiting::key::shown_key::KeyDisplay;
use crate::limiting::key::{Key, KeyPart};
use crate::limiting::source::{Prefixes, Source};
use crate::net::parse_network;

/// Maximum number of items in a line.
const ITEMS_SHOWN: usize = 10;

/// Returns what changed in each set that both configs have, by the name of the set.
pub fn list_changed_sets(old: &Config, new: &Config) -> BTreeMap<String, String> {
    let lines = new.sets.iter().filter_map(|(name, after)| {
        let before = old.sets.get(name).filter(|before| before.strings != after.strings)?;
        let mut added: Vec<&String> = after.strings.difference(&before.strings).collect();
        let mut removed: Vec<&String> = before.strings.difference(&after.strings).collect();
        let parts = [("added", &mut added), ("removed", &mut removed)];
        let parts = parts.into_iter().filter(|(_, items)| !items.is_empty());
        let texts: Vec<String> = parts
            .map(|(verb, items)| {
                items.sort_unstable();
                format!("{verb} {}", describe_items(items, &new.admin.key_display))
            })
            .collect();
        Some((name.clone(), texts.join("; ")))
    });
    lines.collect()
}

/// Describes items: addresses as logs show them, and the number of other texts, which may be secrets of clients.
fn describe_items(items: &[&String], display: &KeyDisplay) -> String {
    let is_shown = |item: &&&String| parse_network(item).is_some() && shows_address(item, display);
    let names: Vec<&str> = items.iter().filter(is_shown).take(ITEMS_SHOWN).map(|item| item.as_str()).collect();
    let rest = items.len() - names.len();
    let noun = if rest == 1 { "item" } else { "items" };
    match (names.is_empty(), rest) {
        (true, rest) => format!("{rest} {noun}"),
        (false, 0) => names.join(", "),
        (false, rest) => format!("{} and {rest} more", names.join(", ")),
    }
}

/// Returns whether logs show the address, or the first one of the network, as it is.
fn shows_address(item: &str, display: &KeyDisplay) -> bool {
    let address = item.split('/').next().unwrap_or(item);
    if address.parse::<IpAddr>().is_err() {
        return false;
    }
    let key = Key(vec![KeyPart::Source(Source::Ip(Prefixes::default()))]);
    let state = format!("ip={address}");
    display.show_state_parts(&key, std::iter::once(state.as_str())) == state
}

/// Returns whether an option of the section names the set.
pub fn uses_set(section: &WrittenSection, name: &str) -> bool {
    let mark = format!("{}:{name}", set::TABLE.name);
    section.options.iter().any(|option| {
        let text = option.canonical_text();
        text.match_indices(&mark).any(|(at, _)| {
            // Another set may have a longer name.
            let next = text[at + mark.len()..].chars().next();
            next.is_none_or(|char| !char.is_ascii_alphanumeric() && !"-_.".contains(char))
        })
    })
}
