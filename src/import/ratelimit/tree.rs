//! Reads the nested descriptors of a domain, and lists the rules that match like them.

use std::rc::Rc;

use crate::envoy::pattern::ValuePattern;
use crate::import::error::{ImportError, Result};
use crate::import::model::ImportedConfig;
use crate::import::ratelimit::add_remark;
use crate::import::syntax::shorten;
use crate::import::yaml::YamlNode;

/// Maximum number of rules of a domain.
const RULES_MAX: usize = 10_000;
/// The deepest nesting: descriptors have no more entries.
const DEPTH_MAX: usize = 16;

/// One rule: the descriptors that it matches, and what applies to them.
#[derive(Clone, Debug)]
pub struct FlatRule {
    pub entries: Vec<TreeEntry>,
    pub outcome: RuleOutcome,
    /// Names of rates that this one replaces.
    pub replaces: Vec<String>,
    pub file: Rc<str>,
    pub line: usize,
}

/// One level of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    pub key: String,
    /// `None` matches every value.
    pub value: Option<String>,
    /// All values that match share a budget.
    pub is_shared: bool,
}

#[derive(Clone, Debug)]
pub enum RuleOutcome {
    Exempt,
    Limited(ImportedRate),
}

#[derive(Clone, Debug)]
pub struct ImportedRate {
    pub requests: u64,
    pub unit: RateUnit,
    pub name: Option<String>,
    pub is_shadow: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateUnit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl RateUnit {
    const ALL: [(&'static str, RateUnit); 7] = [
        ("second", RateUnit::Second),
        ("minute", RateUnit::Minute),
        ("hour", RateUnit::Hour),
        ("day", RateUnit::Day),
        ("week", RateUnit::Week),
        ("month", RateUnit::Month),
        ("year", RateUnit::Year),
    ];

    /// Returns the unit in a rate of the config.
    pub fn word(self) -> &'static str {
        match self {
            RateUnit::Second => "s",
            RateUnit::Minute => "min",
            RateUnit::Hour => "h",
            RateUnit::Day => "day",
            RateUnit::Week => "7day",
            RateUnit::Month => "month",
            RateUnit::Year => "year",
        }
    }
}

impl FlatRule {
    /// Returns how many entries have this key.
    pub fn count_of(&self, key: &str) -> usize {
        self.entries.iter().filter(|entry| entry.key == key).count()
    }
}

impl TreeEntry {
    /// Returns whether each value has a budget of its own.
    pub fn has_own_budgets(&self) -> bool {
        !self.is_shared && self.value.as_ref().is_none_or(|value| value.contains('*'))
    }

    /// Returns how specific the entry is; smaller is more specific.
    fn rank(&self) -> u8 {
        match self.value.as_deref() {
            None => 2,
            Some(value) if value.contains('*') => 1,
            Some(_) => 0,
        }
    }

    /// Returns whether both entries match the same values.
    fn is_like(&self, other: &TreeEntry) -> bool {
        self.key == other.key && self.value == other.value
    }

    /// Returns whether some value may match both entries. Two patterns are assumed to have one.
    fn may_overlap(&self, other: &TreeEntry) -> bool {
        let overlaps = match (self.value.as_deref(), other.value.as_deref()) {
            (Some(own), Some(others)) if self.rank() == 0 && other.rank() == 0 => own == others,
            (Some(own), Some(pattern)) if self.rank() == 0 => ValuePattern::parse(pattern).matches(own.as_bytes()),
            _ => true,
        };
        self.key == other.key && overlaps
    }
}

/// Reads a list of descriptors. Rules come in the order in which the service tries them.
pub fn read_descriptors(list: &YamlNode, out: &mut ImportedConfig) -> Result<Vec<FlatRule>> {
    read_level(list, 1, out)
}

fn read_level(list: &YamlNode, depth: usize, out: &mut ImportedConfig) -> Result<Vec<FlatRule>> {
    let fault = |node: &YamlNode, what: String| Err(ImportError::new(&node.file, node.line, what));
    if depth > DEPTH_MAX {
        return fault(list, format!("descriptors are nested more than {DEPTH_MAX} deep"));
    }
    let is_too_long = |count| count > RULES_MAX;
    let too_long = || format!("there are more than {RULES_MAX} rules; import fewer descriptors");
    // Before each is compared with all others.
    if is_too_long(list.list().len()) {
        return fault(list, too_long());
    }
    let mut branches: Vec<(TreeEntry, Vec<FlatRule>)> = Vec::new();
    for node in list.list() {
        let entry = read_entry(node, out)?;
        if branches.iter().any(|(other, _)| other.is_like(&entry)) {
            return fault(node, format!("the descriptor `{}` occurs twice", shorten(&entry.key)));
        }
        let mut rules = Vec::new();
        let children = node.get("descriptors");
        let outcome = match (node.get("rate_limit"), children) {
            (Some(rate), _) => Some(read_rate(node, rate, out)?),
            // A descriptor with nothing below it is on the list of those without limits.
            (None, None) => Some(RuleOutcome::Exempt),
            (None, Some(_)) => None,
        };
        rules.extend(outcome.map(|outcome| FlatRule {
            entries: Vec::new(),
            outcome,
            replaces: node.get("rate_limit").map(read_replaced).unwrap_or_default(),
            file: node.file.clone(),
            line: node.line,
        }));
        if let Some(children) = children {
            rules.extend(read_level(children, depth + 1, out)?);
        }
        branches.push((entry, rules));
    }
    let others: Vec<TreeEntry> =
        branches.iter().map(|(entry, _)| entry.clone()).filter(|entry| entry.rank() > 0).collect();
    for (entry, _) in branches.iter_mut().filter(|(entry, _)| entry.value.as_deref() == Some("*")) {
        // Alone, the pattern means the same as no value. Next to other patterns, it is written as `**`, because `*`
        // would be tried last.
        let is_alone = others.iter().filter(|other| other.key == entry.key).count() == 1;
        entry.value = (!is_alone).then(|| "**".to_owned());
    }
    branches.sort_by_key(|(entry, _)| entry.rank());
    let mut flat_rules = Vec::new();
    for (place, (entry, rules)) in branches.iter().enumerate() {
        let hidden = branches[place + 1..].iter().filter(|(other, _)| entry.may_overlap(other));
        let mut all = rules.clone();
        // The service never looks there once this entry matches, so whatever this branch lacks is exempt.
        for rule in hidden.flat_map(|(_, rules)| rules) {
            let any = |entry: &TreeEntry| TreeEntry { value: None, ..entry.clone() };
            let entries = rule.entries.iter().map(any).collect();
            let (outcome, file, line) = (RuleOutcome::Exempt, rule.file.clone(), rule.line);
            let exempt = FlatRule { entries, outcome, replaces: Vec::new(), file, line };
            if !all.iter().any(|own| has_same_pattern(own, &exempt)) {
                all.push(exempt);
            }
        }
        for mut rule in all {
            rule.entries.insert(0, entry.clone());
            flat_rules.push(rule);
        }
        if is_too_long(flat_rules.len()) {
            return fault(list, too_long());
        }
    }
    Ok(flat_rules)
}

fn has_same_pattern(one: &FlatRule, other: &FlatRule) -> bool {
    one.entries.len() == other.entries.len() && one.entries.iter().zip(&other.entries).all(|(a, b)| a.is_like(b))
}

fn read_entry(node: &YamlNode, out: &mut ImportedConfig) -> Result<TreeEntry> {
    let key = match node.text_at(&["key"]) {
        Some(key) if !key.is_empty() => key.to_owned(),
        _ => return Err(ImportError::new(&node.file, node.line, "a descriptor has no `key`")),
    };
    let mut entry = TreeEntry { key, value: None, is_shared: false };
    for (name, node) in node.entries() {
        match (name.as_str(), node.text()) {
            ("key" | "rate_limit" | "descriptors" | "shadow_mode", _) => {}
            ("value", Some(value)) => entry.value = Some(value.to_owned()).filter(|value| !value.is_empty()),
            ("share_threshold", Some(text)) => entry.is_shared = is_true(text),
            ("detailed_metric" | "value_to_metric" | "quota_mode", Some("false")) => {}
            ("quota_mode", _) => {
                let why = "the limit refuses by itself; the old service refused only once all limits with `quota_mode` did. \
                           Set over = \"annotate\" if it must only report";
                add_remark(out, node, name, why);
            }
            ("detailed_metric" | "value_to_metric", _) => {
                add_remark(
                    out,
                    node,
                    name,
                    "metrics have no values of requests; give values that you know an [[rls]] and a limit of their own, and see \
                     the others with `sluicegate top` or `usage`",
                );
            }
            _ => add_remark(out, node, name, "not available, so it is left out"),
        }
    }
    Ok(entry)
}

/// Returns the names of the rates that a rate replaces.
fn read_replaced(rate: &YamlNode) -> Vec<String> {
    let items = rate.get("replaces").map_or(&[][..], YamlNode::list);
    items.iter().filter_map(|item| item.text_at(&["name"])).map(str::to_owned).collect()
}

fn is_true(text: &str) -> bool {
    text.eq_ignore_ascii_case("true")
}

fn read_rate(descriptor: &YamlNode, node: &YamlNode, out: &mut ImportedConfig) -> Result<RuleOutcome> {
    let fault = |what: &str| Err(ImportError::new(&node.file, node.line, what));
    for (name, node) in node.entries() {
        match name.as_str() {
            "unit" | "requests_per_unit" | "unlimited" | "name" | "replaces" => {}
            _ => add_remark(out, node, name, "not available, so it is left out"),
        }
    }
    if node.text_at(&["unlimited"]).is_some_and(is_true) {
        return Ok(RuleOutcome::Exempt);
    }
    let unit = node.text_at(&["unit"]).unwrap_or_default().to_ascii_lowercase();
    let Some((_, unit)) = RateUnit::ALL.into_iter().find(|(word, _)| *word == unit) else {
        return fault("`unit` must be second, minute, hour, day, week, month or year");
    };
    let requests = node.text_at(&["requests_per_unit"]).unwrap_or("0").parse::<u32>();
    let Ok(requests) = requests else { return fault("`requests_per_unit` must be an integer from 0 to 4294967295") };
    let name = node.text_at(&["name"]).filter(|name| !name.is_empty()).map(str::to_owned);
    let is_shadow = descriptor.text_at(&["shadow_mode"]).is_some_and(is_true);
    Ok(RuleOutcome::Limited(ImportedRate { requests: requests.into(), unit, name, is_shadow }))
}
