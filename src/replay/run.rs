//! The replay loop: passes each request through route, limits and tallies in the order of their starts, and refunds at
//! their ends. Called by the command line.

use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::{Method, StatusCode};

use crate::config::{Config, Strictness};
use crate::limiting::limit::{Limit, Mode};
use crate::limiting::source::{Facts, Source};
use crate::limiting::store::memory::MemoryStore;
use crate::limiting::store::shares::KeyDivision;
use crate::limiting::store::timeline::Timeline;
use crate::limiting::store::{Store, Stores};
use crate::limiting::{Limiter, Verdict};
use crate::proxy::head::canonical;
use crate::proxy::head::method;
use crate::proxy::head::reject::FaultPolicy;
use crate::proxy::steps::response::problem;
use crate::replay::counts::Counts;
use crate::replay::in_progress::{Correction, LoggedEnd, RequestsInProgress};
use crate::replay::input::entry::Request;
use crate::replay::input::order::StartOrder;
use crate::replay::input::source::{LogSources, Logged};
use crate::replay::logged_facts;
use crate::replay::logged_facts::{LoggedFacts, find_unknown_sources};
use crate::replay::outcome::{ReplayOutcome, ReplayRequest};
use crate::replay::progress::ReplayProgress;
use crate::replay::report::verdicts::Verdicts;
use crate::replay::series::Series;
use crate::replay::tally::Tally;
use crate::route::Route;
use crate::telemetry::metrics::Metrics;

/// Minimum number of keys in the search for a limit's tightest number.
const KEYS_EACH_MIN: usize = 1000;

struct Replay<'a> {
    config: &'a Config,
    options: &'a ReplayRequest,
    limiter: Limiter,
    configured: Rc<Timeline>,
    ends: RequestsInProgress,
    counts: Counts,
    tallies: Vec<Tally>,
    series: Series,
    verdicts: Option<Verdicts>,
}

/// Runs the replay.
///
/// # Errors
/// If a log cannot be read, no line of all logs is valid, or no route matches a request.
pub fn run_replay(config: &Config, logs: &[PathBuf], options: &ReplayRequest) -> Result<ReplayOutcome, String> {
    let headers = config.limits.iter().any(|limit| limit.needs_headers() || !logged_facts::is_key_in_logs(limit))
        || config.routes.iter().any(|route| !route.matcher.headers.is_empty());
    let mut sources = LogSources::open_logs(logs, headers)?;
    let configured = Rc::new(Timeline::new(config.store.max_keys, &config.limits));
    let division = KeyDivision::new(config.store.max_keys, &config.limits);
    // With the keys that each limit is sure of, the memory of all tallies is bounded.
    let tally = |limit: &Arc<Limit>| Tally::new(limit, division.bounds_of(limit).0.max(KEYS_EACH_MIN), options.top);
    let metrics = Metrics::new().map_err(|error| error.to_string())?;
    let mut replay = Replay {
        config,
        options,
        limiter: Limiter::new(
            Store::Timeline(configured.clone()),
            None,
            &Stores::new(Arc::new(MemoryStore::new(1)), &metrics),
            &config.store.prefix,
        ),
        configured,
        ends: RequestsInProgress::default(),
        counts: Counts::default(),
        tallies: config.limits.iter().map(tally).collect(),
        series: Series::default(),
        verdicts: options.verdicts.as_deref().map(Verdicts::create_file).transpose()?,
    };
    let mut progress = ReplayProgress::new(options.progress);
    let ran = replay.replay_all(&mut sources, &mut progress);
    progress.finish_line();
    ran?;
    sources.check_readable()?;
    replay.check_routed(&sources)?;
    let forgotten = replay.configured.evicted_count();
    let Replay { ends, mut counts, tallies, series, .. } = replay;
    counts.ended_early = ends.early;
    Ok(ReplayOutcome { sources: sources.all, counts, tallies, series, top: options.top, forgotten })
}

impl<'a> Replay<'a> {
    fn replay_all(&mut self, sources: &mut LogSources, progress: &mut ReplayProgress) -> Result<(), String> {
        let mut order = StartOrder::default();
        while let Some(logged) = sources.next_request()? {
            order.push_request(logged);
            while let Some(mut logged) = order.pop_due(false) {
                self.replay_entry(&mut logged, sources)?;
            }
            progress.count_line(sources);
        }
        while let Some(mut logged) = order.pop_due(true) {
            self.replay_entry(&mut logged, sources)?;
        }
        self.verdicts.as_mut().map_or(Ok(()), Verdicts::flush_file)
    }

    fn replay_entry(&mut self, logged: &mut Logged, sources: &LogSources) -> Result<(), String> {
        logged.entry.identify_client(&self.config.server.trusted_proxies);
        let logged = &*logged;
        let Logged { entry, place } = logged;
        let now_ms = self.counts.count_entry(entry, *place);
        self.refund_due(now_ms);
        let Some(request) = &entry.request else {
            self.counts.no_request += 1;
            return Ok(());
        };
        let host = request.host.as_deref().or(self.options.host.as_deref());
        self.counts.no_host += u64::from(host.is_none());
        let mut policy = FaultPolicy::new(Strictness::Monitor);
        let method = method::canonicalize_method(&request.method, &mut policy);
        let (Ok(method), Ok(path)) = (method, canonical::canonicalize_path(&request.path, &mut policy)) else {
            self.counts.malformed += 1;
            return Ok(());
        };
        let path = if request.path == "*" { &request.path } else { path.to_read(&request.path) };
        let Some(route) = self.find_route(logged, request, &method, host, path) else { return Ok(()) };
        if policy.faults.check(route.parsing).is_err() {
            self.counts.malformed += 1;
            return Ok(());
        }
        let facts = Facts {
            method: method.as_str(),
            host: host.unwrap_or_default(),
            path,
            query: request.query.as_deref(),
            params: &route.params,
            user: entry.user.as_deref(),
            // Logs contain no bodies.
            body_length: Some(0),
            ..Facts::new(entry.client, &route.name, &request.headers)
        };
        let logged = LoggedFacts { facts: &facts, entry, no_host: host.is_none() };
        let mut unknown = find_unknown_sources(&route.limits, &logged);
        unknown[..route.auth_limit_count()].fill(None);
        let verdict = self.decide_request(route, &logged, &unknown, now_ms);
        let is_unknown = |(limit, unknown): (&Arc<Limit>, &Option<_>)| unknown.is_some() && limit.mode == Mode::Enforce;
        let allowed = entry.is_client_in(&route.allow);
        if verdict.refused {
            self.counts.refused += 1;
            self.series.add_request(now_ms, true);
        } else if !allowed && route.limits.iter().zip(&unknown).any(is_unknown) {
            self.counts.not_evaluated += 1;
        } else {
            self.counts.admitted += 1;
            self.series.add_request(now_ms, false);
        }
        match &mut self.verdicts {
            Some(file) => {
                let skipped = |(limit, unknown): (&'a Arc<Limit>, &Option<_>)| unknown.map(|_| &*limit.name);
                let unknown: Vec<&str> =
                    route.limits.iter().zip(&unknown).filter(|_| !allowed).filter_map(skipped).collect();
                file.write_verdict(&sources.all[place.source].name, place.line, now_ms, &verdict, route, &unknown)
            }
            None => Ok(()),
        }
    }

    /// Returns the route whose limits apply; `None` if no limit decides the request.
    fn find_route(
        &mut self,
        logged: &Logged,
        request: &Request,
        method: &Method,
        host: Option<&str>,
        path: &str,
    ) -> Option<&'a Route> {
        let config = self.config;
        let named = host.unwrap_or_default();
        let Some(index) = config.table.find_route(&config.routes, named, path, method, &request.headers) else {
            self.counts.no_route += 1;
            let what = || (logged.place, format!("{} {path} of {}", request.method, host.unwrap_or("no host")));
            self.counts.unrouted.get_or_insert_with(what);
            return None;
        };
        let route = &config.routes[index];
        if logged.entry.is_client_in(&route.deny) {
            self.counts.denied += 1;
            return None;
        }
        let entry = &logged.entry;
        if route.auth.is_some() && entry.user.is_none() && entry.status == Some(StatusCode::UNAUTHORIZED.as_u16()) {
            self.counts.unauthenticated += 1;
            return None;
        }
        Some(route)
    }

    /// Decides a request. `unknown` lists, per limit of the route, the source that the log lacks.
    fn decide_request(
        &mut self,
        route: &Route,
        logged_facts: &LoggedFacts,
        unknown: &[Option<&Source>],
        now_ms: i64,
    ) -> Verdict {
        let LoggedFacts { entry, facts, .. } = *logged_facts;
        if entry.is_client_in(&route.allow) {
            self.counts.allowed += 1;
            return Verdict::default();
        }
        if route.limits.is_empty() {
            return Verdict::default();
        }
        for limit in route.auth_limits() {
            let tally = self.tallies.iter_mut().find(|tally| Arc::ptr_eq(&tally.limit, limit));
            tally.into_iter().for_each(|tally| tally.of_auth += 1);
        }
        let blurred = |limit: &Limit| limit.rule.lease_ms().is_some() && entry.is_blurred();
        self.configured.set_now(now_ms);
        let is_unknown = |limit: &Limit| {
            route.limits.iter().zip(unknown).any(|(other, unknown)| unknown.is_some() && std::ptr::eq(&**other, limit))
        };
        // A log does not show which requests needed a verification of their credentials.
        let of_auth = |limit: &Limit| route.auth_limits().iter().any(|other| std::ptr::eq(&**other, limit));
        let skipped = |limit: &Limit| is_unknown(limit) || blurred(limit) || of_auth(limit);
        let verdict = resolve_now(self.limiter.decide_logged(&route.limits, facts, logged_facts, skipped));
        let delay_ms = verdict.delay_ms(&route.limits).map_or(0, |(_, delay_ms)| delay_ms);
        self.counts.delayed += u64::from(delay_ms > 0);
        self.counts.longest_delay_ms = self.counts.longest_delay_ms.max(delay_ms);
        let end_ms = now_ms + delay_ms + entry.duration_ms.unwrap_or(0);
        let logged = LoggedEnd::new(entry.status, end_ms);
        let refusal = verdict.longest_refusal(&route.limits).filter(|_| verdict.refused).map(|checked| {
            problem::limit_refusal_status(route.limits[checked.limit].refusal_response(&route.refuse), checked.outcome)
        });
        let own = refusal.map_or(logged, |status| LoggedEnd::new(Some(status.as_u16()), now_ms));

        let asked = self.configured.take_last();
        let (mut at_own, mut at_logged) = (Vec::new(), Vec::new());
        for (place, limit) in route.limits.iter().enumerate().skip(route.auth_limit_count()) {
            let Some(index) = self.tallies.iter().position(|tally| Arc::ptr_eq(&tally.limit, limit)) else { continue };
            let tally = &mut self.tallies[index];
            if let Some(source) = unknown[place] {
                tally.record_not_evaluated(source);
                continue;
            }
            if blurred(limit) {
                tally.record_blurred(facts);
                continue;
            }
            if let Some(effect) = verdict.effect_of(place) {
                let incumbent = route.limits.iter().position(|other| limit.candidate_of.as_ref() == Some(&other.name));
                let is_known = |other: usize| unknown[other].is_none() && !blurred(&route.limits[other]);
                tally.effects[effect as usize] += u64::from(incumbent.is_some_and(is_known));
            }
            let found = asked.as_ref().and_then(|(checks, decision)| {
                let place = checks.iter().position(|check| Arc::ptr_eq(&check.limit, &limit.store_ref))?;
                Some((&checks[place], *decision.answers.get(place)?, decision))
            });
            let Some((check, answer, decision)) = found else {
                tally.record_unasked(place, &verdict, logged_facts);
                continue;
            };
            let key = tally.record_decision(check, answer, logged_facts);
            tally.refused_by_others += u64::from(verdict.refused && answer.admitted);
            if verdict.checks.iter().any(|checked| checked.limit == place && checked.is_charged) {
                at_own.extend(tally.record_charge(check, answer, own).map(Correction::Configured));
            }
            if decision.is_applicable(check.role) {
                let back = tally.record_need(key, check, logged, now_ms);
                at_logged.extend(back.map(|back| Correction::Unrefused(index, back)));
            }
        }
        self.ends.add(own, at_own);
        self.ends.add(logged, at_logged);
        verdict
    }

    /// Refunds what is due at `now_ms`.
    fn refund_due(&mut self, now_ms: i64) {
        while let Some((at_ms, corrections)) = self.ends.pop_due(now_ms) {
            self.configured.set_now(at_ms);
            for correction in &corrections {
                match correction {
                    Correction::Configured(check) => self.configured.adjust(check),
                    Correction::Unrefused(tally, back) => self.tallies[*tally].tightest.adjust_charge(back, at_ms),
                }
            }
        }
    }

    /// Checks that at least one request matched a route.
    ///
    /// # Errors
    /// If there were requests and none matched.
    fn check_routed(&self, sources: &LogSources) -> Result<(), String> {
        let Counts { denied, no_route, unrouted, no_host, .. } = &self.counts;
        let Some((place, what)) = unrouted.as_ref().filter(|_| self.counts.count_decided() + denied == 0) else {
            return Ok(());
        };
        let remedy = if *no_host > 0 {
            "the log contains no host, so no route with `host` matches: set one with --host NAME"
        } else {
            "look at `host`, `path` and `methods` of the routes, or use the config that was in force when this log was written"
        };
        let name = &sources.all[place.source].name;
        Err(format!(
            "no route matches any of the {no_route} requests; the first is {what} ({name} line {}); {remedy}",
            place.line
        ))
    }
}

/// A decision of a store in this process never waits.
fn resolve_now(verdict: impl Future<Output = Verdict>) -> Verdict {
    match pin!(verdict).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(verdict) => verdict,
        Poll::Pending => Verdict::default(),
    }
}
