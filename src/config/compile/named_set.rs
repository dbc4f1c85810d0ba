//! Section `[set.NAME]`: a list of texts or networks, written in place or in a file. Called by `compile`.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use crate::config::compile::names::{Definitions, NamedSection};
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::{Diagnostic, MistakeKind, Place};
use crate::config::reader::{At, Section};
use crate::config::schema::set;
use crate::config::source::{PrivateFile, SourceTexts};
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::limit::address_set::{AddressSet, SetFile};
use crate::limiting::overrides::RejectedRows;
use crate::net::NamedSet;

/// A set, and the items that some uses of it cannot have.
#[derive(Clone)]
pub struct ListedItem {
    pub set: Arc<NamedSet>,
    addresses: Arc<AddressSet>,
    /// Items that are not addresses, the first of very many.
    others: Rc<Vec<(Place, TextFault)>>,
    /// Number of all of them.
    other_count: usize,
    /// True once the mistakes were reported: each is reported once, however many limits use the set.
    reported: Rc<Cell<bool>>,
    /// True if a condition compares the items with names of routes.
    names_routes: Rc<Cell<bool>>,
    file: Option<Rc<ReadFile>>,
}

/// The file of a set.
struct ReadFile {
    path: PathBuf,
    /// Where the config names it.
    place: Place,
    /// Index of its text.
    source: usize,
    /// The line of each item, once a row was skipped.
    lines: OnceCell<HashMap<String, usize>>,
    /// Lines that are skipped.
    skipped: RefCell<HashSet<usize>>,
    /// What is wrong with the first of them.
    faults: RefCell<BTreeMap<usize, String>>,
}

/// Maximum number of items of a set that the config keeps for the diff.
const KEPT_MAX: usize = 100_000;
/// Maximum number of such items that are remembered: a list of words has nothing else.
const OTHERS_MAX: usize = 100;

impl ListedItem {
    /// Returns the set for a use that requires addresses. Any other item is a mistake; rows of a file are skipped, unless
    /// none of them is an address.
    pub fn as_addresses(&self, sources: &SourceTexts) -> Option<Arc<AddressSet>> {
        let skips_rows = self.file.as_ref().filter(|_| !self.addresses.networks.is_empty());
        if self.others.is_empty() {
            return Some(self.addresses.clone());
        }
        let is_first = !self.reported.replace(true);
        let faults = self.others.iter().filter(|_| is_first);
        if let Some(file) = skips_rows {
            faults.for_each(|(place, fault)| file.reject_row(sources.source(file.source).line_at(place.start), fault));
            return Some(self.addresses.clone());
        }
        faults.for_each(|(place, TextFault { what, help })| {
            sources.add_mistake(
                Diagnostic::new(*place, what.clone()).with_kind(MistakeKind::Wrong).with_help(help.clone()),
            );
        });
        None
    }

    /// Returns whether the set has rows that are not addresses, and skips them.
    pub fn skips_addresses(&self) -> bool {
        self.file.is_some() && !self.others.is_empty()
    }

    /// Skips a row that no request can match. Returns false if the set has no file: then the item is a mistake.
    pub fn reject_item(&self, sources: &SourceTexts, item: &str, fault: &TextFault) -> bool {
        let Some(file) = &self.file else { return false };
        let lines = file.lines.get_or_init(|| {
            let text = &sources.source(file.source).text;
            text.lines().zip(1..).map(|(line, number)| (strip_comment(line).trim().to_owned(), number)).collect()
        });
        file.reject_row(lines.get(item).copied().unwrap_or(0), fault);
        true
    }

    /// Schedules a comparison of the items with the names of routes, which are known later. Returns false if the set
    /// has no file.
    pub fn compare_with_routes(&self) -> bool {
        self.names_routes.set(true);
        self.file.is_some()
    }

    /// Returns the rows that were skipped.
    fn rejected_rows(&self, file: &ReadFile) -> RejectedRows {
        let mut rejected = RejectedRows::default();
        for (line, what) in file.faults.borrow().iter() {
            rejected.add_line(*line, what.clone());
        }
        let further = if self.reported.get() { self.other_count - self.others.len() } else { 0 };
        rejected.count = file.skipped.borrow().len() + further;
        rejected
    }
}

impl ReadFile {
    fn reject_row(&self, line: usize, TextFault { what, help }: &TextFault) {
        if !self.skipped.borrow_mut().insert(line) {
            return;
        }
        let mut faults = self.faults.borrow_mut();
        faults.insert(line, format!("{what}; {help}"));
        if faults.len() > OTHERS_MAX {
            faults.pop_last();
        }
    }
}

/// Returns the files of the sets with the rows that were skipped, and warns of these. `routes`: names of all routes.
pub fn collect_files(sources: &SourceTexts, sets: &Definitions<ListedItem>, routes: &[&str]) -> Vec<SetFile> {
    let routes: HashSet<&str> = routes.iter().copied().collect();
    let mut files = Vec::new();
    for (name, _) in sets.places() {
        let Some(listed) = sets.get(name) else { continue };
        let Some(file) = &listed.file else { continue };
        if listed.names_routes.get() {
            let items = &listed.set.strings;
            let unknown: Vec<&String> = items.iter().filter(|item| !routes.contains(item.as_str())).collect();
            // As with other conditions, a file in which nothing is right is another file.
            if !items.is_empty() && unknown.len() == items.len() {
                let what = format!("no row of `{}` is the name of a route", file.path.display());
                let mistake = Diagnostic::new(file.place, what).with_help("write the `name` of a route in each line");
                sources.add_mistake(mistake);
                continue;
            }
            for item in unknown {
                let fault = TextFault {
                    what: "no route has such a name".to_owned(),
                    help: "write the `name` of a route".to_owned(),
                };
                listed.reject_item(sources, item, &fault);
            }
        }
        let rejected = listed.rejected_rows(file);
        if let Some(mistakes) = rejected.describe() {
            let what = format!("rows of `{}` are skipped: {mistakes}", file.path.display());
            let warning = Diagnostic::new(file.place, what).with_help("correct these rows; the others apply");
            sources.add_warning(DiagnosticCode::SkippedRows, warning);
        }
        let (path, addresses) = (file.path.clone(), listed.addresses.clone());
        files.push(SetFile { name: name.to_owned(), path, addresses, rejected });
    }
    files
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
    let (mut networks, mut set, mut others, mut other_count) = (Vec::new(), NamedSet::default(), Vec::new(), 0);
    let mut wrong_rows = BTreeSet::new();
    for At { place, value } in items {
        match sources.parse_network(&value) {
            Ok(network) => networks.push(network),
            Err(fault) => {
                other_count += 1;
                if others.len() < OTHERS_MAX {
                    others.push((place, fault));
                    wrong_rows.insert(value.clone());
                }
            }
        }
        set.strings.insert(value);
    }
    let addresses = AddressSet::new(networks.into_iter().collect(), set.strings.len(), wrong_rows, other_count);
    ListedItem {
        set: Arc::new(set),
        addresses: Arc::new(addresses),
        others: Rc::new(others),
        other_count,
        reported: Rc::default(),
        names_routes: Rc::default(),
        file: None,
    }
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
    if text.contains('\0') {
        let message = format!("`{}` contains zero bytes, as after a crash during a write", path.display());
        sources.add_mistake(Diagnostic::new(node.place, message).with_help("write the file again"));
        return None;
    }
    let (mut items, mut start) = (Vec::new(), 0);
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
    let source = sources.add_source(path.display().to_string(), dir, text);
    let place = |at, item: &String| Place { file: source, start: at, end: at + item.len() };
    let items = items.into_iter().map(|(at, item)| At { place: place(at, &item), value: item });
    let listed = compile_item(items, sources);
    let (lines, skipped, faults) = Default::default();
    let file = ReadFile { path, place: node.place, source, lines, skipped, faults };
    Some(ListedItem { file: Some(Rc::new(file)), ..listed })
}

/// Returns a line without its comment. `#` starts one at the start of the line or after a space.
pub fn strip_comment(line: &str) -> &str {
    let starts = |at: &usize| *at == 0 || line[..*at].ends_with(char::is_whitespace);
    let comment = line.match_indices('#').map(|(at, _)| at).find(starts);
    &line[..comment.unwrap_or(line.len())]
}
