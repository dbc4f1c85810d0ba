//! Metrics of questions that other proxies ask on listeners with `serve = "decide"`.

use crate::labels::labels;
use crate::telemetry::metrics::counter::{Counter, Counters};
use crate::telemetry::metrics::families::Families;

labels! {
    /// Result of a question or settlement; the `result` label of `decide_requests_total`.
    QuestionResult:
    Admitted = "admitted",
    /// A limit refused, or the route's `deny` list.
    Refused = "refused",
    /// An earlier question with the same id was answered, and this one got the same answer.
    Replayed = "replayed",
    /// The peer is not in `trusted_proxies`.
    UntrustedPeer = "untrusted_peer",
    /// Nobody may ask about this name.
    UnknownName = "unknown_name",
    /// The facts about the request are missing, repeated, malformed, or contradict each other.
    BadFacts = "bad_facts",
    /// The request in question is invalid or ambiguous.
    InvalidRequest = "invalid_request",
    /// A receipt was redeemed.
    Settled = "settled",
    /// A receipt was not redeemed.
    NotSettled = "not_settled",
    /// The answer has no receipt, because it would be too long.
    NoReceipt = "no_receipt",
}

/// All counters of the family.
#[derive(Clone)]
pub struct DecideMetrics(Counters);

/// One worker's counters, in the order of the results.
pub struct QuestionCounters(Vec<Counter>);

impl DecideMetrics {
    pub fn new(families: &Families) -> prometheus::Result<DecideMetrics> {
        let help = "Requests of other proxies to listeners with serve = \"decide\", by result.";
        families.sharded_counters("decide_requests_total", help, &["result"]).map(DecideMetrics)
    }

    /// Returns the counters of a worker.
    pub fn for_worker(&self, worker: usize) -> QuestionCounters {
        let of = |result: &QuestionResult| self.0.shard_for(worker, &[result.label()]);
        QuestionCounters(QuestionResult::ALL.iter().map(of).collect())
    }
}

impl QuestionCounters {
    pub fn count(&self, result: QuestionResult) {
        self.0[result as usize].inc();
    }
}
