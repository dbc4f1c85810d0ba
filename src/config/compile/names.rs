//! Sections with names, `[KIND.NAME]`, and their compiled values.

use std::collections::HashMap;

use crate::config::closest::find_closest;
use crate::config::diagnostics::report::{Diagnostic, MistakeKind, Place};
use crate::config::reader::Section;
use crate::config::source::SourceTexts;

/// One section `[KIND.NAME]`.
pub struct NamedSection<'a> {
    pub name: &'a str,
    pub place: Place,
    pub section: Section<'a>,
}

/// Compiled sections of one kind. A broken section still counts as defined, so that its users are not reported as
/// well.
pub struct Definitions<T> {
    kind: &'static str,
    order: Vec<String>,
    values: HashMap<String, (Place, Option<T>)>,
}

impl<T: Clone> Definitions<T> {
    pub fn new(kind: &'static str) -> Definitions<T> {
        Definitions { kind, order: Vec::new(), values: HashMap::new() }
    }

    pub fn insert(&mut self, name: &str, place: Place, value: Option<T>) {
        self.order.push(name.to_owned());
        self.values.insert(name.to_owned(), (place, value));
    }

    pub fn get(&self, name: &str) -> Option<T> {
        self.values.get(name)?.1.clone()
    }

    /// Returns the names with their places, in file order.
    pub fn places(&self) -> impl Iterator<Item = (&str, Place)> {
        self.order.iter().filter_map(|name| Some((name.as_str(), self.values.get(name)?.0)))
    }

    pub fn find(&self, sources: &SourceTexts, place: Place, name: &str) -> Option<T> {
        if let Some((_, value)) = self.values.get(name) {
            return value.clone();
        }
        let kind = self.kind;
        let mistake = Diagnostic::new(place, format!("undefined {kind} `{name}`"))
            .with_kind(MistakeKind::Absent)
            .with_label("not defined");
        let candidate = find_closest(name, self.order.iter().map(String::as_str));
        sources.add_mistake(match candidate.and_then(|candidate| self.values.get_key_value(candidate)) {
            Some((candidate, (defined, _))) => mistake
                .with_related(*defined, format!("`{candidate}` is defined here"))
                .with_help(format!("did you mean `{candidate}`?")),
            None => mistake.with_help(format!("define it with [{kind}.{name}]")),
        });
        None
    }

    pub fn into_values(mut self) -> Vec<T> {
        let values = self.order.iter().filter_map(|name| self.values.remove(name));
        values.filter_map(|(_, value)| value).collect()
    }
}
