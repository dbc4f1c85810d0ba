//! Bounds how many requests a limit of another size would have refused in the last ten minutes. Called by `pages`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use serde_json::{Value, json};

use crate::admin::limits::LimitsApi;
use crate::admin::limits::json::{Faults, parse_body};
use crate::admin::problem::Problem;
use crate::config::{Config, parse_rate};
use crate::limiting::algorithm::params::{OptionValues, ParamValue, Rate};
use crate::limiting::algorithm::{Rule, SPECS};
use crate::limiting::limit::Limit;
use crate::limiting::limit::cost::Cost;
use crate::limiting::usage::KeyOutcome;
use crate::limiting::usage::history::{UsageWindow, WindowUsage};
use crate::limiting::usage::what_if::{RecordedWindow, bound_refusals};
use crate::telemetry::metrics::HeadroomSums;

/// The size that the limit would have. A number that is not set stays the same.
struct SizeChange {
    burst: Option<i64>,
    rate: Option<Rate>,
}

/// The largest burst that is accepted; the algorithm may accept less.
const BURST_MAX: i64 = 1 << 53;

impl SizeChange {
    fn parse(body: &[u8]) -> Result<SizeChange, Problem> {
        let (body, faults) = (parse_body(body)?, Faults::default());
        let root = faults.root(&body);
        root.check_members(&["burst", "rate"]);
        let burst = root.get("burst").map(|node| node.integer(1..=BURST_MAX));
        let rate = root.get("rate").map(|node| {
            let rate = parse_rate(node.text()?);
            rate.map_err(|fault| node.add_fault::<()>(format!("{}; {}", fault.what, fault.help))).ok()
        });
        if root.is_object() && burst.is_none() && rate.is_none() {
            root.add_fault::<()>("`burst`, `rate` or both are required");
        }
        faults.into_result(Some(SizeChange { burst: burst.flatten(), rate: rate.flatten() }))
    }

    /// Returns the rule of `limit` with the change.
    fn apply_to(&self, limit: &Limit) -> Result<Rule, Problem> {
        let wrong = |detail: String| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail);
        let spec = SPECS.iter().find(|spec| spec.name == limit.rule.name());
        let spec = spec.ok_or_else(|| wrong("the limit has no algorithm".to_owned()))?;
        let params = limit.rule.params(0);
        let (rate, burst) = match (&*limit.rule, &*params) {
            (Rule::TokenBucket(_) | Rule::Gcra(_), &[count, per_ms, burst, ..]) => {
                (Rate { count, per_ms }, Some(self.burst.unwrap_or(burst)))
            }
            (Rule::FixedWindow(_), &[count, per_ms, ..]) if self.burst.is_none() => (Rate { count, per_ms }, None),
            (Rule::FixedWindow(_), _) => return Err(wrong("#/burst: a fixed_window has only a `rate`".to_owned())),
            (rule, _) => return Err(wrong(format!("limits with {} cannot be estimated", rule.name()))),
        };
        let rate = self.rate.unwrap_or(rate);
        let value = |name: &str| match name {
            "rate" => Some(ParamValue::Rate(rate)),
            "burst" => burst.map(ParamValue::Integer),
            _ => None,
        };
        let values = spec.params().map(|param| (param.name, value(param.name))).collect();
        (spec.build)(&OptionValues::new(values, false))
            .map_err(|fault| wrong(format!("#/{}: {}; {}", fault.param, fault.what, fault.help)))
    }
}

impl LimitsApi {
    /// Returns bounds for the number of requests that the limit `name` would have refused with the size in `body`.
    pub fn estimate_change(&self, name: &str, body: &[u8]) -> Result<Value, Problem> {
        let snapshot = self.current.load_full();
        let limit = self.find_limit(&snapshot.config, name)?;
        let then = SizeChange::parse(body)?.apply_to(limit)?;
        let estimate = self.top_effort.run_within(|| self.bound_change(&snapshot.config, limit, &then));
        let busy = "other requests for lists and estimates take too much time; try again";
        estimate.ok_or_else(|| Problem::new(StatusCode::SERVICE_UNAVAILABLE, busy))
    }

    fn bound_change(&self, config: &Config, limit: &Arc<Limit>, then: &Rule) -> Value {
        let outcome = KeyOutcome::over(limit);
        self.usage.record_limits(&config.limits);
        let (history, now) = (self.usage.collect(), Instant::now());
        let window = history.find_usage(limit.store_ref.id, outcome, UsageWindow::TenMinutes, now);
        let (headroom, unchanged) = self.usage.find_headroom(&limit.name);
        let alone = window.usage.total.saturating_sub(headroom.refused_by_others);
        let mut answer = json!({
            "limit": limit.name,
            "now": limit.rule.describe_number(),
            "then": then.describe_number(),
            "seconds": window.covered.as_secs(),
            "decisions": headroom.admitted.iter().sum::<u64>() + alone,
            "refused": alone,
        });
        let bounds = match self.find_obstacle(config, limit, window.covered, unchanged) {
            Some(why) => Err(why),
            None => {
                let keys: Vec<u64> = window.usage.frequent.counts().collect();
                bound_refusals(&limit.rule, then, describe_window(limit, &window, &keys, headroom))
                    .map_err(|why| why.label())
            }
        };
        match bounds {
            Ok(bounds) => {
                answer["refused_min"] = bounds.least.into();
                answer["refused_max"] = bounds.most.into();
            }
            Err(why) => {
                answer["refused_min"] = Value::Null;
                answer["refused_max"] = Value::Null;
                answer["unknown_because"] = why.into();
            }
        }
        answer
    }

    /// Returns why nothing can be proven about changes of the limit.
    fn find_obstacle(
        &self,
        config: &Config,
        limit: &Limit,
        covered: Duration,
        unchanged: Option<Duration>,
    ) -> Option<&'static str> {
        let is_managed = self.managed.borrow().get(&limit.store_ref.id).is_some_and(|at| at.elapsed() <= covered);
        let is_chained =
            limit.after.is_some() || config.limits.iter().any(|other| other.after.as_ref() == Some(&limit.name));
        let obstacles = [
            (
                config.store.is_shared(),
                "other gateways may use the same store, and this one does not see their requests",
            ),
            (
                !matches!(limit.cost, Cost::Fixed(1..))
                    || limit.reads_calls()
                    || config.prices_of(limit).next().is_some(),
                "requests have different costs",
            ),
            (limit.may_change_charges(), "charges depend on the end of requests"),
            (limit.overrides.has_any(), "overrides give some keys other sizes"),
            (is_chained, "the limit belongs to a chain (`after`)"),
            (is_managed, "the admin API changed the usage of the limit in this time"),
            (unchanged.is_none_or(|since| since < covered), "the limit was changed in this time"),
        ];
        obstacles.into_iter().find(|(applies, _)| *applies).map(|(_, why)| why)
    }
}

fn describe_window<'k>(
    limit: &Limit,
    found: &WindowUsage,
    keys: &'k [u64],
    headroom: HeadroomSums,
) -> RecordedWindow<'k> {
    let cost = if let Cost::Fixed(cost) = limit.cost { cost } else { 1 };
    RecordedWindow { covered: found.covered, refused: found.usage.total, refused_by_key: keys, headroom, cost }
}
