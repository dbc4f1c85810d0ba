//! `sluicegate tap`: prints the requests of a running gateway as they end.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::cli::gateway::{GatewayContact, GatewayOptions, add_parameter};
use crate::cli::live::events::{EventStream, StreamReply};
use crate::cli::live::screen::format_wait;
use crate::cli::live::terminal::exit_on_signal;
use crate::cli::report::{report_error, report_note};
use crate::cli::visible::{make_json_visible, make_visible};
use crate::cli::{BAD_CONFIG, RUNTIME};

#[derive(Args)]
pub struct TapOptions {
    #[command(flatten)]
    gateway: GatewayOptions,
    /// Requests that this limit decided about. All filters: repeat for alternatives; '!VALUE' excludes
    #[arg(long, value_name = "NAME")]
    limit: Vec<String>,
    /// Requests of this route; _none for requests that no route matches
    #[arg(long, value_name = "NAME")]
    route: Vec<String>,
    /// Requests with this decision of a limit: allow, deny, shadow_deny, delayed, bypass and others
    #[arg(long, value_name = "DECISION")]
    decision: Vec<String>,
    /// Requests of clients in this network, such as 203.0.113.7 or 10.0.0.0/8
    #[arg(long, value_name = "CIDR")]
    client: Vec<String>,
    /// Requests with this status: 429, 4xx or 500-503
    #[arg(long, value_name = "STATUS")]
    status: Vec<String>,
    /// Requests with this method
    #[arg(long, value_name = "METHOD")]
    method: Vec<String>,
    /// Requests with this path; '/api/*' for all paths below
    #[arg(long, value_name = "PATH")]
    path: Vec<String>,
    /// Requests per second, at most; others are left out and counted [default: 100]
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// End after this many requests
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// Format of a request: a line of text, or a JSON object
    #[arg(long, default_value = "text")]
    format: TapFormat,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum TapFormat {
    Text,
    Json,
}

/// Counts of the gateway, of all taps that were opened.
#[derive(Default)]
struct TapTotals {
    /// Sums of the counts of taps that have ended.
    ended: [u64; 4],
    /// The last counts of the open tap; `None` before the first.
    current: Option<[u64; 4]>,
}

type SharedTotals = Arc<Mutex<TapTotals>>;

/// The members of counts: requests that matched, and what happened to them.
const COUNTS: [&str; 4] = ["matched", "sent", "sampled_out", "lost"];

/// Why a tap ended, other than by a signal.
enum TapOutcome {
    /// Everything that was wanted was printed, or the reader of the output left.
    Done,
    Reloaded,
    Failed(String),
}

/// How long the gateway may be silent; it sends counts each second.
const PATIENCE: Duration = Duration::from_secs(15);

pub fn run_tap(options: &TapOptions) -> ExitCode {
    let gateway = match options.gateway.find_gateway() {
        Ok(gateway) => gateway,
        Err(what) => {
            report_error(what);
            return ExitCode::from(BAD_CONFIG);
        }
    };
    let counts = SharedTotals::default();
    let last = counts.clone();
    exit_on_signal(move || print_counts(&last));
    let mut count = 0;
    loop {
        match follow_requests(&gateway, options, &counts, &mut count) {
            TapOutcome::Done => return ExitCode::SUCCESS,
            TapOutcome::Reloaded => {
                counts.lock().unwrap_or_else(PoisonError::into_inner).end_tap();
                report_note("the gateway has a new config; watching again");
            }
            TapOutcome::Failed(what) => {
                report_error(what);
                return ExitCode::from(RUNTIME);
            }
        }
    }
}

/// Returns the path and query of the tap. `printed`: number of requests that were printed already.
fn build_target(options: &TapOptions, printed: u64) -> String {
    let mut query = String::new();
    for (name, values) in [
        ("limit", &options.limit),
        ("route", &options.route),
        ("decision", &options.decision),
        ("client", &options.client),
        ("status", &options.status),
        ("method", &options.method),
        ("path", &options.path),
    ] {
        values.iter().for_each(|value| add_parameter(&mut query, name, value));
    }
    options.rate.iter().for_each(|rate| add_parameter(&mut query, "rate", &rate.to_string()));
    if let Some(count) = options.count {
        add_parameter(&mut query, "count", &count.saturating_sub(printed).to_string());
    }
    format!("/-/tap{query}")
}

fn follow_requests(
    gateway: &GatewayContact,
    options: &TapOptions,
    counts: &SharedTotals,
    printed: &mut u64,
) -> TapOutcome {
    let reply = gateway.open_stream(&build_target(options, *printed), PATIENCE).and_then(EventStream::read_head);
    let mut events = match reply {
        Ok(StreamReply::Events(events)) => events,
        Ok(StreamReply::Refused { status, body }) => {
            return TapOutcome::Failed(gateway.describe_refusal(status, &body, "keys"));
        }
        Err(error) => return TapOutcome::Failed(gateway.describe_failure(&error)),
    };
    let mut left_out = 0;
    loop {
        let event = match events.next_event() {
            Ok(Some(event)) => event,
            Ok(None) => return TapOutcome::Failed(format!("the gateway at {} closed the stream", gateway.listen)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let what = format!("the gateway at {} was silent for {} s", gateway.listen, PATIENCE.as_secs());
                return TapOutcome::Failed(what);
            }
            Err(error) => return TapOutcome::Failed(format!("the gateway at {}: {error}", gateway.listen)),
        };
        let value: Value = serde_json::from_str(&event.data).unwrap_or_default();
        match event.name.as_str() {
            "" => match print_request(options.format, &event.data, &value) {
                Ok(()) => *printed += 1,
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return TapOutcome::Done,
                Err(error) => return TapOutcome::Failed(format!("cannot write: {error}")),
            },
            "counts" => {
                let [_, _, sampled_out, lost] = counts.lock().unwrap_or_else(PoisonError::into_inner).update(&value);
                let missing = sampled_out + lost;
                if missing > left_out {
                    left_out = missing;
                    print_counts(counts);
                }
            }
            "end" => return describe_end(value["reason"].as_str().unwrap_or_default(), gateway),
            _ => {}
        }
    }
}

fn describe_end(reason: &str, gateway: &GatewayContact) -> TapOutcome {
    match reason {
        "count" => TapOutcome::Done,
        "reload" => TapOutcome::Reloaded,
        "time" => {
            report_note("the gateway ends a tap after ten minutes; start it again to continue");
            TapOutcome::Done
        }
        _ => TapOutcome::Failed(format!("the gateway at {} stops: {}", gateway.listen, make_visible(reason))),
    }
}

impl TapTotals {
    /// Records counts of the open tap, and returns them.
    fn update(&mut self, value: &Value) -> [u64; 4] {
        *self.current.insert(COUNTS.map(|name| value[name].as_u64().unwrap_or(0)))
    }

    fn end_tap(&mut self) {
        let last = self.current.take().unwrap_or_default();
        self.ended.iter_mut().zip(last).for_each(|(ended, last)| *ended += last);
    }
}

/// Reports how many requests matched, and how many of them were not printed.
fn print_counts(totals: &SharedTotals) {
    let totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut counts, current) = (totals.ended, totals.current.unwrap_or_default());
    counts.iter_mut().zip(current).for_each(|(count, current)| *count += current);
    let [matched, sent, sampled_out, lost] = counts;
    report_note(format_args!("{matched} requests matched: {sent} sent, {sampled_out} left out by --rate, {lost} lost"));
}

fn print_request(format: TapFormat, json: &str, request: &Value) -> io::Result<()> {
    let line = match format {
        TapFormat::Json => make_json_visible(json).into_owned(),
        TapFormat::Text => make_visible(&format_request(request)).into_owned(),
    };
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

/// Formats a request as `TIME STATUS METHOD HOST/PATH CLIENT route=NAME TIMEms [reason=REASON] DECISIONS`.
fn format_request(request: &Value) -> String {
    let text = |name: &str| request[name].as_str().unwrap_or_default();
    // `2026-01-31T23:59:59.000Z`: the day is today.
    let time = text("time").split_once('T').map_or(text("time"), |(_, time)| time.trim_end_matches('Z'));
    let mut line = format!("{time} {} {} {}{}", request["status"], text("method"), text("host"), text("path"));
    if let Some(query) = request["query"].as_str() {
        line.extend(["?", query]);
    }
    line.push_str(&format!(" {} route={} {}ms", text("client"), text("route"), request["duration_ms"]));
    if let Some(reason) = request["reason"].as_str() {
        line.extend([" reason=", reason]);
    }
    for decision in request["decisions"].as_array().into_iter().flatten() {
        line.push_str(&format_decision(decision));
    }
    line
}

/// Formats a decision as ` | LIMIT DECISION KEY, N left, TIME to wait`.
fn format_decision(decision: &Value) -> String {
    let text = |name: &str| decision[name].as_str().unwrap_or_default();
    let mut line = format!(" | {} {}", text("limit"), text("decision"));
    if let Some(key) = decision["key"].as_str() {
        line.extend([" ", key]);
    }
    if let Some(remaining) = decision["remaining"].as_i64() {
        line.push_str(&format!(", {remaining} left"));
    }
    if let Some(wait_ms) = decision["retry_after_ms"].as_i64().filter(|wait_ms| *wait_ms > 0) {
        line.push_str(&format!(", {} to wait", format_wait(wait_ms)));
    }
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_is_one_line() {
        let request = json!({
            "time": "2026-01-31T23:59:59.123Z", "status": 429, "method": "GET", "host": "a.test", "path": "/x",
            "query": "a=1", "client": "192.0.2.7", "route": "api", "duration_ms": 0.25, "reason": "exhausted",
            "decisions": [
                { "limit": "hard", "decision": "deny", "remaining": 0, "retry_after_ms": 800, "key": "ip=192.0.2.7" },
                { "limit": "soft", "decision": "allow", "remaining": 3, "retry_after_ms": 0, "key": null },
            ],
        });
        let expected = "23:59:59.123 429 GET a.test/x?a=1 192.0.2.7 route=api 0.25ms reason=exhausted \
                        | hard deny ip=192.0.2.7, 0 left, 800 ms to wait | soft allow, 3 left";
        assert_eq!(format_request(&request), expected);
        assert!(!format_request(&json!({})).contains('|'));
    }
}
