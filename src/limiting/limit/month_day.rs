//! The day on which the months of a key begin, read from the request: `resets_on = "jwt:billing_day"`. The value comes
//! from an issuer or an auth server, so a value that is not a day counts as none.

use std::sync::Arc;

use crate::limiting::algorithm::Rule;
use crate::limiting::key::SourceValues;
use crate::limiting::source::{Ambiguous, Repeated, Source, SourceKind};

/// A source of the day, and the rule of the limit for each day.
#[derive(Clone, Debug, PartialEq)]
pub struct MonthDay {
    pub source: Source,
    /// The rule for each day from 1 to 31, so that the windows of each are computed once.
    rules: Vec<Arc<Rule>>,
}

impl MonthDay {
    /// Sources that the day may be read from: those that a client does not choose by itself, and headers, which an auth
    /// server sets.
    pub const SOURCES: &[SourceKind] = &[SourceKind::Claim, SourceKind::Header, SourceKind::Descriptor];

    /// Returns `None` if the rule has no months.
    pub fn new(source: Source, rule: &Rule) -> Option<MonthDay> {
        let rules = (1..=31).map(|day| rule.with_month_day(day).map(Arc::new)).collect::<Option<_>>()?;
        Some(MonthDay { source, rules })
    }

    /// Returns `rule`, of the limit or of an override, for the day of a request; `None` if the request has no day.
    ///
    /// # Errors
    /// The request has several days, and `repeated` does not choose one.
    pub fn rule_for(
        &self,
        rule: &Arc<Rule>,
        is_own: bool,
        facts: &impl SourceValues,
        repeated: Repeated,
    ) -> Result<Option<Arc<Rule>>, Ambiguous> {
        let Some(value) = facts.value(&self.source, repeated)? else { return Ok(None) };
        let text = self.source.value_text(value);
        let Some(day) = str::from_utf8(&text).ok().and_then(parse_day) else { return Ok(None) };
        Ok(match rule.calendar() {
            // The override of the key has a day.
            Some(calendar) if !calendar.has_open_month_day() => None,
            Some(_) if !is_own => rule.with_month_day(day).map(Arc::new),
            _ => usize::try_from(day - 1).ok().and_then(|index| self.rules.get(index)).cloned(),
        })
    }
}

/// Parses a day from 1 to 31, with at most one zero in front.
fn parse_day(text: &str) -> Option<i8> {
    let is_plain = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|day| is_plain && (1..=31).contains(day))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_days_of_a_month_count() {
        let days = ["1", "07", "31", "0", "32", "+1", "1.0", "", "017", "x"].map(parse_day);
        assert_eq!(days, [Some(1), Some(7), Some(31), None, None, None, None, None, None, None]);
    }
}
