//! The result of all limits for one request, limit by limit. The limiter creates it; responses, headers, logs and
//! metrics read it.

use std::sync::Arc;

use crate::ends::End;
use crate::limiting::algorithm::Rule;
use crate::limiting::answer::{Answer, NEVER};
use crate::limiting::chain;
use crate::limiting::chain::ChainState;
use crate::limiting::charges::guard::ChargeGuard;
use crate::limiting::decision::{CheckCharges, Decision, Role};
use crate::limiting::limit::over::{Diversion, Over};
use crate::limiting::limit::{Limit, Mode};
use crate::limiting::source::UnreadableBody;
use crate::telemetry::metrics::CandidateEffect;

/// Result of all limits of a request.
#[derive(Debug, Default)]
pub struct Verdict {
    pub refused: bool,
    pub checks: Vec<LimitResult>,
    /// Guard of the charges that the end of the request may change; usually `None`.
    pub guard: Option<Box<ChargeGuard>>,
    /// Keys of the limits that refuse, if the request is refused and the decision keeps them.
    pub refused_keys: Vec<RefusedKey>,
    /// How candidates differ from their incumbents; usually empty.
    pub comparisons: Vec<ComparedCandidate>,
    /// The wall clock just before the decision, in ms since 1970: the waits in the answers begin then, or a moment later.
    /// `None` without a decision.
    pub decided_ms: Option<i64>,
}

/// The key that a limit refused.
#[derive(Debug)]
pub struct RefusedKey {
    /// Index among the limits of the route.
    pub limit: usize,
    /// The state key.
    pub key: String,
    /// `None` if the limit refused without computing it.
    pub cost: Option<i64>,
}

/// How a candidate compares with its incumbent for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComparedCandidate {
    /// Index of the candidate among the limits of the route.
    pub candidate: usize,
    pub effect: CandidateEffect,
}

/// Result of one limit.
#[derive(Clone, Debug)]
pub struct LimitResult {
    /// Index among the limits of the route.
    pub limit: usize,
    pub outcome: Outcome,
    pub chain_state: ChainState,
    /// The decision charged the limit, or would have if it were not a
    /// [`Op::Peek`](crate::limiting::decision::Op::Peek). Only such a charge can be refunded or corrected. An admitting
    /// limit may have none: another limit refuses the request, or another tier of this one is over.
    pub is_charged: bool,
    /// Rule of the key's override; `None` if the limit's own rule applied.
    pub override_rule: Option<Arc<Rule>>,
}

impl LimitResult {
    /// Makes the result of a limit that the decision did not charge.
    pub fn uncharged(limit: usize, outcome: Outcome, chain_state: ChainState) -> LimitResult {
        LimitResult { limit, outcome, chain_state, is_charged: false, override_rule: None }
    }
}

/// Outcome of one limit, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store decided; exact.
    Store(Answer),
    /// Decided from this gateway's memory, because the store is unavailable.
    Local(Answer),
    /// Admitted: the store is unavailable and the limit has `on_error = "open"`.
    Open,
    /// Refused: the store is unavailable and the limit has `on_error = "closed"`.
    Closed,
    /// Refused: the part of the key with that index is missing, and the limit has `missing = "refuse"`.
    MissingKey { part: usize },
    /// Refused: the request repeats a value that the limit reads, and the limit has `repeated = "refuse"`.
    RepeatedKey,
    /// Refused: a value that the limit reads is not an integer, and the limit has `not_integer = "refuse"`.
    NotInteger,
    /// Refused: the key reads the body, and servers may interpret this body in different ways.
    UnreadableKey(UnreadableBody),
    /// Refused: the override of the key has a rate of 0.
    Blocked,
    /// Refused: the request might have to wait, and the queue is full.
    QueueFull,
    /// Admitted: the override of the key is "unlimited".
    Unlimited,
}

impl Outcome {
    pub fn answer(&self) -> Option<&Answer> {
        match self {
            Outcome::Store(answer) | Outcome::Local(answer) => Some(answer),
            Outcome::Open
            | Outcome::Closed
            | Outcome::MissingKey { .. }
            | Outcome::RepeatedKey
            | Outcome::NotInteger
            | Outcome::UnreadableKey(_)
            | Outcome::Blocked
            | Outcome::QueueFull
            | Outcome::Unlimited => None,
        }
    }

    /// Returns the outcome for another request with the same answer, which has begun no ban.
    pub fn repeated(self) -> Outcome {
        let again = |answer: Answer| Answer { ban: answer.ban.repeated(), ..answer };
        match self {
            Outcome::Store(answer) => Outcome::Store(again(answer)),
            Outcome::Local(answer) => Outcome::Local(again(answer)),
            outcome => outcome,
        }
    }

    /// Returns the end of the request, if the limit refuses it.
    pub fn end(&self) -> End {
        match self {
            Outcome::Closed => End::StoreDown,
            Outcome::MissingKey { .. } => End::MissingKey,
            Outcome::RepeatedKey => End::RepeatedKey,
            Outcome::NotInteger => End::NotInteger,
            Outcome::UnreadableKey(UnreadableBody::TooLong) => End::BodyKeyTooLong,
            Outcome::UnreadableKey(UnreadableBody::Type) => End::BodyKeyType,
            Outcome::UnreadableKey(UnreadableBody::Malformed) => End::BodyKeyMalformed,
            Outcome::UnreadableKey(UnreadableBody::NotCalls) => End::NotCalls,
            Outcome::UnreadableKey(UnreadableBody::TooManyCalls) => End::TooManyCalls,
            Outcome::UnreadableKey(UnreadableBody::OtherCall) => End::McpHeaders,
            Outcome::UnreadableKey(UnreadableBody::NotGraphql) => End::NotGraphql,
            Outcome::UnreadableKey(UnreadableBody::StoredQuery) => End::StoredQuery,
            Outcome::UnreadableKey(UnreadableBody::TooDeep) => End::QueryTooDeep,
            Outcome::UnreadableKey(UnreadableBody::Batch) => End::LlmBatch,
            Outcome::Blocked => End::Blocked,
            Outcome::QueueFull => End::MaxDelayed,
            _ if self.answer().is_some_and(Answer::is_banned) => End::Banned,
            _ if self.answer().is_some_and(|answer| answer.retry_ms == NEVER) => End::NeverFits,
            _ => End::Exhausted,
        }
    }

    /// Returns whether the request is over the limit, as opposed to a request whose budget is unclear.
    pub fn is_over(&self) -> bool {
        match self {
            Outcome::Store(answer) | Outcome::Local(answer) => !answer.admitted,
            Outcome::Closed | Outcome::Blocked => true,
            Outcome::Open
            | Outcome::MissingKey { .. }
            | Outcome::RepeatedKey
            | Outcome::NotInteger
            | Outcome::UnreadableKey(_)
            | Outcome::QueueFull
            | Outcome::Unlimited => false,
        }
    }

    /// Returns whether `limit`, in effect with this outcome, forwards a request that is over it.
    pub fn is_forwarded_by(&self, limit: &Limit) -> bool {
        limit.forwards_excess() && self.is_over()
    }

    /// Returns whether `limit`, in effect with this outcome, refuses the request.
    pub fn is_refused_by(&self, limit: &Limit) -> bool {
        limit.mode == Mode::Enforce && !self.is_admitted() && !self.is_forwarded_by(limit)
    }

    pub fn is_admitted(&self) -> bool {
        match self {
            Outcome::Store(answer) | Outcome::Local(answer) => answer.admitted,
            Outcome::Open | Outcome::Unlimited => true,
            Outcome::Closed
            | Outcome::MissingKey { .. }
            | Outcome::RepeatedKey
            | Outcome::NotInteger
            | Outcome::UnreadableKey(_)
            | Outcome::Blocked
            | Outcome::QueueFull => false,
        }
    }
}

impl Verdict {
    /// Refuses a request without a decision, because the queue of the limit with that index is full.
    pub fn queue_full(limit: usize) -> Verdict {
        let result = LimitResult::uncharged(limit, Outcome::QueueFull, ChainState::InForce);
        Verdict { refused: true, checks: vec![result], ..Verdict::default() }
    }

    /// Moves the results to the limits whose indexes are higher by `first`.
    pub fn shift_indexes(&mut self, first: usize) {
        self.checks.iter_mut().for_each(|checked| checked.limit += first);
        self.refused_keys.iter_mut().for_each(|refused| refused.limit += first);
        self.comparisons.iter_mut().for_each(|comparison| comparison.candidate += first);
    }

    /// Joins the verdicts of two decisions of a request; `later` tells whether it is refused.
    pub fn followed_by(mut self, later: Verdict) -> Verdict {
        self.checks.extend(later.checks);
        self.refused_keys.extend(later.refused_keys);
        self.comparisons.extend(later.comparisons);
        let decided_ms = later.decided_ms.or(self.decided_ms);
        Verdict { refused: later.refused, guard: later.guard, decided_ms, ..self }
    }

    /// Keeps the keys that a decision refused. A key of check `i` belongs to the limit `indexes[i]`.
    pub fn keep_refused(&mut self, indexes: &[usize], keys: Vec<RefusedKey>) {
        let placed = keys.into_iter().filter_map(|key| Some(RefusedKey { limit: *indexes.get(key.limit)?, ..key }));
        self.refused_keys.extend(placed);
    }

    /// Adds the answers of a decision, and which checks it charged. Check `i` is of the limit `indexes[i]` and has the
    /// role `roles[i]`; `roles` may be empty if no limit comes after another.
    pub fn add_decision(
        &mut self,
        indexes: &[usize],
        roles: &[Role],
        (mut decision, charges): (Decision, CheckCharges),
        outcome: fn(Answer) -> Outcome,
    ) {
        self.refused |= !decision.admitted;
        for (place, index) in indexes.iter().enumerate() {
            let role = roles.get(place).copied().unwrap_or_default();
            let chain_state = chain::resolve_chain_state(role, place, &mut decision.answers);
            let Some(answer) = decision.answers.get(place) else { return };
            let (outcome, is_charged) = (outcome(*answer), charges.contains(place));
            self.checks.push(LimitResult { limit: *index, outcome, chain_state, is_charged, override_rule: None });
        }
    }

    /// Returns how the limit with that index, a candidate, compares with its incumbent.
    pub fn effect_of(&self, limit: usize) -> Option<CandidateEffect> {
        self.comparisons.iter().find(|compared| compared.candidate == limit).map(|compared| compared.effect)
    }

    /// Returns the enforced limit for which an admitted request has to wait longest, and the wait in ms.
    pub fn delay_ms(&self, limits: &[Arc<Limit>]) -> Option<(usize, i64)> {
        let answers = self.checks.iter().filter_map(|checked| Some((checked.limit, checked.outcome.answer()?)));
        answers
            .filter(|(limit, answer)| answer.admitted && answer.retry_ms > 0 && limits[*limit].mode == Mode::Enforce)
            .map(|(limit, answer)| (limit, answer.retry_ms))
            .max_by_key(|(_, delay_ms)| *delay_ms)
            .filter(|_| !self.refused)
    }

    /// Returns the enforced limits that refuse.
    pub fn refusing_limits<'l>(&self, limits: &'l [Arc<Limit>]) -> impl Iterator<Item = &'l Arc<Limit>> {
        self.refusals(limits).map(|checked| &limits[checked.limit])
    }

    /// Returns the end of the request, if the limits refuse it.
    pub fn end(&self, limits: &[Arc<Limit>]) -> End {
        self.longest_refusal(limits).map_or(End::Exhausted, |checked| checked.outcome.end())
    }

    /// Returns the enforced limit that refuses for longest; it determines `Retry-After`.
    pub fn longest_refusal(&self, limits: &[Arc<Limit>]) -> Option<&LimitResult> {
        self.refusals(limits).max_by_key(|checked| match checked.outcome.answer() {
            Some(answer) if answer.retry_ms == NEVER => i64::MAX,
            Some(answer) => answer.retry_ms,
            None => 0,
        })
    }

    fn refusals(&self, limits: &[Arc<Limit>]) -> impl Iterator<Item = &LimitResult> {
        self.refusals_of(limits, Mode::Enforce)
    }

    /// Returns the upstream that gets the request instead of the route's own. The first limit that diverts the request
    /// names it.
    pub fn diversion<'l>(&self, limits: &'l [Arc<Limit>]) -> Option<&'l Diversion> {
        let first = self.excesses(limits).filter_map(|checked| match &limits[checked.limit].over {
            Over::Divert(diversion) => Some((checked.limit, diversion)),
            Over::Refuse | Over::Delay | Over::Annotate => None,
        });
        first.min_by_key(|(limit, _)| *limit).map(|(_, diversion)| diversion).filter(|_| !self.refused)
    }

    /// Returns the results of limits that the request exceeds and that forward it (`over`).
    pub fn excesses(&self, limits: &[Arc<Limit>]) -> impl Iterator<Item = &LimitResult> {
        self.checks.iter().filter(move |checked| {
            checked.chain_state == ChainState::InForce && checked.outcome.is_forwarded_by(&limits[checked.limit])
        })
    }

    /// Returns the results of limits with that mode that refuse.
    pub fn refusals_of(&self, limits: &[Arc<Limit>], mode: Mode) -> impl Iterator<Item = &LimitResult> {
        self.checks.iter().filter(move |checked| {
            let (limit, outcome) = (&limits[checked.limit], &checked.outcome);
            let refuses = limit.mode == mode && !outcome.is_admitted() && !outcome.is_forwarded_by(limit);
            refuses && checked.chain_state == ChainState::InForce
        })
    }
}
