//! What the answers to checks make of a server. Pure. Called by `state`.

use crate::labels::labels;

/// `health` of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthRule {
    pub kind: CheckKind,
    /// Asked with GET, for `http`.
    pub path: String,
    pub every_ms: u64,
    pub timeout_ms: u64,
    /// Failures in a row that make a server down.
    pub unhealthy_after: u32,
    /// Good answers in a row that make it up again.
    pub healthy_after: u32,
    /// Statuses that are good, from and to.
    pub status: Vec<(u16, u16)>,
    /// What the beginning of the body has to hold.
    pub body: Option<String>,
}

impl HealthRule {
    pub fn takes(&self, status: u16) -> bool {
        self.status.iter().any(|(from, to)| (*from..=*to).contains(&status))
    }
}

labels! {
    /// What is asked of a server.
    CheckKind:
    Http = "http",
    /// That it accepts a connection.
    Tcp = "tcp",
    /// grpc.health.v1.Health/Check, of the server as a whole.
    Grpc = "grpc",
}

labels! {
    /// Why a check failed.
    CheckFault:
    Connection = "check: no_connection",
    /// The gateway itself could not: it says nothing of the server.
    NotAsked = "check: not_asked",
    Timeout = "check: timeout",
    /// It broke off, or is not the protocol.
    Broken = "check: broken",
    Status = "check: status",
    Body = "check: body",
    NotServing = "check: not_serving",
}

/// Checks of one server, which is up until they say otherwise.
#[derive(Debug, Default)]
pub struct CheckRun {
    down: Option<CheckFault>,
    /// Results that contradict that, one after the other.
    against: u32,
}

impl CheckRun {
    /// Why it is down, if it is.
    pub fn down(&self) -> Option<CheckFault> {
        self.down
    }

    pub fn checked(&mut self, rule: &HealthRule, result: Result<(), CheckFault>) {
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
            *self = CheckRun { down: result.err(), against: 0 };
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
        };
        let mut run = CheckRun::default();
        let mut seen = |results: &[Result<(), CheckFault>]| {
            results.iter().for_each(|result| run.checked(&rule, *result));
            run.down()
        };
        let (bad, late) = (Err(CheckFault::Status), Err(CheckFault::Timeout));
        assert_eq!(seen(&[bad, bad, Ok(()), bad, bad]), None, "one good answer between them");
        assert_eq!(seen(&[late]), Some(CheckFault::Timeout));
        assert_eq!(seen(&[bad]), Some(CheckFault::Status), "the reason is the last");
        assert_eq!(seen(&[Ok(()), bad, Ok(())]), Some(CheckFault::Status), "flapping is not up");
        assert_eq!(seen(&[Ok(())]), None);
    }
}
