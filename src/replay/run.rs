//! The replay loop: takes each request through the steps of `proxy::steps` in the order of their starts. Called by the
//! command line.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use crate::config::Config;
use crate::config::client_address::AddressHeader;
use crate::ends::End;
use crate::limiting::limit::{Limit, Mode};
use crate::limiting::store::memory::MemoryStore;
use crate::limiting::store::shares::KeyDivision;
use crate::limiting::store::timeline::{Timeline, run_now};
use crate::limiting::store::{Store, Stores};
use crate::limiting::{Limiter, Verdict};
use crate::proxy::head::canonical::LastHost;
use crate::proxy::head::hop::Via;
use crate::proxy::steps::pipeline::{admit, arrive};
use crate::proxy::words::refusal::Refusal;
use crate::replay::counts::Counts;
use crate::replay::door::LoggedRequest;
use crate::replay::in_progress::RequestsInProgress;
use crate::replay::input::order::StartOrder;
use crate::replay::input::source::{LogSources, Logged};
use crate::replay::logged_facts;
use crate::replay::outcome::{ReplayOutcome, ReplayRequest};
use crate::replay::progress::ReplayProgress;
use crate::replay::records::{Records, Replay};
use crate::replay::report::verdicts::Verdicts;
use crate::replay::series::Series;
use crate::replay::tally::Tally;
use crate::telemetry::metrics::Metrics;

/// Minimum number of keys in the search for a limit's tightest number.
const KEYS_EACH_MIN: usize = 1000;

/// Runs the replay.
///
/// # Errors
/// If a log cannot be read, no line of all logs is valid, or no route matches a request.
pub fn run_replay(config: &Config, logs: &[PathBuf], options: &ReplayRequest) -> Result<ReplayOutcome, String> {
    let mut limits = config.routes.iter().flat_map(|route| &route.limits).chain(config.limits.iter());
    let headers = limits.any(|limit| limit.needs_headers() || !logged_facts::is_key_in_logs(limit))
        || config.routes.iter().any(|route| !route.matcher.headers.is_empty());
    let mut sources = LogSources::open_logs(logs, headers)?;
    let timeline = Rc::new(Timeline::new(config.store.max_keys, &config.limits));
    let division = KeyDivision::new(config.store.max_keys, &config.limits);
    // With the keys that each limit is sure of, the memory of all tallies is bounded.
    let tally = |limit: &Arc<Limit>| Tally::new(limit, division.bounds_of(limit).0.max(KEYS_EACH_MIN), options.top);
    let metrics = Metrics::new().map_err(|error| error.to_string())?;
    let replay = Replay {
        config,
        options,
        limiter: Limiter::new(
            Store::Timeline(timeline.clone()),
            None,
            &Stores::new(Arc::new(MemoryStore::new(1)), &metrics),
            &config.store.prefix,
        ),
        timeline,
        via: Via::new(0),
        last_host: LastHost::default(),
        records: RefCell::new(Records {
            ends: RequestsInProgress::default(),
            counts: Counts::default(),
            tallies: config.limits.iter().map(tally).collect(),
            series: Series::default(),
            verdicts: options.verdicts.as_deref().map(Verdicts::create_file).transpose()?,
        }),
    };
    let mut progress = ReplayProgress::new(options.progress);
    let ran = replay.replay_all(&mut sources, &mut progress);
    progress.finish_line();
    ran?;
    sources.check_readable()?;
    let forgotten = replay.timeline.evicted_count();
    let Records { ends, mut counts, tallies, series, .. } = replay.records.into_inner();
    check_routed(&counts, &sources)?;
    counts.ended_early = ends.early;
    let mut headers = config.server.client_address.headers.iter();
    let naming_header = headers.next().unwrap_or(&AddressHeader::XForwardedFor).name().clone();
    Ok(ReplayOutcome { sources: sources.all, counts, tallies, series, top: options.top, naming_header, forgotten })
}

impl Replay<'_> {
    fn replay_all(&self, sources: &mut LogSources, progress: &mut ReplayProgress) -> Result<(), String> {
        let mut order = StartOrder::default();
        while let Some(logged) = sources.next_request()? {
            order.push_request(logged);
            while let Some(logged) = order.pop_due(false) {
                self.replay_entry(logged, sources)?;
            }
            progress.count_line(sources);
        }
        while let Some(logged) = order.pop_due(true) {
            self.replay_entry(logged, sources)?;
        }
        self.records.borrow_mut().verdicts.as_mut().map_or(Ok(()), Verdicts::flush_file)
    }

    fn replay_entry(&self, logged: Logged, sources: &LogSources) -> Result<(), String> {
        let Logged { mut entry, place } = logged;
        entry.identify_client(&self.config.server.client_address);
        let line = entry.request.take();
        let now_ms = self.records.borrow_mut().counts.count_entry(&entry, place);
        self.refund_due(now_ms);
        let Some(line) = line else {
            self.records.borrow_mut().counts.no_request += 1;
            return Ok(());
        };
        let host = line.host.clone().or_else(|| self.options.host.clone());
        self.records.borrow_mut().counts.no_host += u64::from(host.is_none());
        let Ok(mut request) = LoggedRequest::new(self, &entry, line, host.as_deref(), now_ms) else {
            self.records.borrow_mut().counts.malformed += 1;
            return Ok(());
        };
        // A decision of a store in this process never waits.
        let end = run_now(take_steps(&mut request)).and_then(|ended| ended.err().map(|refusal| refusal.end));
        match end.filter(|end| !end.is_by_limit()) {
            None => self.record_decided(&request, &sources.all[place.source].name, place.line),
            Some(end) => {
                let counts = &mut self.records.borrow_mut().counts;
                match end {
                    End::NoRoute => {
                        counts.no_route += 1;
                        let (method, path) = (&request.parts.method, &request.path);
                        let what = || format!("{method} {path} of {}", host.as_deref().unwrap_or("no host"));
                        counts.unrouted.get_or_insert_with(|| (place, what()));
                    }
                    End::Denied => counts.denied += 1,
                    End::CredentialsMissing => counts.unauthenticated += 1,
                    _ => counts.malformed += 1,
                }
                Ok(())
            }
        }
    }

    /// Counts a request that has reached the limits of its route, and writes what they decided.
    fn record_decided(&self, request: &LoggedRequest<'_>, log: &str, line: u64) -> Result<(), String> {
        let Some(route) = request.route else { return Ok(()) };
        let records = &mut *self.records.borrow_mut();
        let is_allowed = request.entry.is_client_in(&route.allow);
        if is_allowed {
            records.counts.allowed += 1;
        } else {
            for limit in route.auth_limits() {
                let tally = records.tallies.iter_mut().find(|tally| tally.limit.name == limit.name);
                tally.into_iter().for_each(|tally| tally.of_auth += 1);
            }
        }
        let nothing = Verdict::default();
        let verdict = request.admission.verdict.as_ref().unwrap_or(&nothing);
        let unknown = request.unknown.borrow();
        let limits = route.limits.iter().skip(route.auth_limit_count());
        let unknown: Vec<&Arc<Limit>> =
            limits.zip(&*unknown).filter(|(_, unknown)| unknown.is_some()).map(|(limit, _)| limit).collect();
        let count = match verdict.refused {
            true => &mut records.counts.refused,
            false if unknown.iter().any(|limit| limit.mode == Mode::Enforce) => &mut records.counts.not_evaluated,
            false => &mut records.counts.admitted,
        };
        *count += 1;
        if verdict.refused || unknown.iter().all(|limit| limit.mode != Mode::Enforce) {
            records.series.add_request(request.now_ms, verdict.refused);
        }
        match &mut records.verdicts {
            Some(file) => {
                let names: Vec<&str> = unknown.iter().map(|limit| &*limit.name).collect();
                file.write_verdict(log, line, request.now_ms, verdict, route, &names)
            }
            None => Ok(()),
        }
    }
}

/// Checks that at least one request matched a route.
///
/// # Errors
/// If there were requests and none matched.
fn check_routed(counts: &Counts, sources: &LogSources) -> Result<(), String> {
    let Counts { denied, no_route, unrouted, no_host, .. } = counts;
    let Some((place, what)) = unrouted.as_ref().filter(|_| counts.count_decided() + denied == 0) else {
        return Ok(());
    };
    let remedy = if *no_host > 0 {
        "the log contains no host, so no route with `host` matches: set one with --host NAME"
    } else {
        "look at `host`, `path` and `methods` of the routes, or use the config that was active when this log was written"
    };
    let name = &sources.all[place.source].name;
    Err(format!(
        "no route matches any of the {no_route} requests; the first is {what} ({name} line {}); {remedy}",
        place.line
    ))
}

/// Takes a logged request through the steps up to the decision of its limits.
async fn take_steps(request: &mut LoggedRequest<'_>) -> Result<(), Refusal> {
    let mut arrival = arrive(request)?;
    admit(request, &mut arrival).await.map(|_| ())
}
