//! A limit as compiled: whose budget (`key`), how much (`rule`), and what else the config says of
//! it. Made by `config`, asked by the limiter.

use std::sync::Arc;

use crate::limit::afterwards::Afterwards;
use crate::limit::algo::Rule;
use crate::limit::key::{Cost, Key, KeyPart, Missing};
use crate::limit::overrides::Overrides;
use crate::limit::when::When;

/// One `[limit.NAME]`.
#[derive(Debug)]
pub struct Limit {
    pub name: String,
    pub rule: Arc<Rule>,
    pub key: Key,
    pub missing: Missing,
    pub cost: Cost,
    pub mode: Mode,
    pub on_error: OnError,
    /// Which requests it applies to.
    pub when: When,
    pub overrides: Overrides,
    /// The limit that must be exhausted before this one is asked.
    pub after: Option<String>,
    /// What it wants once the outcome of the request is known.
    pub afterwards: Option<Afterwards>,
}

impl Limit {
    /// Whether it looks at a header field.
    pub fn needs_headers(&self) -> bool {
        let of_key = self.key.0.iter().any(|part| matches!(part, KeyPart::Header(_) | KeyPart::Cookie(_)));
        of_key || matches!(self.cost, Cost::Header(_)) || self.when.needs_headers()
    }

    /// Whether it looks at a token.
    pub fn needs_claims(&self) -> bool {
        self.key.0.iter().any(|part| matches!(part, KeyPart::Claim(_))) || self.when.needs_claims()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Enforce,
    /// Decide and count, never refuse.
    Shadow,
}

/// Verdict when the store cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    Open,
    Closed,
    /// Its share of the rule on this gateway's own memory.
    Local,
}
