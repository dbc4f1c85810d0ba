//! The rate of each key, read from the request: `rate = "jwt:rate"`. The value comes from an issuer or an auth server.
//! The config says which rates are possible. With any other value, the key gets the lowest of them, or, among plans,
//! the rate of `default`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::limiting::algorithm::Rule;
use crate::limiting::key::SourceValues;
use crate::limiting::overrides::table::OverrideBudget;
use crate::limiting::source::{Ambiguous, Repeated, Source, SourceKind};

/// A source of the rate, and the rates that it may state.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRate {
    pub source: Source,
    pub rates: KeyRates,
}

#[derive(Clone, Debug, PartialEq)]
pub enum KeyRates {
    /// The value names a plan.
    Plans {
        plans: HashMap<String, OverrideBudget>,
        /// The budget of a key without a plan, or with one that is not listed.
        default: OverrideBudget,
    },
    /// The value is a number of units for each period.
    Numbers(Arc<NumberedRates>),
}

/// Rates that differ only in their number.
pub struct NumberedRates {
    /// The lowest number, which a key without a valid one has, and the highest.
    pub least: i64,
    pub most: i64,
    /// The budget with the lowest number.
    pub lowest: OverrideBudget,
    /// Compiles the rule with that number.
    compile: Box<CompileRate>,
    /// Returns whether a text names the period of the rates.
    is_period: Box<IsPeriod>,
    /// Compiled rules by their number.
    known: RwLock<HashMap<i64, Arc<Rule>>>,
}

/// Compiles the rule with a number.
pub type CompileRate = dyn Fn(i64) -> Option<Rule> + Send + Sync;

/// Returns whether a text, such as `min`, names a period.
pub type IsPeriod = dyn Fn(&str) -> bool + Send + Sync;

/// Number of compiled rules that a limit keeps. A further one drops them all, and those in use are compiled again.
const KNOWN_MAX: usize = 4096;

impl KeyRate {
    /// Sources that the rate may be read from: those that a client does not choose by itself, and headers, which an
    /// auth server sets.
    pub const SOURCES: &[SourceKind] = &[SourceKind::Claim, SourceKind::Header, SourceKind::Descriptor];

    /// Returns the budget of the key of a request.
    ///
    /// # Errors
    /// The request has several values, and `repeated` does not choose one.
    pub fn budget_for(&self, facts: &impl SourceValues, repeated: Repeated) -> Result<OverrideBudget, Ambiguous> {
        let value = facts.value(&self.source, repeated)?.map(|value| self.source.value_text(value));
        let text = value.as_deref().and_then(|value| str::from_utf8(value).ok());
        Ok(match &self.rates {
            KeyRates::Plans { plans, default } => text.and_then(|plan| plans.get(plan)).unwrap_or(default).clone(),
            KeyRates::Numbers(rates) => rates.budget_for(text),
        })
    }

    /// Visits the budgets of all plans, in no order. Numbers have none, and the rule of the limit is the highest of
    /// them.
    pub fn visit_plans(&self, visit: impl FnMut(&OverrideBudget)) {
        match &self.rates {
            KeyRates::Plans { plans, default } => plans.values().chain([default]).for_each(visit),
            KeyRates::Numbers(_) => {}
        }
    }

    /// Describes which rates are possible.
    pub fn describe(&self) -> String {
        match &self.rates {
            KeyRates::Plans { plans, default } => {
                let default = match default {
                    OverrideBudget::Blocked => "are refused".to_owned(),
                    OverrideBudget::Unlimited => "are not limited".to_owned(),
                    OverrideBudget::Rule(rule) => format!("have {}", rule.describe()),
                };
                format!("one of {} plans by {}; keys without one of them {default}", plans.len(), self.source)
            }
            KeyRates::Numbers(rates) => {
                format!("the number in {}, from {} to {}", self.source, rates.least, rates.most)
            }
        }
    }
}

impl NumberedRates {
    pub fn new(
        (least, most): (i64, i64),
        lowest: OverrideBudget,
        (compile, is_period): (Box<CompileRate>, Box<IsPeriod>),
    ) -> NumberedRates {
        NumberedRates { least, most, lowest, compile, is_period, known: RwLock::default() }
    }

    /// Returns the budget for a value: a number, alone or per period, such as `250/min`. A value of 0 refuses every
    /// request; one that is absent, no number, of another period or out of bounds counts as the lowest.
    fn budget_for(&self, text: Option<&str>) -> OverrideBudget {
        let number = |text: &str| match text.split_once('/') {
            None => parse_number(text),
            Some((number, period)) => parse_number(number).filter(|_| (self.is_period)(period)),
        };
        match text.and_then(number) {
            Some(0) => OverrideBudget::Blocked,
            Some(number) if (self.least..=self.most).contains(&number) => self.rule_with(number),
            _ => self.lowest.clone(),
        }
    }

    fn rule_with(&self, number: i64) -> OverrideBudget {
        if let Some(rule) = self.known.read().get(&number) {
            return OverrideBudget::Rule(rule.clone());
        }
        let Some(rule) = (self.compile)(number).map(Arc::new) else { return self.lowest.clone() };
        let mut rates = self.known.write();
        if rates.len() >= KNOWN_MAX {
            rates.clear();
        }
        rates.insert(number, rule.clone());
        OverrideBudget::Rule(rule)
    }
}

impl fmt::Debug for NumberedRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NumberedRates").field("least", &self.least).field("most", &self.most).finish_non_exhaustive()
    }
}

/// Compares the bounds, and by the lowest budget all options of the limit.
impl PartialEq for NumberedRates {
    fn eq(&self, other: &NumberedRates) -> bool {
        (self.least, self.most, &self.lowest) == (other.least, other.most, &other.lowest)
    }
}

/// Parses a whole number without a sign, a zero in front or anything around it.
fn parse_number(text: &str) -> Option<i64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_plain = is_plain && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::limiting::algorithm::fixed_window::FixedWindow;

    #[test]
    fn only_whole_numbers_count() {
        let numbers = ["250", "0", "1", "", "-5", "+5", "007", "2.5", "1e3", " 1", "99999999999999999999", "x"];
        let parsed = numbers.map(parse_number);
        assert_eq!(parsed[..3], [Some(250), Some(0), Some(1)]);
        assert_eq!(parsed[3..], [None; 9]);
    }

    #[test]
    fn a_number_is_compiled_once_also_after_many_others() {
        let compiled = Arc::new(AtomicUsize::new(0));
        let count = compiled.clone();
        let compile = move |limit: i64| {
            count.fetch_add(1, Ordering::Relaxed);
            Some(Rule::FixedWindow(FixedWindow { limit, window_ms: 1000, clock: false }))
        };
        let rates =
            NumberedRates::new((1, 1_000_000), OverrideBudget::Blocked, (Box::new(compile), Box::new(|_| true)));
        (1..=2 * KNOWN_MAX as i64 + 1).for_each(|number| drop(rates.rule_with(number)));
        let before = compiled.load(Ordering::Relaxed);
        let rules = [rates.rule_with(9000), rates.rule_with(9000), rates.rule_with(9000)];
        assert_eq!(compiled.load(Ordering::Relaxed), before + 1);
        assert!(matches!(&rules[2], OverrideBudget::Rule(rule) if rule.capacity() == 9000));
        assert!(rates.known.read().len() <= KNOWN_MAX);
    }

    #[test]
    fn a_number_out_of_bounds_has_the_lowest_rate() {
        let rates = NumberedRates::new(
            (10, 100),
            OverrideBudget::Unlimited,
            (Box::new(|_| None), Box::new(|period| period == "min")),
        );
        assert_eq!(rates.budget_for(Some("0")), OverrideBudget::Blocked);
        assert_eq!(rates.budget_for(Some("0/min")), OverrideBudget::Blocked);
        for text in [None, Some("9"), Some("101"), Some("x"), Some("-1"), Some("0/h"), Some("50/")] {
            assert_eq!(rates.budget_for(text), OverrideBudget::Unlimited, "{text:?}");
        }
    }
}
