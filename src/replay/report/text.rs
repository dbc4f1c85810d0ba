//! Report of a replay as text. Called by the command line.

use std::fmt::Write;

use crate::limiting::algorithm::describe::format_duration;
use crate::limiting::key::Missing;
use crate::limiting::limit::Mode;
use crate::limiting::source::Source;
use crate::replay::counts::Counts;
use crate::replay::input::entry::{AccessLogFormat, ProxySign};
use crate::replay::outcome::ReplayOutcome;
use crate::replay::report::{format_percent, format_time_of};
use crate::replay::tally::{MissingData, Tally};
use crate::replay::tightest::NeededNumber;

/// Up to this number, all limits are reported.
const ALL_MAX: usize = 20;

impl ReplayOutcome {
    /// Returns the report as text. `only`: the limit that it is about; of many limits, it is about those that did
    /// something.
    pub fn to_text(&self, only: Option<&str>) -> String {
        let mut text = String::new();
        for source in &self.sources {
            if source.lines == 0 {
                let _ = writeln!(text, "{}: empty", source.name);
                continue;
            }
            let format = source.format.map_or("no good line", |format| format.name());
            let _ = writeln!(text, "{}: {} lines, {format}, {} bad", source.name, source.lines, source.bad);
            if let Some(caveat) = source.format.and_then(AccessLogFormat::caveat) {
                let _ = writeln!(text, "  {caveat}");
            }
            for (number, wrong) in &source.shown {
                let _ = writeln!(text, "  line {number}: {wrong}");
            }
            if source.bad > source.shown.len() as u64 {
                text.push_str("  ...\n");
            }
        }
        self.describe_counts(&mut text);
        self.describe_late(&mut text);
        if self.forgotten > 0 {
            let keys = self.forgotten;
            let _ = writeln!(text, "  {keys} keys in use were forgotten, as with this max_keys they would be live");
        }
        if self.counts.first_ms.is_some() {
            let is_one_of_many = only.is_none() && self.tallies.len() > ALL_MAX;
            let is_told = |tally: &&Tally| match only {
                Some(name) => tally.limit.name == name,
                None => !is_one_of_many || tally.has_effect(),
            };
            let (told, left_out): (Vec<&Tally>, Vec<&Tally>) = self.tallies.iter().partition(is_told);
            told.into_iter().for_each(|tally| self.describe_limit(tally, &mut text));
            if is_one_of_many && !left_out.is_empty() {
                let count = left_out.len();
                let _ = writeln!(
                    text,
                    "\n{count} more limits refused nothing, or are not replayed; --limit NAME reports one of them"
                );
            }
        }
        text
    }

    fn describe_late(&self, text: &mut String) {
        let Counts { late, latest_ms, late_first: Some(first), .. } = &self.counts else { return };
        let (name, line) = (&self.sources[first.source].name, first.line);
        let most = format_duration(*latest_ms);
        let _ = writeln!(
            text,
            "  {late} lines came too late to be put in order, by {most} at most, first {name} line {line}: they count as\n  \
             of the time reached; a log of several parts is better given as its parts, which are merged by time"
        );
    }

    fn describe_limit(&self, tally: &Tally, text: &mut String) {
        let limit = &tally.limit;
        let shadow = if limit.mode == Mode::Shadow { ", shadow" } else { "" };
        let over = if limit.forwards_excess() { format!(", over {}", limit.over.text()) } else { String::new() };
        let _ =
            writeln!(text, "\nlimit {} ({}, {}{shadow}{over})", limit.name, limit.rule.name(), limit.rule.describe());
        if tally.is_only_of_auth() {
            text.push_str("  not replayed: limit of `auth`\n");
            return;
        }
        let _ = writeln!(text, "  requests  {} of {} keys", tally.seen, describe_about(tally.keys.estimate_count()));
        if tally.seen == 0 && tally.count_unknown() > 0 {
            text.push_str("  refused   not evaluated\n");
        } else if tally.can_judge() {
            let share = format_percent(tally.refused, tally.seen);
            let keys = describe_about(tally.refused_keys.estimate_count());
            let what = if limit.forwards_excess() { "exceeded" } else { "refused " };
            let _ = writeln!(text, "  {what}  {} ({share} %) of {keys} keys", tally.refused);
        } else {
            text.push_str("  refused   unknown: the log does not show which requests ran at the same time\n");
        }
        if let Some(incumbent) = &limit.candidate_of {
            let [agree, would_refuse, would_admit] = tally.effects;
            let _ = writeln!(
                text,
                "  in place of {incumbent}: {agree} requests treated alike, {would_refuse} more refused, {would_admit} more \
                 admitted"
            );
        }
        if limit.rule.has_queue() {
            let longest = format_duration(tally.longest_delay_ms);
            let _ = writeln!(text, "  delayed   {}, by {longest} at most", tally.delayed);
        }
        if tally.returned > 0 {
            let _ = writeln!(text, "  returned  {} charges, by the status logged", tally.returned);
        }
        let _ = writeln!(text, "  tightest  {}", self.describe_tightest(tally));
        self.describe_notes(tally, text);
        let top = tally.top.list_top(self.top);
        if !top.is_empty() {
            let error =
                if tally.top.missed > 0 { format!(", up to {} more each", tally.top.missed) } else { String::new() };
            let what = if limit.forwards_excess() { "over it" } else { "refused" };
            let _ = writeln!(text, "  most {what}{error}");
        }
        for (_, key, count) in top {
            let _ = writeln!(text, "    {count:>10}  {key}");
        }
    }

    fn describe_notes(&self, tally: &Tally, text: &mut String) {
        let Tally { limit, missing, .. } = tally;
        let MissingData { cost, duration, status, unreachable, limited, blurred, overrides, .. } = missing;
        if tally.find_proxy() == Some(ProxySign::ThisMachine) {
            text.push_str(
                "  note      the requests that need most come from this machine: if a proxy sends them, list it in\n            \
                 `trusted_proxies` first\n",
            );
        }
        if *blurred > 0 {
            let _ = writeln!(
                text,
                "  note      {blurred} requests took less than the second that their time stamps can tell apart: what runs \
                 at once\n            is seen in milliseconds only; log $msec and $request_time (nginx), or take our own log"
            );
        }
        for (source, count) in &missing.unknown {
            let _ = writeln!(text, "  note      {count} requests not evaluated: {source} is not in the log");
        }
        for (part, count) in tally.logged_parts() {
            let _ = writeln!(text, "  note      {count} requests evaluated by the {part} in the keys of the log");
        }
        if tally.refused_by_others > 0 {
            let others = tally.refused_by_others;
            let _ = writeln!(
                text,
                "  note      {others} requests were refused by other limits only: tightest counts them, too"
            );
        }
        for (part, (source, count)) in tally.absent_sources() {
            let fate = describe_fate(source, limit.missing);
            let _ = writeln!(text, "  note      key part {part} is not in the log: {count} requests {fate}");
        }
        if let Some(rules) = limit.charge_rules.as_ref().filter(|_| tally.seen > 0) {
            if rules.lease && *duration == tally.seen {
                text.push_str(
                    "  note      the log contains no durations: every request was treated as ending immediately\n",
                );
            } else if rules.lease && *duration > 0 {
                let _ = writeln!(
                    text,
                    "  note      {duration} requests without a duration were treated as ending immediately"
                );
            }
            if let Some(settle) = &rules.settle {
                let _ = writeln!(
                    text,
                    "  note      settle: the log does not contain the response ({settle}): costs stay as requested"
                );
            }
        }
        for (count, what) in [
            (overrides, "requests without overrides: the log has hashes, and `keys_secret` in [admin] is not set"),
            (cost, "requests whose cost is not in the log cost 1"),
            (status, "requests without status stay charged"),
            (
                unreachable,
                "requests with a response 502 to 504 stay charged: the log does not show whether connect_error was the cause",
            ),
            (limited, "requests were refused when logged: their status is that of the refusal"),
        ] {
            if *count > 0 {
                let _ = writeln!(text, "  note      {count} {what}");
            }
        }
    }

    fn describe_tightest(&self, tally: &Tally) -> String {
        let number = match self.find_needed(tally) {
            NeededNumber::Nothing => return "no cost was charged".to_owned(),
            NeededNumber::None(why) => return format!("none: {why}"),
            NeededNumber::Number(number) => number,
        };
        let least = if tally.is_lower_bound() { "at least " } else { "" };
        let what = tally.limit.rule.with_number(number).describe_number();
        format!("{least}{what}, as the only limit, would have refused nobody")
    }

    /// Returns what the limit would have needed, as far as the log shows.
    pub fn find_needed(&self, tally: &Tally) -> NeededNumber {
        if tally.is_only_of_auth() {
            return NeededNumber::None("limits of `auth` are not replayed".into());
        }
        if !tally.can_judge() {
            return NeededNumber::None("the log has whole seconds, and requests were shorter".into());
        }
        if tally.seen == 0 && tally.count_unknown() > 0 {
            return NeededNumber::None("no request could be evaluated".into());
        }
        if tally.limit.reads_address() && self.counts.has_proxies_as_clients() {
            return NeededNumber::None(
                "the clients in the log are proxies: most requests have an X-Forwarded-For, so list the proxies in `trusted_proxies`"
                    .into(),
            );
        }
        if let Some(why) = self.describe_proxy(tally) {
            return NeededNumber::None(why.into());
        }
        if tally.limit.rule.lease_ms().is_some() && tally.seen > 0 && tally.missing.duration == tally.seen {
            return NeededNumber::None("the log contains no durations".into());
        }
        tally.tightest.needed_number()
    }

    /// Returns why the number may come from a proxy with many clients behind it, and what to do.
    fn describe_proxy(&self, tally: &Tally) -> Option<String> {
        let remedy = self.describe_remedy();
        match tally.find_proxy() {
            Some(ProxySign::NamesClient) => Some(
                "the client that needs most may be a proxy, because its requests have an X-Forwarded-For or another \
                 header that names a client; list the proxies in `trusted_proxies`"
                    .to_owned(),
            ),
            Some(ProxySign::Trusted) => Some(format!(
                "the address that needs most is in `trusted_proxies`, and its requests may be those of many clients: \
                 {remedy}"
            )),
            Some(ProxySign::Private) => Some(format!(
                "the address that needs most is private, so it may be a proxy: list it in `trusted_proxies`, and {remedy}"
            )),
            None | Some(ProxySign::ThisMachine)
                if tally.limit.reads_address() && self.counts.other_addresses.are_clients() =>
            {
                Some(format!(
                    "most lines have another address in a field that is not read, so the one at their start is probably \
                     that of a proxy: list it in `trusted_proxies`, and {remedy}"
                ))
            }
            None | Some(ProxySign::ThisMachine) => None,
        }
    }

    /// Describes how to make the log name the client behind a proxy.
    fn describe_remedy(&self) -> String {
        let formats = || self.sources.iter().filter_map(|source| source.format);
        let name = &self.naming_header;
        let variable = format!("\"$http_{}\"", name.as_str().replace('-', "_"));
        let is_of_nginx = |format: AccessLogFormat| {
            matches!(format, AccessLogFormat::Common | AccessLogFormat::Combined | AccessLogFormat::NginxJson)
        };
        if formats().any(is_of_nginx) {
            let place = match name.as_str() {
                "x-forwarded-for" => "right after \"$http_user_agent\", or as a field of that name in JSON",
                _ => "as a field of that name in JSON (`escape=json`)",
            };
            format!("log {variable} {place}")
        } else if formats().all(|format| format == AccessLogFormat::Json) {
            "replay a log that the gateway has written with that setting".to_owned()
        } else {
            format!("log the header `{name}`, which names the client")
        }
    }

    fn describe_counts(&self, text: &mut String) {
        let counts = &self.counts;
        let Some(first) = counts.first_ms else {
            text.push_str("no requests, so no result for the limits\n");
            return;
        };
        let _ = writeln!(text, "from {} to {}", format_time_of(first), format_time_of(counts.last_ms));
        let total = counts.count_decided();
        let share = format_percent(counts.refused, total);
        let _ = write!(text, "{total} requests: {} admitted, {} refused ({share} %)", counts.admitted, counts.refused);
        match counts.not_evaluated {
            0 => text.push('\n'),
            count => {
                let _ = writeln!(
                    text,
                    ", {count} not evaluated\n  not evaluated: a limit reads what the log does not hold, and no other \
                     limit refuses the request"
                );
            }
        }
        if counts.delayed > 0 {
            let longest = format_duration(counts.longest_delay_ms);
            let _ =
                writeln!(text, "  {} of the admitted had to wait for their turn, {longest} at most", counts.delayed);
        }
        let unknown_client = format!(
            "requests come from an address in `trusted_proxies`, and the log does not name their client: {}",
            self.describe_remedy()
        );
        for (count, what) in [
            (counts.allowed, "of the admitted are on the allow list of their route"),
            (counts.unauthenticated, "more had no valid credentials"),
            (counts.denied, "more are on the deny list of their route"),
            (counts.no_route, "more have no route"),
            (counts.malformed, "more are refused as malformed before routing"),
            (counts.no_request, "lines contain no request"),
            (counts.no_host, "requests have no host in the log, so routes with a host do not match them; see --host"),
            (
                counts.forwarded,
                "requests come from a trusted proxy: their client is the one that a header in the log names",
            ),
            (counts.unknown_client, unknown_client.as_str()),
            (
                counts.untrusted_proxy,
                "requests have a header that names another client, and come from an address that is not in \
                 `trusted_proxies`: if it is a proxy, list it there",
            ),
            (counts.ended_early, "requests were treated as ended early, because too many were in progress"),
        ] {
            if count > 0 {
                let _ = writeln!(text, "  {count} {what}");
            }
        }
        if !counts.fine {
            text.push_str(
                "  times are whole seconds: requests of one second count as simultaneous, so fewer would be refused live\n",
            );
        }
    }
}

fn describe_fate(source: &Source, missing: Missing) -> &'static str {
    match (source, missing) {
        (Source::Host, _) => "share the budget of no host",
        (_, Missing::Shared) => "share one budget",
        (_, Missing::Skip) => "skipped",
        (_, Missing::Refuse) => "refused",
    }
}

fn describe_about((count, exact): (u64, bool)) -> String {
    if exact { count.to_string() } else { format!("about {count}") }
}
