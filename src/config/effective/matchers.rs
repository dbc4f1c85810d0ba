//! Conditions of routes as they may be shown: values with `${...}` as they are written, and without secrets.

use crate::config::Config;
use crate::config::diagnostics::secret_options;
use crate::config::effective::{WrittenConfig, secrets};
use crate::config::schema::route;
use crate::config::tree::{Node, Table, Value};

/// The conditions of a route as they are written.
pub struct WrittenMatcher<'a>(Option<&'a Table>);

impl Config {
    /// Returns the conditions of the route at `index`.
    pub fn written_matcher(&self, index: usize) -> WrittenMatcher<'_> {
        WrittenMatcher(self.written.find_route(index))
    }
}

impl WrittenConfig {
    /// Returns the route at `index`, counted over all files.
    fn find_route(&self, index: usize) -> Option<&Table> {
        let mut left = index;
        for document in self.documents.iter() {
            let Some(Value::Array(routes)) = document.get(route::TABLE.name).map(|entry| &entry.node.value) else {
                continue;
            };
            match routes.get(left).map(|node| &node.value) {
                Some(Value::Table(table)) => return Some(table),
                Some(_) => return None,
                None => left -= routes.len(),
            }
        }
        None
    }
}

impl WrittenMatcher<'_> {
    /// Returns the path with its mark, if it contains `${...}`.
    pub fn path_with_variables(&self) -> Option<String> {
        shown_variables(&self.0?.get(route::PATH.name)?.node)
    }

    /// Returns the host pattern `host` as it may be shown.
    pub fn shown_host(&self, host: &str) -> String {
        let node = self.0.and_then(|table| table.get(route::HOST.name)).map(|entry| &entry.node);
        let items = match node.map(|node| &node.value) {
            Some(Value::Array(items)) => items.as_slice(),
            _ => node.map(std::slice::from_ref).unwrap_or_default(),
        };
        let is_same = |node: &&Node| match &node.value {
            Value::String(text) => text.value.eq_ignore_ascii_case(host),
            _ => false,
        };
        items.iter().find(is_same).and_then(shown_variables).unwrap_or_else(|| host.to_owned())
    }

    /// Returns the pattern for the header `name`, as it may be shown.
    pub fn shown_header(&self, name: &str, pattern: &str) -> String {
        if secret_options::is_secret(route::TABLE.name, &[route::HEADER.name, name]) {
            return secrets::MASK.to_owned();
        }
        let headers = match self.0.and_then(|table| table.get(route::HEADER.name)).map(|entry| &entry.node.value) {
            Some(Value::Table(table)) => table.entries.as_slice(),
            _ => &[],
        };
        let written = headers.iter().find(|entry| entry.key.eq_ignore_ascii_case(name));
        let written = written.and_then(|entry| shown_variables(&entry.node));
        written.unwrap_or_else(|| pattern.to_owned())
    }
}

/// Returns the text of a value as it may be shown, if it contains `${...}`.
fn shown_variables(node: &Node) -> Option<String> {
    match &node.value {
        Value::String(text) if text.written.is_some() => Some(secrets::mask_text(text)),
        _ => None,
    }
}
