//! The state machine of a circuit breaker: closed, open, half-open, and closed again with a ramp. Pure: time is an
//! argument. Called by [`CircuitBreaker`](super::CircuitBreaker), which holds the lock.
//!
//! Each change of the phase begins a new epoch. A ticket carries the epoch in which its request was admitted, and a
//! report counts only in that epoch. So late results of requests from before can neither close nor open the breaker.

use crate::labels::labels;
use crate::upstream::Fraction;
use crate::upstream::breaker::clients::Suspects;
use crate::upstream::breaker::window::{CallCounts, CallReport, CallWindow};
use crate::upstream::eject::Blame;

/// `breaker` of an upstream or a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerRule {
    /// Time to the response head from which a request is slow.
    pub slow_ms: Option<u64>,
    /// Fraction of slow requests that opens the breaker.
    pub slow_ratio: Fraction,
    /// Fraction of errors that opens the breaker.
    pub error_ratio: Option<Fraction>,
    /// Number of errors that opens the breaker.
    pub errors: Option<u64>,
    /// The time over which the conditions are computed.
    pub window_ms: u64,
    /// Fewest requests in the window from which the conditions are computed.
    pub min_requests: u64,
    pub open_for_ms: u64,
    /// Requests that are admitted while the breaker is half-open. Their results decide.
    pub probes: u32,
    /// Time over which the share of admitted requests rises from 10 % to 100 % after a successful probe.
    pub ramp_ms: u64,
}

labels! {
    /// The condition that opened a breaker.
    OpenCondition:
    SlowRatio = "slow_ratio",
    ErrorRatio = "error_ratio",
    Errors = "errors",
}

labels! {
    /// The phase of a breaker as metrics, logs and the admin API show it.
    BreakerPhase:
    Closed = "closed",
    /// Closed, but only a rising share of the requests is admitted.
    Ramp = "ramp",
    HalfOpen = "half_open",
    Open = "open",
}

/// Why the breaker last opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenCause {
    pub condition: OpenCondition,
    /// Requests that were counted, and how many of them met the condition.
    pub requests: u64,
    pub failed: u64,
    /// The requests were probes: the breaker was half-open.
    pub were_probes: bool,
}

/// Decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Admitted(Ticket),
    /// The breaker may admit a request after this time.
    Refused {
        wait_ms: u64,
    },
}

/// The admission of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub epoch: u64,
    /// The number of the probe, if the request is one.
    pub probe: Option<u64>,
}

/// The share of requests with which a ramp begins, and the whole, in thousandths.
const RAMP_START: u64 = 100;
const WHOLE: u64 = 1000;

/// `Retry-After` of requests that a half-open or ramping breaker refuses, in ms.
const SHORT_WAIT_MS: u64 = 1_000;

#[derive(Debug)]
enum MachinePhase {
    Closed {
        /// When the ramp began, until it is over.
        ramp_since_ms: Option<u64>,
        /// Shares of requests added up, in thousandths: each whole admits one.
        credit: u64,
    },
    Open {
        until_ms: u64,
    },
    HalfOpen {
        results: CallCounts,
        /// Clients of probes that failed; at most one for each probe.
        failed: Vec<u64>,
        /// Probes without a result: their numbers, and when their places become free. At most `probes` of them.
        running: Vec<(u64, u64)>,
        since_ms: u64,
    },
}

/// The state of one breaker.
#[derive(Debug)]
pub struct BreakerMachine {
    phase: MachinePhase,
    epoch: u64,
    /// Results of the current epoch, while closed.
    window: CallWindow,
    last_cause: Option<OpenCause>,
    /// Clients whose probes failed since the breaker was last closed.
    suspects: Suspects,
    /// Other clients sent requests since the breaker opened.
    has_other_clients: bool,
    /// Number of the next probe.
    next_probe: u64,
    /// How often each phase was entered: opened, half-opened, closed.
    pub entered: EnteredCounts,
}

/// How often a breaker changed its phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnteredCounts {
    pub open: u64,
    pub half_open: u64,
    pub closed: u64,
}

/// The state of a breaker for metrics, logs and the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerReport {
    pub phase: BreakerPhase,
    /// How long an open breaker refuses all requests from now on.
    pub opens_for_ms: Option<u64>,
    /// The share of requests that a closed breaker admits, in thousandths.
    pub share: u64,
    pub cause: Option<OpenCause>,
    pub entered: EnteredCounts,
}

impl Default for BreakerMachine {
    fn default() -> BreakerMachine {
        BreakerMachine {
            phase: MachinePhase::closed(None),
            epoch: 0,
            window: CallWindow::default(),
            last_cause: None,
            suspects: Suspects::default(),
            has_other_clients: false,
            next_probe: 0,
            entered: EnteredCounts::default(),
        }
    }
}

impl MachinePhase {
    fn closed(ramp_since_ms: Option<u64>) -> MachinePhase {
        MachinePhase::Closed { ramp_since_ms, credit: 0 }
    }
}

impl BreakerMachine {
    /// Returns the current epoch if all requests are admitted, so that later ones need no lock.
    pub fn open_epoch(&self) -> Option<u64> {
        matches!(self.phase, MachinePhase::Closed { ramp_since_ms: None, .. }).then_some(self.epoch)
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Decides whether a request of `client` is admitted at `now_ms`. An admitted probe must be reported or returned;
    /// if it is neither, its place becomes free after `open_for`. A client whose probe failed in an earlier half-open
    /// phase gets none for as long, if other clients send requests too.
    pub fn admit(&mut self, rule: &BreakerRule, now_ms: u64, client: Blame) -> Admission {
        if matches!(self.phase, MachinePhase::Open { until_ms } if now_ms >= until_ms) {
            self.enter(MachinePhase::HalfOpen {
                results: CallCounts::default(),
                failed: Vec::new(),
                running: Vec::new(),
                since_ms: now_ms,
            });
        }
        if let Some(wait_ms) = self.find_wait(rule, now_ms, client) {
            return Admission::Refused { wait_ms };
        }
        let epoch = self.epoch;
        match &mut self.phase {
            MachinePhase::Open { .. } => Admission::Refused { wait_ms: rule.open_for_ms },
            MachinePhase::HalfOpen { running, .. } => {
                self.next_probe += 1;
                running.push((self.next_probe, now_ms.saturating_add(rule.open_for_ms)));
                Admission::Admitted(Ticket { epoch, probe: Some(self.next_probe) })
            }
            MachinePhase::Closed { ramp_since_ms, credit } => {
                let ticket = Admission::Admitted(Ticket { epoch, probe: None });
                let Some(since_ms) = *ramp_since_ms else { return ticket };
                let share = ramp_share(rule, now_ms.saturating_sub(since_ms));
                if share == WHOLE {
                    *ramp_since_ms = None;
                    self.suspects.clear();
                    return ticket;
                }
                *credit += share;
                if *credit < WHOLE {
                    return Admission::Refused { wait_ms: SHORT_WAIT_MS };
                }
                *credit -= WHOLE;
                ticket
            }
        }
    }

    /// Returns how long `client` has to wait if the breaker is open, or half-open without a place for its probe.
    pub fn find_wait(&mut self, rule: &BreakerRule, now_ms: u64, client: Blame) -> Option<u64> {
        let is_suspect = self.suspects.contains(client);
        if !matches!(self.phase, MachinePhase::Closed { .. }) {
            self.has_other_clients |= !is_suspect;
        }
        match &mut self.phase {
            MachinePhase::Open { until_ms } => (now_ms < *until_ms).then(|| *until_ms - now_ms),
            MachinePhase::HalfOpen { results, running, since_ms, .. } => {
                let may_begin =
                    !(self.has_other_clients && is_suspect) || now_ms >= since_ms.saturating_add(rule.open_for_ms);
                running.retain(|(_, free_ms)| now_ms < *free_ms);
                let request_count = results.requests + running.len() as u64;
                (request_count >= u64::from(rule.probes) || !may_begin).then_some(SHORT_WAIT_MS)
            }
            MachinePhase::Closed { .. } => None,
        }
    }

    /// Returns a ticket whose request did not get a result from the upstream. A probe's place becomes free.
    pub fn return_ticket(&mut self, ticket: Ticket) {
        if let (MachinePhase::HalfOpen { running, .. }, true) = (&mut self.phase, ticket.epoch == self.epoch) {
            running.retain(|(probe, _)| Some(*probe) != ticket.probe);
        }
    }

    /// Adds the outcome of an admitted request. A report of an earlier epoch changes nothing.
    pub fn report(&mut self, rule: &BreakerRule, now_ms: u64, ticket: Ticket, report: &CallReport) {
        if ticket.epoch != self.epoch {
            return;
        }
        let is_suspect = self.suspects.contains(report.client);
        match &mut self.phase {
            MachinePhase::Open { .. } => {}
            // Their failures would end the ramp before the window has results of others.
            MachinePhase::Closed { ramp_since_ms: Some(_), .. } if report.is_failed() && is_suspect => {}
            MachinePhase::Closed { ramp_since_ms, .. } => {
                self.window.add_report(rule.window_ms, now_ms, report);
                let total = self.window.total(rule.window_ms, now_ms);
                if total.requests < rule.min_requests {
                    return;
                }
                // The probes were good, and few requests pass at first: a single client must not end the ramp.
                let good = if ramp_since_ms.is_some() { 1 } else { rule.min_requests };
                if let Some((condition, failed)) = rule.find_tripped(&total, Some(good)) {
                    let cause = OpenCause { condition, requests: total.requests, failed, were_probes: false };
                    self.open(rule, now_ms, cause);
                }
            }
            MachinePhase::HalfOpen { results, running, failed: failed_clients, .. } => {
                running.retain(|(probe, _)| Some(*probe) != ticket.probe);
                results.add_report(report);
                if let (true, Blame::Client(client)) = (report.is_failed(), report.client) {
                    failed_clients.push(client);
                }
                let (results, probes) = (*results, u64::from(rule.probes));
                // The ratios refer to all probes, so that the first failure of several does not decide.
                let whole = CallCounts { requests: results.requests.max(probes), ..results };
                let is_certain = results.requests >= probes || results.failed_clients.count() > 1;
                let tripped = rule.find_tripped(&whole, None).filter(|_| is_certain);
                if tripped.is_some() || results.requests >= probes {
                    failed_clients.iter().for_each(|client| self.suspects.add_client(*client));
                }
                if let Some((condition, failed)) = tripped {
                    let requests = results.requests;
                    self.open(rule, now_ms, OpenCause { condition, requests, failed, were_probes: true });
                } else if results.requests >= probes {
                    self.close(rule, now_ms);
                }
            }
        }
    }

    /// Applies `rule`, which is new at `now_ms`: forgets the results in the window, and shortens the time for which an
    /// open breaker stays open.
    pub fn apply_new_rule(&mut self, rule: &BreakerRule, now_ms: u64) {
        self.window = CallWindow::default();
        if let MachinePhase::Open { until_ms } = &mut self.phase {
            *until_ms = (*until_ms).min(now_ms.saturating_add(rule.open_for_ms));
        }
    }

    /// Returns the state at `now_ms`.
    pub fn describe(&self, rule: &BreakerRule, now_ms: u64) -> BreakerReport {
        let (phase, opens_for_ms, share) = match self.phase {
            MachinePhase::Open { until_ms } if now_ms < until_ms => (BreakerPhase::Open, Some(until_ms - now_ms), 0),
            // No request has come since, which would be a probe.
            MachinePhase::Open { .. } | MachinePhase::HalfOpen { .. } => (BreakerPhase::HalfOpen, None, 0),
            MachinePhase::Closed { ramp_since_ms, .. } => {
                match ramp_since_ms.map_or(WHOLE, |since| ramp_share(rule, now_ms.saturating_sub(since))) {
                    WHOLE => (BreakerPhase::Closed, None, WHOLE),
                    share => (BreakerPhase::Ramp, None, share),
                }
            }
        };
        BreakerReport { phase, opens_for_ms, share, cause: self.last_cause, entered: self.entered }
    }

    fn open(&mut self, rule: &BreakerRule, now_ms: u64, cause: OpenCause) {
        self.last_cause = Some(cause);
        self.has_other_clients = false;
        self.entered.open += 1;
        self.enter(MachinePhase::Open { until_ms: now_ms.saturating_add(rule.open_for_ms) });
    }

    fn close(&mut self, rule: &BreakerRule, now_ms: u64) {
        self.entered.closed += 1;
        if rule.ramp_ms == 0 {
            self.suspects.clear();
        }
        self.enter(MachinePhase::closed((rule.ramp_ms > 0).then_some(now_ms)));
    }

    fn enter(&mut self, phase: MachinePhase) {
        self.entered.half_open += u64::from(matches!(phase, MachinePhase::HalfOpen { .. }));
        self.epoch += 1;
        self.window = CallWindow::default();
        self.phase = phase;
    }
}

impl BreakerRule {
    /// Returns the condition that `counts` meet, and the number of requests that meet it. `good`: how many requests
    /// that were served well show that a few clients are to blame; `None` for the probes of a half-open breaker.
    /// `errors` is a number for a whole window; of probes, it means half.
    fn find_tripped(&self, counts: &CallCounts, good: Option<u64>) -> Option<(OpenCondition, u64)> {
        let CallCounts { requests, slow, errors, .. } = *counts;
        let blames_upstream = |condition| match good {
            None => counts.blames_upstream(1, |_, _| true),
            Some(good) => counts.blames_upstream(good, |failed, all| self.are_clients_enough(condition, failed, all)),
        };
        let is_met = |condition: &OpenCondition| match condition {
            OpenCondition::SlowRatio => {
                self.slow_ms.is_some() && slow > 0 && self.slow_ratio.is_reached(slow, requests)
            }
            OpenCondition::ErrorRatio => {
                errors > 0 && self.error_ratio.is_some_and(|ratio| ratio.is_reached(errors, requests))
            }
            OpenCondition::Errors => self.errors.is_some_and(|most| match good {
                None => errors > 0 && Fraction::HALF.is_reached(errors, requests),
                Some(_) => errors >= most,
            }),
        };
        let mut conditions = [OpenCondition::SlowRatio, OpenCondition::ErrorRatio, OpenCondition::Errors].into_iter();
        let condition = conditions.find(|condition| is_met(condition) && blames_upstream(*condition))?;
        Some((condition, if condition == OpenCondition::SlowRatio { slow } else { errors }))
    }

    /// Reports whether enough clients met failures to open the breaker, although others are served well: the fraction
    /// of the condition is among requests, and half of it must be among clients. For a number of errors, a quarter of
    /// the clients, or four.
    fn are_clients_enough(&self, condition: OpenCondition, failed: u64, all: u64) -> bool {
        match condition {
            OpenCondition::SlowRatio => self.slow_ratio.is_reached(2 * failed, all),
            OpenCondition::ErrorRatio => self.error_ratio.is_none_or(|ratio| ratio.is_reached(2 * failed, all)),
            OpenCondition::Errors => failed >= 4 || 4 * failed >= all,
        }
    }
}

/// Returns the share of requests that is admitted `passed_ms` after the ramp began, in thousandths.
fn ramp_share(rule: &BreakerRule, passed_ms: u64) -> u64 {
    if passed_ms >= rule.ramp_ms {
        return WHOLE;
    }
    // Below 1 h, so the product fits.
    RAMP_START + (WHOLE - RAMP_START) * passed_ms / rule.ramp_ms
}
