//! Questions to rules of any algorithm about tenants, and about the values that `distinct` counts.

use crate::limiting::algorithm::LATEST;
use crate::limiting::algorithm::Rule;
use crate::limiting::algorithm::fair::{FAIR, Fair, FairSettings, TenantShare};
use crate::limiting::algorithm::params::{OptionError, option_error};
use crate::limiting::answer::Answer;

impl Rule {
    /// Returns the rule for a tenant with this weight, if tenants share the budget of this rule and it has another one.
    pub fn for_weight(&self, weight: i64) -> Option<Rule> {
        match self {
            Rule::Fair(rule) if rule.weight != weight => Some(Rule::Fair(rule.with_weight(weight))),
            _ => None,
        }
    }

    /// Returns the rule that corrects charges made with `tag`, if the tag is the tenant or the value. After that, the
    /// tag of a check is its receipt.
    pub fn for_tenant(&self, tag: i64) -> Option<Rule> {
        match self {
            Rule::Fair(rule) if rule.tenant == 0 => Some(Rule::Fair(rule.for_tenant(tag))),
            Rule::Distinct(rule) if rule.value == 0 => Some(Rule::Distinct(rule.for_value(tag))),
            _ => None,
        }
    }

    /// Returns how many units all requests together can use at once.
    pub fn capacity(&self) -> i64 {
        match self {
            Rule::Fair(rule) => rule.pool.burst,
            rule => rule.max_cost(),
        }
    }

    /// Returns the most units that one tenant can take at once, if tenants share the budget. Charges that do not add to
    /// its backlog leave the whole reserve. The others have to leave at least as much as they take: half of the
    /// reserve.
    pub fn max_tenant_units(&self) -> Option<i64> {
        let Rule::Fair(Fair { pool, reserve, .. }) = self else { return None };
        Some(pool.burst - reserve + reserve / 2)
    }

    /// Returns the units that a tenant above its share has to leave, if tenants share the budget; otherwise 0.
    pub fn reserve(&self) -> i64 {
        match self {
            Rule::Fair(rule) => rule.reserve,
            _ => 0,
        }
    }

    /// Returns the share of a tenant, if tenants share the budget; `answer` is that to a decision with a cost of 0.
    pub fn tenant_share(&self, answer: &Answer) -> Option<TenantShare> {
        match self {
            Rule::Fair(rule) => Some(rule.share_of(answer)),
            _ => None,
        }
    }

    /// Returns the receipt with which everything that is charged now can be refunded, from the answer to a peek with a
    /// cost of 0.
    pub fn receipt_of_peek(&self, answer: &Answer) -> i64 {
        match self {
            Rule::Fair(_) | Rule::SlidingLog(_) => LATEST,
            _ => answer.receipt,
        }
    }

    /// Returns the rule of a limit whose tenants share the budget of this one.
    ///
    /// # Errors
    /// The algorithm has no fair sharing, or its numbers do not allow it.
    pub fn shared_fairly(self, settings: FairSettings) -> Result<Rule, OptionError> {
        let pool = match self {
            Rule::TokenBucket(pool) => pool,
            Rule::Gcra(rule) => rule.bucket(),
            other => {
                let what = format!("{} has no fair sharing", other.name());
                return Err(option_error(FAIR, what, "write algorithm = \"token_bucket\" or \"gcra\""));
            }
        };
        Fair::new(pool, settings).map(Rule::Fair)
    }

    /// Reports whether this is the rule `other` of a limit, for any tenant, and not that of an override.
    pub fn is_of_limit(&self, other: &Rule) -> bool {
        match (self, other) {
            (Rule::Fair(one), Rule::Fair(other)) => one.pool == other.pool && one.reserve == other.reserve,
            (one, other) => std::ptr::eq(one, other),
        }
    }
}
