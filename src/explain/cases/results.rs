//! Compares what a case expects with what was found.

use serde_json::{Map, Value, json};

use crate::config::Place;
use crate::config::cases::TestCase;
use crate::explain::explanation::Explanation;

/// The result of one case.
pub struct CaseResult {
    name: String,
    line: usize,
    column: usize,
    /// Time since the start of the first case.
    at_ms: i64,
    repeat: u32,
    /// Results of the last request of the case, by name.
    found: Map<String, Value>,
    failures: Vec<CaseFailure>,
}

/// An expectation that was not met.
struct CaseFailure {
    field: &'static str,
    place: Place,
    expected: Value,
    found: Value,
    /// Number of the request within its case, from 1.
    run: u32,
    why: String,
}

impl CaseResult {
    pub fn new(case: &TestCase, at_ms: i64) -> CaseResult {
        let name = case.name.clone().unwrap_or_else(|| format!("{} {}", case.method, case.url));
        let (found, failures) = (Map::new(), Vec::new());
        CaseResult { name, line: case.line, column: case.column, at_ms, repeat: case.repeat, found, failures }
    }

    pub fn has_passed(&self) -> bool {
        self.failures.is_empty()
    }

    /// Compares one request with what its case expects. Of several requests with the same failure, the first counts.
    pub fn compare(&mut self, case: &TestCase, explanation: &Explanation, run: u32) {
        let verdict = &explanation.verdict;
        let values = [
            ("route", json!(explanation.route.as_ref().map(|route| &route.name))),
            ("client", json!(explanation.client.address)),
            ("decision", json!(verdict.decision)),
            ("limit", json!(verdict.limit)),
            ("retry_after_ms", json!(verdict.retry_after_ms)),
            ("status", json!(verdict.status.unwrap_or(case.response))),
            ("reason", json!(verdict.reason)),
        ];
        self.found = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let expect = &case.expect;
        let texts = [
            ("route", &expect.route),
            ("client", &expect.client),
            ("decision", &expect.decision),
            ("limit", &expect.limit),
            ("reason", &expect.reason),
        ];
        let texts =
            texts.into_iter().filter_map(|(field, at)| at.as_ref().map(|at| (field, at.place, json!(at.value))));
        let numbers = [("retry_after_ms", &expect.retry_after_ms), ("status", &expect.status)];
        let numbers =
            numbers.into_iter().filter_map(|(field, at)| at.as_ref().map(|at| (field, at.place, json!(at.value))));
        for (field, place, expected) in texts.chain(numbers) {
            let actual = self.found.get(field).cloned().unwrap_or_default();
            let is_known = self.failures.iter().any(|failure| failure.field == field);
            if actual != expected && !is_known {
                let why = describe_verdict(explanation);
                self.failures.push(CaseFailure { field, place, expected, found: actual, run, why });
            }
        }
    }

    pub fn to_json(&self) -> Value {
        let failures: Vec<Value> = self
            .failures
            .iter()
            .map(|failure| {
                let CaseFailure { field, expected, found, run, why, .. } = failure;
                json!({ "field": field, "expected": expected, "found": found, "run": run, "why": why })
            })
            .collect();
        json!({
            "name": self.name,
            "line": self.line,
            "column": self.column,
            "at_ms": self.at_ms,
            "repeat": self.repeat,
            "passed": self.has_passed(),
            "found": self.found,
            "failures": failures,
        })
    }
}

/// Returns the failures of all cases: place, message and reason.
pub fn describe_failures(results: &[CaseResult]) -> Vec<(Place, String, String)> {
    let failures = results.iter().flat_map(|result| result.failures.iter().map(move |failure| (result, failure)));
    let describe = |(result, failure): (&CaseResult, &CaseFailure)| {
        let CaseFailure { field, place, expected, found, run, why } = failure;
        let which = if result.repeat > 1 { format!(", in request {run} of {}", result.repeat) } else { String::new() };
        let message = format!("case `{}`: expected {field} {expected}, found {found}{which}", result.name);
        (*place, message, why.clone())
    };
    failures.map(describe).collect()
}

fn describe_verdict(explanation: &Explanation) -> String {
    let verdict = &explanation.verdict;
    let limit = verdict.limit.as_ref().map_or_else(String::new, |limit| format!(" by limit {limit}"));
    let wait = verdict.retry_after_ms.map_or_else(String::new, |ms| format!(", passes in {ms} ms"));
    format!("the verdict is {}{limit}: {}{wait}", verdict.decision, verdict.detail)
}
