//! Reports of the gateway about itself and its requests: `metrics` (Prometheus), `access_log` (one line per request),
//! `tap` (requests as an operator watches them), `spans` (OpenTelemetry), `exemplars` (traces beside metrics) and
//! `sampled` (rate limit for log lines that peers can trigger).
//!
//! Input: workers report events through handles that never block. Output: the admin listener renders the metrics;
//! threads of their own write log lines and send spans. Telemetry only observes: a value that decides something
//! belongs to the module that decides.

pub(crate) mod access_log;
pub mod exemplars;
pub mod metrics;
pub(crate) mod sampled;
pub(crate) mod spans;
pub(crate) mod tap;
