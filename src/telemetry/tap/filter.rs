//! Selects the requests of a tap. `admin::streams::tap` fills the filter from a query.

use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::net::parse_network;
use crate::telemetry::access_log::LogRecord;
use crate::telemetry::metrics::Decision;
use crate::telemetry::tap::TapDecision;

/// Selects requests by parameters. A request matches if it matches each of them.
#[derive(Debug, Default)]
pub struct TapFilter {
    pub limits: FilterTerms<String>,
    pub routes: FilterTerms<String>,
    decisions: FilterTerms<Decision>,
    clients: FilterTerms<IpNet>,
    statuses: FilterTerms<RangeInclusive<u16>>,
    methods: FilterTerms<String>,
    paths: FilterTerms<PathTerm>,
    count: usize,
}

/// The values of one parameter. A request matches if it has one of the included values, or there are none, and none of
/// the excluded ones.
#[derive(Debug)]
pub struct FilterTerms<T> {
    included: Vec<T>,
    excluded: Vec<T>,
}

/// A path, or with `*` at its end the start of paths.
#[derive(Debug)]
enum PathTerm {
    Exact(String),
    Prefix(String),
}

/// The names of the parameters, for messages.
pub const FILTERS: &str = "`limit`, `route`, `decision`, `client`, `status`, `method` and `path`";
pub const FILTER_NAMES: [&str; 7] = ["limit", "route", "decision", "client", "status", "method", "path"];
/// Maximum number of values of a filter: each costs time for every request.
const VALUES_MAX: usize = 32;

impl<T> Default for FilterTerms<T> {
    fn default() -> FilterTerms<T> {
        FilterTerms { included: Vec::new(), excluded: Vec::new() }
    }
}

impl<T> FilterTerms<T> {
    fn add(&mut self, is_excluded: bool, value: T) {
        if is_excluded { self.excluded.push(value) } else { self.included.push(value) }
    }

    fn matches(&self, mut has: impl FnMut(&T) -> bool) -> bool {
        (self.included.is_empty() || self.included.iter().any(&mut has)) && !self.excluded.iter().any(has)
    }

    /// Returns all values, included and excluded.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.included.iter().chain(&self.excluded)
    }
}

impl TapFilter {
    /// Adds a value of a parameter; `!` at its start excludes it. Returns false if there is no such parameter.
    ///
    /// # Errors
    /// What is wrong with the value.
    pub fn add_value(&mut self, name: &str, text: &str) -> Result<bool, String> {
        let (out, value) = match text.strip_prefix('!') {
            Some(value) => (true, value),
            None => (false, text),
        };
        match name {
            "limit" => self.limits.add(out, value.to_owned()),
            "route" => self.routes.add(out, value.to_owned()),
            "decision" => self.decisions.add(out, parse_decision(value)?),
            "client" => self.clients.add(out, parse_client(value)?),
            "status" => self.statuses.add(out, parse_status(value)?),
            "method" => self.methods.add(out, parse_method(value)?),
            "path" => self.paths.add(out, parse_path(value)?),
            _ => return Ok(false),
        }
        self.count += 1;
        if self.count > VALUES_MAX {
            return Err(format!("the filters have more than {VALUES_MAX} values"));
        }
        Ok(true)
    }

    pub fn matches(&self, record: &LogRecord, decisions: &[TapDecision]) -> bool {
        self.routes.matches(|route| *route == record.route)
            && self.statuses.matches(|range| range.contains(&record.status))
            && self.clients.matches(|net| net.contains(&record.client))
            && self.methods.matches(|method| method.eq_ignore_ascii_case(&record.method))
            && self.paths.matches(|path| path.matches(&record.path))
            && self.matches_decisions(record, decisions)
    }

    /// Returns whether one of the decisions matches both `limit` and `decision`. Without decisions, that of the request
    /// counts: `bypass` for clients on the route's `allow` list.
    fn matches_decisions(&self, record: &LogRecord, decisions: &[TapDecision]) -> bool {
        let matches = |limit: Option<&str>, decision: Option<Decision>| {
            self.limits.matches(|wanted| limit == Some(wanted.as_str()))
                && self.decisions.matches(|wanted| decision == Some(*wanted))
        };
        match decisions {
            [] => matches(None, record.decision),
            decisions => decisions.iter().any(|one| matches(Some(&one.limit), Some(one.decision))),
        }
    }
}

impl PathTerm {
    fn matches(&self, path: &str) -> bool {
        match self {
            PathTerm::Exact(wanted) => path == wanted,
            PathTerm::Prefix(start) => path.starts_with(start.as_str()),
        }
    }
}

fn parse_decision(value: &str) -> Result<Decision, String> {
    let decision = Decision::ALL.iter().find(|decision| decision.label() == value).copied();
    decision.ok_or_else(|| {
        let labels: Vec<&str> = Decision::ALL.iter().map(|decision| decision.label()).collect();
        format!("`decision` is one of {}", labels.join(", "))
    })
}

fn parse_client(value: &str) -> Result<IpNet, String> {
    parse_network(value).ok_or_else(|| "`client` is an address or a network such as 10.0.0.0/8".to_owned())
}

/// Parses `429`, `4xx` or `500-503`.
fn parse_status(value: &str) -> Result<RangeInclusive<u16>, String> {
    let code = |text: &str| text.parse::<u16>().ok().filter(|code| text.len() == 3 && (100..=999).contains(code));
    let class = value.strip_suffix("xx").and_then(|digit| code(&format!("{digit}00"))).map(|first| first..=first + 99);
    let range = value.split_once('-').and_then(|(first, last)| Some(code(first)?..=code(last)?));
    let statuses = class.or(range).or_else(|| code(value).map(|one| one..=one)).filter(|range| !range.is_empty());
    statuses
        .ok_or_else(|| "`status` is a status such as 429, a class such as 4xx, or a range such as 500-503".to_owned())
}

fn parse_method(value: &str) -> Result<String, String> {
    let is_token = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic());
    is_token.then(|| value.to_owned()).ok_or_else(|| "`method` is a method such as GET".to_owned())
}

fn parse_path(value: &str) -> Result<PathTerm, String> {
    if !value.starts_with(['/', '*']) {
        return Err("`path` starts with `/`; `*` at its end matches any rest".to_owned());
    }
    Ok(match value.strip_suffix('*') {
        Some(start) => PathTerm::Prefix(start.to_owned()),
        None => PathTerm::Exact(value.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> LogRecord {
        LogRecord {
            route: "api".to_owned(),
            status: 429,
            client: "192.0.2.7".parse().unwrap(),
            method: "GET".to_owned(),
            path: "/v1/items".to_owned(),
            ..LogRecord::default()
        }
    }

    fn decision(limit: &str, decision: Decision) -> TapDecision {
        TapDecision {
            limit: limit.to_owned(),
            decision,
            remaining: None,
            retry_after_ms: None,
            key: None,
            effect: None,
        }
    }

    fn matches(filters: &[(&str, &str)]) -> bool {
        let mut filter = TapFilter::default();
        filters.iter().for_each(|(name, value)| assert_eq!(filter.add_value(name, value), Ok(true), "{name} {value}"));
        filter.matches(&record(), &[decision("soft", Decision::ShadowDeny), decision("hard", Decision::Deny)])
    }

    #[test]
    fn each_parameter_must_match_and_any_of_its_values() {
        for (filters, expected) in [
            (&[][..], true),
            (&[("status", "429")], true),
            (&[("status", "4xx")], true),
            (&[("status", "430-499")], false),
            (&[("status", "500"), ("status", "428-429")], true),
            (&[("status", "!429")], false),
            (&[("status", "4xx"), ("status", "!429")], false),
            (&[("route", "api"), ("status", "200")], false),
            (&[("route", "!health"), ("route", "!other")], true),
            (&[("client", "192.0.2.0/24")], true),
            (&[("client", "!192.0.2.7")], false),
            (&[("client", "2001:db8::/32")], false),
            (&[("method", "get"), ("path", "/v1/*")], true),
            (&[("path", "/v1")], false),
            (&[("path", "*")], true),
            (&[("path", "!/v1/*")], false),
            (&[("limit", "hard")], true),
            (&[("limit", "hard"), ("decision", "deny")], true),
            (&[("limit", "soft"), ("decision", "deny")], false),
            (&[("decision", "!shadow_deny")], true),
            (&[("decision", "!shadow_deny"), ("decision", "!deny")], false),
            (&[("limit", "!soft"), ("limit", "!hard")], false),
        ] {
            assert_eq!(matches(filters), expected, "{filters:?}");
        }
    }

    #[test]
    fn requests_without_decisions_match_what_excludes() {
        let found = |name, value| {
            let mut filter = TapFilter::default();
            filter.add_value(name, value).unwrap();
            let bypassed = LogRecord { decision: Some(Decision::Bypass), ..record() };
            [filter.matches(&record(), &[]), filter.matches(&bypassed, &[])]
        };
        assert_eq!(found("limit", "hard"), [false, false]);
        assert_eq!(found("limit", "!hard"), [true, true]);
        assert_eq!(found("decision", "bypass"), [false, true]);
        assert_eq!(found("decision", "!allow"), [true, true]);
    }

    #[test]
    fn wrong_values_are_explained() {
        let mut filter = TapFilter::default();
        for (name, value) in [
            ("status", "42"),
            ("status", "4x"),
            ("status", "+29"),
            ("status", "xx"),
            ("status", "0xx"),
            ("status", "503-500"),
            ("status", ""),
            ("client", "10.0.0.1/8"),
            ("client", "localhost"),
            ("decision", "denied"),
            ("method", ""),
            ("path", "v1"),
        ] {
            assert!(filter.add_value(name, value).is_err_and(|what| what.contains(name)), "{name}={value}");
        }
        assert_eq!(filter.add_value("header", "x"), Ok(false));
        (0..VALUES_MAX).for_each(|_| assert_eq!(filter.add_value("path", "/"), Ok(true)));
        assert!(filter.add_value("path", "/").is_err());
    }
}
