//! When health checks make a server unhealthy or healthy again. Pure. Called by `state`.

use http::{HeaderName, HeaderValue};

use crate::labels::labels;

/// `health` of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthRule {
    pub kind: CheckKind,
    /// The path of the GET request, for `http`.
    pub path: String,
    pub every_ms: u64,
    pub timeout_ms: u64,
    /// Failures in a row that make a server unhealthy.
    pub unhealthy_after: u32,
    /// Successes in a row that make it healthy again.
    pub healthy_after: u32,
    /// Ranges of statuses that count as success, both ends included.
    pub status: Vec<(u16, u16)>,
    /// Text that the beginning of the body must contain.
    pub body: Option<String>,
    /// The `Host` of the request; `None` uses the host in the server's URL.
    pub host: Option<HeaderValue>,
    /// Headers of the request, which replace those that a check has by itself.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl HealthRule {
    /// Returns whether the status counts as success.
    pub fn is_success(&self, status: u16) -> bool {
        self.status.iter().any(|(from, to)| (*from..=*to).contains(&status))
    }
}

labels! {
    /// The kind of a check.
    CheckKind:
    Http = "http",
    /// The server accepts a connection.
    Tcp = "tcp",
    /// A call of `grpc.health.v1.Health/Check` for the server as a whole.
    Grpc = "grpc",
}

labels! {
    /// Why a check failed.
    CheckFault:
    Connection = "check: no_connection",
    /// The gateway had no resources for the check, which says nothing about the server.
    NoResources = "check: not_asked",
    Timeout = "check: timeout",
    /// The connection broke off, or the response was not valid.
    Broken = "check: broken",
    Status = "check: status",
    Body = "check: body",
    NotServing = "check: not_serving",
}

/// Check results of one server. It is healthy until checks fail.
#[derive(Debug, Default)]
pub struct CheckHistory {
    down: Option<CheckFault>,
    /// Results in a row that contradict the current state.
    against: u32,
}

impl CheckHistory {
    /// Returns why the server is unhealthy, if it is.
    pub fn failure(&self) -> Option<CheckFault> {
        self.down
    }

    /// Records the result of a check.
    pub fn record_check(&mut self, rule: &HealthRule, result: Result<(), CheckFault>) {
        let against = match (self.down, result) {
            (None, Err(_)) => rule.unhealthy_after,
            (Some(_), Ok(())) => rule.healthy_after,
            (None, Ok(())) | (Some(_), Err(_)) => {
                self.against = 0;
                self.down = self.down.and(result.err());
                return;
            }
        };
        self.against += 1;
        if self.against >= against {
            *self = CheckHistory { down: result.err(), against: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_runs_change_what_is_known() {
        let rule = HealthRule {
            kind: CheckKind::Http,
            path: "/".to_owned(),
            every_ms: 1000,
            timeout_ms: 1000,
            unhealthy_after: 3,
            healthy_after: 2,
            status: vec![(200, 399)],
            body: None,
            host: None,
            headers: Vec::new(),
        };
        let mut run = CheckHistory::default();
        let mut seen = |results: &[Result<(), CheckFault>]| {
            results.iter().for_each(|result| run.record_check(&rule, *result));
            run.failure()
        };
        let (bad, late) = (Err(CheckFault::Status), Err(CheckFault::Timeout));
        assert_eq!(seen(&[bad, bad, Ok(()), bad, bad]), None, "one good answer between them");
        assert_eq!(seen(&[late]), Some(CheckFault::Timeout));
        assert_eq!(seen(&[bad]), Some(CheckFault::Status), "the reason is the last");
        assert_eq!(seen(&[Ok(()), bad, Ok(())]), Some(CheckFault::Status), "flapping is not up");
        assert_eq!(seen(&[Ok(())]), None);
    }
}
