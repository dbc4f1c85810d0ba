//! The algorithms, as pure arithmetic: the state of a key, the time and a cost go in; the answer and the next state
//! come out. Nothing in this directory does I/O or reads a clock.
//!
//! Each algorithm is a file here and a Lua twin of the same name in `lua/`. Both compute the same integers, which the
//! tests compare step by step. `memory` stores run the Rust file, Redis runs the twin.
//!
//! - `interface`: the trait that an algorithm implements; `params`: how it declares its options.
//! - `token_bucket`, `gcra`, `leaky_bucket`: records that refill, from `refill`, whose `ledger` computes their refunds.
//! - `fixed_window`, `calendar`: windows with a counter, from `window`; `dates` finds calendar windows.
//! - `sliding_window`: counters for parts of a window.
//! - `sliding_log`, `concurrency`: single charges and leases, in a `tree`.
//! - `fair`: a token bucket that tenants share fairly.
//! - `distinct`: different values of a source, in the windows of another algorithm.
//! - `warm_up`: a token bucket whose rate rises when it is used.
//! - `ban`: longer refusals of keys that their limit refuses often.
//! - `records`: usage of a key under several settings of its limit.
//! - `lease_basis`: how long units that were debited in advance may be spent.
//! - `exact`: the range in which integers are exact in Lua; `describe`: rules as text.
//!
//! To add an algorithm: write `NAME.rs` and `lua/NAME.lua`, add a `pub mod` line and an entry to `algorithms!` below,
//! and add a section to the manual. The macro derives the `Rule` and `State` enums, the options of the config and the
//! Redis script; the compiler and the tests name what is missing.

pub mod ban;
pub mod calendar;
pub mod concurrency;
pub mod dates;
pub mod describe;
pub mod distinct;
mod exact;
pub mod fair;
pub mod fixed_window;
pub mod gcra;
mod interface;
pub mod leaky_bucket;
pub mod lease_basis;
pub mod params;
mod records;
mod refill;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;
mod tree;
pub mod warm_up;
mod window;

pub use crate::limiting::algorithm::interface::{Algorithm, Corrected, LATEST, Number, Step};
pub use crate::limiting::algorithm::lease_basis::LeaseBasis;
use crate::limiting::algorithm::params::{OptionError, OptionValues, Param};
use crate::limiting::answer::Policy;

/// Description of an algorithm, independent of any limit.
#[derive(Debug)]
pub struct Spec {
    /// Name in the config and in state keys.
    pub name: &'static str,
    /// See [`Algorithm::LEADING`].
    pub leading: Param,
    /// See [`Algorithm::FURTHER_PARAMS`].
    pub others: &'static [Param],
    /// See [`Algorithm::NUMBER`].
    pub number: Number,
    /// See [`Algorithm::build`].
    pub build: fn(&OptionValues) -> Result<Rule, OptionError>,
}

impl Spec {
    /// All options of the algorithm.
    pub fn params(&self) -> impl Iterator<Item = &Param> {
        std::iter::once(&self.leading).chain(self.others)
    }

    /// Returns whether the algorithm has an option called `name`.
    pub fn has_param(&self, name: &str) -> bool {
        self.params().any(|param| param.name == name)
    }
}

/// Options of all algorithms, each name once.
pub fn all_params() -> impl Iterator<Item = &'static Param> {
    let new = |(i, spec): (usize, &'static Spec)| {
        let before = &SPECS[..i];
        spec.params().filter(move |param| !before.iter().any(|spec| spec.has_param(param.name)))
    };
    SPECS.iter().enumerate().flat_map(new)
}

/// Generates everything that has one case per algorithm: the enums, the list of descriptions, the Redis script, and
/// methods that call the algorithm of a rule.
macro_rules! algorithms {
    ($($module:ident => $Name:ident),* $(,)?) => {
        algorithms! { @all $($module => $Name,)* fair => Fair, ban => Ban, distinct => Distinct, warm_up => WarmUp }

        /// All algorithms that a limit can name in `algorithm`. A limit that names none uses the first.
        pub const SPECS: &[Spec] = &[$(Spec {
            name: stringify!($module),
            leading: $module::$Name::LEADING,
            others: $module::$Name::FURTHER_PARAMS,
            number: $module::$Name::NUMBER,
            build: |options| $module::$Name::build(options).map(Rule::$Name),
        }),*];
    };
    (@all $($module:ident => $Name:ident),*) => {
        /// A compiled rule: an algorithm with its numbers.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Rule {
            $($Name($module::$Name)),*
        }

        /// State of a key.
        #[derive(Clone, Debug, PartialEq)]
        pub enum State {
            $($Name(<$module::$Name as Algorithm>::State)),*
        }

        /// Names in state keys, in the order of the list: those of the config, then `fair`, `distinct` and
        /// `warm_up`, which limits with these options have, and `ban`, which limits with `ban` have beside their own.
        pub const NAMES: &[&str] = &[$(stringify!($module)),*];

        /// The Redis script. It consists of the shared functions, the algorithms by their place in this list, the
        /// shapes of states by name, and the gate. A call only creates the functions that it needs.
        pub const SCRIPT: &str = concat!(
            include_str!("../../../lua/records.lua"),
            "local function refill(fields)\n",
            include_str!("../../../lua/refill.lua"),
            "end\nlocal function counted()\n",
            include_str!("../../../lua/counted.lua"),
            "end\nlocal function bucket(fields, sharing)\n",
            include_str!("../../../lua/bucket.lua"),
            "end\nlocal function module(place)\n",
            $("place = place - 1\nif place == 0 then\n",
              include_str!(concat!("../../../lua/", stringify!($module), ".lua")),
              "end\n",)*
            "end\nlocal call = redis.call\n",
            include_str!("../../../lua/freeing.lua"),
            "local function native()\n",
            include_str!("../../../lua/shapes/native.lua"),
            "end\nlocal function shape(name)\nif name == 'cells' then\n",
            include_str!("../../../lua/shapes/cells.lua"),
            "elseif name == 'log' then\n",
            include_str!("../../../lua/shapes/log.lua"),
            "elseif name == 'tenants' then\n",
            include_str!("../../../lua/shapes/tenants.lua"),
            "elseif name == 'values' then\n",
            include_str!("../../../lua/shapes/values.lua"),
            "else\n",
            include_str!("../../../lua/shapes/leases.lua"),
            "end\nend\n",
            include_str!("../../../lua/gate.lua"),
        );

        impl Rule {
            /// Name in state keys.
            pub fn name(&self) -> &'static str {
                match self { $(Rule::$Name(_) => stringify!($module)),* }
            }

            /// See [`Algorithm::NUMBER`].
            pub fn number(&self) -> Number {
                match self { $(Rule::$Name(_) => $module::$Name::NUMBER),* }
            }

            /// See [`Algorithm::is_calendar`].
            pub fn is_calendar(&self) -> bool {
                match self { $(Rule::$Name(rule) => rule.is_calendar()),* }
            }

            /// See [`Algorithm::params`].
            pub fn params(&self, now_ms: i64) -> Vec<i64> {
                match self { $(Rule::$Name(rule) => rule.params(now_ms)),* }
            }

            /// See [`Algorithm::encode_rule`].
            pub fn encode_rule(&self) -> String {
                match self { $(Rule::$Name(rule) => rule.encode_rule()),* }
            }

            /// Decodes a rule of the algorithm called `name`; see [`Algorithm::decode_rule`].
            pub fn decode_rule(name: &str, encoded: &str) -> Option<Rule> {
                match name {
                    $(stringify!($module) => $module::$Name::decode_rule(encoded).map(Rule::$Name),)*
                    _ => None,
                }
            }

            /// See [`Algorithm::policy`].
            pub fn policy(&self) -> Policy {
                match self { $(Rule::$Name(rule) => rule.policy()),* }
            }

            /// See [`Algorithm::share`].
            pub fn share(&self, n: i64) -> Rule {
                if n <= 1 {
                    return self.clone();
                }
                match self { $(Rule::$Name(rule) => Rule::$Name(rule.share(n))),* }
            }

            /// See [`Algorithm::with_number`].
            pub fn with_number(&self, number: i64) -> Rule {
                match self { $(Rule::$Name(rule) => Rule::$Name(rule.with_number(number))),* }
            }

            /// See [`Algorithm::max_number`].
            pub fn max_number(&self) -> i64 {
                match self { $(Rule::$Name(rule) => rule.max_number()),* }
            }

            /// See [`Algorithm::never_enough_reason`].
            pub fn never_enough_reason(&self) -> Option<&'static str> {
                match self { $(Rule::$Name(rule) => rule.never_enough_reason()),* }
            }

            /// Returns the largest cost that can ever be admitted.
            pub fn max_cost(&self) -> i64 {
                match self { $(Rule::$Name(rule) => rule.max_cost()),* }
            }

            /// See [`Algorithm::lease_ms`].
            pub fn lease_ms(&self) -> Option<i64> {
                match self { $(Rule::$Name(rule) => rule.lease_ms()),* }
            }

            /// Returns the rule with leases that never expire, if it has leases.
            pub fn with_endless_lease(&self) -> Option<Rule> {
                match self { $(Rule::$Name(rule) => rule.with_endless_lease().map(Rule::$Name)),* }
            }

            /// See [`Algorithm::late_debt`].
            pub fn late_debt(&self) -> Option<i64> {
                match self { $(Rule::$Name(rule) => rule.late_debt()),* }
            }

            /// See [`Algorithm::lease_basis`].
            pub fn lease_basis(&self) -> Option<LeaseBasis> {
                match self { $(Rule::$Name(rule) => rule.lease_basis()),* }
            }

            /// See [`Algorithm::describe`].
            pub fn describe(&self) -> String {
                match self { $(Rule::$Name(rule) => rule.describe()),* }
            }

            /// See [`Algorithm::describe_number`].
            pub fn describe_number(&self) -> String {
                match self { $(Rule::$Name(rule) => rule.describe_number()),* }
            }

            /// See [`Algorithm::has_queue`].
            pub fn has_queue(&self) -> bool {
                match self { $(Rule::$Name(rule) => rule.has_queue()),* }
            }

            /// See [`Algorithm::work`]; at least 1.
            pub fn work(&self, most_cost: i64, correction: bool) -> i64 {
                match self { $(Rule::$Name(rule) => rule.work(most_cost, correction)),* }
            }

            /// See [`Algorithm::NEEDS_TAG`].
            pub fn needs_tag(&self) -> bool {
                match self { $(Rule::$Name(_) => $module::$Name::NEEDS_TAG),* }
            }

            /// See [`Algorithm::CORRECTS_BY_OWN_RULE`].
            pub fn corrects_by_own_rule(&self) -> bool {
                match self { $(Rule::$Name(_) => $module::$Name::CORRECTS_BY_OWN_RULE),* }
            }

            /// See [`Algorithm::decide`]. A state of another algorithm counts as none.
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

            /// See [`Algorithm::adjust`]. A state of another algorithm counts as none.
            pub fn adjust(
                &self,
                state: Option<&State>,
                now_ms: i64,
                delta: i64,
                receipt: i64,
            ) -> Option<Corrected<State>> {
                match self {
                    $(Rule::$Name(rule) => {
                        let state = match state {
                            Some(State::$Name(state)) => Some(state),
                            _ => None,
                        };
                        let (state, ttl_ms, units) = rule.adjust(state, now_ms, delta, receipt)?;
                        Some((State::$Name(state), ttl_ms, units))
                    })*
                }
            }
        }

        impl State {
            /// See [`Algorithm::text`].
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
    /// Number of the algorithm in the script: its place in the list, from 1.
    pub fn index(&self) -> usize {
        NAMES.iter().position(|name| *name == self.name()).map_or(0, |i| i + 1)
    }

    /// Returns the policy at `now_ms`. The policy of a calendar depends on the window, and a shared rule has the policy
    /// of the window that any worker used last, perhaps long ago.
    pub fn policy_at(&self, now_ms: i64) -> Policy {
        let rule = self.clone();
        let _ = rule.params(now_ms);
        rule.policy()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use jiff::civil::{Time, Weekday};
    use jiff::tz::TimeZone;

    use super::params::{CalendarRate, LINGER, ParamKind, ParamValue, Rate};
    use super::*;

    fn sample(kind: ParamKind) -> ParamValue {
        match kind {
            ParamKind::Rate => ParamValue::Rate(Rate { count: 10, per_ms: 1000 }),
            ParamKind::CalendarRate => {
                ParamValue::CalendarRate(CalendarRate { count: 10, unit: dates::CalendarUnit::Week })
            }
            ParamKind::Integer { least, .. } => ParamValue::Integer(least + 1),
            ParamKind::Duration { least_ms, .. } => ParamValue::Integer(least_ms),
            ParamKind::Flag | ParamKind::Choice(_) => ParamValue::Flag(true),
            ParamKind::Zone => ParamValue::Zone(TimeZone::UTC),
            ParamKind::TimeOfDay => ParamValue::TimeOfDay(Time::midnight()),
            ParamKind::Weekday => ParamValue::Weekday(Weekday::Sunday),
        }
    }

    /// A rule with the leading option, and the others if `others`. Only a rate per month has `resets_on`, and the
    /// sample is one per week. `delay_after` excludes `nodelay`.
    fn built(spec: &Spec, others: bool) -> Rule {
        let is_combined = |param: &Param| !["resets_on", "delay_after"].contains(&param.name);
        let is_set = |param: &Param| others && is_combined(param) || param.name == spec.leading.name;
        let value = |param: &Param| is_set(param).then(|| sample(param.kind));
        let values = spec.params().map(|param| (param.name, value(param))).collect();
        (spec.build)(&OptionValues::new(values, false)).unwrap_or_else(|misfit| panic!("{}: {misfit:?}", spec.name))
    }

    /// `OptionValues` panics for an option that is not listed, or that is read as another kind.
    #[test]
    fn every_algorithm_is_built_of_the_options_that_it_lists() {
        for spec in SPECS {
            let names: HashSet<&str> = spec.params().map(|param| param.name).collect();
            assert_eq!(names.len(), spec.params().count(), "{}", spec.name);
            for rule in [built(spec, false), built(spec, true)] {
                assert_eq!(rule.name(), spec.name);
                assert_eq!(rule.lease_ms().is_some(), spec.has_param(LINGER.name()), "{}", spec.name);
            }
            assert!(spec.others.is_empty() || built(spec, false) != built(spec, true), "{}", spec.name);
        }
    }

    #[test]
    fn a_rule_survives_encoding_and_decoding() {
        // Requests cannot state the slots of a key.
        let is_encoded = |rule: &Rule| rule.name() != "concurrency";
        for rule in SPECS.iter().flat_map(|spec| [built(spec, false), built(spec, true)]).filter(is_encoded) {
            for rule in [rule.clone(), rule.share(3)] {
                let encoded = rule.encode_rule();
                assert!(!encoded.is_empty() && !encoded.contains(' '), "{encoded}");
                assert_eq!(Rule::decode_rule(rule.name(), &encoded), Some(rule));
            }
        }
    }

    /// Encoded rules come from clients, and computing with them must be exact and end.
    #[test]
    fn numbers_that_no_limit_can_have_are_rejected() {
        for (name, notes) in [
            (
                "token_bucket",
                &[
                    "",
                    "0,1,1,0,0,0",
                    "1,0,1,0,0,0",
                    "1,1,0,0,0,0",
                    "1,1,1,-1,0,0",
                    "1,1,1,0,2,0",
                    "1,1,1,0,0",
                    "9223372036854775807,9223372036854775807,1,0,0,0",
                    "1,1,1,9223372036854775807,0,0",
                    "1,1,4503599627370496,0,0,0",
                    "4503599627370495,1000,1,0,1,0",
                    "1,1,1,0,0,0,2",
                ][..],
            ),
            ("gcra", &["1,1,1", "0,1,1,0,0,0"]),
            (
                "leaky_bucket",
                &[
                    "1,1,-1,0",
                    "1001,1,0,0",
                    "1,9223372036854775807,0,0",
                    "1,1,86400001,0",
                    "1,1,0",
                    "1,1,0,0,0",
                    "1,1,0,0,0,0",
                    "1,1,0,1,0,1",
                    "1,1,0,0,2,1",
                    "1,9,0,0,0,250199979298361",
                ],
            ),
            ("fixed_window", &["0,1,0", "1,0,0", "1,9223372036854775807,0", "9223372036854775807,1,0", "1,1,2"]),
            (
                "sliding_window",
                &["1,1000,0", "1,1000,1", "1,316224000001,316224000001", "0,1000,500", "4503599627370496,9,9"],
            ),
            (
                "calendar",
                &[
                    "1,day,UTC,00:00:00",
                    "1,day,UTC,00:00:00,7",
                    "0,day,UTC,00:00:00,0",
                    "1,eon,UTC,00:00:00,0",
                    "1,day,Nowhere,00:00:00,0",
                    "1,day,UTC,24:00:00,0",
                ],
            ),
            ("sliding_log", &["1,1", "0,1,0", "1001,1,0", "1,0,0", "1,1,2", "1,9223372036854775807,0"]),
            ("concurrency", &["1,1000"]),
            ("none", &["1"]),
        ] {
            for encoded in notes {
                assert_eq!(Rule::decode_rule(name, encoded), None, "{name} {encoded}");
            }
        }
    }

    #[test]
    fn the_leading_option_is_an_amount() {
        assert!(SPECS.iter().all(|spec| spec.leading.overridable));
    }
}
