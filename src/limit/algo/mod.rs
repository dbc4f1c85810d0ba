//! The algorithms. Each is one file here and one of the same name in `lua/`, twins that decide
//! alike, and one entry in the list below: the rule and state enums, the config names and the
//! Redis script derive from it. `counted`, `refill` with its `ledger`, and `tree` are what some of them share, `records` is how
//! changed numbers forget nothing. Nothing in this folder does I/O or reads a clock.

mod counted;
mod ledger;
mod records;
mod refill;
mod tree;

use super::answer::{Answer, Policy};

/// A decision as arithmetic. All times are integer milliseconds, all products stay below 2^53
/// so that the Lua twin, which has only doubles, computes the same integers.
pub trait Algorithm {
    type State: Clone;

    /// Whether `decide` needs its `tag`.
    const TAGGED: bool = false;

    /// Whether a charge is corrected by the numbers that it was made by, whatever the key has now.
    const OWN_NUMBERS: bool = false;

    /// The rule's numbers in the order the Lua twin reads them. `now_ms` is the caller's idea of
    /// the time, for what depends on the calendar; the twin decides by the store's own.
    fn params(&self, now_ms: i64) -> Vec<i64>;

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
    fn share(&self, _n: i64) -> Self
    where
        Self: Sized + Clone,
    {
        self.clone()
    }

    /// For an algorithm whose charges end by themselves unless they are renewed: after how long.
    fn lease_ms(&self) -> Option<i64> {
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
}

impl Rule {
    /// Whether its windows are those of the calendar, which goes by the wall clock.
    pub fn is_calendar(&self) -> bool {
        matches!(self, Rule::Calendar(_))
    }

    /// The largest cost that can ever be admitted.
    pub fn most(&self) -> i64 {
        match self {
            Rule::TokenBucket(rule) => rule.burst + rule.debt,
            _ => self.policy().quota,
        }
    }
}

/// Outcome of one decision of one limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<S> {
    pub answer: Answer,
    /// The state to store and for how long: the charged one if admitted; after a refusal only
    /// what the refusal itself must leave behind.
    pub next: Option<(S, i64)>,
}

macro_rules! algorithms {
    ($($module:ident => $Name:ident),* $(,)?) => {
        $(pub mod $module;)*

        /// A compiled algorithm with its numbers.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Rule {
            $($Name($module::$Name)),*
        }

        #[derive(Clone, Debug, PartialEq)]
        pub enum State {
            $($Name(<$module::$Name as Algorithm>::State)),*
        }

        /// Config names, in the order of the list.
        pub const NAMES: &[&str] = &[$(stringify!($module)),*];

        /// The Redis script: what algorithms share, a constructor per algorithm file, the shapes of state, the gate.
        pub const SCRIPT: &str = concat!(
            "local modules = {}\n",
            include_str!("../../../lua/records.lua"),
            "local function refill(fields)\n",
            include_str!("../../../lua/refill.lua"),
            "end\nlocal function counted()\n",
            include_str!("../../../lua/counted.lua"),
            "end\nlocal function bucket(fields)\n",
            include_str!("../../../lua/bucket.lua"),
            "end\n",
            $("modules[#modules + 1] = function()\n",
              include_str!(concat!("../../../lua/", stringify!($module), ".lua")),
              "end\n",)*
            include_str!("../../../lua/shapes.lua"),
            include_str!("../../../lua/shapes/log.lua"),
            include_str!("../../../lua/shapes/leases.lua"),
            include_str!("../../../lua/gate.lua"),
        );

        impl Rule {
            pub fn name(&self) -> &'static str {
                match self { $(Rule::$Name(_) => stringify!($module)),* }
            }

            pub fn params(&self, now_ms: i64) -> Vec<i64> {
                match self { $(Rule::$Name(rule) => rule.params(now_ms)),* }
            }

            pub fn policy(&self) -> Policy {
                match self { $(Rule::$Name(rule) => rule.policy()),* }
            }

            pub fn share(&self, n: i64) -> Rule {
                if n <= 1 {
                    return self.clone();
                }
                match self { $(Rule::$Name(rule) => Rule::$Name(rule.share(n))),* }
            }

            pub fn lease_ms(&self) -> Option<i64> {
                match self { $(Rule::$Name(rule) => rule.lease_ms()),* }
            }

            pub fn delays(&self) -> bool {
                match self { $(Rule::$Name(rule) => rule.delays()),* }
            }

            /// At least 1.
            pub fn work(&self, most_cost: i64, correction: bool) -> i64 {
                match self { $(Rule::$Name(rule) => rule.work(most_cost, correction)),* }
            }

            /// Whether a decision needs a number that no other has.
            pub fn tagged(&self) -> bool {
                match self { $(Rule::$Name(_) => $module::$Name::TAGGED),* }
            }

            /// See [`Algorithm::OWN_NUMBERS`].
            pub fn own_numbers(&self) -> bool {
                match self { $(Rule::$Name(_) => $module::$Name::OWN_NUMBERS),* }
            }

            /// A state of another algorithm counts as none.
            pub fn decide(&self, state: Option<&State>, now_ms: i64, cost: i64, tag: i64) -> Step<State> {
                match self {
                    $(Rule::$Name(rule) => {
                        let state = match state {
                            Some(State::$Name(state)) => Some(state),
                            _ => None,
                        };
                        let step = rule.decide(state, now_ms, cost, tag);
                        Step {
                            answer: step.answer,
                            next: step.next.map(|(state, ttl_ms)| (State::$Name(state), ttl_ms)),
                        }
                    })*
                }
            }

            /// Likewise.
            pub fn adjust(
                &self,
                state: Option<&State>,
                now_ms: i64,
                delta: i64,
                receipt: i64,
            ) -> Option<(State, i64)> {
                match self {
                    $(Rule::$Name(rule) => {
                        let state = match state {
                            Some(State::$Name(state)) => Some(state),
                            _ => None,
                        };
                        let (state, ttl_ms) = rule.adjust(state, now_ms, delta, receipt)?;
                        Some((State::$Name(state), ttl_ms))
                    })*
                }
            }
        }

        impl State {
            pub fn text(&self) -> String {
                match self { $(State::$Name(state) => $module::$Name::text(state)),* }
            }
        }
    };
}

algorithms! {
    token_bucket => TokenBucket,
    fixed_window => FixedWindow,
    gcra => Gcra,
    sliding_window => SlidingWindow,
    calendar => Calendar,
    sliding_log => SlidingLog,
    leaky_bucket => LeakyBucket,
    concurrency => Concurrency,
}

impl Rule {
    /// The number by which the script knows the algorithm: its place in the list, from 1.
    pub fn index(&self) -> usize {
        NAMES.iter().position(|name| *name == self.name()).map_or(0, |i| i + 1)
    }
}

/// Division that rounds up; `a` and `b` are not negative, `b` is not 0.
fn div_ceil(a: i64, b: i64) -> i64 {
    a / b + i64::from(a % b != 0)
}
