//! Describes the conditions (`when`) of a limit one by one.

use crate::explain::explanation::ConditionReport;
use crate::limiting::integers::ValueError;
use crate::limiting::key::KeyPart;
use crate::limiting::key::shown_key::{KeyDisplay, KeyVisibility};
use crate::limiting::limit::Limit;
use crate::limiting::limit::when::{Condition, Expression, Pattern, Test};
use crate::limiting::source::{Facts, Source};

/// Maximum number of patterns shown per condition.
const PATTERNS_MAX: usize = 10;

/// Returns whether values of a source are shown as they are.
pub fn is_shown(display: &KeyDisplay, source: &Source) -> bool {
    display.visibility(&KeyPart::Source(source.clone())) == KeyVisibility::Plain
}

pub fn describe_conditions(limit: &Limit, facts: &Facts<'_>, display: &KeyDisplay) -> Vec<ConditionReport> {
    limit.when.0.iter().map(|condition| describe_condition(limit, condition, facts, display)).collect()
}

fn describe_condition(
    limit: &Limit,
    condition: &Condition,
    facts: &Facts<'_>,
    display: &KeyDisplay,
) -> ConditionReport {
    let result = match condition.is_met(facts, limit.repeated, limit.not_integer) {
        Ok(true) => "true",
        Ok(false) => "false",
        Err(ValueError::Ambiguous) => "repeated",
        Err(ValueError::NotInteger) => "not_integer",
        Err(ValueError::Unreadable(_)) => "unreadable_key",
    };
    let (source, expected, found) = match condition {
        Condition::Client { sets, nets, inside } => {
            let mut texts: Vec<String> = nets.iter().take(PATTERNS_MAX).map(|net| net.to_string()).collect();
            texts.extend(sets.iter().map(|set| format!("a set of {}", set.len)));
            let not = if *inside { "" } else { "not " };
            ("client".to_owned(), Some(format!("{not}{}", texts.join(", "))), Some(facts.client.to_string()))
        }
        Condition::Time(schedule) => {
            let found = schedule.describe_time(facts.now_ms());
            (
                "time".to_owned(),
                Some(schedule.to_string()),
                found.map(|time| format!("{time} by the clock of this machine")),
            )
        }
        Condition::Text { source, test } => {
            let is_shown = is_shown(display, source);
            let found = facts.text(source, limit.repeated).ok().flatten();
            let found = found.map(|value| String::from_utf8_lossy(&value).into_owned());
            let expected = is_shown.then(|| describe_test(test));
            (source.display_name(), expected, found.filter(|_| is_shown))
        }
    };
    ConditionReport { source, expected, found, result: result.to_owned() }
}

fn describe_test(test: &Test) -> String {
    let (not, patterns) = match test {
        Test::Any(patterns) => ("", patterns),
        Test::None(patterns) => ("not ", patterns),
    };
    let mut texts: Vec<String> = patterns.iter().take(PATTERNS_MAX).map(describe_pattern).collect();
    if patterns.len() > PATTERNS_MAX {
        texts.push(format!("{} more", patterns.len() - PATTERNS_MAX));
    }
    format!("{not}{}", texts.join(", "))
}

fn describe_pattern(pattern: &Pattern) -> String {
    match pattern {
        Pattern::NotEmpty => "any value".to_owned(),
        Pattern::Text(text) => text.clone(),
        Pattern::Integer(from, to) => format!("{from} to {to}"),
        Pattern::Wildcard(wildcard) => wildcard.to_string(),
        Pattern::Set(set) => format!("a set of {}", set.strings.len()),
        Pattern::Regex(Expression { regex, .. }) => format!("~ {regex}"),
    }
}
