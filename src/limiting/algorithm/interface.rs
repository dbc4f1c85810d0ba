//! The interface of algorithms. Each algorithm of the list in `algorithm/mod.rs` implements [`Algorithm`].

use crate::limiting::algorithm::describe::format_duration;
use crate::limiting::algorithm::lease_basis::LeaseBasis;
use crate::limiting::algorithm::params::{OptionError, OptionValues, Param};
use crate::limiting::answer::{Answer, Policy};

/// A corrected state, how long to store it in ms, and how many units the correction charged or refunded. A part of a
/// unit counts as one.
pub type Corrected<S> = (S, i64, i64);

/// A rule of one algorithm: the arithmetic of its decisions. All times are integer milliseconds. All products stay
/// below 2^53, so that the Lua twin, which only has doubles, computes the same integers.
pub trait Algorithm: Clone {
    type State: Clone;

    /// The mandatory option of a limit with this algorithm. Overrides may also set it to 0 or to "unlimited".
    const LEADING: Param;

    /// The other options, in the order in which messages list them.
    const FURTHER_PARAMS: &'static [Param];

    /// The number that the replay varies to find how large it would have to be.
    const NUMBER: Number;

    /// True if `decide` needs its `tag`.
    const NEEDS_TAG: bool = false;

    /// True if a charge is corrected by the rule that made it, not by the rule that the key has now.
    const CORRECTS_BY_OWN_RULE: bool = false;

    /// Creates the rule from the options of a limit.
    ///
    /// # Errors
    /// The arithmetic would not be exact with these numbers, or the options contradict each other.
    fn build(options: &OptionValues) -> Result<Self, OptionError>;

    /// Returns the numbers of the rule in the order in which the Lua twin reads them. `now_ms` is the approximate time,
    /// for calendar windows; the twin decides by the clock of the store.
    fn params(&self, now_ms: i64) -> Vec<i64>;

    /// Encodes the rule as a word for receipts, which [`Algorithm::decode_rule`] decodes. Used with
    /// [`Algorithm::CORRECTS_BY_OWN_RULE`], and if requests state the rates of their keys.
    fn encode_rule(&self) -> String {
        let params: Vec<String> = self.params(0).iter().map(ToString::to_string).collect();
        params.join(",")
    }

    /// Decodes a rule from a word, which may come from an untrusted client. Returns `None` for numbers that no limit
    /// can have.
    fn decode_rule(_note: &str) -> Option<Self> {
        None
    }

    /// Returns the policy that clients see: quota and window.
    fn policy(&self) -> Policy;

    /// Returns whether the windows follow the calendar, and so use the wall clock.
    fn is_calendar(&self) -> bool {
        false
    }

    /// Decides whether `cost` units at `now_ms` are admitted, and returns the state that follows. `tag` is a random
    /// number that identifies the decision, for algorithms that store single charges.
    fn decide(&self, state: Option<&Self::State>, now_ms: i64, cost: i64, tag: i64) -> Step<Self::State>;

    /// Returns the state after a correction of the charge that `receipt` identifies, and how long to store it in ms.
    /// `delta` is added to the charge, or refunded if negative. `None` means that there is nothing to change, for
    /// example because the window of the charge has ended.
    fn adjust(
        &self,
        state: Option<&Self::State>,
        now_ms: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<Corrected<Self::State>>;

    /// Formats the state as the Lua twin stores it.
    fn text(state: &Self::State) -> String;

    /// Returns the rule for one of `n` gateways that each decide alone: an n-th of the budget, but at least one unit.
    fn share(&self, n: i64) -> Self;

    /// Returns the rule with another value of [`Algorithm::NUMBER`].
    fn with_number(&self, number: i64) -> Self;

    /// Returns the largest value of [`Algorithm::NUMBER`] for which the arithmetic is exact, given the other numbers.
    fn max_number(&self) -> i64;

    /// Returns why no value of [`Algorithm::NUMBER`] admits every request, if that is so.
    fn never_enough_reason(&self) -> Option<&'static str> {
        None
    }

    /// Returns the largest cost that can ever be admitted.
    fn max_cost(&self) -> i64 {
        self.policy().quota
    }

    /// Returns how long a lease lasts after its last renewal, in ms; `None` if charges are not leases.
    fn lease_ms(&self) -> Option<i64> {
        None
    }

    /// Returns a rule whose leases never expire; `None` if charges are not leases. The replay uses it.
    fn with_endless_lease(&self) -> Option<Self> {
        None
    }

    /// Returns whether an admitted request may have to wait in a queue.
    fn has_queue(&self) -> bool {
        false
    }

    /// Returns the most time that a decision, or a correction, takes Redis. The unit is the time of a simple decision,
    /// about five microseconds. `most_cost` is the largest cost of a request. The work bounds the size of a call.
    fn work(&self, _most_cost: i64, _correction: bool) -> i64 {
        1
    }

    /// Returns by how many units a cost that the response reports can exceed the budget and still be repaid before the
    /// next request is admitted; more is lost. `None` if it counts until its window is over, however large it is.
    fn late_debt(&self) -> Option<i64> {
        None
    }

    /// Returns how units of the rule can be debited in advance; `None` if they cannot, see [`LeaseBasis`].
    fn lease_basis(&self) -> Option<LeaseBasis> {
        None
    }

    /// Describes the rule for people: `10 per 1 s`.
    fn describe(&self) -> String {
        let Policy { quota, window_ms } = self.policy();
        format!("{quota} per {}", format_duration(window_ms))
    }

    /// Describes the rule by its [`Algorithm::NUMBER`]: `burst 20 at 10 per 1 s`.
    fn describe_number(&self) -> String {
        self.describe()
    }
}

/// Parses the comma-separated numbers of a word.
pub fn parse_numbers(encoded: &str) -> Option<Vec<i64>> {
    encoded.split(',').map(|number| number.parse().ok()).collect()
}

/// A receipt that is later than any charge: of the newest charges, whichever requests they are of.
pub const LATEST: i64 = (1 << 53) - 1;

/// Result of one decision of one limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<S> {
    pub answer: Answer,
    /// The state to store, and for how long in ms. After a refusal there is usually none; only corrections of the state
    /// itself are stored then.
    pub next: Option<(S, i64)>,
}

/// A number of a rule, such as the burst. The larger it is, the more is admitted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// Name in JSON, with its unit.
    pub name: &'static str,
    /// Name in text.
    pub words: &'static str,
    pub least: i64,
}

/// The number of windows: how many units each admits.
pub const COUNT: Number = Number { name: "count", words: "the count of the rate", least: 1 };
