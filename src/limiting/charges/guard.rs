//! The guard of a request's charges: those that its outcome may still change, and the leases to release. The limiter
//! makes one for an admitted request, and the account of the request keeps it. Dropping the guard settles every charge
//! exactly once, whichever way the request ends.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::time::Instant;

use crate::limiting::answer::Answer;
use crate::limiting::charges::ChargedAt;
use crate::limiting::charges::leases::LeaseId;
use crate::limiting::charges::manager::ChargeManager;
use crate::limiting::decision::{Check, CheckCharges, Decision};
use crate::limiting::integers::COST_MAX;
use crate::limiting::limit::bytes::TransferredBytes;
use crate::limiting::limit::charge_rules::ChargeRules;
use crate::limiting::limit::request_end::{RequestEnd, ResponseTail};
use crate::limiting::limit::settle::{BodyUsage, UsageRules};
use crate::limiting::settlement::scan::UsageScan;
use crate::telemetry::metrics::{SettlementMetrics, SettlementResult};

/// Bytes that pass between two charges of a request that is in progress.
const BYTES_CHARGED_AT: i64 = 16 * 1024 * 1024;
/// Maximum number of corrections at the end of a request. They cover 10^12 bytes.
const CORRECTIONS_MAX: usize = 1000;

/// Charges of one request that its outcome may change.
pub struct ChargeGuard {
    manager: Rc<ChargeManager>,
    charges: Vec<GuardedCharge>,
    /// True once the outcome is known; then the end of the request only releases leases.
    is_settled: bool,
    /// The response comes from the route's server, not from the gateway in its place. Only such a response resets keys.
    is_of_route: bool,
    /// Status and headers of the response, while charges wait for its end.
    head: Option<Box<(StatusCode, HeaderMap)>>,
    /// Reads the body of the response, for charges that settle by it.
    scan: Option<Box<UsageScan>>,
    /// Bytes that have passed so far, if a charge counts them.
    passed: Option<TransferredBytes>,
}

/// Leases of one request, shared by the request and its exchange with the upstream server, which may continue after
/// the client disconnected. They are released when both have dropped them.
pub struct LeaseGuard(RefCell<ChargeGuard>);

/// One charge of the request.
struct GuardedCharge {
    /// The check that was charged; its `tag` is the receipt.
    check: Check,
    /// How the outcome of the request changes the charge; `None` if it does not.
    rules: Option<Arc<ChargeRules>>,
    place: ChargedAt,
    lease: Option<LeaseId>,
    /// When the queue position of this charge has passed; `None` for a limit without a queue.
    passes_at: Option<Instant>,
    /// The request still waits in the queue. If its client disconnects, its position is refunded.
    is_waiting: bool,
    /// The response has arrived, and leaves a charge that counts bytes.
    is_accepted: Cell<bool>,
    /// Units that have been charged so far for bytes.
    charged: Cell<i64>,
}

/// The effect of the outcome of a request on a charge.
enum ChargeEnd {
    /// The charge changes by this number of units.
    Change(i64),
    /// The key of the charge is reset.
    Clear,
    /// The outcome for this charge is not known yet.
    Later,
}

impl ChargeGuard {
    /// Guards the `charged` checks, each with the rules for its outcome and its answer. Returns `None` if `charged` is
    /// empty. `waits` says whether the request has to wait in a queue first.
    pub fn new(
        manager: &Rc<ChargeManager>,
        charged: impl Iterator<Item = (Check, Option<Arc<ChargeRules>>, Answer)>,
        place: ChargedAt,
        waits: bool,
    ) -> Option<Box<ChargeGuard>> {
        let mut charges = Vec::new();
        for (mut check, rules, answer) in charged {
            check.hold_receipt(answer.receipt);
            let lease = rules.as_ref().is_some_and(|rules| rules.lease).then(|| manager.start_renewing(&check, place));
            let waits = waits && check.rule.has_queue() && answer.retry_ms > 0;
            let reset = Duration::from_millis(u64::try_from(answer.reset_ms).unwrap_or(0));
            let over = check.rule.has_queue().then(|| Instant::now() + reset);
            charges.push(GuardedCharge {
                charged: Cell::new(check.cost),
                check,
                rules,
                place,
                lease: lease.flatten(),
                passes_at: over,
                is_waiting: waits,
                is_accepted: Cell::new(false),
            });
        }
        (!charges.is_empty()).then(|| {
            let passed = charges.iter().any(GuardedCharge::counts_bytes).then(TransferredBytes::default);
            Box::new(ChargeGuard {
                manager: manager.clone(),
                charges,
                is_settled: false,
                is_of_route: false,
                head: None,
                scan: None,
                passed,
            })
        })
    }

    /// Takes over the charges of `other`, which the same limiter made for the same request.
    pub fn absorb(&mut self, other: &mut ChargeGuard) {
        self.charges.append(&mut other.charges);
        self.passed = self.passed.or(other.passed);
    }

    /// Ends the wait in the queue: the request proceeds, so its queue position is used.
    pub fn end_wait(&mut self) {
        self.charges.iter_mut().for_each(|charge| charge.is_waiting = false);
    }

    /// Leaves all charges as they are, because this gateway does not learn how the request ends.
    pub fn keep_charges(mut self) {
        self.end_wait();
        self.is_settled = true;
    }

    /// Refunds all charges: the request is not served although its limits have admitted it. A turn in a queue that has
    /// passed cannot be returned.
    pub fn refund(mut self) {
        self.end_charges(|charge| ChargeEnd::Change(-charge.check.cost));
        self.is_settled = true;
        self.passed = None;
    }

    /// Moves the leases into a value that the request shares with its exchange. Returns `None` if there are none.
    pub fn take_leases(&mut self) -> Option<Rc<LeaseGuard>> {
        let charges = std::mem::take(&mut self.charges);
        let (leases, others): (Vec<_>, Vec<_>) = charges.into_iter().partition(|charge| charge.linger().is_some());
        self.charges = others;
        let manager = self.manager.clone();
        let guard = ChargeGuard {
            manager,
            charges: leases,
            is_settled: true,
            is_of_route: false,
            head: None,
            scan: None,
            passed: None,
        };
        (!guard.charges.is_empty()).then(|| Rc::new(LeaseGuard(RefCell::new(guard))))
    }

    /// Returns whether a charge settles by the body of the response.
    pub fn reads_usage(&self) -> bool {
        self.usage_rules().next().is_some()
    }

    /// Returns whether the gateway must request the usage of the stream from the server.
    pub fn requests_usage(&self) -> bool {
        self.usage_rules().any(|usage| usage.requests_usage)
    }

    fn usage_rules(&self) -> impl Iterator<Item = &UsageRules> {
        self.charges.iter().filter_map(|charge| charge.charge_rules()?.usage())
    }

    /// Starts to read the body of a response with this head, if a charge settles by it. `ends_by_close`: only the end
    /// of the connection ends the body.
    pub fn start_scan(&mut self, status: StatusCode, head: &HeaderMap, has_body: bool, ends_by_close: bool) {
        if self.reads_usage() && self.scan.is_none() && !self.is_settled {
            let sources = self.usage_rules().map(|usage| &usage.sources);
            self.scan = Some(Box::new(UsageScan::start(sources, status, head, has_body, ends_by_close)));
        }
    }

    /// Reads a copy of the next piece of the response body. Settles the charges once their usage is known.
    pub fn scan_body(&mut self, bytes: &[u8]) {
        let Some(scan) = &mut self.scan else { return };
        scan.push(bytes);
        let Some(known) = self.head.take_if(|_| scan.is_proven()) else { return };
        let (status, head) = &*known;
        if self.correct_charges(RequestEnd::Response { status: *status, head, tail: ResponseTail::Awaited }) {
            self.is_settled = true;
            self.scan = None;
        } else {
            self.head = Some(known);
        }
    }

    /// Records that `bytes` of the response passed to the client. Charges that count bytes are charged for each
    /// [`BYTES_CHARGED_AT`], so that a long response does not exceed the limit by more than that.
    pub fn record_sent(&mut self, bytes: u64) {
        let Some(passed) = &mut self.passed else { return };
        passed.response = passed.response.saturating_add(bytes);
        self.charge_passed();
    }

    /// Records how many bytes the client has sent in all.
    pub fn record_received(&mut self, bytes: u64) {
        if let Some(passed) = &mut self.passed {
            passed.request = passed.request.max(bytes);
            self.charge_passed();
        }
    }

    /// Charges the bytes that have passed since the last charge, if they are many.
    fn charge_passed(&mut self) {
        let Some(passed) = self.passed else { return };
        let mut corrections = Vec::new();
        for charge in self.charges.iter().filter(|charge| charge.is_accepted.get()) {
            let units = charge.counted_units(passed);
            if units - charge.charged.get() >= BYTES_CHARGED_AT {
                charge.push_byte_corrections(units, &mut corrections);
            }
        }
        if !corrections.is_empty() {
            self.manager.decisions.ledger.record_corrections(corrections.iter().map(|(check, _)| check));
            self.manager.send_corrections(corrections);
        }
    }

    /// Records that the response that settles the charges comes from the route.
    pub fn note_route_response(&mut self) {
        self.is_of_route = !self.is_settled;
    }

    /// Settles the charges by the outcome of the request. Only the first outcome counts. Charges that depend on the
    /// end of the response wait for [`ChargeGuard::settle_end`].
    pub fn settle_outcome(&mut self, end: RequestEnd<'_>) {
        if self.is_settled || self.head.is_some() {
            return;
        }
        if self.correct_charges(end) {
            self.is_settled = true;
            self.scan = None;
        } else if let RequestEnd::Response { status, head, .. } = end {
            self.head = Some(Box::new((status, head.clone())));
        }
    }

    /// Returns whether charges wait for the end of the response.
    pub fn is_awaiting_end(&self) -> bool {
        self.head.is_some()
    }

    /// Settles the waiting charges by the end of the response. `None` means that the client aborted it.
    pub fn settle_end(&mut self, tail: Option<ResponseTail<'_>>) {
        let Some(known) = self.head.take() else { return };
        let (status, head) = &*known;
        if let Some(scan) = &mut self.scan {
            scan.end(matches!(tail, Some(ResponseTail::Whole(_))));
        }
        self.correct_charges(tail.map_or(RequestEnd::Aborted, |tail| RequestEnd::Response {
            status: *status,
            head,
            tail,
        }));
        self.is_settled = true;
        self.scan = None;
    }

    /// Corrects the charges by the outcome. Returns whether all are settled; leases are left to the end of the request.
    fn correct_charges(&mut self, end: RequestEnd<'_>) -> bool {
        let (waits, has_unproven) = (Cell::new(false), Cell::new(false));
        let (scan, settlements) = (self.scan.take(), self.manager.settlements.clone());
        let is_of_route = self.is_of_route;
        self.end_charges(|charge| {
            let Some(rules) = charge.charge_rules() else { return ChargeEnd::Change(0) };
            if rules.lease {
                return ChargeEnd::Later;
            }
            let change = match if is_of_route { rules.clears(end) } else { Some(false) } {
                Some(true) => return ChargeEnd::Clear,
                // What they cost is known at the end of the request.
                Some(false) if charge.counts_bytes() => match (charge.is_accepted.get(), rules.is_charged(end)) {
                    (true, _) | (false, Some(true)) => {
                        charge.is_accepted.set(true);
                        return ChargeEnd::Later;
                    }
                    (false, Some(false)) => Some(-charge.check.cost),
                    (false, None) => None,
                },
                Some(false) => charge.correction(rules, end, scan.as_deref(), &settlements, &has_unproven),
                None => None,
            };
            change.map_or_else(
                || {
                    waits.set(true);
                    ChargeEnd::Later
                },
                ChargeEnd::Change,
            )
        });
        // A fault in a response that settled nevertheless changes nothing.
        for fault in scan.iter().flat_map(|scan| scan.faults()).filter(|_| has_unproven.get()) {
            settlements.count_fault(fault);
        }
        self.scan = scan;
        !waits.get()
    }

    /// Charges or refunds what is left of the charges that count bytes, at the end of the request. `is_settled`: the
    /// outcome of the request was known. The charge includes the bytes that passed before a client disconnected.
    fn charge_bytes(&mut self, is_settled: bool) {
        let Some(passed) = self.passed else { return };
        let mut corrections = Vec::new();
        for charge in self.charges.iter().filter(|charge| charge.counts_bytes() && !charge.is_waiting) {
            let is_refunded =
                charge.charge_rules().and_then(|rules| rules.is_charged(RequestEnd::Aborted)) == Some(false);
            match (charge.is_accepted.get(), is_settled) {
                (false, false) if is_refunded => charge.push_byte_corrections(0, &mut corrections),
                (true, _) | (false, false) => {
                    charge.push_byte_corrections(charge.counted_units(passed), &mut corrections);
                }
                // The charge stays as it is.
                (false, true) => {}
            }
        }
        self.manager.decisions.ledger.record_corrections(corrections.iter().map(|(check, _)| check));
        self.manager.send_corrections(corrections);
    }

    /// Ends charges as `outcome` says.
    fn end_charges(&mut self, outcome: impl Fn(&GuardedCharge) -> ChargeEnd) {
        let mut corrections = Vec::new();
        for charge in std::mem::take(&mut self.charges) {
            let delta = match outcome(&charge) {
                ChargeEnd::Later => {
                    self.charges.push(charge);
                    continue;
                }
                ChargeEnd::Clear => {
                    self.manager.clear_key(charge.check, charge.place);
                    continue;
                }
                ChargeEnd::Change(delta) => delta,
            };
            if let Some(lease) = charge.lease {
                self.manager.stop_renewing(lease);
            }
            if delta != 0 {
                let mut check = charge.check;
                check.cost = delta;
                match charge.passes_at.filter(|_| delta < 0) {
                    Some(over) => {
                        self.manager.decisions.ledger.record_correction(&check);
                        self.manager.refund_queue_position(check, charge.place, over);
                    }
                    None => corrections.push((check, charge.place)),
                }
            }
        }
        self.manager.decisions.ledger.record_corrections(corrections.iter().map(|(check, _)| check));
        self.manager.send_corrections(corrections);
    }
}

impl GuardedCharge {
    /// Returns the correction of the charge, and counts how a charge settled that depends on the usage of the response.
    /// `None` means that this depends on the end of the response.
    fn correction(
        &self,
        rules: &ChargeRules,
        end: RequestEnd<'_>,
        scan: Option<&UsageScan>,
        settlements: &SettlementMetrics,
        has_unproven: &Cell<bool>,
    ) -> Option<i64> {
        let cost = self.check.cost;
        let Some(usage_rules) = rules.usage() else { return rules.correction(end, cost, BodyUsage::Unread) };
        let (usage, has_unknown_model) = usage_rules.read_usage(scan, self.check.input_tokens);
        let delta = rules.correction(end, cost, usage)?;
        let result = match usage {
            BodyUsage::Read { is_proven: true, .. } => SettlementResult::Settled,
            _ if rules.is_cost_stated(end) => SettlementResult::Settled,
            _ if delta < 0 => SettlementResult::Refunded,
            _ => SettlementResult::Unproven,
        };
        settlements.count_result(result);
        has_unproven.set(has_unproven.get() || result == SettlementResult::Unproven);
        if has_unknown_model {
            settlements.unknown_models.inc();
        }
        Some(delta)
    }

    /// Returns whether the charge counts bytes.
    fn counts_bytes(&self) -> bool {
        self.charge_rules().is_some_and(|rules| rules.counted_bytes().is_some())
    }

    /// Returns what the bytes cost that have passed.
    fn counted_units(&self, passed: TransferredBytes) -> i64 {
        self.charge_rules().and_then(ChargeRules::counted_bytes).map_or(0, |bytes| bytes.units(passed))
    }

    /// Adds the corrections to `units` in all, each small enough for the arithmetic of the store.
    fn push_byte_corrections(&self, units: i64, corrections: &mut Vec<(Check, ChargedAt)>) {
        let mut due = units - self.charged.replace(units);
        while due != 0 && corrections.len() < CORRECTIONS_MAX {
            let part = due.min(COST_MAX);
            due -= part;
            corrections.push((Check { cost: part, ..self.check.clone() }, self.place));
        }
    }

    fn charge_rules(&self) -> Option<&ChargeRules> {
        self.rules.as_deref()
    }

    /// Returns how long the lease lasts after the client has disconnected; `None` if the charge is not a lease.
    fn linger(&self) -> Option<Duration> {
        self.charge_rules().filter(|rules| rules.lease).map(|rules| rules.linger)
    }
}

impl LeaseGuard {
    /// Returns how long after the client disconnected the next lease is released; `None` once all are.
    pub fn next_release(&self) -> Option<Duration> {
        self.0.borrow().charges.iter().filter_map(GuardedCharge::linger).min()
    }

    /// Releases the leases that outlive the client by `after` at most.
    pub fn release_after(&self, after: Duration) {
        self.0.borrow_mut().end_charges(|charge| match charge.linger() {
            Some(linger) if linger > after => ChargeEnd::Later,
            _ => ChargeEnd::Change(-charge.check.cost),
        });
    }
}

impl Drop for ChargeGuard {
    /// Settles what is left at the end of the request: releases leases and unused queue positions, and treats a
    /// request without a known outcome as aborted.
    fn drop(&mut self) {
        let was_settled = self.is_settled;
        if let Some(scan) = &mut self.scan {
            scan.end(false);
        }
        let (scan, settlements) = (self.scan.take(), self.manager.settlements.clone());
        self.charge_bytes(was_settled);
        self.end_charges(|charge| match charge.charge_rules() {
            _ if charge.is_waiting => ChargeEnd::Change(-charge.check.cost),
            Some(rules) if rules.lease => ChargeEnd::Change(-charge.check.cost),
            Some(_) if charge.counts_bytes() => ChargeEnd::Change(0),
            Some(rules) if !was_settled => {
                let delta =
                    charge.correction(rules, RequestEnd::Aborted, scan.as_deref(), &settlements, &Cell::new(false));
                ChargeEnd::Change(delta.unwrap_or(0))
            }
            _ => ChargeEnd::Change(0),
        });
    }
}

/// Guards the charges of a decision that the end of the request may change. If the request has to wait in a queue,
/// guards all of its charges, because the client may leave in the meantime.
pub fn guard_charges(
    manager: &Rc<ChargeManager>,
    checks: Vec<Check>,
    rules: Vec<Option<Arc<ChargeRules>>>,
    (decision, charges): (&Decision, CheckCharges),
    place: ChargedAt,
) -> Option<Box<ChargeGuard>> {
    let answers = &decision.answers;
    let waits = decision.admitted && answers.iter().any(|answer| answer.admitted && answer.retry_ms > 0);
    let guarded = checks.into_iter().zip(rules).zip(answers).enumerate().filter(|(index, ((_, rules), _))| {
        charges.contains(*index) && (waits || rules.as_ref().is_some_and(|rules| rules.may_change_charge()))
    });
    ChargeGuard::new(manager, guarded.map(|(_, ((check, rules), answer))| (check, rules, *answer)), place, waits)
}

impl fmt::Debug for ChargeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargeGuard").field("charges", &self.charges.len()).finish_non_exhaustive()
    }
}
