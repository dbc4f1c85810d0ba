//! The algorithms. Each is one file here and one of the same name in `lua/`, twins that decide
//! alike, and one entry in the list below: the rule and state enums, what the config knows of them and
//! the Redis script derive from it. `algorithm` is what a file must say, `params` how it states its
//! options, `exact` up to where its numbers are exact. `counted`, `refill` with its `ledger`, and `tree`
//! are what some of them share, `records` is how changed numbers forget nothing. Nothing in this folder
//! does I/O or reads a clock.

mod algorithm;
mod counted;
pub mod dates;
mod exact;
mod ledger;
pub mod params;
mod records;
mod refill;
pub mod told;
mod tree;

use super::answer::Policy;
pub use algorithm::{Algorithm, Number, Step};
use params::{Given, Misfit, Param};

/// An algorithm before it has numbers.
#[derive(Debug)]
pub struct Spec {
    /// As the config and the state keys call it.
    pub name: &'static str,
    /// See [`Algorithm::LEADING`].
    pub leading: Param,
    /// See [`Algorithm::OTHERS`].
    pub others: &'static [Param],
    /// See [`Algorithm::NUMBER`].
    pub number: Number,
    /// See [`Algorithm::build`].
    pub build: fn(&Given) -> Result<Rule, Misfit>,
}

impl Spec {
    /// All its options.
    pub fn params(&self) -> impl Iterator<Item = &Param> {
        std::iter::once(&self.leading).chain(self.others)
    }

    pub fn has(&self, name: &str) -> bool {
        self.params().any(|param| param.name == name)
    }
}

/// The options of all algorithms, each name once.
pub fn all_params() -> impl Iterator<Item = &'static Param> {
    let new = |(i, spec): (usize, &'static Spec)| {
        let before = &SPECS[..i];
        spec.params().filter(move |param| !before.iter().any(|spec| spec.has(param.name)))
    };
    SPECS.iter().enumerate().flat_map(new)
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

        /// All of them; a limit that names none has the first.
        pub const SPECS: &[Spec] = &[$(Spec {
            name: stringify!($module),
            leading: $module::$Name::LEADING,
            others: $module::$Name::OTHERS,
            number: $module::$Name::NUMBER,
            build: |given| $module::$Name::build(given).map(Rule::$Name),
        }),*];

        /// The Redis script: what algorithms share, the algorithm files by the places of this list,
        /// what frees, the shapes of state by their names, the gate. What a call does not need is not made.
        pub const SCRIPT: &str = concat!(
            include_str!("../../../lua/records.lua"),
            "local function refill(fields)\n",
            include_str!("../../../lua/refill.lua"),
            "end\nlocal function counted()\n",
            include_str!("../../../lua/counted.lua"),
            "end\nlocal function bucket(fields)\n",
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
            "else\n",
            include_str!("../../../lua/shapes/leases.lua"),
            "end\nend\n",
            include_str!("../../../lua/gate.lua"),
        );

        impl Rule {
            pub fn name(&self) -> &'static str {
                match self { $(Rule::$Name(_) => stringify!($module)),* }
            }

            /// See [`Algorithm::NUMBER`].
            pub fn number(&self) -> Number {
                match self { $(Rule::$Name(_) => $module::$Name::NUMBER),* }
            }

            /// See [`Algorithm::CALENDAR`].
            pub fn is_calendar(&self) -> bool {
                match self { $(Rule::$Name(_) => $module::$Name::CALENDAR),* }
            }

            pub fn params(&self, now_ms: i64) -> Vec<i64> {
                match self { $(Rule::$Name(rule) => rule.params(now_ms)),* }
            }

            /// See [`Algorithm::note`].
            pub fn note(&self) -> String {
                match self { $(Rule::$Name(rule) => rule.note()),* }
            }

            /// See [`Algorithm::noted`]; of the algorithm called `name`.
            pub fn noted(name: &str, note: &str) -> Option<Rule> {
                match name {
                    $(stringify!($module) => $module::$Name::noted(note).map(Rule::$Name),)*
                    _ => None,
                }
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

            pub fn numbered(&self, number: i64) -> Rule {
                match self { $(Rule::$Name(rule) => Rule::$Name(rule.numbered(number))),* }
            }

            pub fn largest(&self) -> i64 {
                match self { $(Rule::$Name(rule) => rule.largest()),* }
            }

            pub fn hopeless(&self) -> Option<&'static str> {
                match self { $(Rule::$Name(rule) => rule.hopeless()),* }
            }

            /// The largest cost that can ever be admitted.
            pub fn most(&self) -> i64 {
                match self { $(Rule::$Name(rule) => rule.most()),* }
            }

            pub fn lease_ms(&self) -> Option<i64> {
                match self { $(Rule::$Name(rule) => rule.lease_ms()),* }
            }

            /// The rule whose leases never run out, if it has leases.
            pub fn endless(&self) -> Option<Rule> {
                match self { $(Rule::$Name(rule) => rule.endless().map(Rule::$Name)),* }
            }

            pub fn told(&self) -> String {
                match self { $(Rule::$Name(rule) => rule.told()),* }
            }

            pub fn told_number(&self) -> String {
                match self { $(Rule::$Name(rule) => rule.told_number()),* }
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use jiff::civil::{Time, Weekday};
    use jiff::tz::TimeZone;

    use super::params::{Dated, LINGER, ParamKind, ParamValue, Rate};
    use super::*;

    fn sample(kind: ParamKind) -> ParamValue {
        match kind {
            ParamKind::Rate => ParamValue::Rate(Rate { count: 10, per_ms: 1000 }),
            ParamKind::Dated => ParamValue::Dated(Dated { count: 10, unit: dates::Unit::Week }),
            ParamKind::Integer { least, .. } => ParamValue::Integer(least + 1),
            ParamKind::Duration { least_ms, .. } => ParamValue::Integer(least_ms),
            ParamKind::Flag | ParamKind::Either(_) => ParamValue::Flag(true),
            ParamKind::Zone => ParamValue::Zone(TimeZone::UTC),
            ParamKind::TimeOfDay => ParamValue::TimeOfDay(Time::midnight()),
            ParamKind::Weekday => ParamValue::Weekday(Weekday::Sunday),
        }
    }

    /// A rule of which the leading option is said, and as the case may be the others.
    fn built(spec: &Spec, others: bool) -> Rule {
        let value = |param: &Param| (others || param.name == spec.leading.name).then(|| sample(param.kind));
        let values = spec.params().map(|param| (param.name, value(param))).collect();
        (spec.build)(&Given::new(values, false)).unwrap_or_else(|misfit| panic!("{}: {misfit:?}", spec.name))
    }

    /// Of an option that is not listed, or that is read as what it is not, `Given` would say so.
    #[test]
    fn every_algorithm_is_built_of_the_options_that_it_lists() {
        for spec in SPECS {
            let names: HashSet<&str> = spec.params().map(|param| param.name).collect();
            assert_eq!(names.len(), spec.params().count(), "{}", spec.name);
            for rule in [built(spec, false), built(spec, true)] {
                assert_eq!(rule.name(), spec.name);
                assert_eq!(rule.lease_ms().is_some(), spec.has(LINGER.name()), "{}", spec.name);
            }
            assert!(spec.others.is_empty() || built(spec, false) != built(spec, true), "{}", spec.name);
        }
    }

    #[test]
    fn a_rule_is_read_as_it_was_noted() {
        for rule in SPECS.iter().flat_map(|spec| [built(spec, false), built(spec, true)]).filter(Rule::own_numbers) {
            for rule in [rule.clone(), rule.share(3)] {
                let note = rule.note();
                assert!(!note.is_empty() && !note.contains(' '), "{note}");
                assert_eq!(Rule::noted(rule.name(), &note), Some(rule));
            }
        }
    }

    /// They come from outside, and computing with them must be exact and end.
    #[test]
    fn numbers_that_no_limit_has_are_not_read() {
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
            ("leaky_bucket", &["1,1,-1,0", "1001,1,0,0", "1,9223372036854775807,0,0", "1,1,86400001,0", "1,1,0"]),
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
            ("sliding_log", &["1,1,0"]),
            ("concurrency", &["1,1000"]),
            ("none", &["1"]),
        ] {
            for note in notes {
                assert_eq!(Rule::noted(name, note), None, "{name} {note}");
            }
        }
    }

    #[test]
    fn the_leading_option_is_an_amount() {
        assert!(SPECS.iter().all(|spec| spec.leading.amount));
    }
}
