//! One decision over several hash slots: charged slot by slot, the one most likely to refuse
//! first, and given back by receipt when a later one refuses, so that a refused request charges
//! nothing. Called by `cluster.rs`.
//!
//! The checks are asked in units: those of one slot together, and a check that comes after another
//! only once the verdict on that is known.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use futures_util::future::{join, join_all};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::nodes::Nodes;
use super::slot::slot;
use super::waiting::LaneFault;
use crate::limit::answer::Answer;
use crate::limit::decision::{Check, Decision, ErrorKind, Op, Role, Shares};

/// Runs to its end whether or not the client waits. What a decision charged that came too late
/// for its client is given back.
pub async fn run(nodes: Rc<Nodes>, op: Op, checks: Shares, until: Instant) -> Result<Decision, ErrorKind> {
    let (reply, answer) = oneshot::channel();
    tokio::task::spawn_local(async move {
        let mut spread = Spread {
            answers: vec![None; checks.len()],
            charged: vec![false; checks.len()],
            refused: false,
            nodes,
            checks: &checks,
            until,
        };
        let outcome = spread.run(op).await;
        if reply.send(outcome).is_err() {
            spread.give_back().await;
        }
    });
    answer.await.unwrap_or(Err(ErrorKind::Internal))
}

struct Spread<'a> {
    nodes: Rc<Nodes>,
    checks: &'a [Check],
    until: Instant,
    /// Per check, once known.
    answers: Vec<Option<Answer>>,
    /// Per check: whether a refusal has to give it back.
    charged: Vec<bool>,
    refused: bool,
}

impl Spread<'_> {
    async fn run(&mut self, op: Op) -> Result<Decision, ErrorKind> {
        let mut units = VecDeque::from(self.units());
        while let Some(unit) = units.pop_front() {
            match self.ask(op, &unit).await {
                Ok(()) => {}
                // Keys of one slot that are on their way are asked for one by one.
                Err(LaneFault::Elsewhere(_)) if unit.len() > 1 => {
                    let left = unit.into_iter().rev().filter(|check| self.answers[*check].is_none());
                    left.for_each(|check| units.push_front(vec![check]));
                }
                Err(fault) => {
                    let (given_back, kind) = (self.give_back().await, fault.kind());
                    // This part of it may never have left, while another is charged still.
                    return Err(if given_back || kind.is_unsure() { kind } else { ErrorKind::Lost });
                }
            }
            if self.refused {
                self.give_back().await;
            }
        }
        if self.refused {
            self.show_uncharged().await;
        }
        let answers = self.answers.iter().copied().collect::<Option<Vec<Answer>>>();
        let answers = answers.ok_or(ErrorKind::Reply)?;
        Ok(Decision { admitted: !self.refused, answers })
    }

    /// The checks, by index, that are asked together, in the order of asking.
    fn units(&self) -> Vec<Vec<usize>> {
        let mut levels = Vec::<usize>::new();
        let mut units = BTreeMap::<(usize, usize), Vec<usize>>::new();
        for (i, check) in self.checks.iter().enumerate() {
            let base = check.role.after.and_then(|base| levels.get(base));
            let level = base.map_or(0, |level| level + 1);
            levels.push(level);
            units.entry((level, slot(&check.key))).or_default().push(i);
        }
        let mut units: Vec<((usize, usize), Vec<usize>)> = units.into_iter().collect();
        let likely = |unit: &[usize]| unit.iter().map(|i| self.nodes.likely.of(&self.checks[*i])).max();
        units.sort_by_key(|((level, _), unit)| (*level, Reverse(likely(unit))));
        units.into_iter().map(|(_, unit)| unit).collect()
    }

    async fn ask(&mut self, op: Op, unit: &[usize]) -> Result<(), LaneFault> {
        let (asked, only_seen): (Vec<usize>, Vec<usize>) = unit.iter().partition(|i| match op {
            // After a refusal the rest only says what it would answer, but for shadow limits.
            Op::Take => self.has_turn(**i) && (!self.refused || self.checks[**i].role.shadow),
            _ => true,
        });
        let send = async |op, part: &[usize]| match part {
            [] => None,
            _ => Some(self.nodes.ask(op, &self.part(part), self.until).await),
        };
        let (taken, seen) = join(send(op, &asked), send(Op::Peek, &only_seen)).await;
        let mut fault = None;
        for (part, op, outcome) in [(&asked, op, taken), (&only_seen, Op::Peek, seen)] {
            match outcome {
                Some(Ok(decision)) => self.absorb(op, part, decision),
                // What was to be taken comes first: it may have been, and a look changes nothing.
                Some(Err(seen)) => fault = fault.or(Some(seen)),
                None => {}
            }
        }
        fault.map_or(Ok(()), Err)
    }

    /// What a limit would have left is not what it has: of a refused request nothing is charged.
    async fn show_uncharged(&mut self) {
        let mut parts = BTreeMap::<usize, Vec<usize>>::new();
        for (i, (check, answer)) in self.checks.iter().zip(&self.answers).enumerate() {
            if !check.role.shadow && answer.is_some_and(|answer| answer.admitted) {
                parts.entry(slot(&check.key)).or_default().push(i);
            }
        }
        let seen = join_all(parts.into_values().map(async |part| {
            let free = |i: &usize| Check { cost: 0, role: Role::default(), ..self.checks[*i].clone() };
            let checks = Rc::new(part.iter().map(free).collect());
            (part, self.nodes.ask(Op::Peek, &checks, self.until).await)
        }))
        .await;
        // Where nobody answers in time, the verdict stands all the same.
        for (part, decision) in seen.into_iter().filter_map(|(part, outcome)| Some((part, outcome.ok()?))) {
            part.into_iter().zip(decision.answers).for_each(|(i, answer)| self.answers[i] = Some(answer));
        }
    }

    fn has_turn(&self, check: usize) -> bool {
        let base = self.checks[check].role.after.and_then(|base| self.answers.get(base).copied().flatten());
        !base.is_some_and(|base| base.admitted)
    }

    /// The checks as their node gets them; it knows nothing of those elsewhere.
    fn part(&self, part: &[usize]) -> Shares {
        let checks = part.iter().map(|i| {
            let check = self.checks[*i].clone();
            Check { role: Role { after: None, ..check.role }, ..check }
        });
        Rc::new(checks.collect())
    }

    fn absorb(&mut self, op: Op, part: &[usize], decision: Decision) {
        for (&i, mut answer) in part.iter().zip(decision.answers) {
            let check = &self.checks[i];
            let deciding = matches!(op, Op::Take | Op::Peek);
            if deciding && !self.has_turn(i) {
                answer.admitted = true;
                answer.retry_ms = 0;
            } else if deciding && !answer.admitted && !check.role.shadow && !check.role.base {
                self.refused = true;
                self.nodes.likely.refused(check);
            }
            self.charged[i] = op == Op::Take && decision.admitted && answer.admitted && !check.role.shadow;
            self.answers[i] = Some(answer);
        }
    }

    /// Gives back what was charged to enforced limits, each by its receipt and once. What cannot be
    /// given back stays charged, unless it is a lease that the caller lets go of: no charge is ever lost. True if
    /// all was given back.
    async fn give_back(&mut self) -> bool {
        let mut back = Vec::new();
        for (i, charged) in self.charged.iter_mut().enumerate() {
            let (check, answer) = (&self.checks[i], self.answers[i]);
            if let (true, Some(answer)) = (std::mem::take(charged) && check.cost > 0, answer) {
                let role = Role::default();
                back.push(Rc::new(vec![Check { cost: -check.cost, tag: answer.receipt, role, ..check.clone() }]));
            }
        }
        let until = Instant::now() + self.nodes.context.deadline;
        let outcomes = join_all(back.iter().map(|checks| self.nodes.ask(Op::Adjust, checks, until))).await;
        let fault = outcomes.into_iter().find_map(Result::err);
        if let Some(fault) = &fault {
            tracing::debug!(?fault, "a charge of a refused request could not be given back");
        }
        fault.is_none()
    }
}
