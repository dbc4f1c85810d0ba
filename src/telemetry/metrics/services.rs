//! Metrics of the decisions that the gateway makes for other proxies: questions on listeners with `serve = "decide"`,
//! and gRPC calls to listeners with `serve = "grpc"`. `proxy::doors` counts them.

use prometheus::{IntCounter, IntCounterVec};

use crate::grpc::GrpcCode;
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

labels! {
    /// Method of a call.
    RpcMethod:
    ShouldRateLimit = "ShouldRateLimit",
    /// A method of `Authorization`.
    Check = "Check",
    HealthCheck = "HealthCheck",
    /// The gateway does not have it.
    Unknown = "unknown",
}

labels! {
    /// How the rules treat a descriptor of a rate limit request.
    DescriptorResult:
    Limited = "limited",
    /// The rule of the descriptor has no limits.
    Exempt = "exempt",
    /// No rule of the domain matches it.
    Unmatched = "unmatched",
    /// No rule has the domain.
    UnknownDomain = "unknown_domain",
    /// The request exceeds a bound or cannot be decided, and is refused.
    Undecidable = "undecidable",
}

#[derive(Clone)]
pub struct RpcMetrics {
    calls: IntCounterVec,
    /// Calls without an error, by method: looking a series up costs more than counting.
    successes: Vec<IntCounter>,
    descriptors: Vec<IntCounter>,
}

impl RpcMetrics {
    pub fn new(families: &Families) -> prometheus::Result<RpcMetrics> {
        let calls = families.counters("rpc_calls_total", "gRPC calls, by their status.", &["method", "code"])?;
        let help = "Descriptors of rate limit requests, by what applied to them.";
        let descriptors = families.counters("rls_descriptors_total", help, &["result"])?;
        let successes = |method: &RpcMethod| calls.with_label_values(&[method.label(), GrpcCode::Ok.label()]);
        Ok(RpcMetrics {
            successes: RpcMethod::ALL.iter().map(successes).collect(),
            descriptors: DescriptorResult::ALL
                .iter()
                .map(|result| descriptors.with_label_values(&[result.label()]))
                .collect(),
            calls,
        })
    }

    /// Counts a call that succeeded or failed.
    pub fn count_call(&self, method: RpcMethod, code: GrpcCode) {
        match code {
            GrpcCode::Ok => self.successes[method as usize].inc(),
            code => self.calls.with_label_values(&[method.label(), code.label()]).inc(),
        }
    }

    pub fn count_descriptor(&self, result: DescriptorResult) {
        self.descriptors[result as usize].inc();
    }
}
