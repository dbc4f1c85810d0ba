//! A limit as compiled: whose budget (`key`), how much (`rule`), and what else the config says of
//! it. Made by `config`, asked by the limiter.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::Deref;
use std::sync::Arc;

use crate::labels::labels;
use crate::limit::afterwards::Afterwards;
use crate::limit::algo::Rule;
use crate::limit::integers::{NotInteger, Unclear};
use crate::limit::key::{Cost, Key, Missing};
use crate::limit::names::{Frame, LimitNames, Unnamed};
use crate::limit::overrides::Overrides;
use crate::limit::refuse::Refuse;
use crate::limit::source::{Facts, Repeated, Source, SourceOrigin, SourceValues};
use crate::limit::when::When;

/// All limits of a config, found by their names, shared by all that follow it.
#[derive(Debug, Default)]
pub struct LimitTable {
    pub all: Vec<Arc<Limit>>,
    by_name: HashMap<String, usize>,
}

impl LimitTable {
    pub fn new(all: Vec<Arc<Limit>>) -> LimitTable {
        let by_name = all.iter().enumerate().map(|(place, limit)| (limit.name.clone(), place)).collect();
        LimitTable { all, by_name }
    }

    pub fn named(&self, name: &str) -> Option<&Arc<Limit>> {
        self.place(name).map(|place| &self.all[place])
    }

    /// Among all.
    pub fn place(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }
}

impl Deref for LimitTable {
    type Target = [Arc<Limit>];

    fn deref(&self) -> &[Arc<Limit>] {
        &self.all
    }
}

/// One `[limit.NAME]`.
#[derive(Debug, PartialEq)]
pub struct Limit {
    pub name: String,
    /// Of the name alone; see [`id`].
    pub id: u64,
    pub rule: Arc<Rule>,
    pub key: Key,
    pub missing: Missing,
    /// Which one counts of what it reads of a request, where that stands there more than once.
    pub repeated: Repeated,
    /// What happens when a request states something else where the limit reads an integer.
    pub not_integer: NotInteger,
    pub cost: Cost,
    pub mode: Mode,
    pub on_error: OnError,
    /// Which requests it applies to.
    pub when: When,
    pub overrides: Overrides,
    /// The limit that must be exhausted before this one is asked.
    pub after: Option<String>,
    /// Its share of the keys in memory; without one it has a part of what the others leave.
    pub max_keys: Option<usize>,
    /// What it wants once the outcome of the request is known.
    pub afterwards: Option<Afterwards>,
    /// How it refuses; `None`: as the route does.
    pub refuse: Option<Box<Refuse>>,
}

impl Limit {
    /// What names the budget of whom `facts` name; `values`: as overrides do, too.
    ///
    /// # Errors
    /// They name none.
    pub fn names(&self, prefix: &str, facts: &impl SourceValues, values: bool) -> Result<LimitNames, Unnamed> {
        let frame = Frame { prefix, limit: &self.name, algorithm: self.rule.name() };
        self.key.names(frame, facts, self.missing, self.repeated, values)
    }

    /// Whether its `when` takes the request.
    ///
    /// # Errors
    /// As `When::holds`.
    pub fn applies(&self, facts: &Facts) -> Result<bool, Unclear> {
        self.when.holds(facts, self.repeated, self.not_integer)
    }

    /// What the request costs.
    ///
    /// # Errors
    /// As [`Cost::of`].
    pub fn cost_of(&self, facts: &Facts) -> Result<i64, Unclear> {
        self.cost.of(facts, self.repeated, self.not_integer)
    }

    /// What it reads of a request that has to be an integer.
    pub fn integers(&self) -> impl Iterator<Item = &Source> {
        self.when.integers().chain(self.cost.source())
    }

    /// How it refuses on a route that says `of_route`.
    pub fn refuse<'a>(&'a self, of_route: &'a Refuse) -> &'a Refuse {
        self.refuse.as_deref().unwrap_or(of_route)
    }

    /// Whether the end of a request may change what it takes by `rule`.
    pub fn may_hold(&self, rule: &Rule) -> bool {
        self.afterwards.is_some() || rule.delays()
    }

    /// What it reads of a request.
    fn sources(&self) -> impl Iterator<Item = &Source> {
        self.key.sources().chain(self.when.sources()).chain(self.cost.source())
    }

    /// The parameters of a route's template that it looks at.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        self.sources().filter_map(|source| match source {
            Source::Param(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Whether what it reads of a request may stand there more than once.
    pub fn reads_repeatable(&self) -> bool {
        self.sources().any(|source| match source.kind().origin() {
            SourceOrigin::Target | SourceOrigin::Fields | SourceOrigin::Token | SourceOrigin::Body => true,
            SourceOrigin::Request | SourceOrigin::Certificate => false,
        })
    }

    /// Whether it looks at a header field.
    pub fn needs_headers(&self) -> bool {
        self.sources().any(|source| source.kind().origin() == SourceOrigin::Fields)
    }

    /// Whether it looks at a token.
    pub fn needs_claims(&self) -> bool {
        self.sources().any(|source| source.kind().origin() == SourceOrigin::Token)
    }
}

/// A number by which stores know the limit `name`, the same in every config.
pub fn id(name: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(name)
}

labels! {
    Mode:
    Enforce = "enforce",
    /// Decide and count, never refuse.
    Shadow = "shadow",
}

labels! {
    /// Verdict when the store cannot be asked.
    OnError:
    Open = "open",
    Closed = "closed",
    /// Its share of the rule on this gateway's own memory.
    Local = "local",
}

#[cfg(test)]
impl Limit {
    /// For all together, with this rule and no more.
    pub fn bare(name: &str, rule: Rule, mode: Mode) -> Arc<Limit> {
        Arc::new(Limit {
            name: name.to_owned(),
            id: id(name),
            rule: Arc::new(rule),
            key: Key(vec![crate::limit::key::KeyPart::All]),
            missing: Missing::Skip,
            repeated: Repeated::default(),
            not_integer: NotInteger::default(),
            cost: Cost::Fixed(1),
            mode,
            on_error: OnError::Local,
            when: When::default(),
            overrides: Overrides::default(),
            after: None,
            max_keys: None,
            afterwards: None,
            refuse: None,
        })
    }
}
