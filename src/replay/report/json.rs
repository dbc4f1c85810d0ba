//! Report of a replay as JSON. Called by the command line.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::limiting::limit::Mode;
use crate::replay::counts::Counts;
use crate::replay::outcome::ReplayOutcome;
use crate::replay::report::format_time_of;
use crate::replay::tally::Tally;
use crate::replay::tightest::NeededNumber;
use crate::telemetry::metrics::CandidateEffect;

impl ReplayOutcome {
    pub fn to_json(&self) -> Value {
        let Counts {
            admitted,
            refused,
            delayed,
            no_request,
            malformed,
            no_route,
            denied,
            unauthenticated,
            allowed,
            ..
        } = &self.counts;
        let logs = self.sources.iter().map(|source| {
            let bad_lines: Vec<Value> =
                source.shown.iter().map(|(line, wrong)| json!({ "line": line, "error": wrong })).collect();
            json!({
                "name": source.name, "format": source.format.map(|format| format.name()), "lines": source.lines,
                "bad": source.bad, "first_bad": bad_lines,
            })
        });
        let late_first =
            self.counts.late_first.map(|place| json!({ "log": self.sources[place.source].name, "line": place.line }));
        json!({
            "logs": logs.collect::<Vec<_>>(),
            "from": self.counts.first_ms.map(format_time_of),
            "to": self.counts.first_ms.map(|_| format_time_of(self.counts.last_ms)),
            "requests": {
                "admitted": admitted, "refused": refused,
                "not_evaluated": self.counts.not_evaluated, "delayed": delayed, "no_request": no_request,
                "malformed": malformed, "no_route": no_route, "denied": denied, "unauthenticated": unauthenticated, "allowed": allowed,
                "no_host": self.counts.no_host, "with_duration": self.counts.durations,
                "ended_early": self.counts.ended_early, "forwarded": self.counts.forwarded,
                "unknown_client": self.counts.unknown_client, "untrusted_proxy": self.counts.untrusted_proxy,
            },
            "longest_delay_ms": self.counts.longest_delay_ms,
            "late": { "lines": self.counts.late, "most_ms": self.counts.latest_ms, "first": late_first },
            "whole_seconds": !self.counts.fine,
            "forgotten_keys": self.forgotten,
            "limits": self.tallies.iter().map(|tally| self.limit_to_json(tally)).collect::<Vec<_>>(),
        })
    }

    fn limit_to_json(&self, tally: &Tally) -> Value {
        let Tally { limit, missing, .. } = tally;
        let policy = limit.rule.policy();
        let count = |(count, exact): (u64, bool)| json!({ "count": count, "exact": exact });
        let top = tally.top.list_top(self.top);
        let top: Vec<Value> = top.iter().map(|(_, key, count)| json!({ "key": key, "refused": count })).collect();
        let absent: BTreeMap<_, _> =
            tally.absent_sources().into_iter().map(|(name, (_, count))| (name, count)).collect();
        let unknown: BTreeMap<_, _> =
            missing.unknown.iter().map(|(source, count)| (source.to_string(), count)).collect();
        let logged_parts: BTreeMap<_, _> =
            tally.logged_parts().map(|(part, count)| (part.to_string(), count)).collect();
        let settle = limit.charge_rules.as_ref().is_some_and(|rules| rules.settle.is_some());
        let compared = CandidateEffect::ALL.iter().map(|effect| (effect.label(), tally.effects[*effect as usize]));
        let compared = limit.candidate_of.as_ref().map(|_| compared.collect::<BTreeMap<_, _>>());
        json!({
            "name": limit.name, "algorithm": limit.rule.name(), "quota": policy.quota, "window_ms": policy.window_ms,
            "candidate_of": limit.candidate_of, "compared": compared,
            "shadow": limit.mode == Mode::Shadow, "over": limit.over.text(), "requests": tally.seen,
            "not_evaluated": { "requests": tally.count_unknown(), "sources": unknown },
            "by_logged_keys": logged_parts,
            "refused": tally.can_judge().then_some(tally.refused), "refused_by_others": tally.refused_by_others,
            "delayed": tally.delayed, "longest_delay_ms": tally.longest_delay_ms, "returned": tally.returned,
            "keys": count(tally.keys.estimate_count()), "refused_keys": count(tally.refused_keys.estimate_count()),
            "tightest": self.tightest_to_json(tally),
            "not_in_log": {
                "key_parts": absent, "cost": missing.cost, "duration": missing.duration, "status": missing.status,
                "unreachable": missing.unreachable, "limited": missing.limited, "blurred": missing.blurred,
                "settle": settle, "overrides": missing.overrides,
            },
            "top": top, "top_missed": tally.top.missed,
        })
    }

    fn tightest_to_json(&self, tally: &Tally) -> Value {
        let kind = tally.limit.rule.number().name;
        let (value, none) = match self.find_needed(tally) {
            NeededNumber::Nothing => (None, Some("no cost was charged".into())),
            NeededNumber::Number(number) => (Some(number), None),
            NeededNumber::None(why) => (None, Some(why)),
        };
        json!({ "kind": kind, "value": value, "none_because": none, "lower_bound": tally.is_lower_bound() })
    }
}
