//! One decision over several hash slots. The slots are charged one after another, starting with the one that is most
//! likely to refuse. If a later slot refuses, the earlier charges are refunded by their receipts, so that a refused
//! request charges nothing.
//!
//! The checks of one slot form a unit and are sent together. A check that depends on another check is sent once the
//! answer to that check is known. A charge that depends on limits in other slots, such as that of a candidate, is
//! refunded if the answers of all slots show that it should not have been made.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use futures_util::future::{join, join_all};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::limiting::answer::Answer;
use crate::limiting::decision::{Check, CheckCharges, Decision, ErrorKind, Op, Role, SharedChecks};
use crate::limiting::store::redis::cluster::nodes::Nodes;
use crate::limiting::store::redis::pipeline::waiting::LaneError;
use crate::limiting::store::redis::slot::key_slot;

/// Decides in a task of its own, which runs to the end even if the client disconnects. If the decision comes too late
/// for the client, its charges are refunded.
pub async fn decide_over_slots(
    nodes: Rc<Nodes>,
    op: Op,
    checks: SharedChecks,
    until: Instant,
) -> Result<Decision, ErrorKind> {
    let (reply, answer) = oneshot::channel();
    tokio::task::spawn_local(async move {
        let mut spread = SpreadDecision {
            answers: vec![None; checks.len()],
            charged: vec![false; checks.len()],
            provisional: vec![false; checks.len()],
            refused: false,
            nodes,
            checks: &checks,
            until,
        };
        let outcome = spread.run(op).await;
        if reply.send(outcome).is_err() {
            spread.undo_charges().await;
        }
    });
    answer.await.unwrap_or(Err(ErrorKind::Internal))
}

/// A decision under way.
struct SpreadDecision<'a> {
    nodes: Rc<Nodes>,
    checks: &'a [Check],
    until: Instant,
    /// Answer per check, once known.
    answers: Vec<Option<Answer>>,
    /// Per check, whether it was charged and a refusal has to refund it.
    charged: Vec<bool>,
    /// Per check of a shadow limit, whether it was charged. A refusal does not refund it, unless the answers of other
    /// slots show that it should not have been charged.
    provisional: Vec<bool>,
    refused: bool,
}

impl SpreadDecision<'_> {
    async fn run(&mut self, op: Op) -> Result<Decision, ErrorKind> {
        let mut units = VecDeque::from(self.units());
        while let Some(unit) = units.pop_front() {
            match self.send_unit(op, &unit).await {
                Ok(()) => {}
                // The slot is migrating, and its keys are on two nodes: send one call per key.
                Err(LaneError::Redirected(_)) if unit.len() > 1 => {
                    let left = unit.into_iter().rev().filter(|check| self.answers[*check].is_none());
                    left.for_each(|check| units.push_front(vec![check]));
                }
                Err(fault) => {
                    let (are_refunded, kind) = (self.undo_charges().await, fault.error_kind());
                    // This unit may not have been sent, but another one is still charged.
                    return Err(if are_refunded || kind.is_unsure() { kind } else { ErrorKind::Lost });
                }
            }
            if self.refused {
                self.refund_charges().await;
            }
        }
        let has_admitted = |i: usize| self.answers.get(i).copied().flatten().is_some_and(|answer| answer.admitted);
        let charges = CheckCharges::find(self.checks, !self.refused, has_admitted);
        let withheld: Vec<usize> = (0..self.checks.len()).filter(|i| charges.is_withheld(*i)).collect();
        if !withheld.is_empty() {
            for i in &withheld {
                self.charged[*i] |= std::mem::take(&mut self.provisional[*i]);
            }
            self.refund_charges_of(&withheld).await;
            self.update_withheld(&withheld).await;
        }
        let answers = self.answers.iter().copied().collect::<Option<Vec<Answer>>>();
        let answers = answers.ok_or(ErrorKind::Reply)?;
        Ok(Decision { admitted: !self.refused, answers })
    }

    /// Returns the units, as indexes of checks, in the order in which they are sent.
    fn units(&self) -> Vec<Vec<usize>> {
        let mut levels = Vec::<usize>::new();
        let mut units = BTreeMap::<(usize, usize), Vec<usize>>::new();
        for (i, check) in self.checks.iter().enumerate() {
            let base = check.role.after.and_then(|base| levels.get(base));
            let level = base.map_or(0, |level| level + 1);
            levels.push(level);
            units.entry((level, key_slot(&check.key))).or_default().push(i);
        }
        let mut units: Vec<((usize, usize), Vec<usize>)> = units.into_iter().collect();
        let likely =
            |unit: &[usize]| unit.iter().map(|i| self.nodes.recent_refusals.last_refusal(&self.checks[*i])).max();
        units.sort_by_key(|((level, _), unit)| (*level, Reverse(likely(unit))));
        units.into_iter().map(|(_, unit)| unit).collect()
    }

    async fn send_unit(&mut self, op: Op, unit: &[usize]) -> Result<(), LaneError> {
        let (asked, only_seen): (Vec<usize>, Vec<usize>) = unit.iter().partition(|i| match op {
            // After a refusal, the other checks are not charged, except those of shadow limits.
            Op::Take => self.is_applicable(**i) && (!self.refused || self.checks[**i].role.shadow),
            _ => true,
        });
        let send = async |op, part: &[usize]| match part {
            [] => None,
            _ => Some(self.nodes.run(op, &self.checks_of(part), self.until).await),
        };
        let (taken, seen) = join(send(op, &asked), send(Op::Peek, &only_seen)).await;
        let mut fault = None;
        for (part, op, outcome) in [(&asked, op, taken), (&only_seen, Op::Peek, seen)] {
            match outcome {
                Some(Ok(decision)) => self.add_answers(op, part, decision),
                // A failed take is reported first, because it may have charged; a failed peek changes nothing.
                Some(Err(seen)) => fault = fault.or(Some(seen)),
                None => {}
            }
        }
        fault.map_or(Ok(()), Err)
    }

    /// Updates the answers of the checks with the indexes `places`, which are not charged: they show what is left
    /// without the charge.
    async fn update_withheld(&mut self, places: &[usize]) {
        let mut parts = BTreeMap::<usize, Vec<usize>>::new();
        for &i in places {
            parts.entry(key_slot(&self.checks[i].key)).or_default().push(i);
        }
        let results = join_all(parts.into_values().map(async |part| {
            let free = |i: &usize| Check { cost: 0, role: Role::default(), ..self.checks[*i].clone() };
            let checks = Rc::new(part.iter().map(free).collect());
            (part, self.nodes.run(Op::Peek, &checks, self.until).await)
        }))
        .await;
        // Without a reply, the previous answer remains; the decision does not depend on it.
        for (part, decision) in results.into_iter().filter_map(|(part, outcome)| Some((part, outcome.ok()?))) {
            part.into_iter().zip(decision.answers).for_each(|(i, answer)| self.answers[i] = Some(answer));
        }
    }

    fn is_applicable(&self, check: usize) -> bool {
        let base = self.checks[check].role.after.and_then(|base| self.answers.get(base).copied().flatten());
        !base.is_some_and(|base| base.admitted)
    }

    /// Returns the checks of a unit for their node, without references to checks of other nodes.
    fn checks_of(&self, part: &[usize]) -> SharedChecks {
        let checks = part.iter().map(|i| {
            let check = self.checks[*i].clone();
            Check { role: Role { after: None, link: None, ..check.role }, ..check }
        });
        Rc::new(checks.collect())
    }

    fn add_answers(&mut self, op: Op, part: &[usize], decision: Decision) {
        for (&i, mut answer) in part.iter().zip(decision.answers) {
            let check = &self.checks[i];
            let deciding = matches!(op, Op::Take | Op::Peek);
            if deciding && !self.is_applicable(i) {
                answer.admitted = true;
                answer.retry_ms = 0;
            } else if deciding && !answer.admitted && check.role.can_refuse() {
                self.refused = true;
                self.nodes.recent_refusals.record_refusal(check);
            }
            let is_taken = op == Op::Take && answer.admitted;
            self.charged[i] = is_taken && decision.admitted && !check.role.shadow;
            self.provisional[i] = is_taken && check.role.shadow;
            self.answers[i] = Some(answer);
        }
    }

    /// Refunds all charges, for a decision that nobody gets: what it counted is counted elsewhere. Returns true if
    /// everything was refunded.
    async fn undo_charges(&mut self) -> bool {
        for (charged, provisional) in self.charged.iter_mut().zip(&mut self.provisional) {
            *charged |= std::mem::take(provisional);
        }
        self.refund_charges().await
    }

    /// Refunds the charges to enforced limits, each once and by its receipt. A charge whose refund fails remains,
    /// unless it is a lease, which the caller releases. Returns true if everything was refunded.
    async fn refund_charges(&mut self) -> bool {
        let all: Vec<usize> = (0..self.checks.len()).collect();
        self.refund_charges_of(&all).await
    }

    /// Does the same for the checks with the indexes `places`.
    async fn refund_charges_of(&mut self, places: &[usize]) -> bool {
        let mut back = Vec::new();
        for &i in places {
            let (check, answer) = (&self.checks[i], self.answers[i]);
            let is_charged = std::mem::take(&mut self.charged[i]);
            if let (true, Some(answer)) = (is_charged && check.cost > 0, answer) {
                let role = Role::default();
                let back_check = Check { role, ..check.clone() };
                back.push(Rc::new(vec![back_check.correction(-check.cost, answer.receipt)]));
            }
        }
        let until = Instant::now() + self.nodes.context.deadline;
        let outcomes = join_all(back.iter().map(|checks| self.nodes.run(Op::Adjust, checks, until))).await;
        let fault = outcomes.into_iter().find_map(Result::err);
        if let Some(fault) = &fault {
            tracing::debug!(?fault, "a charge of a refused request could not be refunded");
        }
        fault.is_none()
    }
}
