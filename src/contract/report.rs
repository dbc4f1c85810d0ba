//! The contract of a config as text and JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::config::Config;
use crate::contract::bound::formula;
use crate::contract::clauses::{Clause, Setting, UnitBound, list_clauses};
use crate::limiting::limit::Limit;
use crate::limiting::store::shares::KeyDivision;

/// Width of the text, in characters.
const WIDTH: usize = 110;
const INDENT: usize = 17;

/// The sentences about some limits of a config.
pub struct Contract<'c> {
    setting: Setting,
    limits: Vec<(&'c Limit, Vec<Clause>)>,
}

impl<'c> Contract<'c> {
    /// Describes the limits of `config` for which `wanted` is true. `gateways`: how many share the state; by default
    /// `gateways` of `[store]`.
    pub fn new(config: &'c Config, gateways: Option<i64>, wanted: impl Fn(&Limit) -> bool) -> Contract<'c> {
        let is_shared = config.store.is_shared();
        let gateways = if is_shared { gateways.unwrap_or(config.store.gateways).max(1) } else { 1 };
        let keys = KeyDivision::new(config.store.max_keys, &config.limits);
        let setting = Setting { is_shared, gateways, keys };
        let limits = config.limits.iter().filter(|limit| wanted(limit));
        Contract { setting, limits: limits.map(|limit| (&**limit, list_clauses(limit, config, setting))).collect() }
    }

    /// Returns the sentences about the limit `name`.
    pub fn clauses_of(&self, name: &str) -> &[Clause] {
        self.limits.iter().find(|(limit, _)| limit.name == name).map_or(&[], |(_, clauses)| clauses)
    }

    pub fn to_text(&self) -> String {
        let mut text = match (self.setting.is_shared, self.setting.gateways) {
            (false, _) => "State in memory: the numbers are those of each gateway on its own.\n".to_owned(),
            (true, 1) => "State in Redis: the numbers are those of all gateways together. Outages: with one gateway; \
                          --gateways N says others.\n"
                .to_owned(),
            (true, gateways) => {
                format!(
                    "State in Redis: the numbers are those of all gateways together. Outages: with {gateways} gateways.\n"
                )
            }
        };
        for (limit, clauses) in &self.limits {
            let key: Vec<String> = limit.key.0.iter().map(ToString::to_string).collect();
            let (name, algorithm, numbers) = (&limit.name, limit.rule.name(), limit.rule.describe_number());
            let _ = writeln!(text, "\nlimit {name} ({algorithm}, {numbers}, key {})", key.join(" and "));
            let _ = writeln!(text, "  {:<13}  {}", "formula", formula(&limit.rule));
            for clause in clauses {
                write_wrapped(&mut text, clause.kind.label(), &clause.text);
            }
        }
        text
    }

    pub fn to_json(&self) -> Value {
        let limits = self.limits.iter().map(|(limit, clauses)| {
            json!({
                "limit": limit.name,
                "algorithm": limit.rule.name(),
                "rule": limit.rule.describe_number(),
                "key": limit.key.0.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "mode": limit.mode.label(),
                "over": limit.over.text(),
                "formula": formula(&limit.rule),
                "clauses": clauses.iter().map(clause_json).collect::<Vec<_>>(),
            })
        });
        json!({
            "shared": self.setting.is_shared,
            "gateways": self.setting.gateways,
            "limits": limits.collect::<Vec<_>>(),
        })
    }
}

fn clause_json(clause: &Clause) -> Value {
    let most = clause
        .most
        .iter()
        .map(|UnitBound { interval_ms, units }| json!({ "interval_ms": interval_ms, "units": units }));
    json!({ "kind": clause.kind.label(), "text": clause.text, "most": most.collect::<Vec<_>>() })
}

/// Writes a sentence to the right of its kind, in lines of bounded width.
fn write_wrapped(text: &mut String, kind: &str, sentence: &str) {
    let mut column = INDENT;
    let _ = write!(text, "  {kind:<13} ");
    for word in sentence.split(' ') {
        if column + 1 + word.chars().count() > WIDTH {
            let _ = write!(text, "\n{:INDENT$}{word}", "");
            column = INDENT + word.chars().count();
        } else {
            let _ = write!(text, " {word}");
            column += 1 + word.chars().count();
        }
    }
    text.push('\n');
}
