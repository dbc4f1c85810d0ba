//! Runs the test cases of a config in virtual time, with limits in memory.
//!
//! Input: a compiled config and its cases (`config::cases`). Output: the result of each case and the coverage of routes
//! and limits (`coverage`), as JSON or, for failed cases, as a report with places. `results` compares what was found
//! with what is expected. The requests are charged, and a later case meets what the earlier ones have used.
//!
//! To add something to expect, add it to `config::cases::Expectation` and to `results`.

mod coverage;
mod results;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::config::Config;
use crate::config::cases::{CaseFile, CaseTime, TestCase};
pub use crate::explain::cases::coverage::Coverage;
pub use crate::explain::cases::results::{CaseResult, describe_failures};
use crate::explain::explanation::RequestDecision;
use crate::explain::input::ExplainInput;
use crate::explain::offline::OfflineLimiter;
use crate::explain::walk::MadeCharge;
use crate::grpc::GRPC;
use crate::limiting::decision::{Check, Op};
use crate::limiting::limit::request_end::{RequestEnd, ResponseTail};
use crate::limiting::limit::settle::BodyUsage;

/// The words of `decision` in a case.
pub fn decision_names() -> Vec<&'static str> {
    RequestDecision::ALL.iter().map(|decision| decision.label()).collect()
}

/// Runs all cases in order.
///
/// # Errors
/// A request cannot be sent by any client; names the line of its case.
pub fn run_cases(config: &Config, file: &CaseFile) -> Result<(Vec<CaseResult>, Coverage), String> {
    let mut run = CaseRun {
        config,
        limiter: OfflineLimiter::new(config)?,
        now_ms: file.start_ms,
        ends: BinaryHeap::new(),
        corrections: Vec::new(),
        coverage: Coverage::new(config),
    };
    let mut results = Vec::with_capacity(file.cases.len());
    for case in &file.cases {
        let offset = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4);
        run.now_ms = match case.at {
            CaseTime::SincePrevious(duration) => run.now_ms.saturating_add(offset(duration)),
            CaseTime::SinceStart(duration) => file.start_ms.saturating_add(offset(duration)).max(run.now_ms),
        };
        let mut result = CaseResult::new(case, run.now_ms - file.start_ms);
        run.run_case(case, &mut result).map_err(|why| format!("line {}: {why}", case.line))?;
        results.push(result);
    }
    Ok((results, run.coverage))
}

/// The effect of the end of a request on one of its charges.
enum CaseEnd {
    /// The charge with the tag's receipt changes by the cost of the check.
    Correct(Check),
    /// The key is reset.
    Clear(Check),
}

/// The state of a run.
struct CaseRun<'a> {
    config: &'a Config,
    limiter: OfflineLimiter,
    now_ms: i64,
    /// Times of corrections, and their indexes.
    ends: BinaryHeap<Reverse<(i64, usize)>>,
    corrections: Vec<CaseEnd>,
    coverage: Coverage,
}

impl CaseRun<'_> {
    fn run_case(&mut self, case: &TestCase, result: &mut CaseResult) -> Result<(), String> {
        let input = ExplainInput {
            method: case.method.clone(),
            url: case.url.clone(),
            headers: case.headers.clone(),
            from: case.from,
            body: case.body.clone().map(String::into_bytes),
            certificate_subject: case.certificate_subject.clone(),
            user: case.user.clone(),
            ext_authz: None,
        };
        for run in 1..=case.repeat {
            self.correct_due();
            self.limiter.timeline.set_now(self.now_ms);
            let (explanation, charges) = self.limiter.explain(&input, self.config, Op::Take)?;
            self.coverage.record(&explanation);
            result.compare(case, &explanation, run);
            let verdict = &explanation.verdict;
            let is_refused = verdict.decision == RequestDecision::Refuse.label();
            // A response of the gateway decides over refunds like one of a server.
            let status = verdict.status.unwrap_or(case.response);
            let duration = if is_refused { Duration::ZERO } else { case.duration };
            let took = i64::try_from(duration.as_millis()).unwrap_or(0) + verdict.delay_ms.unwrap_or(0);
            self.plan_corrections(charges, (status, is_refused), self.now_ms.saturating_add(took));
        }
        Ok(())
    }

    /// Plans what the end of a request changes in its charges.
    fn plan_corrections(&mut self, charges: Vec<MadeCharge>, (status, is_refused): (u16, bool), end_ms: i64) {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        let head = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(GRPC))]);
        for MadeCharge { limit, check } in charges {
            let Some(rules) = &limit.charge_rules else { continue };
            let end = RequestEnd::Response { status, head: &head, tail: ResponseTail::Awaited };
            // A refusal of the gateway resets no key, and is not a response of the route.
            if !is_refused && rules.clears(end) == Some(true) {
                self.ends.push(Reverse((end_ms, self.corrections.len())));
                self.corrections.push(CaseEnd::Clear(check));
                continue;
            }
            let delta = if rules.lease {
                -check.cost
            } else {
                rules.correction(end, check.cost, BodyUsage::Unread).unwrap_or(0)
            };
            if delta != 0 {
                self.ends.push(Reverse((end_ms, self.corrections.len())));
                self.corrections.push(CaseEnd::Correct(Check { cost: delta, ..check }));
            }
        }
    }

    /// Makes the corrections of all requests that have ended.
    fn correct_due(&mut self) {
        while let Some(Reverse((at_ms, index))) = self.ends.peek().copied() {
            if at_ms > self.now_ms {
                return;
            }
            self.ends.pop();
            self.limiter.timeline.set_now(at_ms);
            match self.corrections.get(index) {
                Some(CaseEnd::Correct(check)) => self.limiter.timeline.adjust(check),
                Some(CaseEnd::Clear(check)) => self.limiter.timeline.clear(check),
                None => {}
            }
        }
    }
}
