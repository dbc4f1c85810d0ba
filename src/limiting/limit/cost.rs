//! The cost of a request in units of the limit: `cost` of a limit, or of a limit in a list, which is the price of the
//! requests of that list.
//!
//! A cost that the request shows is charged before the request is forwarded. A cost that only the response shows is
//! charged as an estimate, and corrected afterwards (`charge_rules`). To add a kind of cost, add a variant to `Cost`.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;

use crate::limiting::integers::{COST_MAX, NotInteger, ValueError, units};
use crate::limiting::limit::graphql_cost::GraphqlPrices;
use crate::limiting::settlement::reserve::Reserve;
use crate::limiting::source::calls::{Call, CallProtocol};
use crate::limiting::source::{CALLS_MAX, Facts, Repeated, Source, SourceKind};

/// Cost of one request in units of the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    Fixed(i64),
    /// The request contains it.
    Stated(Source),
    /// The method decides.
    ByMethod(Box<MethodPrices>),
    /// The status of the response decides. Until then, a request is charged what other statuses cost.
    ByStatus(Arc<StatusPrices>),
    /// The number of elements of an array in the body.
    Counted(Source),
    /// The sum of what the JSON-RPC calls in the body cost (`costs`).
    ByCall(Box<CallPrices>),
    /// The sum of the estimates of the GraphQL operations in the request.
    Graphql(Box<GraphqlPrices>),
    /// The response reports it; until then, an estimate is charged.
    Reserved(Box<Reserve>),
}

/// The cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    pub units: i64,
    /// Tokens of the input if the response does not report them.
    pub input_tokens: i64,
}

/// Costs by method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodPrices {
    pub listed: Vec<(String, i64)>,
    /// The cost of all other methods.
    pub default: i64,
}

/// Costs by JSON-RPC method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPrices {
    pub listed: Vec<(CallPattern, i64)>,
    /// The cost of all other calls.
    pub default: i64,
}

/// Calls that have a cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallPattern {
    Method(String),
    /// All methods that start like this.
    Prefix(String),
    /// The tool, prompt or resource that a method names.
    Tool {
        method: String,
        tool: String,
    },
    /// All tools, prompts or resources of a method that start like this.
    ToolPrefix {
        method: String,
        start: String,
    },
}

/// Costs by the status of the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusPrices {
    pub listed: Vec<(StatusPattern, i64)>,
    /// The cost of all other statuses, and of requests whose status is not known yet.
    pub default: i64,
}

/// A status, or a class of statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusPattern {
    Status(StatusCode),
    /// The first digit: 4 for `4xx`.
    Class(u16),
}

/// Cost of a request that states none.
const COST_DEFAULT: i64 = 1;
const METHOD: &Source = &Source::Method;
const CALLS: &Source = &Source::JsonRpcMethod;
const OPERATIONS: &Source = &Source::GraphqlOperation;

impl Cost {
    /// Sources that a cost may be read from.
    pub const SOURCES: &[SourceKind] = &[SourceKind::Header, SourceKind::Query, SourceKind::Descriptor];

    /// Returns what the cost reads of a request.
    pub fn sources(&self) -> &[Source] {
        match self {
            Cost::Fixed(_) | Cost::ByStatus(_) => &[],
            Cost::Stated(source) | Cost::Counted(source) => std::slice::from_ref(source),
            Cost::ByMethod(_) => std::slice::from_ref(METHOD),
            Cost::ByCall(_) => std::slice::from_ref(CALLS),
            Cost::Graphql(_) => std::slice::from_ref(OPERATIONS),
            Cost::Reserved(reserve) => &reserve.add,
        }
    }

    /// Returns the sources whose values have to be integers.
    pub fn integer_sources(&self) -> &[Source] {
        if matches!(self, Cost::ByMethod(_) | Cost::Counted(_) | Cost::ByCall(_) | Cost::Graphql(_)) {
            &[]
        } else {
            self.sources()
        }
    }

    /// Returns whether the cost depends on the content of the body.
    pub fn reads_body(&self) -> bool {
        match self {
            Cost::Counted(_) | Cost::ByCall(_) | Cost::Graphql(_) => true,
            Cost::Reserved(reserve) => reserve.reads_body(),
            Cost::Fixed(_) | Cost::Stated(_) | Cost::ByMethod(_) | Cost::ByStatus(_) => false,
        }
    }

    /// Returns the array whose elements count; `None` if the cost is another.
    pub fn counted_source(&self) -> Option<&Source> {
        if let Cost::Counted(source) = self { Some(source) } else { None }
    }

    /// Returns the estimate of GraphQL queries; `None` if the cost is another.
    pub fn graphql_prices(&self) -> Option<&GraphqlPrices> {
        if let Cost::Graphql(prices) = self { Some(prices) } else { None }
    }

    /// Returns the part of the body that the cost reads, if the request is refused when the body cannot be read.
    pub fn required_body_source(&self) -> Option<&Source> {
        match self {
            Cost::ByCall(_) => Some(CALLS),
            Cost::Graphql(_) => Some(OPERATIONS),
            _ => self.counted_source(),
        }
    }

    /// Returns whether a call that either of the costs lists, or any other call, costs less than it did `before`.
    pub fn has_cheaper_call(&self, before: &Cost) -> bool {
        let price = |cost: &Cost, call: &Call| match cost {
            Cost::ByCall(prices) => Some(prices.cost_of(call)),
            Cost::Fixed(units) => Some(*units),
            _ => None,
        };
        let tables = [self, before].map(|cost| if let Cost::ByCall(prices) = cost { Some(prices) } else { None });
        if tables.iter().all(Option::is_none) {
            return false;
        }
        let costs = tables.into_iter().flatten().flat_map(|prices| &prices.listed);
        let mut calls = costs.map(|(pattern, _)| pattern.to_call()).chain([Call::default()]);
        calls.any(|call| price(self, &call) < price(before, &call))
    }

    /// Returns the estimate if the cost is one.
    pub fn reserve(&self) -> Option<&Reserve> {
        if let Cost::Reserved(reserve) = self { Some(reserve) } else { None }
    }

    /// Returns the costs by status; `None` if the status does not matter.
    pub fn status_prices(&self) -> Option<&Arc<StatusPrices>> {
        if let Cost::ByStatus(prices) = self { Some(prices) } else { None }
    }

    /// Returns the largest cost that a request can be charged when it arrives.
    pub fn max_cost(&self) -> i64 {
        match self {
            Cost::Fixed(cost) => *cost,
            Cost::Stated(_) | Cost::Counted(_) | Cost::Graphql(_) => COST_MAX,
            Cost::ByMethod(prices) => prices.listed.iter().map(|(_, cost)| *cost).fold(prices.default, i64::max),
            Cost::ByCall(prices) => times_calls(prices.max_cost(), CALLS_MAX),
            Cost::ByStatus(prices) => prices.default,
            Cost::Reserved(reserve) => reserve.max_units(),
        }
    }

    /// Returns the cost of a request that consists of these calls. A cost that does not depend on calls is the cost of
    /// the request.
    ///
    /// # Errors
    /// The errors of [`Cost::for_request`].
    pub fn for_calls(
        &self,
        calls: &[&Call],
        facts: &Facts,
        repeated: Repeated,
        not_integer: NotInteger,
    ) -> Result<Price, ValueError> {
        let units = match self {
            Cost::Fixed(cost) => times_calls(*cost, calls.len()),
            Cost::ByCall(prices) => {
                calls.iter().fold(0, |sum: i64, call| sum.saturating_add(prices.cost_of(call))).min(COST_MAX)
            }
            Cost::Graphql(prices) => {
                let mut sum: i64 = 0;
                for request in calls.iter().filter_map(|call| call.graphql.as_deref()) {
                    sum = sum.saturating_add(prices.cost_of(request)?);
                }
                sum.min(COST_MAX)
            }
            _ => return self.for_request(facts, repeated, not_integer),
        };
        Ok(Price { units, input_tokens: 0 })
    }

    /// Returns the cost of a request.
    ///
    /// # Errors
    /// The request has several costs, and `repeated` does not choose one; or the cost is not an integer from 0.
    pub fn for_request(&self, facts: &Facts, repeated: Repeated, not_integer: NotInteger) -> Result<Price, ValueError> {
        let whole = |units| Price { units, input_tokens: 0 };
        match self {
            Cost::Fixed(cost) => Ok(whole(*cost)),
            Cost::Stated(source) => {
                let Some(stated) = facts.text(source, repeated)? else { return Ok(whole(COST_DEFAULT)) };
                Ok(whole(not_integer.apply_to(units(&stated))?.unwrap_or(COST_DEFAULT)))
            }
            Cost::Counted(source) => {
                let elements = facts.count_elements(source, repeated)?;
                Ok(whole(not_integer.apply_to(elements)?.unwrap_or(COST_DEFAULT)))
            }
            Cost::ByMethod(prices) => Ok(whole(prices.cost_of(facts.method))),
            Cost::ByStatus(prices) => Ok(whole(prices.default)),
            // The limit selects the calls that count.
            Cost::ByCall(_) | Cost::Graphql(_) => {
                let protocol = self.sources().iter().find_map(Source::call_protocol).unwrap_or(CallProtocol::JsonRpc);
                let calls: Vec<&Call> = facts.calls(protocol)?.iter().collect();
                self.for_calls(&calls, facts, repeated, not_integer)
            }
            Cost::Reserved(reserve) => {
                let estimate = reserve.estimate(facts, repeated, not_integer)?;
                Ok(Price { units: estimate.units, input_tokens: estimate.input_floor })
            }
        }
    }
}

impl MethodPrices {
    /// Returns what a request with this method costs. Methods are case-sensitive.
    fn cost_of(&self, method: &str) -> i64 {
        self.listed.iter().find(|(name, _)| name == method).map_or(self.default, |(_, cost)| *cost)
    }
}

/// Returns a cost as often as there are calls.
fn times_calls(cost: i64, calls: usize) -> i64 {
    i64::try_from(calls).map_or(COST_MAX, |calls| cost.saturating_mul(calls)).min(COST_MAX)
}

impl CallPrices {
    /// Returns what a call costs. A tool precedes the start of tools, which precedes the method, and that the start of
    /// methods. The longest start counts.
    fn cost_of(&self, call: &Call) -> i64 {
        let Some(method) = call.method.as_deref() else { return self.default };
        let rank = |pattern: &CallPattern| match pattern {
            CallPattern::Tool { method: of, tool } => {
                (of == method && call.tool.as_deref() == Some(tool)).then_some((3, 0))
            }
            CallPattern::ToolPrefix { method: of, start } => {
                let starts = call.tool.as_deref().is_some_and(|tool| tool.starts_with(start.as_str()));
                (of == method && starts).then_some((2, start.len()))
            }
            CallPattern::Method(name) => (name == method).then_some((1, 0)),
            CallPattern::Prefix(start) => method.starts_with(start.as_str()).then_some((0, start.len())),
        };
        let ranked = self.listed.iter().filter_map(|(pattern, cost)| Some((rank(pattern)?, *cost)));
        ranked.max_by_key(|(rank, _)| *rank).map_or(self.default, |(_, cost)| cost)
    }

    /// Returns the largest cost of a call.
    pub fn max_cost(&self) -> i64 {
        self.listed.iter().map(|(_, cost)| *cost).fold(self.default, i64::max)
    }
}

impl CallPattern {
    /// Returns a call that the pattern matches.
    fn to_call(&self) -> Call {
        let (method, tool) = match self {
            CallPattern::Method(name) | CallPattern::Prefix(name) => (name, None),
            CallPattern::Tool { method, tool: name } | CallPattern::ToolPrefix { method, start: name } => {
                (method, Some(name.as_str().into()))
            }
        };
        Call { method: Some(method.as_str().into()), tool, ..Call::default() }
    }
}

impl fmt::Display for CallPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallPattern::Method(name) => f.write_str(name),
            CallPattern::Prefix(start) => write!(f, "{start}*"),
            CallPattern::Tool { method, tool } => write!(f, "{method}:{tool}"),
            CallPattern::ToolPrefix { method, start } => write!(f, "{method}:{start}*"),
        }
    }
}

impl StatusPrices {
    /// Returns what a request with this status costs. A status precedes its class.
    pub fn cost_of(&self, status: StatusCode) -> i64 {
        let cost_by = |wanted: StatusPattern| self.listed.iter().find(|(pattern, _)| *pattern == wanted);
        let listed = cost_by(StatusPattern::Status(status));
        let listed = listed.or_else(|| cost_by(StatusPattern::Class(status.as_u16() / 100)));
        listed.map_or(self.default, |(_, cost)| *cost)
    }

    /// Returns whether a response can cost more than was charged before.
    pub fn may_add(&self) -> bool {
        self.listed.iter().any(|(_, cost)| *cost > self.default)
    }
}

impl fmt::Display for StatusPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StatusPattern::Status(status) => status.as_str().fmt(f),
            StatusPattern::Class(class) => write!(f, "{class}xx"),
        }
    }
}

/// Formats the cost like the config.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cost::Fixed(cost) => cost.fmt(f),
            Cost::Stated(source) => source.fmt(f),
            Cost::Counted(source) => write!(f, "count of {source}"),
            Cost::ByMethod(prices) => write_prices(f, "method", &prices.listed, prices.default),
            Cost::ByStatus(prices) => write_prices(f, "status", &prices.listed, prices.default),
            Cost::ByCall(prices) => write_prices(f, "call", &prices.listed, prices.default),
            Cost::Graphql(prices) => prices.fmt(f),
            Cost::Reserved(_) => f.write_str("reserve"),
        }
    }
}

fn write_prices<K: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    listed: &[(K, i64)],
    default: i64,
) -> fmt::Result {
    write!(f, "by {name}: ")?;
    listed.iter().try_for_each(|(key, cost)| write!(f, "{key} {cost}, "))?;
    write!(f, "others {default}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_precedes_its_class_and_others_cost_the_default() {
        let status = |code| StatusCode::from_u16(code).unwrap();
        let listed =
            vec![(StatusPattern::Class(4), 5), (StatusPattern::Status(status(404)), 7), (StatusPattern::Class(2), 0)];
        let prices = StatusPrices { listed, default: 3 };
        for (code, cost) in [(200, 0), (299, 0), (404, 7), (403, 5), (500, 3), (304, 3)] {
            assert_eq!(prices.cost_of(status(code)), cost, "{code}");
        }
        assert!(prices.may_add());
        assert_eq!(Cost::ByStatus(Arc::new(prices)).to_string(), "by status: 4xx 5, 404 7, 2xx 0, others 3");
    }

    #[test]
    fn the_most_specific_price_of_a_call_counts() {
        let method = |name: &str| CallPattern::Method(name.to_owned());
        let prefix = |start: &str| CallPattern::Prefix(start.to_owned());
        let tool = CallPattern::Tool { method: "tools/call".to_owned(), tool: "search".to_owned() };
        let tools = |start: &str| CallPattern::ToolPrefix { method: "tools/call".to_owned(), start: start.to_owned() };
        let listed = vec![
            (prefix("debug_"), 50),
            (prefix("debug_trace"), 500),
            (method("debug_traceCall"), 7),
            (method("tools/call"), 2),
            (tool, 9),
            (tools("se"), 3),
            (tools("delete_"), 60),
            (tools("delete_all"), 70),
        ];
        let prices = CallPrices { listed, default: 10 };
        let cost = |method: Option<&str>, tool: Option<&str>| {
            let call = Call { method: method.map(Into::into), tool: tool.map(Into::into), ..Call::default() };
            prices.cost_of(&call)
        };
        for (method, tool, expected) in [
            (Some("debug_gc"), None, 50),
            (Some("debug_traceBlock"), None, 500),
            (Some("debug_traceCall"), None, 7),
            (Some("Debug_gc"), None, 10),
            (Some("tools/call"), Some("search"), 9),
            (Some("tools/call"), Some("Search"), 2),
            (Some("tools/call"), Some("searches"), 3),
            (Some("tools/call"), Some("delete_x"), 60),
            (Some("tools/call"), Some("delete_all_x"), 70),
            (Some("prompts/get"), Some("delete_x"), 10),
            (Some("tools/call"), None, 2),
            (Some("prompts/get"), Some("search"), 10),
            (None, None, 10),
        ] {
            assert_eq!(cost(method, tool), expected, "{method:?} {tool:?}");
        }
        let cost = Cost::ByCall(Box::new(prices.clone()));
        assert_eq!(cost.max_cost(), 500_000);
        let changed = |change: fn(&mut CallPrices)| {
            let mut prices = prices.clone();
            change(&mut prices);
            Cost::ByCall(Box::new(prices)).has_cheaper_call(&cost)
        };
        assert!(!changed(|_| {}) && !changed(|prices| prices.default = 11));
        assert!(changed(|prices| prices.default = 9) && changed(|prices| prices.listed[2].1 = 6));
        assert!(changed(|prices| drop(prices.listed.remove(1))), "what starts like this costs as others do then");
        assert!(!changed(|prices| drop(prices.listed.remove(2))));
        assert!(Cost::Fixed(1).has_cheaper_call(&cost) && !cost.has_cheaper_call(&Cost::Fixed(1)));
        assert_eq!(times_calls(COST_MAX, 2), COST_MAX);
    }

    #[test]
    fn methods_are_case_sensitive() {
        let prices = MethodPrices { listed: vec![("GET".to_owned(), 1), ("POST".to_owned(), 5)], default: 9 };
        assert_eq!(["GET", "POST", "get", "HEAD"].map(|method| prices.cost_of(method)), [1, 5, 9, 9]);
        assert_eq!(Cost::ByMethod(Box::new(prices)).max_cost(), 9);
    }
}
