//! What holds if responses cost more than was charged before (`settle`). docs/reference/charges.md says the same.

use crate::limiting::algorithm::Rule;

/// Describes it for a rule.
pub fn describe_late_charges(rule: &Rule) -> String {
    let common = "The bound counts what is charged when a request arrives. Responses that report more are charged the rest \
                  when they end";
    match rule.late_debt() {
        None => format!(
            "{common}. It counts in that period in full, and refuses later requests until the period is over. So in each \
             period, the true cost exceeds the limit at most by what those requests report on top that were in progress when \
             the last one was admitted."
        ),
        Some(0) => format!(
            "{common}, but at most what the budget has left: it is empty then, and the next request is admitted as soon as a \
             unit refills. What a response reports beyond that is lost, each time, so the true cost has no bound. A window, or \
             a token_bucket with `debt`, refuses until it is repaid."
        ),
        Some(debt) => format!(
            "{common}, up to a debt of {debt}, which refuses later requests until it is repaid. What a response reports beyond \
             that debt is lost, each time. So the true cost is within the bound if the requests of a key in progress at once \
             never report more than {debt} on top."
        ),
    }
}
