//! The sentences about one limit. Each has a kind, and, where it states numbers, the numbers by the length of the
//! interval.
//!
//! Input: a limit of a loaded config, and the gateways that share its state. Output: clauses, which `report` lists.
//! `incidents` has the sentences about restarts, outages, clocks and crashes.
//!
//! To add a sentence, add its kind to `ClauseKind` and a method that `list_clauses` calls.

mod incidents;

use std::fmt::Write;
use std::sync::Arc;

use crate::config::Config;
use crate::contract::bound::Bound;
use crate::labels::labels;
use crate::limiting::algorithm::Rule;
use crate::limiting::algorithm::describe::format_duration;
use crate::limiting::key::{KeyPart, Missing};
use crate::limiting::limit::charge_rules::ChargeCondition;
use crate::limiting::limit::cost::Cost;
use crate::limiting::limit::{Limit, LimitTable, Mode, OnError};
use crate::limiting::overrides::table::OverrideBudget;
use crate::limiting::source::SourceOrigin;
use crate::limiting::store::shares::KeyDivision;

labels! {
    /// The subject of a sentence.
    ClauseKind:
    /// The most that a key gets in any interval.
    Window = "window",
    /// Like `window`, but only for requests that the limit does not forward as over the limit.
    Within = "within",
    /// The costs of requests, if they differ.
    Price = "price",
    /// The limit refuses nothing.
    Unbounded = "unbounded",
    /// A gateway restarts.
    Restart = "restart",
    /// The store loses the state of a key.
    StoreLoss = "store_loss",
    /// The store is unavailable.
    Outage = "outage",
    /// The clock of the store is set back.
    ClockBack = "clock_back",
    /// The clock of the store is set forward.
    ClockForward = "clock_forward",
    /// A gateway crashes while its requests hold slots.
    Crash = "crash",
    /// Charges are refunded.
    Refund = "refund",
    /// Responses state the true cost.
    Settle = "settle",
    /// Tenants share the budget.
    Tenants = "tenants",
    /// Keys that are refused often are banned.
    Ban = "ban",
    /// Units of hot keys are debited in advance.
    Lease = "lease",
    /// The limit applies after another one.
    After = "after",
    /// A client changes its address between the networks that the limit counts (`ip6tiers`).
    Tiers = "tiers",
    /// Some keys have different numbers.
    Overrides = "overrides",
    /// Requests state the day on which the months of their key begin.
    MonthDay = "month_day",
    /// Requests without a part of the key.
    Missing = "missing",
    /// Requests to which the limit does not apply.
    When = "when",
}

/// A sentence about a limit.
#[derive(Clone, Debug)]
pub struct Clause {
    pub kind: ClauseKind,
    pub text: String,
    /// The numbers of the sentence: the most units by the length of the interval. Empty if it has none.
    pub most: Vec<UnitBound>,
}

/// The most units in any interval of a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitBound {
    /// 0: at once.
    pub interval_ms: i64,
    pub units: i64,
}

/// The facts that the sentences of all limits depend on.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Several gateways share the state.
    pub is_shared: bool,
    pub gateways: i64,
    pub keys: KeyDivision,
}

/// Lengths of the intervals that sentences name, besides the period of the limit.
const INTERVALS_MS: [i64; 5] = [0, 1000, 60_000, 3_600_000, 86_400_000];
/// The sentence about a clock that is set forward assumes this many milliseconds.
pub const FORWARD_MS: i64 = 3_600_000;

/// Returns the sentences about `limit`, one of `all` limits.
pub fn list_clauses(limit: &Limit, config: &Config, setting: Setting) -> Vec<Clause> {
    let all = &config.limits;
    let prices = config.prices_of(limit).map(|(route, cost)| (route.to_owned(), cost.to_string())).collect();
    let writer = ClauseWriter { limit, bound: Bound::of(&limit.rule), setting, prices };
    let mut clauses = vec![writer.describe_window()];
    clauses.extend(writer.describe_prices());
    if limit.mode == Mode::Enforce {
        clauses.extend([writer.describe_restart(), writer.describe_loss()]);
        clauses.extend(setting.is_shared.then(|| writer.describe_outage()));
        clauses.extend(writer.describe_clock());
        clauses.extend(writer.describe_crash());
        clauses.extend(writer.describe_refunds());
        clauses.extend(writer.describe_tenants());
        clauses.extend(writer.describe_ban());
        clauses.extend(writer.describe_lease());
        clauses.extend(writer.describe_chain(all));
        clauses.extend(writer.describe_tiers(all));
        clauses.extend(writer.describe_overrides());
        clauses.extend(writer.describe_plans());
        clauses.extend(writer.describe_month_day());
    }
    clauses.extend(writer.describe_missing());
    clauses.extend(writer.describe_when());
    clauses
}

struct ClauseWriter<'l> {
    limit: &'l Limit,
    bound: Bound,
    setting: Setting,
    /// The costs that lists set, with the names of their routes.
    prices: Vec<(String, String)>,
}

impl ClauseWriter<'_> {
    fn describe_window(&self) -> Clause {
        let most = self.list_bounds(|interval_ms| self.bound.max_units_in(interval_ms, 0));
        let numbers = self.format_bounds(&most);
        match (self.limit.mode, self.limit.forwards_excess(), self.bound) {
            (Mode::Shadow, ..) if self.limit.candidate_of.is_some() => Clause {
                kind: ClauseKind::Unbounded,
                text: format!(
                    "It is a candidate of {} and refuses nothing, so there is no bound. In force in its place, a key would \
                     get at most {numbers}.",
                    self.limit.candidate_of.as_deref().unwrap_or_default()
                ),
                most: Vec::new(),
            },
            (Mode::Shadow, ..) => Clause {
                kind: ClauseKind::Unbounded,
                text: format!(
                    "It is in shadow mode and refuses nothing, so there is no bound. Enforced, a key would get at most \
                     {numbers}."
                ),
                most: Vec::new(),
            },
            (Mode::Enforce, true, _) => Clause {
                kind: ClauseKind::Within,
                text: format!(
                    "Requests over it are forwarded (over = \"{}\"), so there is no bound on all of them. Of those that \
                     are not over it, a key gets at most {numbers}.",
                    self.limit.over.text()
                ),
                most,
            },
            (Mode::Enforce, false, Bound::Slots { .. }) => {
                self.clause(ClauseKind::Window, format!("A key has at most {numbers}, over all gateways."), most)
            }
            (Mode::Enforce, false, _) => {
                let text = format!("A key gets at most {numbers}, wherever the interval begins.");
                self.clause(ClauseKind::Window, text, most)
            }
        }
    }

    fn describe_refunds(&self) -> Vec<Clause> {
        let Some(rules) = self.limit.charge_rules.as_ref().filter(|rules| !rules.lease) else { return Vec::new() };
        let mut clauses = Vec::new();
        if rules.charge != ChargeCondition::Always || rules.settle.is_some() {
            let text = "Refunded units do not count. A refund never leaves a key more than if the charge had never been made, \
                        so what remains charged is within the bound.";
            clauses.push(self.clause(ClauseKind::Refund, text.to_owned(), self.window_numbers()));
        }
        if rules.clear_on.is_some() {
            let text = "A response in `clear_on` makes the budget of its key full again, so the bound is for the time between two \
                        of them.";
            clauses.push(self.clause(ClauseKind::Refund, text.to_owned(), Vec::new()));
        }
        if self.limit.charges_late() {
            clauses.push(self.clause(ClauseKind::Settle, describe_late_charges(&self.limit.rule), Vec::new()));
        }
        clauses
    }

    fn describe_tenants(&self) -> Option<Clause> {
        let units = self.limit.rule.max_tenant_units()?;
        let most = vec![UnitBound { interval_ms: 0, units }];
        let text = format!(
            "The bound is for all tenants together. One tenant gets at most {} of it. While the same tenants are active, a \
             tenant that uses no more than its part of the rate is not refused.",
            self.format_bounds(&most)
        );
        Some(self.clause(ClauseKind::Tenants, text, most))
    }

    fn describe_ban(&self) -> Option<Clause> {
        let ban = self.limit.ban.as_ref()?;
        let outage = match (self.setting.is_shared, self.limit.on_error) {
            (true, OnError::Local) => " During an outage of the store, each gateway counts and bans by itself.",
            (true, OnError::Open) => " During an outage of the store, nobody is banned.",
            _ => "",
        };
        let text = format!(
            "In addition, {}. A banned key gets nothing, and its requests charge no other limit.{outage}",
            ban.rule.describe()
        );
        Some(self.clause(ClauseKind::Ban, text, Vec::new()))
    }

    fn describe_lease(&self) -> Option<Clause> {
        let terms = self.limit.store_ref.lease.filter(|_| self.setting.is_shared)?;
        let unspent = self.limit.rule.lease_basis()?.units_in(terms.horizon_ms);
        let text = format!(
            "Units of hot keys are debited before they are spent, so a key gets nothing in addition. Requests can be refused \
             needlessly while gateways have unspent units: at most {unspent} of a key in each gateway."
        );
        Some(self.clause(ClauseKind::Lease, text, Vec::new()))
    }

    /// Describes what the limit and those before it (`after`) admit together.
    fn describe_chain(&self, all: &LimitTable) -> Option<Clause> {
        let (mut bounds, mut names) = (vec![self.bound], Vec::new());
        let mut base = self.limit.after.as_ref().and_then(|name| all.find(name));
        while let Some(limit) = base {
            bounds.push(Bound::of(&limit.rule));
            names.push(limit.name.as_str());
            base = limit.after.as_ref().and_then(|name| all.find(name)).filter(|_| names.len() < all.all.len());
        }
        if names.is_empty() {
            return None;
        }
        let most = self.list_bounds(|interval_ms| {
            bounds.iter().fold(0, |sum: i64, bound| sum.saturating_add(bound.max_units_in(interval_ms, 0)))
        });
        let text = format!(
            "It admits requests only while {} is exhausted. A client with one key in each gets from all of them together at \
             most {}.",
            names.join(" and "),
            self.format_bounds(&most)
        );
        Some(self.clause(ClauseKind::After, text, most))
    }

    /// Describes what a client gets that changes its address within the widest network of the limit.
    fn describe_tiers(&self, all: &LimitTable) -> Option<Clause> {
        if self.limit.tier_of.is_none() || self.limit.is_wider_tier() {
            return None;
        }
        let wider: Vec<&Limit> = all
            .iter()
            .map(Arc::as_ref)
            .filter(|tier| tier.is_wider_tier() && tier.tier_of == self.limit.tier_of)
            .collect();
        let widest = Bound::of(&wider.iter().max_by_key(|tier| tier.rule.max_cost())?.rule);
        let names: Vec<&str> = wider.iter().map(|tier| tier.name.as_str()).collect();
        let most = self.list_bounds(|interval_ms| widest.max_units_in(interval_ms, 0));
        let text = format!(
            "A request of an IPv6 client must fit {} as well. A client that uses all addresses of its widest network gets at \
             most {}. A smaller network within its own budget is refused only while others use up that of a wider one.",
            names.join(" and "),
            self.format_bounds(&most)
        );
        Some(self.clause(ClauseKind::Tiers, text, most))
    }

    fn describe_overrides(&self) -> Option<Clause> {
        let mut others = OtherNumbers::default();
        self.limit.overrides.visit_written(|budget| others.add(budget));
        self.describe_others("override", others)
    }

    /// Describes the plans that do not have the numbers of the bound. Their keys may get more in long intervals.
    fn describe_plans(&self) -> Option<Clause> {
        let mut others = OtherNumbers::default();
        self.limit.key_rate.as_ref()?.visit_plans(|budget| match budget {
            OverrideBudget::Blocked => {}
            OverrideBudget::Rule(rule) if *rule == self.limit.rule => {}
            other => others.add(other),
        });
        self.describe_others("plan", others)
    }

    fn describe_month_day(&self) -> Option<Clause> {
        let day = self.limit.month_day.as_ref()?;
        let text = format!(
            "The months of a key begin on the day in {}. The bound is for keys whose day stays the same: a key whose \
             requests state several days has a month, and so a budget, for each of them.",
            day.source
        );
        Some(self.clause(ClauseKind::MonthDay, text, Vec::new()))
    }

    fn describe_others(&self, what: &str, others: OtherNumbers) -> Option<Clause> {
        let OtherNumbers { count, is_unlimited, rules } = others;
        if count == 0 {
            return None;
        }
        let keys = if count == 1 { format!("1 {what} has") } else { format!("{count} {what}s have") };
        if is_unlimited || rules.is_empty() {
            let what = if is_unlimited { "some keys are unlimited" } else { "their keys are blocked" };
            let text = format!("{keys} different numbers: {what}.");
            return Some(self.clause(ClauseKind::Overrides, text, Vec::new()));
        }
        let most = self.list_bounds(|interval_ms| {
            rules.iter().map(|rule| Bound::of(rule).max_units_in(interval_ms, 0)).max().unwrap_or(0)
        });
        let text = format!("{keys} different numbers: their keys get at most {}.", self.format_bounds(&most));
        Some(self.clause(ClauseKind::Overrides, text, most))
    }

    fn describe_missing(&self) -> Option<Clause> {
        let parts = self.limit.key.0.iter().filter(|part| can_be_absent(part));
        let names: Vec<String> = parts.map(KeyPart::display_name).collect();
        if names.is_empty() {
            return None;
        }
        let names = names.join(" or ");
        let text = match self.limit.missing {
            Missing::Skip => format!("Requests without {names} are not limited (missing = \"skip\")."),
            Missing::Shared => format!("Requests without {names} share one budget (missing = \"shared\")."),
            Missing::Refuse => format!("Requests without {names} are refused (missing = \"refuse\")."),
        };
        Some(self.clause(ClauseKind::Missing, text, Vec::new()))
    }

    fn describe_when(&self) -> Option<Clause> {
        let is_conditional = !self.limit.when.0.is_empty();
        let text = "Requests that do not meet `when` are not limited.".to_owned();
        is_conditional.then(|| self.clause(ClauseKind::When, text, Vec::new()))
    }

    fn clause(&self, kind: ClauseKind, text: String, most: Vec<UnitBound>) -> Clause {
        Clause { kind, text, most }
    }

    /// Returns the numbers of the bound itself.
    fn window_numbers(&self) -> Vec<UnitBound> {
        self.list_bounds(|interval_ms| self.bound.max_units_in(interval_ms, 0))
    }

    /// Returns what `units_in` says of each interval that sentences name. Slots have no interval.
    fn list_bounds(&self, units_in: impl Fn(i64) -> i64) -> Vec<UnitBound> {
        let mut intervals = INTERVALS_MS.to_vec();
        if matches!(self.bound, Bound::Slots { .. }) {
            intervals.truncate(1);
        } else {
            intervals.push(self.limit.rule.policy().window_ms);
            intervals.sort_unstable();
            intervals.dedup();
        }
        intervals.into_iter().map(|interval_ms| UnitBound { interval_ms, units: units_in(interval_ms) }).collect()
    }

    /// Formats numbers as `20 requests at once, 31 in 1 s and 621 in 1 min`.
    fn format_bounds(&self, most: &[UnitBound]) -> String {
        let mut text = String::new();
        for (place, UnitBound { interval_ms, units }) in most.iter().enumerate() {
            let separator = match place {
                0 => "",
                _ if place + 1 == most.len() => " and ",
                _ => ", ",
            };
            let what = if place > 0 { "" } else { self.name_units(*units) };
            let when = if *interval_ms == 0 {
                " at once".to_owned()
            } else {
                format!(" in {}", format_duration(*interval_ms))
            };
            let _ = write!(text, "{separator}{units}{what}{when}");
        }
        text
    }

    /// Says what requests cost, if that differs between them.
    fn describe_prices(&self) -> Option<Clause> {
        let is_one = matches!(self.limit.cost, Cost::Fixed(_) | Cost::Stated(_) | Cost::Reserved(_));
        if is_one && self.prices.is_empty() && !self.limit.reads_calls() {
            return None;
        }
        let mut text = format!("The bound counts units. A request costs {}", self.limit.cost);
        for (route, cost) in &self.prices {
            let _ = write!(text, "; on route {route}, {cost}");
        }
        text.push('.');
        if self.limit.reads_calls() {
            text.push_str(" A batch costs the sum of its calls.");
        }
        Some(Clause { kind: ClauseKind::Price, text, most: Vec::new() })
    }

    fn name_units(&self, units: i64) -> &'static str {
        if self.limit.distinct.is_some() {
            return if units == 1 { " value" } else { " different values" };
        }
        let is_request = self.prices.is_empty() && !self.limit.reads_calls();
        match (&self.limit.cost, units) {
            (Cost::Fixed(1), 1) if is_request => " request",
            (Cost::Fixed(1), _) if is_request => " requests",
            (_, 1) => " unit",
            _ => " units",
        }
    }
}

/// Numbers that some keys have instead of the limit's.
#[derive(Default)]
struct OtherNumbers {
    count: usize,
    is_unlimited: bool,
    rules: Vec<Arc<Rule>>,
}

impl OtherNumbers {
    fn add(&mut self, budget: &OverrideBudget) {
        self.count += 1;
        match budget {
            // Many customers have the same numbers.
            OverrideBudget::Rule(rule) if self.rules.last() == Some(rule) => {}
            OverrideBudget::Rule(rule) => self.rules.push(rule.clone()),
            OverrideBudget::Blocked => {}
            OverrideBudget::Unlimited => self.is_unlimited = true,
        }
    }
}

/// Returns whether requests can lack the part of a key.
fn can_be_absent(part: &KeyPart) -> bool {
    let sources = part.sources();
    let is_optional = |origin| match origin {
        SourceOrigin::Request => false,
        SourceOrigin::Target
        | SourceOrigin::Fields
        | SourceOrigin::Token
        | SourceOrigin::Body
        | SourceOrigin::Certificate
        | SourceOrigin::Identity
        | SourceOrigin::Descriptor => true,
    };
    !sources.is_empty() && sources.iter().all(|source| is_optional(source.kind().origin()))
}

/// Describes what holds if responses cost more than was charged before (`settle`).
fn describe_late_charges(rule: &Rule) -> String {
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
