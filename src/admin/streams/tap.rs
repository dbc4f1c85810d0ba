//! `GET /-/tap`: sends the requests that match a filter as they end, with what their limits decided.
//!
//! The stream has an event per request, an event `counts` each second, and an event `end` with the reason. It ends
//! after some minutes, and with each new config, so that access is checked again.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::admin::context::AdminContext;
use crate::admin::lifecycle::Lifecycle;
use crate::admin::page_request::PageRequest;
use crate::admin::problem::{Problem, bad_query, refuse_repeated};
use crate::admin::response::{AdminResponse, stream_response};
use crate::admin::slots::StreamPermit;
use crate::config::percent_decode;
use crate::labels::labels;
use crate::snapshot::UNMATCHED;
use crate::telemetry::tap::{FILTER_NAMES, FILTERS, TAPS_MAX, TapCounts, TapFilter, TapReader};

/// Query of `GET /-/tap`.
struct TapQuery {
    filter: TapFilter,
    rate: u32,
    /// The stream ends once this many requests were sent.
    count: Option<u64>,
}

labels! {
    /// Why a tap ended.
    TapEnd:
    /// The tap has sent `count` requests.
    Count = "count",
    /// The time limit of taps.
    Time = "time",
    /// Another config became active.
    Reload = "reload",
    /// The gateway stops.
    Draining = "draining",
}

const RATE_DEFAULT: u32 = 100;
const RATE_MAX: u32 = 1000;
const COUNT_MAX: u64 = 1_000_000;
const TAP_MAX: Duration = Duration::from_secs(600);
/// Events between the tap and the connection. If its client is slow, further events wait in the queue of the tap.
const PIECES: usize = 16;
/// How often the tap checks whether it must end.
const CHECK_EVERY: Duration = Duration::from_millis(250);
/// Number of these checks per `counts` event.
const COUNTS_EVERY: u32 = 4;

impl TapQuery {
    fn parse(query: &str) -> Result<TapQuery, Problem> {
        refuse_repeated(query, &FILTER_NAMES)?;
        let mut parameters = TapQuery { filter: TapFilter::default(), rate: RATE_DEFAULT, count: None };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode(value).and_then(|value| String::from_utf8(value).ok());
            let value = value.ok_or_else(|| bad_query(format!("`{name}` is not percent-encoded UTF-8")))?;
            match name {
                "rate" => {
                    let rate = value.parse().ok().filter(|rate| (1..=RATE_MAX).contains(rate));
                    parameters.rate =
                        rate.ok_or_else(|| bad_query(format!("`rate` is an integer from 1 to {RATE_MAX}")))?;
                }
                "count" => {
                    let count = value.parse().ok().filter(|count| (1..=COUNT_MAX).contains(count));
                    let what = || bad_query(format!("`count` is an integer from 1 to {COUNT_MAX}"));
                    parameters.count = Some(count.ok_or_else(what)?);
                }
                _ if parameters.filter.add_value(name, &value).map_err(bad_query)? => {}
                _ => {
                    let help = format!("there are {FILTERS}, and `rate` and `count`");
                    return Err(bad_query(format!("unknown parameter `{name}`; {help}")));
                }
            }
        }
        Ok(parameters)
    }

    /// Checks that the limits and routes of the filter exist: with a misspelt name, nothing would ever match.
    fn check_names(&self, context: &AdminContext) -> Result<(), Problem> {
        self.filter.limits.iter().try_for_each(|name| context.limits.check_limit(name))?;
        let routes = &context.current.load().config.routes;
        let exists = |name: &&String| *name == UNMATCHED || routes.iter().any(|route| route.name == **name);
        match self.filter.routes.iter().find(|name| !exists(name)) {
            None => Ok(()),
            Some(name) => {
                let detail = format!("there is no route `{name}`; the label `route` in /metrics has their names");
                Err(Problem::new(StatusCode::NOT_FOUND, detail))
            }
        }
    }
}

pub async fn stream_tap(request: PageRequest) -> Result<AdminResponse, Problem> {
    let TapQuery { filter, rate, count } = {
        let query = TapQuery::parse(request.query())?;
        query.check_names(&request.context)?;
        query
    };
    let full = || {
        let detail = format!("{TAPS_MAX} taps are open already; close one");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    };
    let permit = request.take_stream_permit(true)?;
    let reader = request.context.taps.open(filter, rate).ok_or_else(full)?;
    let (events, pieces) = mpsc::channel(PIECES);
    spawn_local(send_events((reader, permit.share()), events, request.context.clone(), count));
    Ok(stream_response(pieces, permit))
}

/// Sends events until the tap ends or the client disconnects.
async fn send_events(
    (mut reader, permit): (TapReader, StreamPermit),
    events: mpsc::Sender<Bytes>,
    context: Rc<AdminContext>,
    count: Option<u64>,
) {
    let Some(end) = forward_events(&mut reader, &events, &context, count).await else { return };
    let counts = format_counts(reader.counts());
    // Frees the places for another tap, even if the client reads slowly. Queued requests are dropped, and the
    // connection has little time left to send the rest.
    drop((reader, permit));
    let last = format!("event: end\ndata: {}\n\n", json!({ "reason": end.label() }));
    for event in [counts, last] {
        // The client may have left.
        let _ = events.send(event.into()).await;
    }
}

/// Returns why the tap ended; `None` if the client disconnected.
async fn forward_events(
    reader: &mut TapReader,
    events: &mpsc::Sender<Bytes>,
    context: &AdminContext,
    count: Option<u64>,
) -> Option<TapEnd> {
    let (started, generation) = (Instant::now(), context.current.load().generation);
    let (mut tick, mut checks) = (interval(CHECK_EVERY), 0_u32);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            event = reader.next_event() => event,
            () = events.closed() => return None,
            _ = tick.tick() => {
                if let Some(end) = find_end(context, generation, started) {
                    return Some(end);
                }
                checks += 1;
                if checks % COUNTS_EVERY != 1 {
                    continue;
                }
                format_counts(reader.counts()).into()
            }
        };
        tokio::select! {
            sent = events.send(event) => sent.ok()?,
            // The client may read too slowly forever.
            end = wait_for_end(context, generation, started) => return Some(end),
        }
        if count.is_some_and(|count| reader.counts().sent >= count) {
            return Some(TapEnd::Count);
        }
    }
}

async fn wait_for_end(context: &AdminContext, generation: u64, started: Instant) -> TapEnd {
    loop {
        if let Some(end) = find_end(context, generation, started) {
            return end;
        }
        sleep(CHECK_EVERY).await;
    }
}

fn find_end(context: &AdminContext, generation: u64, started: Instant) -> Option<TapEnd> {
    if context.shared.lifecycle() == Lifecycle::Draining {
        return Some(TapEnd::Draining);
    }
    if context.current.load().generation != generation {
        return Some(TapEnd::Reload);
    }
    (started.elapsed() >= TAP_MAX).then_some(TapEnd::Time)
}

fn format_counts(counts: TapCounts) -> String {
    let TapCounts { matched, sent, sampled_out, lost } = counts;
    let counts = json!({ "matched": matched, "sent": sent, "sampled_out": sampled_out, "lost": lost });
    format!("event: counts\ndata: {counts}\n\n")
}
