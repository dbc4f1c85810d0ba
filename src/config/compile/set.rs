//! `[set.NAME]`: a list of networks, written in place or in a file of its own. Called by
//! `compile`.

use std::sync::Arc;

use super::{Named, Names};
use crate::config::reader::Section;
use crate::config::report::{Diagnostic, Kind, Place};
use crate::config::schema;
use crate::config::tree::Value;
use crate::config::values::{self, Fault};
use crate::net::IpSet;

pub fn sets(named: Vec<Named>) -> Names<Arc<IpSet>> {
    let mut sets = Names::new(schema::SET.name);
    for Named { name, place, section } in named {
        let set = set(&section).map(Arc::new);
        section.finish();
        sets.insert(name, place, set);
    }
    sets
}

fn set(section: &Section) -> Option<IpSet> {
    const HELP: &str = "give it values = [\"10.0.0.0/8\"], or file = \"PATH\" with one item per line";
    match (section.node("values"), section.node("file")) {
        (Some(_), None) => {
            let values = section.strings("values", values::network)?;
            Some(values.into_iter().map(|at| at.value).collect())
        }
        (None, Some(_)) => file(section),
        (Some(_), Some(file)) => section.fault("file", file, "it has `values` as well", "keep one of the two"),
        (None, None) => section.absent(format!("{} has neither values nor a file", section.title), HELP),
    }
}

/// One item per line; `#` starts a comment.
fn file(section: &Section) -> Option<IpSet> {
    let path = section.string("file")?;
    let node = section.node("file")?;
    let sources = section.sources;
    let path = sources.resolve(node.place.file, &path);
    let text = match sources.read(&path) {
        Ok(text) => text,
        Err(error) if matches!(&node.value, Value::String(text) if text.secret) => {
            return section.fault("file", node, &error, "");
        }
        Err(error) => {
            let message = format!("cannot read `{}`: {error}", path.display());
            sources.mistake(
                Diagnostic::new(node.place, message)
                    .help("create the file, or correct its path (relative to this file)"),
            );
            return None;
        }
    };
    let (mut networks, mut mistakes, mut start) = (Vec::new(), Vec::new(), 0);
    for line in text.split_inclusive('\n') {
        let item = line.split('#').next().unwrap_or_default();
        let at = start + item.len() - item.trim_start().len();
        let item = item.trim();
        start += line.len();
        match values::network(item) {
            _ if item.is_empty() => {}
            Ok(network) => networks.push(network),
            Err(fault) => mistakes.push((at, at + item.len(), fault)),
        }
    }
    if mistakes.is_empty() {
        return Some(networks.into_iter().collect());
    }
    let dir = path.parent().map(ToOwned::to_owned).unwrap_or_default();
    let file = sources.add(path.display().to_string(), dir, text);
    for (start, end, Fault { what, help }) in mistakes {
        sources.mistake(Diagnostic::new(Place { file, start, end }, what).kind(Kind::Wrong).help(help));
    }
    None
}
