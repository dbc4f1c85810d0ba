//! Keys whose numbers change; twin of `lua/records.lua`, same names, same order.
//!
//! A state evolves by some of a rule's numbers (its rate and period, its window: the basis); the
//! others (burst, limit, debt, queue) only decide, and never cap what is stored. A key has one
//! record for each basis that has charged it lately, and a charge through one is a charge to all.
//! So a rule finds what it would have left had it alone seen every charge, whoever made them:
//! gateways that disagree admit together what the most generous of them allows. Almost always there
//! is one record.
//!
//! A basis that has no record yet takes over the most that any other has used. One that no longer
//! charges is forgotten after [`KEPT_MS`], or later, once what it had when it charged last has
//! healed; of more than [`OTHERS`] the one that has charged longest ago goes.

use super::Step;

/// A record by its own numbers, whatever the rule that looks at it now.
pub trait Record: Clone {
    /// For how long it counts anything.
    fn life(&self, now: i64) -> i64;

    fn charged(&self, now: i64, cost: i64) -> Self;

    /// How much of a charge of `cost` is still in it for certain.
    fn left(&self, now: i64, cost: i64, receipt: i64) -> f64;

    /// The record after `units` of that charge were given back.
    fn back(&self, now: i64, units: f64, receipt: i64) -> Self;
}

/// What an algorithm does with one record.
pub trait Recorded {
    type Record: Record;

    /// How long a record at least outlives its last charge by its own rule.
    const KEPT_MS: i64 = KEPT_MS;

    /// Whether the record is one of this rule's basis.
    fn owns(&self, record: &Self::Record, now: i64) -> bool;

    fn decide_one(&self, record: Option<&Self::Record>, now: i64, cost: i64) -> Step<Self::Record>;

    /// As [`super::Algorithm::adjust`]; the third is how much of a positive `delta` was charged.
    fn adjust_one(
        &self,
        record: Option<&Self::Record>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<(Self::Record, i64, i64)>;

    /// What this rule makes of a record of another basis, and how much is used of it.
    fn adopt(&self, record: &Self::Record, now: i64) -> (Self::Record, i64);

    /// How long a record of this rule is to be stored.
    fn lasts(&self, record: &Self::Record, now: i64) -> i64 {
        record.life(now).max(1)
    }

    /// How much of a charge of `cost` is still in the record for certain.
    fn left(&self, record: &Self::Record, now: i64, cost: i64, receipt: i64) -> f64 {
        record.left(now, cost, receipt)
    }
}

/// The record of the rule that has decided last, and those of others.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordsState<R> {
    own: R,
    others: Box<[Other<R>]>,
}

#[derive(Clone, Debug, PartialEq)]
struct Other<R> {
    record: R,
    /// When it is forgotten.
    till_ms: i64,
}

const KEPT_MS: i64 = 600_000;
const OTHERS: usize = 3;

/// The records as one rule sees them.
struct Seen<R> {
    own: Option<R>,
    others: Vec<Other<R>>,
    /// `own` was not the first of them, or not among them.
    moved: bool,
    /// It was among them.
    found: bool,
}

fn seen<A: Recorded>(rule: &A, state: &RecordsState<A::Record>, now: i64) -> Seen<A::Record> {
    let mut others = Vec::with_capacity(state.others.len() + 1);
    let mut own = rule.owns(&state.own, now).then(|| state.own.clone());
    let moved = own.is_none();
    if moved {
        let till_ms = now + A::KEPT_MS.max(state.own.life(now));
        others.push(Other { record: state.own.clone(), till_ms });
    }
    for other in &state.others {
        if own.is_none() && other.till_ms > now && rule.owns(&other.record, now) {
            own = Some(other.record.clone());
        } else {
            others.push(other.clone());
        }
    }
    others.retain(|other| other.till_ms > now);
    let found = own.is_some();
    if !found {
        let mut most = -1;
        for other in &others {
            let (record, used) = rule.adopt(&other.record, now);
            if used > most {
                (own, most) = (Some(record), used);
            }
        }
    }
    others.truncate(OTHERS);
    Seen { own, others, moved, found }
}

/// The state of an own record and others, and its life.
fn joined<R: Record>(
    own: R,
    mut ttl: i64,
    others: Vec<Other<R>>,
    now: i64,
    change: impl Fn(&R) -> R,
) -> (RecordsState<R>, i64) {
    let changed = others.into_iter().map(|Other { record, till_ms }| {
        let record = change(&record);
        ttl = ttl.max(record.life(now).min(till_ms - now));
        Other { record, till_ms }
    });
    let others = changed.collect();
    (RecordsState { own, others }, ttl)
}

pub fn decide<A: Recorded>(
    rule: &A,
    state: Option<&RecordsState<A::Record>>,
    now: i64,
    cost: i64,
) -> Step<RecordsState<A::Record>> {
    let only = |record| {
        let Step { answer, next } = rule.decide_one(record, now, cost);
        Step { answer, next: next.map(|(own, ttl)| (RecordsState { own, others: Box::default() }, ttl)) }
    };
    let Some(state) = state else { return only(None) };
    if state.others.is_empty() && rule.owns(&state.own, now) {
        return only(Some(&state.own));
    }
    let Seen { own, others, moved, .. } = seen(rule, state, now);
    let Step { answer, next } = rule.decide_one(own.as_ref(), now, cost);
    // What a refusal has told holds only if the record that told it stays.
    let next = next.or_else(|| {
        let own = own.filter(|_| moved && cost > 0)?;
        let ttl = rule.lasts(&own, now);
        Some((own, ttl))
    });
    let next = next.map(|(own, ttl)| {
        joined(own, ttl, others, now, |record| match answer.admitted {
            true => record.charged(now, cost),
            false => record.clone(),
        })
    });
    Step { answer, next }
}

/// A charge is given back to the record of the rule that made it, to others as far as it is for
/// certain still in all of them.
pub fn adjust<A: Recorded>(
    rule: &A,
    state: Option<&RecordsState<A::Record>>,
    now: i64,
    delta: i64,
    receipt: i64,
) -> Option<(RecordsState<A::Record>, i64)> {
    let alone = state.is_none_or(|state| state.others.is_empty() && rule.owns(&state.own, now));
    if alone {
        let (own, ttl, _) = rule.adjust_one(state.map(|state| &state.own), now, delta, receipt)?;
        return Some((RecordsState { own, others: Box::default() }, ttl));
    }
    let Seen { own, others, found, .. } = seen(rule, state?, now);
    if delta < 0 && !found {
        return None;
    }
    let (next, ttl, more) = rule.adjust_one(own.as_ref(), now, delta, receipt)?;
    if delta >= 0 {
        return Some(joined(next, ttl, others, now, |record| record.charged(now, more)));
    }
    let records = own.iter().chain(others.iter().map(|other| &other.record));
    let units = records.map(|record| rule.left(record, now, -delta, receipt)).fold(f64::INFINITY, f64::min);
    Some(joined(next, ttl, others, now, |record| record.back(now, units, receipt)))
}

/// The own record, then each other one behind a bar and the time when it is forgotten.
pub fn text<R>(state: &RecordsState<R>, record: impl Fn(&R) -> String) -> String {
    let mut text = record(&state.own);
    for other in &state.others {
        text.push_str(&format!(" | {} {}", other.till_ms, record(&other.record)));
    }
    text
}
