//! Whoever reads a page about a task wants to change the options of its configs: each has an example, and says when to
//! change it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use sluicegate::config::schema::lookup::locate_value;
use sluicegate::config::schema::root;
use sluicegate::config::schema::value_type::ValueType;
use toml::de::{DeTable, DeValue};

use super::prose::{PAGES, list_pages};

/// Options used on a page, with one page for each; and the names of those that do not teach.
#[derive(Default)]
struct UsedOptions {
    used: BTreeSet<String>,
    silent: BTreeMap<String, String>,
}

impl UsedOptions {
    fn add_config(&mut self, page: &str, text: &str) {
        // A fragment may be the part of a table.
        let Ok(document) = DeTable::parse(text) else { return };
        for (section, value) in document.get_ref() {
            let section: &str = section.get_ref();
            let Some(option) = root::TABLE.find(section) else { continue };
            let is_named = matches!(option.value_type(), ValueType::Named(_));
            let mut keys = Vec::new();
            match value.get_ref() {
                DeValue::Table(entries) if is_named => {
                    for (_, entry) in entries {
                        self.add_value(page, section, &mut keys, entry.get_ref());
                    }
                }
                value @ (DeValue::Table(_) | DeValue::Array(_))
                    if option.value_type().tables().iter().any(|table| table.is_section()) =>
                {
                    self.add_value(page, section, &mut keys, value);
                }
                value => self.add_value(page, root::TABLE.name, &mut vec![section], value),
            }
        }
    }

    fn add_value<'a>(&mut self, page: &str, section: &str, keys: &mut Vec<&'a str>, value: &'a DeValue<'_>) {
        if let Some(place) = locate_value(section, keys)
            && !place.is_entry
        {
            let name = format!("{section}.{}", keys.join("."));
            if place.option.sample.is_empty() {
                self.silent.insert(name.clone(), page.to_owned());
            }
            self.used.insert(name);
        }
        match value {
            DeValue::Table(table) => {
                for (key, value) in table {
                    keys.push(key.get_ref());
                    self.add_value(page, section, keys, value.get_ref());
                    keys.pop();
                }
            }
            DeValue::Array(items) => {
                for item in items.iter().filter(|item| item.get_ref().is_table()) {
                    self.add_value(page, section, keys, item.get_ref());
                }
            }
            _ => {}
        }
    }
}

/// Returns the blocks of configs of a page.
fn list_configs(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in text.lines() {
        match &mut block {
            Some(_) if line.starts_with("```") => blocks.extend(block.take()),
            Some(block) => *block += &format!("{line}\n"),
            None if line.starts_with("```toml") => block = Some(String::new()),
            None => {}
        }
    }
    blocks
}

#[test]
fn the_options_of_guides_teach() {
    let mut options = UsedOptions::default();
    let folders = ["docs/start", "docs/guides"];
    for page in list_pages(PAGES).iter().filter(|page| folders.iter().any(|folder| page.starts_with(folder))) {
        for config in list_configs(&fs::read_to_string(page).unwrap()) {
            options.add_config(page, &config);
        }
    }
    for example in fs::read_dir("examples").unwrap() {
        let path = example.unwrap().path();
        options.add_config(&path.display().to_string(), &fs::read_to_string(&path).unwrap());
    }
    let silent: Vec<String> = options.silent.iter().map(|(name, page)| format!("{name} ({page})")).collect();
    assert!(
        silent.is_empty(),
        "{} options of guides do not teach. Add `.teach(EXAMPLE, WHEN)` to their rows in src/config/schema:\n{}",
        silent.len(),
        silent.join("\n")
    );
    assert!(options.used.len() > 150, "only {} options were found", options.used.len());
}
