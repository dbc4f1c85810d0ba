//! The interface between limits and stores: the checks of one request, which a store decides together, and the
//! decision that it returns.

use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::labels::labels;
use crate::limiting::algorithm::lease_basis::LeaseTerms;
use crate::limiting::algorithm::{Rule, State, Step};
use crate::limiting::answer::Answer;

/// A list with an element for each check. Most requests have few checks, and allocate nothing for it.
pub type FewVec<T> = SmallVec<[T; 4]>;

/// Properties of a limit that a store needs. Each limit makes one, which all of its checks share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitRef {
    /// Hash of the name; the same in every config.
    pub id: u64,
    pub name: String,
    /// The largest cost that a request can have.
    pub max_cost: i64,
    /// True if the outcome of a request may change or release its charge: a refund, a settled cost, a lease.
    pub refundable: bool,
    /// The option `lease`; `None` if hot keys have no leases.
    pub lease: Option<LeaseTerms>,
    /// The option `usage`, in days; `None` if the usage of keys is not kept.
    pub usage_days: Option<u16>,
    /// While a request of a key is refused, others of the same key may be admitted: requests state their rate or their
    /// day, or only their values are counted.
    pub refusals_vary: bool,
}

/// One check of a request: whether `key` may be charged `cost` under `rule`.
#[derive(Clone, Debug)]
pub struct Check {
    pub limit: Arc<LimitRef>,
    /// The limit's own rule, or the one that an override gives this key.
    pub rule: Arc<Rule>,
    /// The state key.
    pub key: String,
    /// Units to charge. For [`Op::Adjust`], units to add to an earlier charge, or to refund if negative.
    pub cost: i64,
    /// Tokens of the input of the request if the response does not report them.
    pub input_tokens: i64,
    pub role: Role,
    /// The values of the key, by which overrides are found. Only set where the end of the request may change the
    /// charge: the change applies the override that is active by then.
    pub override_values: Option<Box<str>>,
    /// A random number that identifies the decision, or the tenant, or the counted value; for [`Op::Adjust`] the
    /// receipt of the charge.
    pub tag: i64,
    /// The tenant as in a state key, if the limit has `fair`; the value that is counted, if it has `distinct`.
    pub tenant: Option<Box<str>>,
    /// The ban of the key, if the limit has `ban`. Decisions and resets include it.
    pub ban: Option<Box<BanCheck>>,
}

/// The ban check of a key. Stores decide it right after the check itself, and count a refusal of the check.
#[derive(Clone, Debug)]
pub struct BanCheck {
    /// The bans of the limit. In memory they are separate from its keys.
    pub limit: Arc<LimitRef>,
    pub rule: Arc<Rule>,
    /// The key of the ban. It has the hash slot of the state key.
    pub key: String,
}

/// A state that a store has: of a check, or of its ban.
#[derive(Clone, Copy)]
pub struct StateRef<'c> {
    pub limit: &'c Arc<LimitRef>,
    pub rule: &'c Arc<Rule>,
    pub key: &'c str,
}

/// The checks of one decision, shared by the waiting request and the call that carries them.
pub type SharedChecks = Rc<Vec<Check>>;

/// Operation on the checks of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Decides, and charges either all checks or none.
    Take = 1,
    /// Answers like [`Op::Take`], but changes nothing.
    Peek = 2,
    /// Adds to earlier charges or refunds them, by receipt and regardless of the limit. An answer is `admitted` if
    /// there was a charge to change.
    Adjust = 3,
    /// Deletes the state of the keys.
    Reset = 4,
}

/// Role of a check among the checks of its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// The limit is in shadow mode: it decides and is charged, but never refuses.
    pub shadow: bool,
    /// The limit forwards requests that exceed it (`over`): it never refuses, and is charged only with the others.
    pub forwards: bool,
    /// Another check comes `after` this one and decides in its place when it refuses.
    pub base: bool,
    /// Index of the check that must be exhausted before this one applies.
    pub after: Option<usize>,
    /// A check of cost 0 is admitted only while a unit is left, because its response may cost something (`settle`).
    /// Otherwise it is always admitted.
    pub needs_unit: bool,
    /// Which limit the check belongs to. Set for all checks of a decision that needs it, and for no others.
    pub link: Option<CheckLink>,
}

/// Relates the check of one limit to those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckLink {
    /// Number of the limit within the decision, below [`CheckLink::GROUPS`].
    pub group: u8,
    /// The group of the incumbent, if the limit is a candidate. It is charged as if it had replaced the incumbent: not
    /// if another limit refuses the request.
    pub incumbent: Option<u8>,
}

impl BanCheck {
    pub fn state_ref(&self) -> StateRef<'_> {
        StateRef { limit: &self.limit, rule: &self.rule, key: &self.key }
    }

    /// Returns the check that looks at the ban alone.
    pub fn to_look(&self) -> Check {
        Check {
            limit: self.limit.clone(),
            rule: self.rule.clone(),
            key: self.key.clone(),
            cost: 0,
            input_tokens: 0,
            role: Role::default(),
            override_values: None,
            tag: 0,
            tenant: None,
            ban: None,
        }
    }

    /// Decides whether the key is banned, after the check itself answered `answer`. `lua/gate.lua` does the same in
    /// Redis.
    pub fn decide(&self, state: Option<&State>, now_ms: i64, answer: &Answer) -> Step<State> {
        self.rule.decide(state, now_ms, i64::from(!answer.admitted), 0)
    }
}

impl Check {
    pub fn state_ref(&self) -> StateRef<'_> {
        StateRef { limit: &self.limit, rule: &self.rule, key: &self.key }
    }

    /// Returns whether the end of the request may change the charge.
    pub fn may_change(&self) -> bool {
        self.limit.refundable || self.rule.has_queue()
    }

    /// Returns whether the check charges nothing, but is admitted only while a unit is left.
    pub fn needs_unit(&self) -> bool {
        self.role.needs_unit && self.cost == 0
    }

    /// Returns the check that looks at the key: it costs nothing and is always admitted.
    pub fn to_look(&self) -> Check {
        Check { cost: 0, role: Role { needs_unit: false, ..self.role }, ..self.clone() }
    }

    /// Decides the check by the state of its key. `lua/gate.lua` does the same in Redis.
    pub fn decide(&self, state: Option<&State>, now_ms: i64) -> Step<State> {
        if self.needs_unit() {
            let step = self.rule.decide(state, now_ms, 1, self.tag);
            if !step.answer.admitted {
                return step;
            }
        }
        self.rule.decide(state, now_ms, self.cost, self.tag)
    }
}

impl CheckLink {
    /// Upper bound of groups: one decision carries no more limits. They are 16, with at most four tiers each.
    pub const GROUPS: usize = 64;

    /// Encodes the link for the Lua script.
    pub fn encode(self) -> i64 {
        i64::from(self.group) + 1 + 256 * self.incumbent.map_or(0, |group| i64::from(group) + 1)
    }
}

impl Role {
    /// Returns whether the check belongs to a candidate.
    pub fn is_candidate(self) -> bool {
        self.link.is_some_and(|link| link.incumbent.is_some())
    }

    /// Returns whether a refusal of the check refuses the request.
    pub fn can_refuse(self) -> bool {
        !(self.shadow || self.base || self.forwards)
    }

    /// Encodes the role for the Lua script; `lua/gate.lua` lists the bits.
    pub fn encode(self) -> i64 {
        let after = self.after.map_or(0, |index| i64::try_from(index).unwrap_or(0) + 1);
        i64::from(self.shadow) + 2 * i64::from(self.base) + 4 * i64::from(self.forwards) + 8 * after
    }
}

/// Decision on the checks of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// False if an enforced limit refuses; then only shadow limits were charged.
    pub admitted: bool,
    /// One answer per check, in the same order.
    pub answers: Vec<Answer>,
}

impl Decision {
    /// Returns whether the check with that role applies. It does not while the limit before it has capacity.
    pub fn is_applicable(&self, role: Role) -> bool {
        role.after.is_none_or(|base| self.answers.get(base).is_none_or(|base| !base.admitted))
    }

    /// Finds which of `checks` [`Op::Take`] charged.
    pub fn find_charged(&self, checks: &[Check]) -> CheckCharges {
        CheckCharges::find(checks, self.admitted, |place| self.answers.get(place).is_some_and(|one| one.admitted))
    }
}

/// Which checks of a decision are charged. This is the only place that decides it; `lua/gate.lua` does the same.
///
/// - All checks that admit are charged, or only those of shadow limits if the request is refused.
/// - A check that does not apply, because the limit before it has capacity, is not charged.
/// - A shadow limit with several checks is charged by all of them, or by none if one refuses.
/// - A candidate is not charged if a limit besides its incumbent refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCharges {
    charged: PlaceSet,
    withheld: PlaceSet,
}

/// A set of indexes of checks, of which a decision has at most 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PlaceSet(u64);

impl PlaceSet {
    /// Adds an index. Ignores an index that is too high, which no config allows.
    fn insert(&mut self, place: usize) {
        self.0 |= PlaceSet::bit(place);
    }

    fn contains(self, place: usize) -> bool {
        self.0 & PlaceSet::bit(place) != 0
    }

    fn bit(place: usize) -> u64 {
        u32::try_from(place).ok().and_then(|place| 1_u64.checked_shl(place)).unwrap_or(0)
    }
}

impl CheckCharges {
    /// Finds the charges of a decision that has admitted the request or not. `has_admitted` has the answer to each
    /// check.
    pub fn find(checks: &[Check], admitted: bool, has_admitted: impl Fn(usize) -> bool) -> CheckCharges {
        let is_linked = checks.first().is_some_and(|check| check.role.link.is_some());
        let dropped_places = if is_linked { find_dropped(checks, &has_admitted) } else { PlaceSet::default() };
        let mut charges = CheckCharges::default();
        for (place, Check { role, .. }) in checks.iter().enumerate().filter(|(place, _)| has_admitted(*place)) {
            if dropped_places.contains(place) || !(admitted || role.shadow) {
                charges.withheld.insert(place);
            } else if role.after.is_none_or(|base| !has_admitted(base)) {
                charges.charged.insert(place);
            }
        }
        charges
    }

    /// Returns whether the check with index `place` is charged.
    pub fn contains(self, place: usize) -> bool {
        self.charged.contains(place)
    }

    /// Returns whether the check with index `place` admits, but is not charged because others refuse.
    pub fn is_withheld(self, place: usize) -> bool {
        self.withheld.contains(place)
    }
}

/// Finds the checks that admit but are not charged because of their links.
fn find_dropped(checks: &[Check], has_admitted: impl Fn(usize) -> bool) -> PlaceSet {
    let links = || checks.iter().enumerate().filter_map(|(place, check)| Some((place, check.role, check.role.link?)));
    // By limit: whether one of its checks refuses, and whether that refuses the request.
    let mut refusing = [(false, false); CheckLink::GROUPS];
    for (_, role, link) in links().filter(|(place, ..)| !has_admitted(*place)) {
        if let Some((refuses, refuses_request)) = refusing.get_mut(usize::from(link.group)) {
            *refuses = true;
            *refuses_request |= role.can_refuse();
        }
    }
    let is_refused_besides = |incumbent: u8| {
        let mut limits = refusing.iter().enumerate();
        limits.any(|(group, (_, refuses_request))| *refuses_request && group != usize::from(incumbent))
    };
    let mut places = PlaceSet::default();
    for (place, _, link) in links().filter(|(place, ..)| has_admitted(*place)) {
        let refuses = refusing.get(usize::from(link.group)).is_some_and(|(refuses, _)| *refuses);
        if refuses || link.incumbent.is_some_and(is_refused_besides) {
            places.insert(place);
        }
    }
    places
}

/// The store made no decision in time. Returns the checks, so that the caller can decide without the store.
#[derive(Debug)]
pub struct StoreError {
    pub kind: ErrorKind,
    pub checks: Vec<Check>,
}

labels! {
    /// Why the store made no decision; the `kind` label of `store_errors_total`.
    ErrorKind:
    /// No reply within the deadline; the charge may have happened.
    Timeout = "timeout",
    /// The decision waited in the queue until the deadline, while the server was late; nothing was charged.
    QueueTimeout = "queue_timeout",
    /// No reply before the client of a rate limit request gives up; the charge may have happened.
    ClientDeadline = "client_deadline",
    /// There is no connection, and requests do not wait for one; nothing was charged.
    Disconnected = "disconnected",
    /// The connection broke during the call; the charge may have happened.
    Lost = "disconnected",
    /// The breaker is open: recent calls failed, so none is made.
    BreakerOpen = "breaker_open",
    /// The queue is full although the server replies: see `QUEUE_MAX` in `redis/pipeline/queue.rs`.
    Overloaded = "overloaded",
    /// Redis is loading its data set (`LOADING`).
    Loading = "loading",
    /// A script blocks Redis (`BUSY`).
    Busy = "busy",
    /// Redis is a replica (`READONLY`) or has no master (`MASTERDOWN`, `CLUSTERDOWN`).
    Readonly = "readonly",
    /// Redis is out of memory (`OOM`).
    OutOfMemory = "oom",
    /// Wrong or missing credentials (`NOAUTH`, `WRONGPASS`, `NOPERM`).
    Denied = "denied",
    /// Any other error reply, or a malformed reply.
    Reply = "reply",
    /// The task that made the call panicked; the charge may have happened.
    Internal = "internal",
}

impl ErrorKind {
    /// Returns whether the operation may have happened despite the error.
    pub fn is_unsure(self) -> bool {
        matches!(
            self,
            ErrorKind::Timeout | ErrorKind::ClientDeadline | ErrorKind::Lost | ErrorKind::Reply | ErrorKind::Internal
        )
    }
}
