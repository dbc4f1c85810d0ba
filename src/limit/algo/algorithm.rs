//! What an algorithm is: all that the rest of the program asks of one. Implemented by each file of the
//! list in `algo`.

use super::params::{Given, Misfit, Param};
use super::told::duration;
use crate::limit::answer::{Answer, Policy};

/// A decision as arithmetic. All times are integer milliseconds, all products stay below 2^53
/// so that the Lua twin, which has only doubles, computes the same integers.
pub trait Algorithm: Clone {
    type State: Clone;

    /// The option without which there is no rule. Single keys may also have it as 0 or as "unlimited".
    const LEADING: Param;

    /// The others that a limit has because of it, in the order in which people are told of them.
    const OTHERS: &'static [Param];

    /// The number of which one asks how large it would have to be.
    const NUMBER: Number;

    /// Whether its windows are those of the calendar, which goes by the wall clock.
    const CALENDAR: bool = false;

    /// Whether `decide` needs its `tag`.
    const TAGGED: bool = false;

    /// Whether a charge is corrected by the numbers that it was made by, whatever the key has now.
    const OWN_NUMBERS: bool = false;

    /// # Errors
    /// With these numbers together the arithmetic would not be exact, or they contradict each other.
    fn build(given: &Given) -> Result<Self, Misfit>;

    /// The rule's numbers in the order the Lua twin reads them. `now_ms` is the caller's idea of
    /// the time, for what depends on the calendar; the twin decides by the store's own.
    fn params(&self, now_ms: i64) -> Vec<i64>;

    /// Where [`Algorithm::OWN_NUMBERS`], the rule as a word that [`Algorithm::noted`] reads.
    fn note(&self) -> String {
        let params: Vec<String> = self.params(0).iter().map(ToString::to_string).collect();
        params.join(",")
    }

    /// The rule of a word, which may come from anybody. `None`: no limit could have such numbers.
    fn noted(_note: &str) -> Option<Self> {
        None
    }

    fn policy(&self) -> Policy;

    /// What `cost` units at `now_ms` get, and the state that follows. `tag` is a number that no
    /// other decision has, for algorithms that name what they store.
    fn decide(&self, state: Option<&Self::State>, now_ms: i64, cost: i64, tag: i64) -> Step<Self::State>;

    /// The state, and its life in ms, after `delta` units more were taken, or given back if
    /// negative, of what `receipt` stands for. `None`: nothing to change, for instance because
    /// the window that was charged is over.
    fn adjust(&self, state: Option<&Self::State>, now_ms: i64, delta: i64, receipt: i64) -> Option<(Self::State, i64)>;

    /// The state as the Lua twin writes it.
    fn text(state: &Self::State) -> String;

    /// The rule for one of `n` gateways that decide alone for a while: an n-th of it, but at least
    /// one unit.
    fn share(&self, n: i64) -> Self;

    /// The rule with another [`Algorithm::NUMBER`].
    fn numbered(&self, number: i64) -> Self;

    /// The largest [`Algorithm::NUMBER`] that stays exact beside the other numbers.
    fn largest(&self) -> i64;

    /// Why no number whatever admits everybody, if it is so.
    fn hopeless(&self) -> Option<&'static str> {
        None
    }

    /// The largest cost that can ever be admitted.
    fn most(&self) -> i64 {
        self.policy().quota
    }

    /// For an algorithm whose charges end by themselves unless they are renewed: how long after the last renewal.
    fn lease_ms(&self) -> Option<i64> {
        None
    }

    /// Such a rule whose charges do not end by themselves.
    fn endless(&self) -> Option<Self> {
        None
    }

    /// Whether an admitted request may have to wait for its turn.
    fn delays(&self) -> bool {
        false
    }

    /// The time that a decision, or a correction by receipt, takes Redis at most, in units of what one
    /// of a few numbers takes: about five microseconds. `most_cost`: what a request can cost. Bounds what
    /// one call carries.
    fn work(&self, _most_cost: i64, _correction: bool) -> i64 {
        1
    }

    /// How much it admits, to people: `10 per 1 s`.
    fn told(&self) -> String {
        let Policy { quota, window_ms } = self.policy();
        format!("{quota} per {}", duration(window_ms))
    }

    /// The same by its [`Algorithm::NUMBER`]: `burst 20 at 10 per 1 s`.
    fn told_number(&self) -> String {
        self.told()
    }
}

/// The numbers of a rule's word.
pub fn numbers(note: &str) -> Option<Vec<i64>> {
    note.split(',').map(|number| number.parse().ok()).collect()
}

/// Outcome of one decision of one limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<S> {
    pub answer: Answer,
    /// The state to store and for how long: the charged one if admitted; after a refusal only
    /// what the refusal itself must leave behind.
    pub next: Option<(S, i64)>,
}

/// A number of a rule: the larger it is, the more is admitted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// To programs, with its unit.
    pub name: &'static str,
    /// To people.
    pub words: &'static str,
    pub least: i64,
}

/// That of windows.
pub const COUNT: Number = Number { name: "count", words: "the count of the rate", least: 1 };
