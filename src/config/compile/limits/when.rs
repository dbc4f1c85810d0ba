//! `when` of a limit: the requests that it applies to. Called by `limits`.
//!
//! A condition is a pattern, or a list of patterns of which one must match. Patterns:
//!
//! ```text
//! "text"        the value equals this text      "*"       any non-empty value
//! 5             an integer equal to this one    "a*", "*.b", "a*b"   `*` is any sequence of characters
//! "1-9"         an integer from 1 to 9          "set:X"   an item of [set.X]
//! "<5" "<=5" ">5" ">=5"  an integer             "= text"  this text, even if it looks like another pattern
//! "~ regex"     a text that contains a match    "~i regex" the same, ignoring case
//! "!PATTERN"    anything else; in a list, all patterns have `!` or none has
//! ```
//!
//! Texts, wildcards and sets are case-sensitive; hosts and methods have one canonical case. A condition on a value that
//! the request lacks is false, and true with `!`.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};

use crate::config::compile::context::LimitContext;
use crate::config::compile::limits::schedule::compile_schedule;
use crate::config::compile::named_set::ListedItem;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::pattern_look::PatternLook;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::expressions::ExpressionFlags;
use crate::config::reader::Section;
use crate::config::schema::limit;
use crate::config::source::SourceTexts;
use crate::config::tree::{Node, Value};
use crate::config::values;
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::integers::integer;
use crate::limiting::limit::address_set::AddressSet;
use crate::limiting::limit::when::{Condition, Expression, Pattern, Test, When};
use crate::limiting::source::{Source, SourceKind};
use crate::net::{IpSet, NamedSet};
use crate::text::Wildcard;

const HELP: &str = "write \"text\", \"a*\", \"*\", \"1-9\", \"<5\", \">=5\", \"set:NAME\", \"~ regex\", \"~i regex\", \
                    \"!\" before any of these, or \"= text\" for a text that looks like one of them";

/// Name of the condition on the client address.
const CLIENT: &str = limit::when::CLIENT.option.name;
const CLIENT_HELP: &str = "write \"192.0.2.7\", \"10.0.0.0/8\", \"10.0.24.*\", \"10.0.0.1-10.0.0.9\" or \"set:NAME\"";

pub fn compile_when(section: &Section, context: &LimitContext) -> Option<When> {
    if section.node(&limit::WHEN).is_none() {
        return Some(When::default());
    }
    let table = section.read_table(&limit::WHEN)?;
    let when = Section::new(section.sources, &limit::when::TABLE, format!("`when` of {}", section.title), table);
    let mut conditions = Vec::new();
    let option_of = |kind: SourceKind| limit::when::TABLE.find(kind.word());
    for option in When::SOURCES.into_iter().filter(|kind| kind.argument().is_none()).filter_map(option_of) {
        let key = option.name;
        if let Some(node) = when.node(option) {
            let source = parse_condition_source(&when, context, key, node.place, key);
            conditions.push(source.and_then(|source| compile_text_condition(&when, context, key, node, source)));
        }
    }
    if let Some(node) = when.node(&limit::when::CLIENT) {
        conditions.push(compile_client_condition(&when, context, node));
    }
    match compile_schedule(&when) {
        Some(None) => {}
        Some(Some(schedule)) => conditions.push(Some(Condition::Time(schedule))),
        None => conditions.push(None),
    }
    for option in When::SOURCES.into_iter().filter(|kind| kind.argument().is_some()).filter_map(option_of) {
        let key = option.name;
        if when.node(option).is_none() {
            continue;
        }
        let Some(table) = when.read_table(option) else {
            conditions.push(None);
            continue;
        };
        for entry in &table.entries {
            let source = parse_condition_source(&when, context, key, entry.place, &format!("{key}:{}", entry.key));
            conditions.push(source.and_then(|source| compile_text_condition(&when, context, key, &entry.node, source)));
        }
    }
    when.report_unread_keys();
    conditions.into_iter().collect::<Option<_>>().map(When)
}

/// Parses the source that `text` at `place` names.
fn parse_condition_source(
    when: &Section,
    context: &LimitContext,
    key: &str,
    place: Place,
    text: &str,
) -> Option<Source> {
    match values::parse_source(text, &When::SOURCES, HELP).and_then(|source| context.check_readable(source)) {
        Ok(source) => Some(source),
        Err(TextFault { what, help }) => when.report_fault_at(key, place, &what, &help),
    }
}

/// A parsed pattern.
#[derive(Debug, PartialEq)]
enum WrittenPattern<'t> {
    Text(&'t str),
    Integer(i64, i64),
    Wildcard(&'t str),
    Set(&'t str),
    Regex(Expression),
}

fn compile_text_condition(
    when: &Section,
    context: &LimitContext,
    key: &str,
    node: &Node,
    source: Source,
) -> Option<Condition> {
    let read = |written: WrittenPattern, node: &Node| -> Option<Pattern> {
        let mut is_compared_later = false;
        let pattern = match written {
            WrittenPattern::Text(text) => {
                let is_marked = match &node.value {
                    Value::String(written) => written.value.trim_start_matches('!').starts_with('='),
                    _ => false,
                };
                if let Some(look) = PatternLook::of(text).filter(|_| !is_marked) {
                    let what =
                        format!("`{key}` in `when` compares this text as it is, but it looks like {}", look.noun());
                    let warning = Diagnostic::new(node.place, what).with_help(
                        "write \"~ REGEX\" for a regular expression, client = \"NETWORK\" for addresses, or \"= TEXT\" for \
                         the text itself",
                    );
                    when.sources.add_warning(DiagnosticCode::WildcardName, warning);
                }
                source.parse_written_text(text).map(Pattern::Text)
            }
            WrittenPattern::Integer(from, to) => source.check_written_integer().map(|()| Pattern::Integer(from, to)),
            WrittenPattern::Wildcard(text) if text.bytes().all(|byte| byte == b'*') => Ok(Pattern::NotEmpty),
            WrittenPattern::Wildcard(text) => {
                source.parse_written_wildcard(text).map(|text| Pattern::Wildcard(Wildcard::new(&text)))
            }
            WrittenPattern::Set(name) => {
                let entry = context.sets.find(when.sources, node.place, name)?;
                warn_of_patterns(when.sources, node.place, name, &entry.set);
                is_compared_later = source == Source::Route && entry.compare_with_routes();
                canonicalize_set(when.sources, &source, name, &entry).map(Pattern::Set)
            }
            WrittenPattern::Regex(expression) => {
                let flags = ExpressionFlags { ignore_case: expression.ignore_case, any_dot: true };
                when.sources.warn_if_slow(node.place, expression.regex.as_str(), flags);
                source
                    .check_written_expression(expression.regex.as_str(), expression.ignore_case)
                    .map(|()| Pattern::Regex(expression))
            }
        };
        let report = |fault| {
            let TextFault { what, help } = when.sources.hide_value(node.place, fault);
            when.report_fault(key, node, &what, &help)
        };
        let pattern = pattern.map_or_else(report, Some)?;
        find_slashed(&source, &pattern)
            .into_iter()
            .for_each(|merged| when.sources.add_slashed_value(node.place, merged));
        if source == Source::Route && !is_compared_later {
            add_route_patterns(when.sources, node.place, &pattern);
        }
        Some(pattern)
    };
    let (negated, patterns) = parse_patterns(when, key, node, read)?;
    let test = if negated { Test::None(patterns) } else { Test::Any(patterns) };
    Some(Condition::Text { source, test })
}

/// Returns what a pattern that needs repeated slashes is without them, which may be empty. `None` if it needs none.
fn find_slashed(source: &Source, pattern: &Pattern) -> Option<String> {
    match pattern {
        Pattern::Text(text) => source.merge_written(text),
        // A set may have items for several conditions.
        Pattern::Set(set) => {
            let mut items = set.strings.iter().map(|item| source.merge_written(item));
            items.next()?.filter(|_| items.all(|item| item.is_some()))
        }
        Pattern::Wildcard(wildcard) => {
            let pattern = wildcard.to_string();
            let parts: Vec<String> = pattern.split('*').map(regex::escape).collect();
            source.needs_repeated_slashes(&format!("^{}$", parts.join(".*")), false).then(String::new)
        }
        Pattern::Regex(expression) => {
            let needs = source.needs_repeated_slashes(expression.regex.as_str(), expression.ignore_case);
            needs.then(String::new)
        }
        Pattern::Integer(..) | Pattern::NotEmpty => None,
    }
}

/// Has the names of routes in a condition compared with those of the config, once these are known.
fn add_route_patterns(sources: &SourceTexts, place: Place, pattern: &Pattern) {
    match pattern {
        Pattern::Set(set) => {
            set.strings.iter().for_each(|name| sources.add_route_pattern(place, Pattern::Text(name.clone())));
        }
        pattern => sources.add_route_pattern(place, pattern.clone()),
    }
}

/// Warns of items of a set that look like patterns.
fn warn_of_patterns(sources: &SourceTexts, place: Place, name: &str, set: &NamedSet) {
    let looks = set.strings.iter().filter_map(|item| PatternLook::of(item));
    if let Some(look) = looks.min_by_key(|look| look.noun()) {
        let what = match look {
            PatternLook::Wildcard => format!("items of [set.{name}] have a `*`, which stands for itself there"),
            look => format!("an item of [set.{name}] looks like {}, but items are compared as they are", look.noun()),
        };
        let warning =
            Diagnostic::new(place, what).with_help("write patterns in `when` itself, like { path = \"/a/*\" }");
        sources.add_warning(DiagnosticCode::WildcardName, warning);
    }
}

/// Brings the items of a set into the form that values of `source` have. Rows of a file that no value can be are skipped,
/// unless all are.
fn canonicalize_set(
    sources: &SourceTexts,
    source: &Source,
    name: &str,
    listed: &ListedItem,
) -> Result<Arc<NamedSet>, TextFault> {
    let mut items: Vec<&String> = listed.set.strings.iter().collect();
    // The first mistake is always the same one.
    items.sort_unstable();
    let can_match = |item: &&String| source.parse_written_text(item).is_ok();
    let has_match = items.iter().any(can_match);
    let parse = |item: &String| match source.parse_written_text(item) {
        Err(fault) if has_match && listed.reject_item(sources, item, &fault) => None,
        result => Some(result),
    };
    match items.into_iter().filter_map(parse).collect::<Result<HashSet<String>, _>>() {
        Ok(strings) if strings == listed.set.strings => Ok(listed.set.clone()),
        Ok(strings) => Ok(Arc::new(NamedSet { strings })),
        // The item may be of a `${...}`, so no remedy shows another spelling of it.
        Err(fault) => invalid_text(
            format!("an item of [set.{name}] matches nothing: {}", fault.what),
            "correct the item, or leave it out",
        ),
    }
}

fn compile_client_condition(when: &Section, context: &LimitContext, node: &Node) -> Option<Condition> {
    enum WhenItem {
        Nets(Vec<IpNet>),
        Set(Arc<AddressSet>),
    }
    let read = |written: WrittenPattern, node: &Node| -> Option<WhenItem> {
        let text = match written {
            WrittenPattern::Set(name) => {
                let entry = context.sets.find(when.sources, node.place, name)?;
                return entry.as_addresses(when.sources).map(WhenItem::Set);
            }
            WrittenPattern::Text(text) | WrittenPattern::Wildcard(text) => text,
            WrittenPattern::Integer(..) => "",
            WrittenPattern::Regex(_) => {
                return when.report_fault(
                    CLIENT,
                    node,
                    "addresses are compared with networks, not with texts",
                    CLIENT_HELP,
                );
            }
        };
        let check = |net| when.sources.check_network(net, text);
        match parse_client_nets(text).and_then(|nets| nets.into_iter().map(check).collect()) {
            Ok(nets) => Some(WhenItem::Nets(nets)),
            Err(TextFault { what, help }) => when.report_fault(CLIENT, node, &what, &help),
        }
    };
    let (negated, items) = parse_patterns(when, CLIENT, node, read)?;
    let (mut sets, mut nets) = (Vec::new(), Vec::new());
    for item in items {
        match item {
            WhenItem::Nets(more) => nets.extend(more),
            WhenItem::Set(set) => sets.push(set),
        }
    }
    Some(Condition::Client { sets, nets: nets.into_iter().collect::<IpSet>(), inside: !negated })
}

/// Reads a pattern or a list of patterns, and whether they are negated.
fn parse_patterns<T>(
    when: &Section,
    key: &str,
    node: &Node,
    read: impl Fn(WrittenPattern, &Node) -> Option<T>,
) -> Option<(bool, Vec<T>)> {
    let items = match &node.value {
        Value::Array(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    if items.is_empty() {
        return when.report_fault(key, node, "the list is empty, so nothing would match", HELP);
    }
    let mut negations = Vec::with_capacity(items.len());
    let one = |item: &Node| -> Option<(bool, T)> {
        let (negated, written) = match &item.value {
            Value::Integer(value) => (false, WrittenPattern::Integer(*value, *value)),
            Value::String(text) => match text.parse_value(parse_pattern) {
                Ok(pattern) => pattern,
                Err(TextFault { what, help }) => return when.report_fault(key, item, &what, &help),
            },
            _ => return when.report_wrong_type(key, "a pattern or a list of patterns", item),
        };
        Some((negated, read(written, item)?))
    };
    // Every item is parsed, to find all mistakes, before one of them fails the list.
    let read: Vec<Option<(bool, T)>> = items.iter().map(one).collect();
    let mut values = Vec::with_capacity(read.len());
    for item in read {
        let (negated, value) = item?;
        negations.push(negated);
        values.push(value);
    }
    let is_negated = negations[0];
    match negations.iter().position(|other| *other != is_negated) {
        None => Some((is_negated, values)),
        Some(at) => {
            let help = "make it two limits, or write all of the list with `!` or none of it";
            when.report_fault(key, &items[at], "some patterns of the list have `!` and some do not", help)
        }
    }
}

/// Parses one pattern and its optional `!`.
fn parse_pattern(text: &str) -> Result<(bool, WrittenPattern<'_>), TextFault> {
    if let Some(rest) = text.strip_prefix('!') {
        return match parse_pattern(rest)? {
            (false, pattern) => Ok((true, pattern)),
            (true, _) => {
                invalid_text(format!("`{text}` negates twice"), "write a single `!`, or \"= text\" for the text")
            }
        };
    }
    if let Some(text) = text.strip_prefix('=') {
        return Ok((false, WrittenPattern::Text(text.strip_prefix(' ').unwrap_or(text))));
    }
    if let Some(name) = text.strip_prefix("set:") {
        return Ok((false, WrittenPattern::Set(name)));
    }
    if let Some(rest) = text.strip_prefix('~') {
        return values::parse_expression(text, rest).map(|expression| (false, WrittenPattern::Regex(expression)));
    }
    if let Some(rest) = text.strip_prefix(['<', '>']) {
        let (or_equal, number) = match rest.strip_prefix('=') {
            Some(number) => (true, number),
            None => (false, rest),
        };
        let Some(bound) = parse_bound(number.trim()) else {
            return invalid_text(format!("`{number}` is not an integer"), format!("for this text write \"= {text}\""));
        };
        let step = i64::from(!or_equal);
        let range = match text.starts_with('<') {
            true => bound.checked_sub(step).map(|to| (i64::MIN, to)),
            false => bound.checked_add(step).map(|from| (from, i64::MAX)),
        };
        return match range {
            Some((from, to)) => Ok((false, WrittenPattern::Integer(from, to))),
            None => invalid_text(format!("no integer is `{text}`"), "integers have 64 bits"),
        };
    }
    if text.contains('*') {
        return Ok((false, WrittenPattern::Wildcard(text)));
    }
    match parse_range(text) {
        Some((from, to)) if from > to => invalid_text(
            format!("the range `{text}` ends before it starts"),
            format!("write \"{to}-{from}\", or \"= {text}\" for the text"),
        ),
        Some((from, to)) => Ok((false, WrittenPattern::Integer(from, to))),
        None => Ok((false, WrittenPattern::Text(text))),
    }
}

/// Parses `A-B`, a range of two integers.
fn parse_range(text: &str) -> Option<(i64, i64)> {
    text.match_indices('-')
        .filter(|(at, _)| *at > 0)
        .find_map(|(at, _)| Some((parse_bound(&text[..at])?, parse_bound(&text[at + 1..])?)))
}

/// Parses an integer that fits into 64 bits. `None` for a larger one, which `integer` alone would truncate.
fn parse_bound(text: &str) -> Option<i64> {
    integer(text.as_bytes()).filter(|_| text.parse::<i64>().is_ok())
}

/// Parses `ADDRESS`, `ADDRESS/PREFIX`, `ADDRESS-ADDRESS` or `10.0.24.*`.
fn parse_client_nets(text: &str) -> Result<Vec<IpNet>, TextFault> {
    if let Some((from, to)) = text.split_once('-') {
        let (Ok(from), Ok(to)) = (from.trim().parse::<IpAddr>(), to.trim().parse::<IpAddr>()) else {
            return invalid_text(format!("`{text}` is not a range of addresses"), CLIENT_HELP);
        };
        return match (from.to_canonical(), to.to_canonical()) {
            (IpAddr::V4(from), IpAddr::V4(to)) if from <= to => {
                Ok(Ipv4Subnets::new(from, to, 0).map(IpNet::V4).collect())
            }
            (IpAddr::V6(from), IpAddr::V6(to)) if from <= to => {
                Ok(Ipv6Subnets::new(from, to, 0).map(IpNet::V6).collect())
            }
            (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => {
                invalid_text(format!("the range `{text}` ends before it starts"), format!("write \"{to}-{from}\""))
            }
            _ => invalid_text(format!("`{text}` mixes IPv4 and IPv6"), CLIENT_HELP),
        };
    }
    if text.contains('*') {
        let octet_text = text.trim_end_matches(".*");
        let octets: Option<Vec<u8>> = octet_text.split('.').map(|octet| octet.parse().ok()).collect();
        let stars = (text.len() - octet_text.len()) / 2;
        return match octets {
            Some(octets) if stars > 0 && octets.len() + stars == 4 => {
                let zeros = vec!["0"; stars].join(".");
                values::parse_cidr(&format!("{octet_text}.{zeros}/{}", 8 * octets.len())).map(|net| vec![net])
            }
            _ => invalid_text(format!("`{text}` is not an IPv4 network"), CLIENT_HELP),
        };
    }
    match text.parse::<IpAddr>().is_err() && text.parse::<IpNet>().is_err() {
        true => invalid_text(format!("`{text}` is not an address, network or range"), CLIENT_HELP),
        false => values::parse_cidr(text).map(|net| vec![net]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_has_a_form_and_every_text_too() {
        use WrittenPattern::{Integer, Set, Text, Wildcard};
        for (text, pattern) in [
            ("add-comment", (false, Text("add-comment"))),
            ("", (false, Text(""))),
            ("a+b", (false, Text("a+b"))),
            ("+", (false, Text("+"))),
            ("5", (false, Text("5"))),
            ("2026-11-20", (false, Text("2026-11-20"))),
            ("1-", (false, Text("1-"))),
            ("-1", (false, Text("-1"))),
            ("a=b", (false, Text("a=b"))),
            ("1-9", (false, Integer(1, 9))),
            ("-9--1", (false, Integer(-9, -1))),
            ("-5-5", (false, Integer(-5, 5))),
            ("<5", (false, Integer(i64::MIN, 4))),
            ("<=5", (false, Integer(i64::MIN, 5))),
            (">5", (false, Integer(6, i64::MAX))),
            (">= -5", (false, Integer(-5, i64::MAX))),
            ("*", (false, Wildcard("*"))),
            ("a*", (false, Wildcard("a*"))),
            ("set:vip", (false, Set("vip"))),
            ("!x", (true, Text("x"))),
            ("!1-9", (true, Integer(1, 9))),
            ("!*", (true, Wildcard("*"))),
            ("!set:vip", (true, Set("vip"))),
            ("!= x", (true, Text("x"))),
            ("= 1-9", (false, Text("1-9"))),
            ("=*", (false, Text("*"))),
            ("= !x", (false, Text("!x"))),
            ("= = x", (false, Text("= x"))),
            ("=  x", (false, Text(" x"))),
            ("= set:vip", (false, Text("set:vip"))),
            ("= ", (false, Text(""))),
        ] {
            assert_eq!(parse_pattern(text), Ok(pattern), "{text}");
        }
        let regex = |text: &str| match parse_pattern(text) {
            Ok((negated, WrittenPattern::Regex(Expression { regex, ignore_case }))) => {
                (negated, ignore_case, regex.as_str().to_owned())
            }
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(regex("~ ^a$"), (false, false, "^a$".to_owned()));
        assert_eq!(regex("~i  a"), (false, true, " a".to_owned()));
        assert_eq!(regex("!~i a|b"), (true, true, "a|b".to_owned()));
        assert_eq!(parse_pattern("= ~i a"), Ok((false, Text("~i a"))));
        assert_eq!(parse_pattern("a~i b"), Ok((false, Text("a~i b"))));
        for text in ["~", "~a", "~i", "~* a", "~I a", "~ (", "~ a{9999}{9999}", "~ (?=a)", "~ (a)\\1"] {
            assert!(parse_pattern(text).is_err(), "{text}");
        }
        for text in ["<x", ">", "<1.5", "9-1", "!!x", ">9223372036854775807", "<99999999999999999999", "!<x"] {
            assert!(parse_pattern(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_source_and_the_client_have_a_key() {
        let of_time = [&limit::when::TIME, &limit::when::DAYS, &limit::when::ZONE].map(|row| row.option.name);
        let sources = When::SOURCES.into_iter().map(|kind| kind.word());
        let mut keys: Vec<&str> = sources.chain([CLIENT]).chain(of_time).collect();
        let mut known = limit::when::TABLE.keys().collect::<Vec<_>>();
        keys.sort_unstable();
        known.sort_unstable();
        assert_eq!(keys, known);
    }

    #[test]
    fn clients_in_every_form() {
        let nets =
            |text| parse_client_nets(text).unwrap().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(nets("10.0.0.1"), "10.0.0.1/32");
        assert_eq!(nets("10.0.24.*"), "10.0.24.0/24");
        assert_eq!(nets("10.*.*.*"), "10.0.0.0/8");
        assert_eq!(nets("192.168.0.1-192.168.0.4"), "192.168.0.1/32 192.168.0.2/31 192.168.0.4/32");
        assert_eq!(nets("2001:db8::-2001:db8::ffff"), "2001:db8::/112");
        assert_eq!(parse_client_nets("0.0.0.1-255.255.255.254").unwrap().len(), 62);
        for text in
            ["", "x", "10.0.0.1/8", "10.*", "10.*.0.1", "*", "10.0.0.9-10.0.0.1", "10.0.0.1-::1", "10.0.0.1-256"]
        {
            assert!(parse_client_nets(text).is_err(), "{text}");
        }
    }
}
