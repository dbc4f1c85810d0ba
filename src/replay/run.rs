//! The replay itself: each request through route, limits and tallies, in the order of their starts,
//! and what it gives back at its end. Called by the command line.

use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::Method;

use super::counts::Counts;
use super::ends::{Correction, Ending, Ends};
use super::entry::Request;
use super::known::{LoggedFacts, unknown_sources};
use super::order::StartOrder;
use super::outcome::{Options, ReplayOutcome};
use super::progress::ReplayProgress;
use super::series::Series;
use super::source::{LogSources, Logged};
use super::tally::Tally;
use super::verdicts::Verdicts;
use crate::config::{Config, Strictness};
use crate::http::answer::problem;
use crate::http::downstream::canonical;
use crate::http::downstream::method;
use crate::http::downstream::reject::Judge;
use crate::limit::limits::{Limit, Mode};
use crate::limit::source::{BodyFacts, Facts, Source};
use crate::limit::store::Store;
use crate::limit::store::memory::Memory;
use crate::limit::store::shares::divided;
use crate::limit::store::timeline::Timeline;
use crate::limit::{Limiter, Verdict};
use crate::metrics::Metrics;
use crate::route::Route;

/// Keys that the search for the tightest number of a limit holds at least.
const KEYS_EACH_MIN: usize = 1000;

struct Replay<'a> {
    config: &'a Config,
    options: &'a Options,
    limiter: Limiter,
    configured: Rc<Timeline>,
    ends: Ends,
    counts: Counts,
    tallies: Vec<Tally>,
    series: Series,
    verdicts: Option<Verdicts>,
}

/// # Errors
/// A log cannot be read, none of the lines of all logs is good, or no route takes one.
pub fn run(config: &Config, logs: &[PathBuf], options: &Options) -> Result<ReplayOutcome, String> {
    let headers = config.limits.iter().any(|limit| limit.needs_headers())
        || config.routes.iter().any(|route| !route.matcher.headers.is_empty());
    let mut sources = LogSources::open(logs, headers)?;
    let configured = Rc::new(Timeline::new(config.store.max_keys, &config.limits));
    let shares = divided(config.store.max_keys, &config.limits);
    let tally = |(limit, share): (&Arc<_>, usize)| Tally::new(limit, share.max(KEYS_EACH_MIN), options.top);
    let stand_in = Arc::new(Memory::new(1));
    let metrics = Metrics::new().map_err(|error| error.to_string())?;
    let mut replay = Replay {
        config,
        options,
        limiter: Limiter::new(
            Store::Timeline(configured.clone()),
            None,
            (&stand_in, &Arc::default()),
            &config.store.prefix,
            &metrics,
        ),
        configured,
        ends: Ends::default(),
        counts: Counts::default(),
        tallies: config.limits.iter().zip(shares).map(tally).collect(),
        series: Series::default(),
        verdicts: options.verdicts.as_deref().map(Verdicts::create).transpose()?,
    };
    let mut progress = ReplayProgress::new(options.progress);
    let ran = replay.all(&mut sources, &mut progress);
    progress.end();
    ran?;
    sources.check_readable()?;
    replay.check_routed(&sources)?;
    let forgotten = replay.configured.forgotten();
    let Replay { ends, mut counts, tallies, series, .. } = replay;
    counts.ended_early = ends.early;
    Ok(ReplayOutcome { sources: sources.all, counts, tallies, series, top: options.top, forgotten })
}

impl<'a> Replay<'a> {
    fn all(&mut self, sources: &mut LogSources, progress: &mut ReplayProgress) -> Result<(), String> {
        let mut order = StartOrder::default();
        while let Some(logged) = sources.next()? {
            order.push(logged);
            while let Some(logged) = order.pop(false) {
                self.entry(&logged, sources)?;
            }
            progress.step(sources);
        }
        while let Some(logged) = order.pop(true) {
            self.entry(&logged, sources)?;
        }
        self.verdicts.as_mut().map_or(Ok(()), Verdicts::end)
    }

    fn entry(&mut self, logged: &Logged, sources: &LogSources) -> Result<(), String> {
        let Logged { entry, place } = logged;
        let now_ms = self.counts.enter(entry, *place);
        self.give_back(now_ms);
        let Some(request) = &entry.request else {
            self.counts.no_request += 1;
            return Ok(());
        };
        let host = request.host.as_deref().or(self.options.host.as_deref());
        self.counts.no_host += u64::from(host.is_none());
        let mut judge = Judge::new(Strictness::Monitor);
        let method = method::canonical(&request.method, &mut judge);
        let (Ok(method), Ok(path)) = (method, canonical::path(&request.path, &mut judge)) else {
            self.counts.malformed += 1;
            return Ok(());
        };
        let path = path.filter(|_| request.path != "*");
        let path = path.as_deref().unwrap_or(&request.path);
        let Some(route) = self.route(logged, request, &method, host, path) else { return Ok(()) };
        if judge.faults.judged(route.reading).is_err() {
            self.counts.malformed += 1;
            return Ok(());
        }
        let facts = Facts {
            client: entry.client,
            method: method.as_str(),
            host: host.unwrap_or_default(),
            path,
            query: request.query.as_deref(),
            headers: &request.headers,
            route: &route.name,
            params: &route.params,
            claims: None,
            certificate: None,
            // No log holds one.
            body: BodyFacts::None,
        };
        let logged = LoggedFacts { facts: &facts, entry, no_host: host.is_none() };
        let unknown = unknown_sources(&route.limits, &logged);
        let verdict = self.decide(route, &logged, &unknown, now_ms);
        let is_unknown = |(limit, unknown): (&Arc<Limit>, &Option<_>)| unknown.is_some() && limit.mode == Mode::Enforce;
        let allowed = route.allow.contains(entry.client);
        if verdict.refused {
            self.counts.refused += 1;
            self.series.add(now_ms, true);
        } else if !allowed && route.limits.iter().zip(&unknown).any(is_unknown) {
            self.counts.not_evaluated += 1;
        } else {
            self.counts.admitted += 1;
            self.series.add(now_ms, false);
        }
        match &mut self.verdicts {
            Some(file) => {
                let skipped = |(limit, unknown): (&'a Arc<Limit>, &Option<_>)| unknown.map(|_| &*limit.name);
                let unknown: Vec<&str> =
                    route.limits.iter().zip(&unknown).filter(|_| !allowed).filter_map(skipped).collect();
                file.add(&sources.all[place.source].name, place.line, now_ms, &verdict, route, &unknown)
            }
            None => Ok(()),
        }
    }

    /// The route whose limits decide; `None` when it is not for limits to say.
    fn route(
        &mut self,
        logged: &Logged,
        request: &Request,
        method: &Method,
        host: Option<&str>,
        path: &str,
    ) -> Option<&'a Route> {
        let config = self.config;
        let named = host.unwrap_or_default();
        let Some(index) = config.table.find(&config.routes, named, path, method, &request.headers) else {
            self.counts.no_route += 1;
            let what = || (logged.place, format!("{} {path} of {}", request.method, host.unwrap_or("no host")));
            self.counts.unrouted.get_or_insert_with(what);
            return None;
        };
        let route = &config.routes[index];
        if route.deny.contains(logged.entry.client) {
            self.counts.denied += 1;
            return None;
        }
        Some(route)
    }

    /// `unknown`: what each limit of the route reads that the log does not hold.
    fn decide(
        &mut self,
        route: &Route,
        logged_facts: &LoggedFacts,
        unknown: &[Option<&Source>],
        now_ms: i64,
    ) -> Verdict {
        let LoggedFacts { entry, facts, no_host } = *logged_facts;
        if route.allow.contains(entry.client) {
            self.counts.allowed += 1;
            return Verdict::default();
        }
        if route.limits.is_empty() {
            return Verdict::default();
        }
        let blurred = |limit: &Limit| limit.rule.lease_ms().is_some() && entry.is_blurred();
        self.configured.set_now(now_ms);
        let is_unknown = |limit: &Limit| {
            route.limits.iter().zip(unknown).any(|(other, unknown)| unknown.is_some() && std::ptr::eq(&**other, limit))
        };
        let verdict =
            at_once(self.limiter.decide_past(&route.limits, facts, |limit| is_unknown(limit) || blurred(limit)));
        let delay_ms = verdict.delay_ms(&route.limits).map_or(0, |(_, delay_ms)| delay_ms);
        self.counts.delayed += u64::from(delay_ms > 0);
        self.counts.longest_delay_ms = self.counts.longest_delay_ms.max(delay_ms);
        let end_ms = now_ms + delay_ms + entry.duration_ms.unwrap_or(0);
        let logged = Ending::new(entry.status, end_ms);
        let refusal = verdict
            .strictest(&route.limits)
            .filter(|_| verdict.refused)
            .map(|checked| problem::limited_status(route.limits[checked.limit].refuse(&route.refuse), checked.outcome));
        let own = refusal.map_or(logged, |status| Ending::new(Some(status.as_u16()), now_ms));

        let asked = self.configured.take_last();
        let (mut at_own, mut at_logged) = (Vec::new(), Vec::new());
        for (place, limit) in route.limits.iter().enumerate() {
            let Some(index) = self.tallies.iter().position(|tally| Arc::ptr_eq(&tally.limit, limit)) else { continue };
            let tally = &mut self.tallies[index];
            if let Some(source) = unknown[place] {
                tally.not_evaluated(source);
                continue;
            }
            if blurred(limit) {
                tally.blurred(facts);
                continue;
            }
            let found = asked.as_ref().and_then(|(checks, decision)| {
                let place = checks.iter().position(|check| Arc::ptr_eq(&check.limit, limit))?;
                Some((&checks[place], *decision.answers.get(place)?, decision))
            });
            let Some((check, answer, decision)) = found else {
                tally.unasked(place, &verdict, facts, no_host);
                continue;
            };
            let key = tally.asked(check, answer, entry, facts, no_host);
            tally.refused_by_others += u64::from(verdict.refused && answer.admitted);
            if decision.charged(check.role, answer) {
                at_own.extend(tally.charged(check, answer, own).map(Correction::Configured));
            }
            if decision.in_turn(check.role) {
                let back = tally.needs(key, check, logged, now_ms);
                at_logged.extend(back.map(|back| Correction::Unrefused(index, back)));
            }
        }
        self.ends.add(own, at_own);
        self.ends.add(logged, at_logged);
        verdict
    }

    /// What ends by `now_ms` gives back.
    fn give_back(&mut self, now_ms: i64) {
        while let Some((at_ms, corrections)) = self.ends.due(now_ms) {
            self.configured.set_now(at_ms);
            for correction in &corrections {
                match correction {
                    Correction::Configured(check) => self.configured.adjust(check),
                    Correction::Unrefused(tally, back) => self.tallies[*tally].tightest.adjust(back, at_ms),
                }
            }
        }
    }

    /// # Errors
    /// Requests were read, and no route takes one.
    fn check_routed(&self, sources: &LogSources) -> Result<(), String> {
        let Counts { denied, no_route, unrouted, no_host, .. } = &self.counts;
        let Some((place, what)) = unrouted.as_ref().filter(|_| self.counts.decided() + denied == 0) else {
            return Ok(());
        };
        let remedy = if *no_host > 0 {
            "the log names no host, so a route with `host` takes none: lend it one by --host NAME"
        } else {
            "look at `host`, `path` and `methods` of the routes, or take the config that served this log"
        };
        let name = &sources.all[place.source].name;
        Err(format!(
            "no route takes any of {no_route} requests; the first is {what} ({name} line {}); {remedy}",
            place.line
        ))
    }
}

/// The verdict of a store in this process never waits.
fn at_once(verdict: impl Future<Output = Verdict>) -> Verdict {
    match pin!(verdict).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(verdict) => verdict,
        Poll::Pending => Verdict::default(),
    }
}
