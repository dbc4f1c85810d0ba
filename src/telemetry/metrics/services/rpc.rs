//! Metrics of calls to listeners with `serve = "grpc"`.

use prometheus::{IntCounter, IntCounterVec};

use crate::grpc::GrpcCode;
use crate::labels::labels;
use crate::telemetry::metrics::families::Families;

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
