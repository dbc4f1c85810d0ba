//! The last requests that limits refused, with the arithmetic: the data of `/-/refusals`. Each worker records its
//! refusals; the control thread collects them and keeps the newest of all workers.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limiting::algorithm::Rule;
use crate::limiting::answer::Answer;
use crate::limiting::limit::Limit;

/// Number of refusals that are kept of all workers together, and that one worker keeps until they are collected.
const REFUSALS_MAX: usize = 4096;
/// Most bytes of text and checks that these take. An average refusal has about 250.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// A request that a limit refused.
#[derive(Debug)]
pub struct RecordedRefusal {
    /// Wall clock, in ms since 1970.
    pub at_ms: i64,
    pub client: IpAddr,
    pub status: u16,
    /// The name of the route, then the request id, then the state keys of the checks.
    text: String,
    route_len: usize,
    id_len: usize,
    /// The limits that refuse. Those in shadow mode come last.
    checks: Vec<RefusedCheck>,
}

/// A limit that refused a request.
#[derive(Debug)]
pub struct RefusedCheck {
    pub limit: Arc<Limit>,
    pub why: RefusalCause,
    /// The rule of the key's override; `None` if the limit's own rule applied.
    pub override_rule: Option<Arc<Rule>>,
    /// `None` if the limit refused without computing it.
    pub cost: Option<i64>,
    /// Length of the state key in the text of the refusal; 0 if the request has no key.
    key_len: usize,
}

/// Why a limit refused a request.
#[derive(Clone, Copy, Debug)]
pub struct RefusalCause {
    /// The `reason` label of rejections.
    pub reason: &'static str,
    /// The arithmetic, if there was any.
    pub answer: Option<Answer>,
    /// This gateway decided in place of an unavailable store.
    pub is_local: bool,
    /// An override blocks the key.
    pub is_blocked: bool,
}

impl RecordedRefusal {
    /// Describes a refused request without its checks. `id`: the request id, of bounded length.
    pub fn new(at_ms: i64, client: IpAddr, status: u16, route: &str, id: &str) -> RecordedRefusal {
        let mut text = String::with_capacity(route.len() + id.len() + 96);
        text.push_str(route);
        text.push_str(id);
        RecordedRefusal { at_ms, client, status, text, route_len: route.len(), id_len: id.len(), checks: Vec::new() }
    }

    /// Adds a limit that refused. `key`: the state key, empty if there is none.
    pub fn add_check(
        &mut self,
        limit: Arc<Limit>,
        why: RefusalCause,
        override_rule: Option<Arc<Rule>>,
        (key, cost): (&str, Option<i64>),
    ) {
        self.text.push_str(key);
        self.checks.push(RefusedCheck { limit, why, override_rule, cost, key_len: key.len() });
    }

    pub fn route(&self) -> &str {
        self.text.get(..self.route_len).unwrap_or_default()
    }

    /// Returns the request id; empty if it cannot be shown.
    pub fn request_id(&self) -> &str {
        self.text.get(self.route_len..self.route_len + self.id_len).unwrap_or_default()
    }

    /// Returns the limits that refused, with their state keys.
    pub fn checks(&self) -> impl Iterator<Item = (&RefusedCheck, &str)> {
        self.checks.iter().scan(self.route_len + self.id_len, |start, check| {
            let key = self.text.get(*start..*start + check.key_len).unwrap_or_default();
            *start += check.key_len;
            Some((check, key))
        })
    }

    fn memory(&self) -> usize {
        size_of::<RecordedRefusal>() + self.text.capacity() + self.checks.capacity() * size_of::<RefusedCheck>()
    }
}

/// Refusals, the oldest first, of bounded number and size.
#[derive(Debug, Default)]
struct RefusalQueue {
    refusals: VecDeque<RecordedRefusal>,
    bytes: usize,
}

impl RefusalQueue {
    fn push(&mut self, refusal: RecordedRefusal) {
        self.bytes += refusal.memory();
        while self.refusals.len() >= REFUSALS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.refusals.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(oldest.memory());
        }
        self.refusals.push_back(refusal);
    }
}

/// The refusals of one worker since the last collection.
#[derive(Debug, Default)]
pub struct RefusalRecorder(Mutex<RefusalQueue>);

impl RefusalRecorder {
    /// Records a refusal. The lock is free unless the control thread takes the list at this moment.
    pub fn record(&self, refusal: RecordedRefusal) {
        lock(&self.0).push(refusal);
    }
}

/// The recorders of all workers.
#[derive(Clone, Debug, Default)]
pub struct RefusalRecorders(Arc<Mutex<Vec<Arc<RefusalRecorder>>>>);

impl RefusalRecorders {
    /// Creates the recorder of a worker. It is forgotten once the worker has dropped it and its records are collected.
    pub fn register(&self) -> Arc<RefusalRecorder> {
        let recorder = Arc::new(RefusalRecorder::default());
        lock(&self.0).push(recorder.clone());
        recorder
    }
}

/// The last refusals of all workers. Owned by the control thread.
#[derive(Default)]
pub struct RefusalLog(RefusalQueue);

impl RefusalLog {
    /// Takes what all workers recorded.
    pub fn collect(&mut self, recorders: &RefusalRecorders) {
        let mut recorders = lock(&recorders.0);
        let taken = recorders.iter().map(|recorder| std::mem::take(&mut *lock(&recorder.0)).refusals);
        let mut new: Vec<RecordedRefusal> = taken.flatten().collect();
        recorders.retain(|recorder| Arc::strong_count(recorder) > 1);
        new.sort_by_key(|refusal| refusal.at_ms);
        new.into_iter().for_each(|refusal| self.0.push(refusal));
    }

    /// Returns the refusals, the newest first.
    pub fn newest(&self) -> impl Iterator<Item = &RecordedRefusal> {
        self.0.refusals.iter().rev()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::limiting::algorithm::SPECS;
    use crate::limiting::algorithm::params::{OptionValues, ParamValue, Rate};
    use crate::limiting::limit::Mode;

    const CAUSE: RefusalCause = RefusalCause { reason: "blocked", answer: None, is_local: false, is_blocked: true };
    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn limit(name: &str) -> Arc<Limit> {
        let rate = ParamValue::Rate(Rate { count: 1, per_ms: 1000 });
        let values = SPECS[0].params().map(|param| (param.name, (param.name == "rate").then(|| rate.clone())));
        let rule = (SPECS[0].build)(&OptionValues::new(values.collect(), false)).unwrap();
        Limit::bare(name, rule, Mode::Enforce)
    }

    #[test]
    fn the_newest_refusals_of_all_workers_are_kept() {
        let recorders = RefusalRecorders::default();
        let workers = [recorders.register(), recorders.register()];
        let (limit, mut log) = (limit("daily"), RefusalLog::default());
        for at_ms in 0..10_000 {
            let mut refusal = RecordedRefusal::new(at_ms, CLIENT, 429, "api", &format!("id-{at_ms}"));
            let key = format!("sg:{{ip={at_ms}}}:daily:gcra");
            refusal.add_check(limit.clone(), CAUSE, None, (&key, Some(1)));
            refusal.add_check(limit.clone(), CAUSE, None, ("", None));
            workers[usize::try_from(at_ms).unwrap() % 2].record(refusal);
        }
        log.collect(&recorders);
        log.collect(&recorders);
        let kept: Vec<&RecordedRefusal> = log.newest().collect();
        assert_eq!(kept.len(), REFUSALS_MAX);
        for (place, refusal) in (0..).zip(&kept) {
            assert_eq!(refusal.at_ms, 9999 - place);
            assert_eq!((refusal.route(), refusal.request_id()), ("api", &*format!("id-{}", refusal.at_ms)));
            let keys: Vec<String> = refusal.checks().map(|(_, key)| key.to_owned()).collect();
            assert_eq!(keys, [format!("sg:{{ip={}}}:daily:gcra", refusal.at_ms), String::new()]);
        }
        drop(workers);
        log.collect(&recorders);
        assert!(lock(&recorders.0).is_empty());
    }

    #[test]
    fn long_texts_are_bounded_by_bytes() {
        let recorders = RefusalRecorders::default();
        let (worker, limit, mut log) = (recorders.register(), limit("daily"), RefusalLog::default());
        for at_ms in 0..3000 {
            let mut refusal = RecordedRefusal::new(at_ms, CLIENT, 429, "api", &"i".repeat(256));
            refusal.add_check(limit.clone(), CAUSE, None, (&"k".repeat(8000), Some(1)));
            worker.record(refusal);
            assert!(lock(&worker.0).bytes <= BYTES_MAX);
        }
        log.collect(&recorders);
        let kept = log.newest().count();
        assert!((400..600).contains(&kept), "{kept}");
        assert_eq!(log.newest().next().unwrap().at_ms, 2999);
    }
}
