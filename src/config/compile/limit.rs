//! `[limit.NAME]`: one function per algorithm, with the bounds that keep its arithmetic exact.
//! Called by `compile`.

use std::collections::HashMap;
use std::sync::Arc;

use super::afterwards::afterwards;
use super::server::ON_ERROR;
use super::set::Listed;
use super::{Named, Names, limit_flow, overrides, when, window};
use crate::config::reader::{At, Section};
use crate::config::report::Diagnostic;
use crate::config::schema;
use crate::config::tree::{Node, Value};
use crate::config::values::{self, Fault, Rate, fault};
use crate::limit::algo::fixed_window::FixedWindow;
use crate::limit::algo::gcra::Gcra;
use crate::limit::algo::token_bucket::TokenBucket;
use crate::limit::algo::{NAMES, Rule};
use crate::limit::key::{COST_MAX, Cost, Key, KeyPart};
use crate::limit::rule::{Limit, Missing, Mode, OnError};

/// The parameters that only some algorithms have.
const ALGORITHM_KEYS: &[(&str, &[&str])] = &[
    ("token_bucket", &["burst", "debt", "refill", "start"]),
    ("fixed_window", &["anchor"]),
    ("gcra", &["burst"]),
    ("sliding_window", &["precision"]),
    ("calendar", &["zone", "resets_at", "week_start"]),
    ("sliding_log", &["state"]),
    ("leaky_bucket", &["queue", "nodelay"]),
    ("concurrency", &["in_flight", "lease"]),
];

/// Operands of a division stay below this: up to here the quotient of two doubles, rounded down
/// or up, is that of the integers.
pub const EXACT: i64 = 1 << 52;
const KEY_PARTS_MAX: usize = 16;
pub const JWT_HELP: &str = "add one:\n\n[jwt]\nkey = \"${file:jwt.pem}\"\nalgorithms = [\"ES256\"]";

/// What the rest of the config says that limits refer to.
pub struct Context<'a> {
    pub on_error: OnError,
    pub sets: &'a Names<Listed>,
    pub has_jwt: bool,
}

pub fn limits(named: Vec<Named>, context: &Context) -> Names<Arc<Limit>> {
    let mut limits = Names::new(schema::LIMIT.name);
    let mut after: HashMap<&str, At<String>> = HashMap::new();
    let mut sources = None;
    for Named { name, place, section } in named {
        let base = section.parse_at("after", |text| Ok(text.to_owned()));
        let limit = limit(&section, name, context, base.as_ref()).map(Arc::new);
        after.extend(base.map(|base| (name, base)));
        sources = Some(section.sources);
        section.finish();
        limits.insert(name, place, limit);
    }
    for (name, At { place, value }) in &after {
        let Some(sources) = sources else { break };
        limits.find(sources, *place, value);
        let mut next = value.as_str();
        for _ in 0..after.len() {
            if next == *name {
                let message = format!("`after` in [limit.{name}]: it comes after itself");
                let help = "one limit must come first, without `after`";
                sources.mistake(Diagnostic::new(*place, message).help(help));
                break;
            }
            let Some(At { value, .. }) = after.get(next) else { break };
            next = value;
        }
    }
    limits
}

fn limit(section: &Section, name: &str, context: &Context, after: Option<&At<String>>) -> Option<Limit> {
    let algorithms: Vec<(&str, &str)> = NAMES.iter().map(|name| (*name, *name)).collect();
    let algorithm = match section.node("algorithm") {
        Some(node) => section.parse_node("algorithm", node, |text| crate::config::reader::choose(text, &algorithms)),
        None => Some(NAMES[0]),
    };
    let rule = match algorithm {
        Some(algorithm) => rule(section, algorithm),
        // For its mistakes.
        None => section.parse("rate", values::rate).and(None),
    };
    strangers(section, algorithm);
    let key = key(section, context);
    let when = when::when(section, context);
    let overrides = overrides::overrides(section, algorithm, rule.as_ref(), key.as_ref());
    let after = after.map(|at| at.value.clone());
    let cost = cost(section);
    let missing = [("skip", Missing::Skip), ("shared", Missing::Shared), ("refuse", Missing::Refuse)];
    let missing = section.choice("missing", &missing).unwrap_or(Missing::Shared);
    let mode = section.choice("mode", &[("enforce", Mode::Enforce), ("shadow", Mode::Shadow)]).unwrap_or(Mode::Enforce);
    let on_error = section.choice("on_error", ON_ERROR).unwrap_or(context.on_error);
    let afterwards = afterwards(section, rule.as_ref());
    let (rule, key, cost, when, overrides, afterwards) = (rule?, key?, cost?, when?, overrides?, afterwards?);
    if let (Cost::Fixed(fixed), Some(node)) = (&cost, section.node("cost")) {
        let most = match &rule {
            Rule::TokenBucket(bucket) => bucket.burst + bucket.debt,
            Rule::FixedWindow(window) => window.limit,
            _ => rule.policy().quota,
        };
        if *fixed > most {
            let what = format!("a cost of {fixed} never fits, so nothing would be admitted");
            return section.fault("cost", node, &what, &format!("the largest that fits is {most}"));
        }
    }
    let rule = Arc::new(rule);
    Some(Limit { name: name.to_owned(), rule, key, missing, cost, mode, on_error, when, overrides, after, afterwards })
}

/// The rule that the numbers of `section` make; also those of a limit with an override laid over.
pub fn rule(section: &Section, algorithm: &str) -> Option<Rule> {
    let rate = match section.node("rate") {
        // In words of its own.
        Some(_) if algorithm == "calendar" => None,
        None if algorithm == "concurrency" => None,
        Some(node) if algorithm == "concurrency" => {
            section.fault("rate", node, "concurrency has no such parameter", "it takes in_flight, lease")
        }
        Some(_) => section.parse_at("rate", values::rate),
        None => section.absent(format!("{} has no rate", section.title), "add one, like rate = \"10/s\""),
    };
    match algorithm {
        "fixed_window" => fixed_window(section, rate),
        "gcra" => gcra(section, rate),
        "sliding_window" => window::sliding_window(section, rate),
        "calendar" => window::calendar(section),
        "sliding_log" => limit_flow::sliding_log(section, rate),
        "leaky_bucket" => limit_flow::leaky_bucket(section, rate),
        "concurrency" => limit_flow::concurrency(section),
        _ => token_bucket(section, rate),
    }
}

/// Whether `algorithm` has the parameter `key`, which not all have.
pub fn takes(algorithm: &str, key: &str) -> bool {
    ALGORITHM_KEYS.iter().any(|(name, keys)| *name == algorithm && keys.contains(&key))
}

/// Reports the parameters of other algorithms.
fn strangers(section: &Section, algorithm: Option<&str>) {
    let own = ALGORITHM_KEYS.iter().find(|(name, _)| Some(*name) == algorithm).map_or(&[][..], |(_, keys)| keys);
    let mut all: Vec<&'static str> = ALGORITHM_KEYS.iter().flat_map(|(_, keys)| *keys).copied().collect();
    all.sort_unstable();
    all.dedup();
    for key in all {
        let (Some(entry), Some(algorithm)) = (section.entry(key), algorithm) else { continue };
        if own.contains(&key) {
            continue;
        }
        let having = ALGORITHM_KEYS.iter().filter(|(_, keys)| keys.contains(&key));
        let owners: Vec<&str> = having.map(|(name, _)| *name).collect();
        let what = format!("{algorithm} has no such parameter");
        let rate = if algorithm == "concurrency" { "" } else { "rate, " };
        let help = format!("`{key}` belongs to {}; {algorithm} takes {rate}{}", owners.join(" and "), own.join(", "));
        section.fault_at::<()>(key, entry.place, &what, &help);
    }
}

fn token_bucket(section: &Section, rate: Option<At<Rate>>) -> Option<Rule> {
    let burst = match section.node("burst") {
        Some(_) => Some(section.integer("burst", 1..=EXACT)?),
        None => None,
    };
    let debt = section.integer("debt", 0..=EXACT).unwrap_or(0);
    let interval = section.choice("refill", &[("continuous", false), ("interval", true)]).unwrap_or(false);
    let empty = section.choice("start", &[("full", false), ("empty", true)]).unwrap_or(false);
    let At { place, value: Rate { count, per_ms } } = rate?;
    // A continuous refill of 10 in 1000 ms is one of 1 in 100 ms; an interval's lumps are not.
    let divisor = if interval { 1 } else { gcd(count, per_ms) };
    let (rate, per_ms) = (count / divisor, per_ms / divisor);
    if interval && rate > (EXACT - 1) / per_ms {
        let largest = (EXACT - 1) / per_ms;
        return section.fault_at(
            "rate",
            place,
            "it is too large to stay exact",
            &format!("the largest count for this period is {largest}"),
        );
    }
    // The twins divide at most (burst + 2 debt + 1) * per, and compute at most twice that.
    let room = (EXACT - 1) / per_ms - 1;
    let at = section.node("burst").map_or(place, |node| node.place);
    let named = if section.node("burst").is_some() { "burst" } else { "rate" };
    let burst = burst.unwrap_or(count);
    if burst > room {
        let help = format!("the largest `burst` for this rate is {room}");
        return section.fault_at(named, at, "the burst is too large to stay exact", &help);
    }
    if debt > (room - burst) / 2 {
        let largest = (room - burst) / 2;
        let node = section.node("debt")?;
        return section.fault(
            "debt",
            node,
            "it is too large to stay exact",
            &format!("the largest for this rate and burst is {largest}"),
        );
    }
    Some(Rule::TokenBucket(TokenBucket { rate, per_ms, burst, debt, interval, empty }))
}

fn fixed_window(section: &Section, rate: Option<At<Rate>>) -> Option<Rule> {
    let clock = section.choice("anchor", &[("first_hit", false), ("clock", true)]).unwrap_or(false);
    let At { place, value: Rate { count, per_ms } } = rate?;
    // The count of a window and one more cost are added before they are compared.
    let largest = EXACT - 1 - COST_MAX;
    if count > largest {
        return section.fault_at(
            "rate",
            place,
            "it is too large to stay exact",
            &format!("the largest count is {largest}"),
        );
    }
    Some(Rule::FixedWindow(FixedWindow { limit: count, window_ms: per_ms, clock }))
}

fn gcra(section: &Section, rate: Option<At<Rate>>) -> Option<Rule> {
    let burst = match section.node("burst") {
        Some(_) => Some(section.integer("burst", 1..=EXACT)?),
        None => None,
    };
    let At { place, value: Rate { count, per_ms } } = rate?;
    let divisor = gcd(count, per_ms);
    let (rate, per_ms) = (count / divisor, per_ms / divisor);
    if rate >= EXACT {
        return section.fault_at("rate", place, "it is too large to stay exact", "write a smaller one");
    }
    // The twins divide at most (burst + 1) * per, and compute at most twice that.
    let largest = (EXACT - 1) / per_ms - 1;
    let (named, at) = section.node("burst").map_or(("rate", place), |node| ("burst", node.place));
    let burst = burst.unwrap_or(count);
    if burst > largest {
        let help = format!("the largest `burst` for this rate is {largest}");
        return section.fault_at(named, at, "the burst is too large to stay exact", &help);
    }
    Some(Rule::Gcra(Gcra { rate, per_ms, burst }))
}

pub(super) fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn key(section: &Section, context: &Context) -> Option<Key> {
    let Some(node) = section.node("key") else {
        return values::key_part("ip").ok().map(|ip| Key(vec![ip]));
    };
    let parts = section.strings("key", values::key_part)?;
    if parts.is_empty() {
        return section.fault("key", node, "the list is empty", "for one budget shared by all, write key = \"all\"");
    }
    if parts.len() > KEY_PARTS_MAX {
        return section.fault(
            "key",
            node,
            &format!("{} parts", parts.len()),
            &format!("a key may have {KEY_PARTS_MAX}"),
        );
    }
    let mut key: Vec<KeyPart> = Vec::with_capacity(parts.len());
    for At { place, value } in parts {
        if matches!(value, KeyPart::Claim(_)) && !context.has_jwt {
            return section.fault_at("key", place, "there is no [jwt] that says how tokens are verified", JWT_HELP);
        }
        if key.contains(&value) {
            return section.fault_at("key", place, "this part stands there twice", "remove one of the two");
        }
        key.push(value);
    }
    Some(Key(key))
}

fn cost(section: &Section) -> Option<Cost> {
    match section.node("cost") {
        None => Some(Cost::Fixed(1)),
        Some(Node { value: Value::Integer(_), .. }) => section.integer("cost", 0..=COST_MAX).map(Cost::Fixed),
        Some(Node { value: Value::String(_), .. }) => section.parse("cost", cost_source),
        Some(node) => section.wrong_type("cost", "an integer, \"header:NAME\" or \"query:NAME\"", node),
    }
}

fn cost_source(text: &str) -> Result<Cost, Fault> {
    const HELP: &str = "write an integer without quotes, \"header:NAME\" or \"query:NAME\"";
    if let Some(name) = text.strip_prefix("header:") {
        return values::header_name(name).map(Cost::Header);
    }
    match text.strip_prefix("query:") {
        Some(name) if !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() && !b"&=#".contains(&b)) => {
            Ok(Cost::Query(name.to_owned()))
        }
        Some(name) => fault(format!("`{name}` is not the name of a query parameter"), HELP),
        None => fault(format!("unknown source `{text}`"), HELP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_says_which_parameters_it_has() {
        let names: Vec<&str> = ALGORITHM_KEYS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, NAMES);
    }
}
