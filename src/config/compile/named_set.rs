//! Section `[set.NAME]`: a list of texts or networks, written in place or in a file. Called by `compile`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::config::compile::names::{Definitions, NamedSection};
use crate::config::diagnostics::report::{Diagnostic, MistakeKind, Place};
use crate::config::reader::{At, Section};
use crate::config::schema::set;
use crate::config::source::{PrivateFile, SourceTexts};
use crate::config::values::{TextFault, invalid_text};
use crate::net::NamedSet;

/// A set, and the items that prevent its use as a set of addresses.
#[derive(Clone)]
pub struct ListedItem {
    pub set: Arc<NamedSet>,
    others: Rc<Vec<(Place, TextFault)>>,
    /// True once the mistakes were reported: each is reported once, however many limits use the set.
    reported: Rc<Cell<bool>>,
}

/// Maximum number of items of a set that the config keeps for the diff.
const KEPT_MAX: usize = 100_000;
/// Maximum number of such items that are remembered: a list of words has nothing else.
const OTHERS_MAX: usize = 100;

impl ListedItem {
    /// Returns the set for a use that requires addresses; any other item is a mistake.
    pub fn as_addresses(&self, sources: &SourceTexts) -> Option<Arc<NamedSet>> {
        if self.others.is_empty() {
            return Some(self.set.clone());
        }
        if !self.reported.replace(true) {
            for (place, TextFault { what, help }) in self.others.iter() {
                sources.add_mistake(
                    Diagnostic::new(*place, what.clone()).with_kind(MistakeKind::Wrong).with_help(help.clone()),
                );
            }
        }
        None
    }
}

pub fn compile_sets(named: Vec<NamedSection>) -> Definitions<ListedItem> {
    let mut sets = Definitions::new(set::TABLE.name);
    for NamedSection { name, place, section } in named {
        let set = compile_set(&section);
        section.report_unread_keys();
        sets.insert(name, place, set);
    }
    sets
}

/// Returns the sets, apart from those with very many items.
pub fn list_small_sets(sets: &Definitions<ListedItem>) -> BTreeMap<String, Arc<NamedSet>> {
    let set_list = sets.places().filter_map(|(name, _)| Some((name.to_owned(), sets.get(name)?.set)));
    set_list.filter(|(_, set)| set.strings.len() <= KEPT_MAX).collect()
}

fn compile_set(section: &Section) -> Option<ListedItem> {
    const HELP: &str = "give it values = [\"10.0.0.0/8\"], or file = \"PATH\" with one item per line";
    match (section.node(&set::VALUES), section.node(&set::FILE)) {
        (Some(_), None) => {
            let item = |text: &str| match text.is_empty() {
                true => invalid_text("the item is empty", "remove it"),
                false => Ok(text.to_owned()),
            };
            section.read_strings(&set::VALUES, item).map(|items| compile_item(items.into_iter(), section.sources))
        }
        (None, Some(_)) => read_set_file(section),
        (Some(_), Some(file)) => {
            section.report_fault(set::FILE.name, file, "it has `values` as well", "keep one of the two")
        }
        (None, None) => section.report_missing(format!("{} has neither values nor a file", section.title), HELP),
    }
}

fn compile_item(items: impl Iterator<Item = At<String>>, sources: &SourceTexts) -> ListedItem {
    let (mut networks, mut set, mut others) = (Vec::new(), NamedSet::default(), Vec::new());
    for At { place, value } in items {
        match sources.parse_network(&value) {
            Ok(network) => networks.push(network),
            Err(fault) if others.len() < OTHERS_MAX => others.push((place, fault)),
            Err(_) => {}
        }
        set.strings.insert(value);
    }
    set.networks = networks.into_iter().collect();
    ListedItem { set: Arc::new(set), others: Rc::new(others), reported: Rc::default() }
}

/// Reads one item per line. `#` starts a comment at the start of a line or after a space.
fn read_set_file(section: &Section) -> Option<ListedItem> {
    let path = section.read_string(&set::FILE)?;
    let node = section.node(&set::FILE)?;
    let sources = section.sources;
    let path = sources.resolve_path(node.place.file, &path);
    sources.add_private_file(&path, PrivateFile::Config);
    let text = match sources.read_file(&path) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("cannot read `{}`: {error}", path.display());
            sources.add_mistake(Diagnostic::new(node.place, message).with_help(error.help()));
            return None;
        }
    };
    let mut items = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let item = strip_comment(line);
        let at = start + item.len() - item.trim_start().len();
        let item = item.trim();
        if !item.is_empty() {
            items.push((at, item.to_owned()));
        }
        start += line.len();
    }
    let dir = path.parent().map(ToOwned::to_owned).unwrap_or_default();
    let file = sources.add_source(path.display().to_string(), dir, text);
    let place = |at, item: &String| Place { file, start: at, end: at + item.len() };
    let items = items.into_iter().map(|(at, item)| At { place: place(at, &item), value: item });
    Some(compile_item(items, sources))
}

/// Returns a line without its comment. `#` starts one at the start of the line or after a space.
pub fn strip_comment(line: &str) -> &str {
    let starts = |at: &usize| *at == 0 || line[..*at].ends_with(char::is_whitespace);
    let comment = line.match_indices('#').map(|(at, _)| at).find(starts);
    &line[..comment.unwrap_or(line.len())]
}
