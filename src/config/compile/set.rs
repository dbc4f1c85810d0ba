//! `[set.NAME]`: a list of texts, networks among them, written in place or in a file of its own.
//! Called by `compile`.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::names::{Definitions, NamedSection};
use crate::config::reader::{At, Section};
use crate::config::report::{Diagnostic, MistakeKind, Place};
use crate::config::schema;
use crate::config::source::SourceTexts;
use crate::config::values::{self, Fault, fault};
use crate::net::Set;

/// A set, and what keeps it from being one of addresses.
#[derive(Clone)]
pub struct ListedItem {
    pub set: Arc<Set>,
    others: Rc<Vec<(Place, Fault)>>,
    /// Each is a mistake only once.
    reported: Rc<Cell<bool>>,
}

/// More items of the wrong kind are not remembered; a list of words has nothing else.
const OTHERS_MAX: usize = 100;

impl ListedItem {
    /// The set for a place where only addresses make sense; any other item is a mistake there.
    pub fn addresses(&self, sources: &SourceTexts) -> Option<Arc<Set>> {
        if self.others.is_empty() {
            return Some(self.set.clone());
        }
        if !self.reported.replace(true) {
            for (place, Fault { what, help }) in self.others.iter() {
                sources.mistake(Diagnostic::new(*place, what.clone()).kind(MistakeKind::Wrong).help(help.clone()));
            }
        }
        None
    }
}

pub fn sets(named: Vec<NamedSection>) -> Definitions<ListedItem> {
    let mut sets = Definitions::new(schema::SET.name);
    for NamedSection { name, place, section } in named {
        let set = set(&section);
        section.finish();
        sets.insert(name, place, set);
    }
    sets
}

fn set(section: &Section) -> Option<ListedItem> {
    const HELP: &str = "give it values = [\"10.0.0.0/8\"], or file = \"PATH\" with one item per line";
    match (section.node("values"), section.node("file")) {
        (Some(_), None) => {
            let item = |text: &str| match text.is_empty() {
                true => fault("the item is empty", "remove it"),
                false => Ok(text.to_owned()),
            };
            section.strings("values", item).map(|items| listed(items.into_iter()))
        }
        (None, Some(_)) => file(section),
        (Some(_), Some(file)) => section.fault("file", file, "it has `values` as well", "keep one of the two"),
        (None, None) => section.absent(format!("{} has neither values nor a file", section.title), HELP),
    }
}

fn listed(items: impl Iterator<Item = At<String>>) -> ListedItem {
    let (mut networks, mut set, mut others) = (Vec::new(), Set::default(), Vec::new());
    for At { place, value } in items {
        match values::network(&value) {
            Ok(network) => networks.push(network),
            Err(fault) if others.len() < OTHERS_MAX => others.push((place, fault)),
            Err(_) => {}
        }
        set.strings.insert(value);
    }
    set.networks = networks.into_iter().collect();
    ListedItem { set: Arc::new(set), others: Rc::new(others), reported: Rc::default() }
}

/// One item per line; `#` starts a comment at the start of a line or after a space.
fn file(section: &Section) -> Option<ListedItem> {
    let path = section.string("file")?;
    let node = section.node("file")?;
    let sources = section.sources;
    let path = sources.resolve(node.place.file, &path);
    let text = match sources.read(&path) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("cannot read `{}`: {error}", path.display());
            sources.mistake(Diagnostic::new(node.place, message).help(error.help()));
            return None;
        }
    };
    let mut items = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let item = without_comment(line);
        let at = start + item.len() - item.trim_start().len();
        let item = item.trim();
        if !item.is_empty() {
            items.push((at, item.to_owned()));
        }
        start += line.len();
    }
    let dir = path.parent().map(ToOwned::to_owned).unwrap_or_default();
    let file = sources.add(path.display().to_string(), dir, text);
    let place = |at, item: &String| Place { file, start: at, end: at + item.len() };
    Some(listed(items.into_iter().map(|(at, item)| At { place: place(at, &item), value: item })))
}

fn without_comment(line: &str) -> &str {
    let starts = |at: &usize| *at == 0 || line[..*at].ends_with(char::is_whitespace);
    let comment = line.match_indices('#').map(|(at, _)| at).find(starts);
    &line[..comment.unwrap_or(line.len())]
}
