//! What limits would have done: runs the requests of access logs through the routes and limits of
//! a config, on the logs' own time line. Called by `sluicegate replay`.
//!
//! The decisions are those of the live limiter and the memory store; only the clock differs. It
//! follows the logged times and never steps back.

mod line;
mod plot;
mod progress;
mod render;
mod series;
mod sketch;
mod source;
mod tally;
mod tightest;

use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::config::Config;
use crate::http::canonical;
use crate::http::reject::Judge;
use crate::limit::key::Facts;
use crate::limit::store::Store;
use crate::limit::store::memory::Memory;
use crate::limit::store::timeline::Timeline;
use crate::limit::{Limiter, Verdict};
use crate::metrics::Metrics;
use line::{Entry, Request};
use progress::Progress;
use series::Series;
use source::{Source, Sources};
use tally::Tally;

pub use line::host;

pub struct Options {
    /// Keys named for each limit.
    pub top: usize,
    /// Canonical host of the requests whose line names none.
    pub host: Option<String>,
    /// Tell on standard error how far it is.
    pub progress: bool,
}

/// What came of it.
pub struct Outcome {
    pub(self) sources: Vec<Source>,
    pub(self) counts: Counts,
    pub(self) tallies: Vec<Tally>,
    pub(self) series: Series,
    pub(self) top: usize,
}

/// Requests by what became of them.
#[derive(Default)]
struct Counts {
    admitted: u64,
    refused: u64,
    /// Lines that hold no request, such as TLS on a plain port.
    no_request: u64,
    /// The gate refuses them before any route.
    malformed: u64,
    no_route: u64,
    denied: u64,
    /// On the `allow` list of their route.
    allowed: u64,
    no_host: u64,
    /// Lines earlier than one before them, and by how much at most.
    late: u64,
    latest_ms: i64,
    first_ms: Option<i64>,
    last_ms: i64,
    /// A time that is no whole second was seen.
    fine: bool,
}

struct Replay<'a> {
    config: &'a Config,
    options: &'a Options,
    limiter: Limiter,
    timeline: Rc<Timeline>,
    counts: Counts,
    tallies: Vec<Tally>,
    series: Series,
}

/// # Errors
/// A log cannot be read, or none of the lines of all logs is good.
pub fn run(config: &Config, logs: &[PathBuf], options: &Options) -> Result<Outcome, String> {
    let mut sources = Sources::open(logs)?;
    let timeline = Rc::new(Timeline::new(config.store.max_keys));
    let stand_in = Arc::new(Memory::new(1));
    let metrics = Metrics::new().map_err(|error| error.to_string())?;
    let mut replay = Replay {
        config,
        options,
        limiter: Limiter::new(Store::Timeline(timeline.clone()), None, &stand_in, &config.store.prefix, &metrics),
        timeline,
        counts: Counts::default(),
        tallies: config.limits.iter().map(|limit| Tally::new(limit, config.store.max_keys, options.top)).collect(),
        series: Series::default(),
    };
    let mut progress = Progress::new(options.progress);
    while let Some(entry) = sources.next()? {
        replay.entry(entry);
        progress.step(&sources);
    }
    progress.end();
    let bad = sources.all.iter().find(|source| source.bad > 0);
    if let (None, Some(bad)) = (replay.counts.first_ms, bad) {
        let (number, wrong) = bad.shown.first().copied().unwrap_or((1, ""));
        return Err(format!("no line of the logs can be read; {} line {number}: {wrong}", bad.name));
    }
    let Replay { counts, tallies, series, .. } = replay;
    Ok(Outcome { sources: sources.all, counts, tallies, series, top: options.top })
}

impl Replay<'_> {
    fn entry(&mut self, entry: Entry) {
        let counts = &mut self.counts;
        let now_ms = match counts.first_ms {
            Some(_) => counts.last_ms.max(entry.time_ms),
            None => entry.time_ms,
        };
        counts.first_ms.get_or_insert(entry.time_ms);
        counts.late += u64::from(entry.time_ms < now_ms);
        counts.latest_ms = counts.latest_ms.max(now_ms - entry.time_ms);
        counts.last_ms = now_ms;
        counts.fine |= entry.time_ms % 1000 != 0;
        self.timeline.set_now(now_ms);
        match entry.request {
            None => counts.no_request += 1,
            Some(request) => {
                if let Some(refused) = self.request(&entry.client, &request, now_ms) {
                    self.series.add(now_ms, refused);
                    let count = if refused { &mut self.counts.refused } else { &mut self.counts.admitted };
                    *count += 1;
                }
            }
        }
    }

    /// Whether limits refuse it; `None` when it is not for them to say.
    fn request(&mut self, client: &std::net::IpAddr, request: &Request, now_ms: i64) -> Option<bool> {
        let config = self.config;
        let host = request.host.as_deref().or(self.options.host.as_deref());
        self.counts.no_host += u64::from(host.is_none());
        let path = match canonical::path(&request.path, &mut Judge::new(config.server.strictness)) {
            Ok(path) if request.path != "*" => path,
            Ok(_) => None,
            Err(_) => {
                self.counts.malformed += 1;
                return None;
            }
        };
        let path = path.as_deref().unwrap_or(&request.path);
        let named = host.unwrap_or_default();
        let Some(index) = config.table.find(&config.routes, named, path, &request.method, &request.headers) else {
            self.counts.no_route += 1;
            return None;
        };
        let route = &config.routes[index];
        if route.deny.contains(*client) {
            self.counts.denied += 1;
            return None;
        }
        if route.allow.contains(*client) {
            self.counts.allowed += 1;
            return Some(false);
        }
        if route.limits.is_empty() {
            return Some(false);
        }
        let facts = Facts {
            client: *client,
            method: request.method.as_str(),
            host: named,
            path,
            query: request.query.as_deref(),
            headers: &request.headers,
            route: &route.name,
            claims: None,
        };
        let verdict = at_once(self.limiter.decide_past(&route.limits, &facts));
        let asked = self.timeline.take_last();
        for (place, limit) in route.limits.iter().enumerate() {
            if let Some(tally) = self.tallies.iter_mut().find(|tally| Arc::ptr_eq(&tally.limit, limit)) {
                tally.add(place, &verdict, asked.as_ref(), &facts, host.is_none(), now_ms);
            }
        }
        Some(verdict.refused)
    }
}

/// The verdict of a store in this process never waits.
fn at_once(verdict: impl Future<Output = Verdict>) -> Verdict {
    match pin!(verdict).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(verdict) => verdict,
        Poll::Pending => Verdict::default(),
    }
}
