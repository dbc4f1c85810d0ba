//! Usage of a key under several settings of its limit. Twin of `lua/records.lua`: same names, same order.
//!
//! Settings differ during a rolling deploy, or when a limit is edited. Example: a limit changes from 10/s to 20/s, and
//! for a minute some gateways use the old rate and some the new one. The state of a key then has two records, one per
//! rate. Each request is charged to both, and each gateway decides by the record of its own rate. So each gateway sees
//! the usage that it would see if it had decided all requests. Together the gateways admit no more than 20/s, the most
//! generous of their settings. Almost always a key has a single record.
//!
//! - The *basis* of a record is the set of numbers by which it changes over time: rate and period, or the window. Other
//!   numbers (burst, limit, debt, queue) only decide; they never change a record. Rules with the same basis share a
//!   record.
//! - A basis without a record starts with a copy of the record with the most usage, converted to its numbers.
//! - A record is dropped when its basis has not been charged for [`RETENTION_MS`] and its usage has ended. A key has at
//!   most [`OTHER_RECORDS_MAX`] further records; beyond that, the one whose usage ends first is dropped: what it would
//!   still have refused is the least, and short settings that come and go do not end the count of a long one.
//! - A refund reduces the record of its own rule by the refund, and the others by what is certainly left of the charge
//!   in all of them.

use std::ops::Deref;

use crate::limiting::algorithm::{Corrected, Step};

/// Usage of a key under one basis. These functions apply the numbers of the record itself.
pub trait UsageRecord: Clone {
    /// Returns how long the record still contains usage, in ms.
    fn lifetime(&self, now: i64) -> i64;

    /// Returns the record after a charge.
    fn charged(&self, now: i64, cost: i64) -> Self;

    /// Returns how many units of the charge of `cost` that `receipt` identifies are certainly left in the record.
    fn charge_left(&self, now: i64, cost: i64, receipt: i64) -> f64;

    /// Returns the receipt by which records of other bases find the charge.
    fn receipt_elsewhere(receipt: i64) -> i64 {
        receipt
    }

    /// Returns the record after a refund of `units` of that charge.
    fn refunded(&self, now: i64, units: f64, receipt: i64) -> Self;
}

/// An algorithm whose states consist of records. These functions apply the numbers of the rule.
pub trait RecordAlgorithm {
    type Record: UsageRecord;

    /// Returns whether the record has the basis of this rule.
    fn matches(&self, record: &Self::Record, now: i64) -> bool;

    /// Decides by a single record, like [`super::Algorithm::decide`].
    fn decide_one(&self, record: Option<&Self::Record>, now: i64, cost: i64) -> Step<Self::Record>;

    /// Corrects a single record, like [`super::Algorithm::adjust`].
    fn adjust_one(
        &self,
        record: Option<&Self::Record>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<Corrected<Self::Record>>;

    /// Decides by the record of this rule, like [`RecordAlgorithm::decide_one`]. What that record does not know, the
    /// records of other bases may.
    fn decide_among<'r>(
        &self,
        own: Option<&Self::Record>,
        _others: impl Iterator<Item = &'r Self::Record>,
        now: i64,
        cost: i64,
    ) -> Step<Self::Record>
    where
        Self::Record: 'r,
    {
        self.decide_one(own, now, cost)
    }

    /// Converts a record of another basis to that of this rule. The second value is the usage in the result.
    fn convert(&self, record: &Self::Record, now: i64) -> (Self::Record, i64);

    /// Joins two converted records, each with its usage: the one with more usage remains.
    fn join_converted(one: (Self::Record, i64), other: (Self::Record, i64)) -> (Self::Record, i64) {
        if other.1 > one.1 { other } else { one }
    }

    /// Returns when to drop a record that its own basis charged last before `now`.
    fn drop_at(record: &Self::Record, now: i64) -> i64 {
        now + RETENTION_MS.max(record.lifetime(now))
    }

    /// Returns a record of this rule with the numbers of the rule.
    fn corrected(&self, record: Self::Record, _now: i64) -> Self::Record {
        record
    }

    /// Returns how long to store a record of this rule, in ms.
    fn ttl(&self, record: &Self::Record, now: i64) -> i64 {
        record.lifetime(now).max(1)
    }

    /// Returns how many units of a charge of `cost` are certainly left in the record.
    fn charge_left(&self, record: &Self::Record, now: i64, cost: i64, receipt: i64) -> f64 {
        record.charge_left(now, cost, receipt)
    }
}

/// State of a key: the record of the rule that decided last, and those of other bases.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordsState<R> {
    own: R,
    others: RareList<OtherRecord<R>>,
}

/// A list that is almost always empty. It takes the space of one pointer then, because there are millions of states.
#[derive(Clone, Debug, PartialEq)]
pub struct RareList<T>(Option<Box<RareItems<T>>>);

#[derive(Clone, Debug, PartialEq)]
struct RareItems<T>(Box<[T]>);

impl<T> Default for RareList<T> {
    fn default() -> Self {
        RareList(None)
    }
}

impl<T> From<Vec<T>> for RareList<T> {
    fn from(items: Vec<T>) -> Self {
        RareList((!items.is_empty()).then(|| Box::new(RareItems(items.into()))))
    }
}

impl<T> Deref for RareList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_ref().map_or(&[], |items| &items.0)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct OtherRecord<R> {
    record: R,
    /// When the record is dropped.
    drop_at_ms: i64,
}

/// Shortest time that a record is kept after the last charge by its own basis: ten minutes.
const RETENTION_MS: i64 = 600_000;
/// Maximum number of records of other bases.
const OTHER_RECORDS_MAX: usize = 3;

/// The records of a state from the point of view of one rule.
struct RuleView<R> {
    own: Option<R>,
    others: Vec<OtherRecord<R>>,
    /// `own` was not the first record of the state, or not in the state.
    moved: bool,
    /// `own` was in the state.
    found: bool,
}

fn select_record<A: RecordAlgorithm>(rule: &A, state: &RecordsState<A::Record>, now: i64) -> RuleView<A::Record> {
    let mut others = Vec::with_capacity(state.others.len() + 1);
    let mut own = rule.matches(&state.own, now).then(|| state.own.clone());
    let moved = own.is_none();
    if moved {
        let drop_at_ms = A::drop_at(&state.own, now);
        others.push(OtherRecord { record: state.own.clone(), drop_at_ms });
    }
    for other in state.others.iter() {
        if own.is_none() && other.drop_at_ms > now && rule.matches(&other.record, now) {
            own = Some(other.record.clone());
        } else {
            others.push(other.clone());
        }
    }
    others.retain(|other| other.drop_at_ms > now);
    let found = own.is_some();
    if !found {
        let converted = others.iter().map(|other| rule.convert(&other.record, now));
        own = converted.reduce(A::join_converted).map(|(record, _)| record);
    }
    while others.len() > OTHER_RECORDS_MAX {
        remove_first_to_end(&mut others, now);
    }
    RuleView { own, others, moved, found }
}

/// Removes the record whose usage ends first, of equals the one that decided longest ago.
fn remove_first_to_end<R: UsageRecord>(others: &mut Vec<OtherRecord<R>>, now: i64) {
    let left = |other: &OtherRecord<R>| other.record.lifetime(now).min(other.drop_at_ms - now);
    if let Some(first) = (0..others.len()).rev().min_by_key(|index| left(&others[*index])) {
        others.remove(first);
    }
}

/// Builds a state from an own record and others, each changed by `change`. Also returns how long to store the state.
fn join_records<R: UsageRecord>(
    own: R,
    mut ttl: i64,
    others: Vec<OtherRecord<R>>,
    now: i64,
    change: impl Fn(&R) -> R,
) -> (RecordsState<R>, i64) {
    let changed = others.into_iter().map(|OtherRecord { record, drop_at_ms }| {
        let record = change(&record);
        ttl = ttl.max(record.lifetime(now).min(drop_at_ms - now));
        OtherRecord { record, drop_at_ms }
    });
    let others = changed.collect::<Vec<_>>().into();
    (RecordsState { own, others }, ttl)
}

/// Decides by all records of a state; see [`super::Algorithm::decide`].
pub fn decide<A: RecordAlgorithm>(
    rule: &A,
    state: Option<&RecordsState<A::Record>>,
    now: i64,
    cost: i64,
) -> Step<RecordsState<A::Record>> {
    let only = |record| {
        let Step { answer, next } = rule.decide_one(record, now, cost);
        Step { answer, next: next.map(|(own, ttl)| (RecordsState { own, others: RareList::default() }, ttl)) }
    };
    let Some(state) = state else { return only(None) };
    if state.others.is_empty() && rule.matches(&state.own, now) {
        return only(Some(&state.own));
    }
    let RuleView { own, others, moved, .. } = select_record(rule, state, now);
    let Step { answer, next } = rule.decide_among(own.as_ref(), others.iter().map(|other| &other.record), now, cost);
    // The wait of a refusal is only exact if the record that it was computed from is stored.
    let next = next.or_else(|| {
        let own = rule.corrected(own.filter(|_| moved && cost > 0)?, now);
        let ttl = rule.ttl(&own, now);
        Some((own, ttl))
    });
    let next = next.map(|(own, ttl)| {
        join_records(own, ttl, others, now, |record| match answer.admitted {
            true => record.charged(now, cost),
            false => record.clone(),
        })
    });
    Step { answer, next }
}

/// Corrects all records of a state; see [`super::Algorithm::adjust`]. A refund reduces the record of the rule that made
/// the charge, and the others by what is certainly left of the charge in all of them.
pub fn adjust<A: RecordAlgorithm>(
    rule: &A,
    state: Option<&RecordsState<A::Record>>,
    now: i64,
    delta: i64,
    receipt: i64,
) -> Option<Corrected<RecordsState<A::Record>>> {
    let alone = state.is_none_or(|state| state.others.is_empty() && rule.matches(&state.own, now));
    if alone {
        let (own, ttl, units) = rule.adjust_one(state.map(|state| &state.own), now, delta, receipt)?;
        return Some((RecordsState { own, others: RareList::default() }, ttl, units));
    }
    let RuleView { own, others, found, .. } = select_record(rule, state?, now);
    if delta < 0 && !found {
        return None;
    }
    let (next, ttl, more) = rule.adjust_one(own.as_ref(), now, delta, receipt)?;
    if delta >= 0 {
        let (state, ttl) = join_records(next, ttl, others, now, |record| record.charged(now, more));
        return Some((state, ttl, more));
    }
    let elsewhere = A::Record::receipt_elsewhere(receipt);
    let left = |record, receipt| rule.charge_left(record, now, -delta, receipt);
    let own_left = own.as_ref().map_or(f64::INFINITY, |own| left(own, receipt));
    let units = others.iter().map(|other| left(&other.record, elsewhere)).fold(own_left, f64::min);
    let (state, ttl) = join_records(next, ttl, others, now, |record| record.refunded(now, units, elsewhere));
    Some((state, ttl, more))
}

/// Formats a state as it is stored: the own record, then for each other record ` | `, the time when it is dropped, and
/// the record.
pub fn text<R>(state: &RecordsState<R>, record: impl Fn(&R) -> String) -> String {
    let mut text = record(&state.own);
    for other in state.others.iter() {
        text.push_str(&format!(" | {} {}", other.drop_at_ms, record(&other.record)));
    }
    text
}
