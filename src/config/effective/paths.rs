//! Options whose values are paths of files. Relative ones start at the file that contains them, so they are shown as
//! absolute paths: a copy of the config in another directory means the same. For the same reason, they are compared as
//! absolute paths.

use std::path::Path;

use crate::config::effective::WrittenConfig;
use crate::config::schema::lookup::locate_value;
use crate::config::schema::row::ConfigOption;
use crate::config::schema::value_type::ValueType;
use crate::config::substitute::Text;
use crate::config::tree::{Node, Value};

/// Returns the option at these keys if it is a path.
pub fn find_path_option(kind: &str, keys: &[&str]) -> Option<&'static ConfigOption> {
    let option = locate_value(kind, keys)?.option;
    matches!(option.value_type().item(), ValueType::Path(_)).then_some(option)
}

impl WrittenConfig {
    /// Returns the value of an option with absolute paths, so that two ways of writing a path are equal; `None` if it
    /// has no path. `keys` start after the section and its name.
    pub(super) fn make_paths_absolute(&self, kind: &str, keys: &[&str], node: &Node) -> Option<Node> {
        let value = match &node.value {
            Value::String(text) => {
                let option = find_path_option(kind, keys)?;
                let text = Text { value: text.value.clone(), written: None };
                Value::String(Text { value: self.absolute_path(option, node.place.file, &text), written: None })
            }
            Value::Array(items) => {
                let absolute: Vec<_> = items.iter().map(|item| self.make_paths_absolute(kind, keys, item)).collect();
                absolute.iter().any(Option::is_some).then_some(())?;
                let pairs = items.iter().zip(absolute);
                Value::Array(pairs.map(|(item, absolute)| absolute.unwrap_or_else(|| item.clone())).collect())
            }
            Value::Table(table) => {
                let (mut absolute, mut has_path) = (table.clone(), false);
                for entry in &mut absolute.entries {
                    let keys = [keys, &[entry.key.as_str()]].concat();
                    if let Some(node) = self.make_paths_absolute(kind, &keys, &entry.node) {
                        (entry.node, has_path) = (node, true);
                    }
                }
                has_path.then_some(Value::Table(absolute))?
            }
            _ => return None,
        };
        Some(Node { place: node.place, value })
    }

    /// Returns the path in a text of source `file`, absolute, as TOML writes it: with `${...}` not replaced.
    pub(super) fn absolute_path(&self, option: &ConfigOption, file: usize, text: &Text) -> String {
        let text_in_file = text.written.as_deref().unwrap_or(&text.value);
        let is_path = !option.keywords.contains(&text_in_file) && !text_in_file.contains("://");
        if text_in_file.is_empty() || !is_path || text_in_file.starts_with(['/', '$']) {
            return text_in_file.to_owned();
        }
        self.resolve(file, text_in_file, text.written.is_some())
    }

    /// Makes the paths of `${file:PATH}` in a text absolute.
    pub(super) fn absolute_references(&self, file: usize, written: &str) -> String {
        let mut parts = written.split("${file:");
        let mut result = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let is_literal = result.ends_with('$');
            result.push_str("${file:");
            match part.split_once('}').filter(|_| !is_literal) {
                Some((path, rest)) => {
                    result.push_str(&self.resolve(file, path.trim(), true));
                    result.push('}');
                    result.push_str(rest);
                }
                None => result.push_str(part),
            }
        }
        result
    }

    fn resolve(&self, file: usize, path: &str, is_written: bool) -> String {
        let dir = self.texts.get(file).map_or(Path::new(""), |source| &source.dir);
        let path = dir.join(path);
        let absolute = std::path::absolute(&path).unwrap_or(path).to_string_lossy().into_owned();
        if is_written { absolute } else { absolute.replace("${", "$${") }
    }
}
