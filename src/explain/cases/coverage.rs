//! Which routes and limits the cases of a file have reached.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::config::Config;
use crate::explain::explanation::{Explanation, LimitEffect};

/// How far a limit was tested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LimitCoverage {
    has_decided: bool,
    has_refused: bool,
}

/// Coverage of routes and limits, in the order of their names.
pub struct Coverage {
    routes: BTreeMap<String, bool>,
    limits: BTreeMap<String, LimitCoverage>,
}

impl Coverage {
    pub fn new(config: &Config) -> Coverage {
        Coverage {
            routes: config.routes.iter().map(|route| (route.name.clone(), false)).collect(),
            limits: config.limits.iter().map(|limit| (limit.name.clone(), LimitCoverage::default())).collect(),
        }
    }

    pub fn record(&mut self, explanation: &Explanation) {
        if let Some(covered) = explanation.route.as_ref().and_then(|route| self.routes.get_mut(&route.name)) {
            *covered = true;
        }
        for report in &explanation.limits {
            let Some(reach) = self.limits.get_mut(&report.name) else { continue };
            let has = |effects: &[LimitEffect]| effects.iter().any(|effect| effect.label() == report.effect);
            let has_refused = has(&[LimitEffect::Refuses, LimitEffect::WouldRefuse, LimitEffect::HandsOver]);
            reach.has_refused |= has_refused;
            reach.has_decided |= has_refused || has(&[LimitEffect::Admits, LimitEffect::Delays]);
        }
    }

    fn routes_missed(&self) -> Vec<&str> {
        self.routes.iter().filter(|(_, covered)| !**covered).map(|(name, _)| name.as_str()).collect()
    }

    fn limits_where(&self, is_meant: impl Fn(&LimitCoverage) -> bool) -> Vec<&str> {
        self.limits.iter().filter(|(_, reach)| is_meant(reach)).map(|(name, _)| name.as_str()).collect()
    }

    /// Returns the share of routes and limits that were reached, in percent, rounded down.
    pub fn percent(&self) -> usize {
        let all = self.routes.len() + self.limits.len();
        let missed_count = self.routes_missed().len() + self.limits_where(|reach| !reach.has_decided).len();
        ((all - missed_count) * 100).checked_div(all).unwrap_or(100)
    }

    pub fn to_json(&self) -> Value {
        json!({
            "percent": self.percent(),
            "routes_missed": self.routes_missed(),
            "limits_missed": self.limits_where(|reach| !reach.has_decided),
            "limits_never_refused": self.limits_where(|reach| reach.has_decided && !reach.has_refused),
        })
    }

    pub fn to_text(&self) -> String {
        let (routes, limits) = (self.routes_missed(), self.limits_where(|reach| !reach.has_decided));
        let count_text = |all: usize, missed: usize| format!("{} of {all}", all - missed);
        let mut text = format!(
            "coverage: {}%: {} routes, {} limits\n",
            self.percent(),
            count_text(self.routes.len(), routes.len()),
            count_text(self.limits.len(), limits.len())
        );
        let never = self.limits_where(|reach| reach.has_decided && !reach.has_refused);
        for (what, names) in
            [("routes not covered", routes), ("limits not covered", limits), ("limits that never refused", never)]
        {
            if !names.is_empty() {
                text.push_str(&format!("{what}: {}\n", names.join(", ")));
            }
        }
        text
    }
}
