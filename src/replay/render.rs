//! The answer of a replay as text and as JSON. Called by the command line.

use std::fmt::Write;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::tally::Tally;
use super::tightest::Kind;
use super::{Counts, Outcome, plot};
use crate::limit::key::Missing;
use crate::limit::rule::Mode;
use crate::limit::store::timeline::HELD;

impl Outcome {
    pub fn svg(&self) -> String {
        plot::svg(&self.series)
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        for source in &self.sources {
            let format = source.format.map_or("no good line", |format| format.name());
            let _ = writeln!(text, "{}: {} lines, {format}, {} bad", source.name, source.lines, source.bad);
            for (number, wrong) in &source.shown {
                let _ = writeln!(text, "  line {number}: {wrong}");
            }
            if source.bad > source.shown.len() as u64 {
                text.push_str("  ...\n");
            }
        }
        self.counts.text(&mut text);
        for tally in &self.tallies {
            self.limit_text(tally, &mut text);
        }
        text
    }

    fn limit_text(&self, tally: &Tally, text: &mut String) {
        let limit = &tally.limit;
        let policy = limit.rule.policy();
        let shadow = if limit.mode == Mode::Shadow { ", shadow" } else { "" };
        let (name, quota, window) = (&limit.name, policy.quota, policy.window_ms);
        let _ = writeln!(text, "\nlimit {name} ({}, {quota} per {}{shadow})", limit.rule.name(), duration(window));
        let _ = writeln!(text, "  requests  {} of {} keys", tally.seen, about(tally.keys.count()));
        let share = percent(tally.refused, tally.seen);
        let keys = about(tally.refused_keys.count());
        let _ = writeln!(text, "  refused   {} ({share} %) of {keys} keys", tally.refused);
        let _ = writeln!(text, "  tightest  {}", tightest(tally));
        for (part, count) in &tally.absent {
            let fate = fate(part, limit.missing);
            let _ = writeln!(text, "  note      key part {part} is not in the log: {count} requests {fate}");
        }
        if tally.cost_absent > 0 {
            let _ = writeln!(text, "  note      the cost is not in the log: {} requests cost 1", tally.cost_absent);
        }
        if limit.rule.name() == HELD {
            text.push_str("  note      what was in flight is not in the log: requests count as ended at once\n");
        }
        let top = tally.top.top(self.top);
        if !top.is_empty() {
            let error =
                if tally.top.missed > 0 { format!(", up to {} more each", tally.top.missed) } else { String::new() };
            let _ = writeln!(text, "  most refused{error}");
        }
        for (key, count) in top {
            let _ = writeln!(text, "    {count:>10}  {key}");
        }
    }

    pub fn json(&self) -> Value {
        let Counts { admitted, refused, no_request, malformed, no_route, denied, allowed, .. } = &self.counts;
        let logs = self.sources.iter().map(|source| {
            let shown: Vec<Value> =
                source.shown.iter().map(|(line, wrong)| json!({ "line": line, "error": wrong })).collect();
            json!({
                "name": source.name, "format": source.format.map(|format| format.name()), "lines": source.lines,
                "bad": source.bad, "first_bad": shown,
            })
        });
        json!({
            "logs": logs.collect::<Vec<_>>(),
            "from": self.counts.first_ms.map(time),
            "to": self.counts.first_ms.map(|_| time(self.counts.last_ms)),
            "requests": {
                "admitted": admitted, "refused": refused, "no_request": no_request, "malformed": malformed,
                "no_route": no_route, "denied": denied, "allowed": allowed, "no_host": self.counts.no_host,
            },
            "out_of_order": { "lines": self.counts.late, "most_ms": self.counts.latest_ms },
            "whole_seconds": !self.counts.fine,
            "limits": self.tallies.iter().map(|tally| self.limit_json(tally)).collect::<Vec<_>>(),
        })
    }

    fn limit_json(&self, tally: &Tally) -> Value {
        let limit = &tally.limit;
        let policy = limit.rule.policy();
        let count = |(count, exact): (u64, bool)| json!({ "count": count, "exact": exact });
        let kind = match tally.tightest.kind() {
            Kind::Burst { .. } => "burst",
            Kind::Window { .. } => "count_per_window",
            Kind::Sliding { .. } => "count_that_suffices",
            Kind::Unknown => "unknown",
        };
        let top = tally.top.top(self.top);
        let top: Vec<Value> = top.iter().map(|(key, count)| json!({ "key": key, "refused": count })).collect();
        json!({
            "name": limit.name, "algorithm": limit.rule.name(), "quota": policy.quota, "window_ms": policy.window_ms,
            "shadow": limit.mode == Mode::Shadow, "requests": tally.seen, "refused": tally.refused,
            "keys": count(tally.keys.count()), "refused_keys": count(tally.refused_keys.count()),
            "tightest": { "kind": kind, "value": tally.tightest.needed, "lower_bound": tally.tightest.lower_bound },
            "absent": tally.absent, "cost_absent": tally.cost_absent,
            "top": top, "top_missed": tally.top.missed,
        })
    }
}

impl Counts {
    fn text(&self, text: &mut String) {
        let Some(first) = self.first_ms else {
            text.push_str("no requests\n");
            return;
        };
        let _ = writeln!(text, "from {} to {}", time(first), time(self.last_ms));
        let total = self.admitted + self.refused;
        let share = percent(self.refused, total);
        let _ = writeln!(text, "{total} requests: {} admitted, {} refused ({share} %)", self.admitted, self.refused);
        for (count, what) in [
            (self.allowed, "of the admitted are on the allow list of their route"),
            (self.denied, "more are on the deny list of their route"),
            (self.no_route, "more have no route"),
            (self.malformed, "more are refused as malformed before routing"),
            (self.no_request, "lines hold no request"),
            (self.no_host, "requests have no host in the log: routes with a host do not take them; see --host"),
        ] {
            if count > 0 {
                let _ = writeln!(text, "  {count} {what}");
            }
        }
        if self.late > 0 {
            let most = duration(self.latest_ms);
            let _ = writeln!(text, "  {} lines are earlier than one before them, by {most} at most", self.late);
        }
        if !self.fine {
            text.push_str("  times are whole seconds: requests of one second count as simultaneous\n");
        }
    }
}

fn tightest(tally: &Tally) -> String {
    let needed = tally.tightest.needed;
    let least = if tally.tightest.lower_bound { "at least " } else { "" };
    match tally.tightest.kind() {
        _ if needed == 0 => "nothing was taken".to_owned(),
        Kind::Burst { rate, per_ms, .. } => {
            format!("{least}burst {needed} at {rate} per {} would have refused nobody", duration(per_ms))
        }
        Kind::Window { window_ms, .. } => {
            format!("{least}{needed} per {} would have refused nobody", duration(window_ms))
        }
        Kind::Sliding { window_ms } => {
            format!("{least}{needed} per {} suffices to refuse nobody", duration(window_ms))
        }
        Kind::Unknown => "not known for this algorithm".to_owned(),
    }
}

fn fate(part: &str, missing: Missing) -> &'static str {
    match missing {
        _ if part == "host" => "share the budget of no host",
        Missing::Shared => "share one budget",
        Missing::Skip => "skipped",
        Missing::Refuse => "refused",
    }
}

fn about((count, exact): (u64, bool)) -> String {
    if exact { count.to_string() } else { format!("about {count}") }
}

/// With one decimal, exact.
fn percent(part: u64, whole: u64) -> String {
    let thousandths = if whole == 0 { 0 } else { u128::from(part) * 1000 / u128::from(whole) };
    format!("{}.{}", thousandths / 10, thousandths % 10)
}

pub fn time(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| format!("{ms} ms"), |time| time.to_string())
}

pub fn duration(ms: i64) -> String {
    for (unit, name) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")] {
        if ms >= unit && ms % unit == 0 {
            return format!("{} {name}", ms / unit);
        }
    }
    format!("{ms} ms")
}
