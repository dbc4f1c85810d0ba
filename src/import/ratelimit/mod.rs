//! Translates configs of envoyproxy/ratelimit, the rate limit service of Envoy.
//!
//! Input: YAML documents with a domain and nested descriptors, also in Kubernetes ConfigMaps. Output: `[[rls]]` sections with a limit for each
//! rate, and a remark about each setting that has no equivalent.
//!
//! - `tree`: reads the descriptors, and lists the rules that match like the tree.
//!
//! The service goes down the tree without going back: once a value of its own matches, less specific descriptors beside
//! it do not count, even if the rest matches only there. Sluicegate applies the most specific rule that matches as a
//! whole. Rules without limits make up the difference.

mod tree;

use indexmap::IndexMap;

use crate::import::error::{ImportError, Result};
use crate::import::model::ImportedConfig;
use crate::import::ratelimit::tree::{FlatRule, ImportedRate, RateUnit, RuleOutcome, TreeEntry, read_descriptors};
use crate::import::syntax::shorten;
use crate::import::text::{clean_name, format_array};
use crate::import::yaml::{YamlNode, YamlValue, parse_text};
use crate::text::quote_literal;

/// The status of refusals. The service sends none; Envoy chooses it.
const STATUS: u16 = 429;
const PEERS_NOTE: &str = "Write the addresses of your Envoys in `trusted_proxies`: only they get answers.";
const STORE_NOTE: &str = "For budgets that several gateways share, set `url` of [store] to your Redis. The counters of the old service are not read.";
const CHARGE_NOTE: &str = "A refused request is charged to no limit; the old service counted it in all that matched.";
const MERGE_NOTE: &str = "Several documents have the same domain, and their descriptors are joined. The old service does so only with MERGE_DOMAIN_CONFIG=true, and does not start otherwise.";
const MONTHS: &str =
    "months and years are those of the calendar; the old service counted 30 and 365 days unless configured otherwise";

/// Translates all domains.
pub fn translate_domains(documents: &[YamlNode], out: &mut ImportedConfig) -> Result<()> {
    out.server.push("trusted_proxies = [\"127.0.0.1\"]".to_owned());
    out.listeners.push(vec!["address = \"0.0.0.0:8081\"".to_owned(), "serve = \"grpc\"".to_owned()]);
    [PEERS_NOTE, STORE_NOTE, CHARGE_NOTE].iter().for_each(|note| out.add_note(note));
    let mut domains: IndexMap<String, YamlNode> = IndexMap::new();
    for document in unpack_config_maps(documents, out) {
        let domain = match document.text_at(&["domain"]) {
            Some(domain) if !domain.is_empty() => domain,
            _ => return Err(ImportError::new(&document.file, document.line, "there is no `domain`")),
        };
        let domain = domain.to_owned();
        for (key, node) in document.entries() {
            if !["domain", "descriptors"].contains(&key.as_str()) {
                add_remark(out, node, key, "not available, so it is left out");
            }
        }
        let place = document.get("descriptors").unwrap_or(&document);
        let own = document.get("descriptors").map_or(&[][..], YamlNode::list).to_vec();
        match domains.get_mut(&domain) {
            Some(YamlNode { value: YamlValue::List(descriptors), .. }) => {
                out.add_note(MERGE_NOTE);
                descriptors.extend(own);
            }
            _ => {
                let list = YamlNode { value: YamlValue::List(own), line: place.line, file: place.file.clone() };
                domains.insert(domain, list);
            }
        }
    }
    for (domain, descriptors) in &domains {
        let rules = read_descriptors(descriptors, out)?;
        // A rate may replace those of later rules, so all limits get their names first.
        let limits: Vec<Option<String>> = rules
            .iter()
            .map(|rule| match &rule.outcome {
                RuleOutcome::Exempt => None,
                RuleOutcome::Limited(rate) => Some(define_limit(domain, rule, rate, out)),
            })
            .collect();
        let names = NamedLimits { rules: &rules, limits: &limits };
        for (rule, limit) in rules.iter().zip(&limits) {
            write_rule(domain, rule, limit.as_deref(), &names, out);
        }
        if rules.is_empty() {
            add_remark(out, descriptors, domain, "the domain has no descriptors, so it is left out");
        }
    }
    match out.rls.is_empty() {
        true => Err(ImportError::new("the files", 0, "no descriptor has a rate, so there is nothing to import")),
        false => Ok(()),
    }
}

/// Replaces each Kubernetes ConfigMap by the documents in its `data`. Other files there, and other manifests, are skipped.
/// A file that may be a config and cannot be read gets a comment.
fn unpack_config_maps(documents: &[YamlNode], out: &mut ImportedConfig) -> Vec<YamlNode> {
    const ENCODED: &str = "the import does not decode this; export the files, and import them";
    let mut configs = Vec::new();
    for document in documents {
        match document.text_at(&["kind"]) {
            Some("ConfigMap") => {
                for (name, node) in document.get("data").map_or(&[][..], YamlNode::entries) {
                    configs.extend(read_config_file(document, name, node, out));
                }
                for (name, node) in document.get("binaryData").map_or(&[][..], YamlNode::entries) {
                    add_remark(out, node, &format!("binaryData: {name}"), ENCODED);
                }
            }
            Some("Secret") => {
                for (name, node) in document.get("stringData").map_or(&[][..], YamlNode::entries) {
                    configs.extend(read_config_file(document, name, node, out));
                }
                for (name, node) in document.get("data").map_or(&[][..], YamlNode::entries) {
                    add_remark(out, node, &format!("Secret: {name}"), ENCODED);
                }
            }
            Some(_) if document.get("apiVersion").is_some() => {}
            _ => configs.push(document.clone()),
        }
    }
    configs
}

/// Reads the configs in a file of a ConfigMap or a Secret. A file that is not YAML is none.
fn read_config_file(document: &YamlNode, name: &str, node: &YamlNode, out: &mut ImportedConfig) -> Vec<YamlNode> {
    let file = format!("{}:{}: {}", document.file, node.line, shorten(name));
    let is_config = |inner: &YamlNode| ["domain", "descriptors"].iter().any(|key| inner.get(key).is_some());
    match parse_text(node.text().unwrap_or(""), file.into()) {
        Ok(inner) => inner.into_iter().filter(is_config).collect(),
        Err(error) => {
            add_remark(out, node, name, &format!("{error}, so this file is skipped"));
            Vec::new()
        }
    }
}

/// Adds a remark about a setting.
fn add_remark(out: &mut ImportedConfig, node: &YamlNode, what: &str, why: &str) {
    out.remarks.add_text(format!("{}:{}: `{}`: {why}", shorten(&node.file), node.line, shorten(what)));
}

/// The rules of a domain with the limits that they have in the result.
struct NamedLimits<'r> {
    rules: &'r [FlatRule],
    limits: &'r [Option<String>],
}

impl NamedLimits<'_> {
    /// Returns the limits of rates called `name`.
    fn find(&self, name: &str) -> impl Iterator<Item = &String> {
        let is_called = move |rule: &FlatRule| match &rule.outcome {
            RuleOutcome::Limited(rate) => rate.name.as_deref() == Some(name),
            RuleOutcome::Exempt => false,
        };
        self.rules
            .iter()
            .zip(self.limits)
            .filter(move |(rule, _)| is_called(rule))
            .filter_map(|(_, limit)| limit.as_ref())
    }
}

fn write_rule(domain: &str, rule: &FlatRule, limit: Option<&str>, names: &NamedLimits, out: &mut ImportedConfig) {
    let limits: Vec<String> = limit.into_iter().map(str::to_owned).collect();
    let is_bare =
        |key: &str| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    let entry = |entry: &TreeEntry| {
        let key = if is_bare(&entry.key) { entry.key.clone() } else { quote_literal(&entry.key) };
        format!("{{ {key} = {} }}", quote_literal(entry.value.as_deref().unwrap_or("*")))
    };
    let entries: Vec<String> = rule.entries.iter().map(entry).collect();
    let descriptor = match entries.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    let mut lines = vec![
        format!("domain = {}", quote_literal(domain)),
        format!("descriptor = {descriptor}"),
        format!("limits = {}", format_array(&limits)),
    ];
    let mut replaces: Vec<String> = Vec::new();
    for name in &rule.replaces {
        let found: Vec<&String> = names.find(name).filter(|found| !limits.contains(found)).collect();
        if found.is_empty() {
            let why = "no other rate of the domain has this name, so it replaces nothing";
            out.remarks.add_text(format!("{}:{}: `{}`: {why}", shorten(&rule.file), rule.line, shorten(name)));
        }
        let is_new: Vec<String> = found.into_iter().filter(|found| !replaces.contains(found)).cloned().collect();
        replaces.extend(is_new);
    }
    if !replaces.is_empty() {
        lines.push(format!("replaces = {}", format_array(&replaces)));
    }
    out.rls.push(lines);
}

fn define_limit(domain: &str, rule: &FlatRule, rate: &ImportedRate, out: &mut ImportedConfig) -> String {
    let varying: Vec<&TreeEntry> = rule.entries.iter().filter(|entry| entry.has_own_budgets()).collect();
    let mut lines = Vec::new();
    let is_calendar = matches!(rate.unit, RateUnit::Month | RateUnit::Year);
    if is_calendar {
        out.remarks.add_text(MONTHS.to_owned());
        lines.push("algorithm = \"calendar\"".to_owned());
    } else {
        lines.extend(["algorithm = \"fixed_window\"".to_owned(), "anchor = \"clock\"".to_owned()]);
    }
    let occurrence = find_repeated(rule, &varying);
    // The budget of a rate of 0, or of a key that cannot be translated, refuses every request.
    let is_closed = rate.requests == 0 || occurrence == Occurrence::Several;
    lines.push(format!("rate = \"{}/{}\"", rate.requests.max(1), rate.unit.word()));
    let mut names: Vec<&str> = Vec::with_capacity(varying.len());
    for entry in &varying {
        if !names.contains(&entry.key.as_str()) {
            names.push(&entry.key);
        }
    }
    if occurrence == Occurrence::Several {
        let why =
            "several entries of one name have budgets of their own, which a key cannot have; every request is refused";
        out.remarks.add_text(format!(
            "{}:{}: `{}`: {why}",
            shorten(&rule.file),
            rule.line,
            shorten(names.first().unwrap_or(&""))
        ));
    }
    let first = rule.entries.first().map_or("", |entry| entry.key.as_str());
    let parts: Vec<String> = match (names.is_empty(), is_closed) {
        (false, _) => names.iter().map(|name| format!("descriptor:{name}")).collect(),
        (true, true) => vec![format!("descriptor:{first}")],
        (true, false) => vec!["all".to_owned()],
    };
    lines.push(format!("key = {}", format_array(&parts)));
    match occurrence {
        Occurrence::Single if !is_closed || rule.count_of(first) < 2 => {}
        Occurrence::First => lines.push("repeated = \"first\"".to_owned()),
        _ => lines.push("repeated = \"last\"".to_owned()),
    }
    if rate.is_shadow {
        lines.push("mode = \"shadow\"".to_owned());
    }
    if is_closed {
        let any: Vec<&str> = parts.iter().map(|_| "*").collect();
        lines.push(format!("overrides = [{{ key = {}, rate = 0 }}]", format_array(&any)));
    }
    let name = rate.name.clone().unwrap_or_else(|| {
        let values = rule.entries.iter().map(|entry| match &entry.value {
            Some(value) if value != "*" => format!("-{}-{value}", entry.key),
            _ => format!("-{}", entry.key),
        });
        values.fold(domain.to_owned(), |name, part| name + &part)
    });
    out.define_limit(format!("rls {domain} {}:{}", rule.file, rule.line), &clean_name(&name), lines, STATUS).0
}

/// Which of several entries with one name has budgets of its own.
#[derive(Clone, Copy, PartialEq)]
enum Occurrence {
    /// Names of entries with own budgets occur once.
    Single,
    First,
    Last,
    Several,
}

fn find_repeated(rule: &FlatRule, varying: &[&TreeEntry]) -> Occurrence {
    let mut result = Occurrence::Single;
    for entry in varying.iter().filter(|entry| rule.count_of(&entry.key) > 1) {
        let places: Vec<usize> = (0..rule.entries.len()).filter(|at| rule.entries[*at].key == entry.key).collect();
        let own: Vec<&usize> = places.iter().filter(|at| rule.entries[**at].has_own_budgets()).collect();
        let occurrence = match own.as_slice() {
            [one] if Some(*one) == places.first() => Occurrence::First,
            [one] if Some(*one) == places.last() => Occurrence::Last,
            _ => Occurrence::Several,
        };
        result = if result == Occurrence::Single || result == occurrence { occurrence } else { Occurrence::Several };
    }
    result
}
