//! Records what the limits of replayed requests decide, and what is refunded at their ends.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::config::Config;
use crate::limiting::source::Source;
use crate::limiting::store::timeline::Timeline;
use crate::limiting::{Limiter, Verdict};
use crate::proxy::head::canonical::LastHost;
use crate::proxy::head::hop::Via;
use crate::proxy::steps::response::problem;
use crate::replay::counts::Counts;
use crate::replay::in_progress::{Correction, LoggedEnd, RequestsInProgress};
use crate::replay::logged_facts::LoggedFacts;
use crate::replay::outcome::ReplayRequest;
use crate::replay::report::verdicts::Verdicts;
use crate::replay::series::Series;
use crate::replay::tally::Tally;
use crate::route::Route;

/// A replay: what its requests read, and what it records of them.
pub struct Replay<'a> {
    pub config: &'a Config,
    pub options: &'a ReplayRequest,
    pub limiter: Limiter,
    pub timeline: Rc<Timeline>,
    pub via: Via,
    /// The host of the last request, because most requests repeat it.
    pub last_host: LastHost,
    pub records: RefCell<Records>,
}

/// The counts of a replay, and what it has to refund.
pub struct Records {
    pub ends: RequestsInProgress,
    pub counts: Counts,
    pub tallies: Vec<Tally>,
    pub series: Series,
    pub verdicts: Option<Verdicts>,
}

impl Replay<'_> {
    /// Tallies a decision of the route's limits from index `first` on. `unknown` has, for each of them, the source that
    /// the log lacks.
    pub fn tally_decision(
        &self,
        (logged_facts, now_ms): (&LoggedFacts<'_>, i64),
        route: &Route,
        first: usize,
        unknown: &[Option<Source>],
        verdict: &Verdict,
    ) {
        let Records { ends, counts, tallies, .. } = &mut *self.records.borrow_mut();
        let LoggedFacts { facts, entry, .. } = *logged_facts;
        let unknown = |place: usize| unknown.get(place.checked_sub(first)?)?.as_ref();
        let delay_ms = verdict.delay_ms(&route.limits).map_or(0, |(_, delay_ms)| delay_ms);
        counts.delayed += u64::from(delay_ms > 0);
        counts.longest_delay_ms = counts.longest_delay_ms.max(delay_ms);
        let end_ms = now_ms + delay_ms + entry.duration_ms.unwrap_or(0);
        let logged_end = LoggedEnd::new(entry.status, end_ms);
        let refusal = verdict.longest_refusal(&route.limits).filter(|_| verdict.refused).map(|checked| {
            problem::limit_refusal_status(route.limits[checked.limit].refusal_response(&route.refuse), checked.outcome)
        });
        let own = refusal.map_or(logged_end, |status| LoggedEnd::new(Some(status.as_u16()), now_ms));

        let last_call = self.timeline.take_last();
        let (mut at_own, mut at_logged) = (Vec::new(), Vec::new());
        for (place, limit) in route.limits.iter().enumerate().skip(first) {
            let Some(index) = tallies.iter().position(|tally| tally.limit.name == limit.name) else { continue };
            let tally = &mut tallies[index];
            if let Some(source) = unknown(place) {
                tally.record_not_evaluated(source);
                continue;
            }
            if logged_facts.is_blurred(limit) {
                tally.record_blurred(facts);
                continue;
            }
            if let Some(effect) = verdict.effect_of(place) {
                let incumbent = route.limits.iter().position(|other| limit.candidate_of.as_ref() == Some(&other.name));
                let is_known =
                    |other: usize| unknown(other).is_none() && !logged_facts.is_blurred(&route.limits[other]);
                tally.effects[effect as usize] += u64::from(incumbent.is_some_and(is_known));
            }
            let check_and_answer = last_call.as_ref().and_then(|(checks, decision)| {
                let place = checks.iter().position(|check| Arc::ptr_eq(&check.limit, &limit.store_ref))?;
                Some((&checks[place], *decision.answers.get(place)?, decision))
            });
            let Some((check, answer, decision)) = check_and_answer else {
                tally.record_unasked(place, verdict, logged_facts);
                continue;
            };
            let key = tally.record_decision(limit, check, answer, logged_facts);
            tally.refused_by_others += u64::from(verdict.refused && answer.admitted);
            if verdict.checks.iter().any(|checked| checked.limit == place && checked.is_charged) {
                if refusal.is_none() && own.clears(limit) {
                    at_own.push(Correction::Cleared(check.clone()));
                } else {
                    at_own.extend(tally.record_charge(limit, check, answer, own).map(Correction::Configured));
                }
            }
            if decision.is_applicable(check.role) {
                let back = tally.record_need(key, (limit, check), logged_end, now_ms);
                at_logged.extend(back.map(|back| Correction::Unrefused(index, back)));
            }
        }
        ends.add(own, at_own);
        ends.add(logged_end, at_logged);
    }

    /// Refunds what is due at `now_ms`.
    pub fn refund_due(&self, now_ms: i64) {
        let Records { ends, tallies, .. } = &mut *self.records.borrow_mut();
        while let Some((at_ms, corrections)) = ends.pop_due(now_ms) {
            self.timeline.set_now(at_ms);
            for correction in &corrections {
                match correction {
                    Correction::Configured(check) => self.timeline.adjust(check),
                    Correction::Cleared(check) => self.timeline.clear(check),
                    Correction::Unrefused(tally, back) => tallies[*tally].tightest.adjust_charge(back, at_ms),
                }
            }
        }
    }
}
