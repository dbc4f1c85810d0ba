//! The last requests that limits refused, with the arithmetic: the data of `/-/refusals`. Each worker keeps its newest
//! refusals, and writes further ones into the memory of the oldest, because a flood of refusals must stay cheap. When an
//! operator asks, the control thread collects them and keeps the newest of all workers.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::limiting::algorithm::Rule;
use crate::limiting::answer::Answer;
use crate::limiting::clock;
use crate::limiting::limit::Limit;

/// Number of refusals that are kept of all workers together, and that one worker keeps until they are collected.
const REFUSALS_MAX: usize = 4096;
/// Most bytes of text and checks that these take. An average refusal has about 250.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Text of a refusal whose memory is used again. Longer ones are rare, and would keep their size for short texts.
const REUSED_MAX: usize = 1024;
/// After this time, the wall clock is read again.
const CLOCK_EVERY: Duration = Duration::from_secs(1);

/// A refused request, to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct RefusedRequest<'a> {
    pub started: Instant,
    pub client: IpAddr,
    pub status: u16,
    pub route: &'a str,
    /// The request id, of bounded length; empty if no response shows it.
    pub id: &'a str,
}

/// A limit that refused a request, to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct RefusingLimit<'a> {
    pub limit: &'a Arc<Limit>,
    pub why: RefusalCause,
    pub override_rule: Option<&'a Arc<Rule>>,
    pub cost: Option<i64>,
    /// The state key; empty if there is none.
    pub key: &'a str,
}

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
    fn empty() -> RecordedRefusal {
        RecordedRefusal {
            at_ms: 0,
            client: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            status: 0,
            text: String::new(),
            route_len: 0,
            id_len: 0,
            checks: Vec::new(),
        }
    }

    /// Overwrites the record. What stays the same, such as the limit, is not copied again.
    fn write<'a>(&mut self, at_ms: i64, request: RefusedRequest<'_>, limits: impl Iterator<Item = RefusingLimit<'a>>) {
        let RefusedRequest { client, status, route, id, .. } = request;
        (self.at_ms, self.client, self.status) = (at_ms, client, status);
        (self.route_len, self.id_len) = (route.len(), id.len());
        self.text.clear();
        self.text.push_str(route);
        self.text.push_str(id);
        let mut count = 0;
        for RefusingLimit { limit, why, override_rule, cost, key } in limits {
            self.text.push_str(key);
            match self.checks.get_mut(count) {
                Some(check) if Arc::ptr_eq(&check.limit, limit) => {
                    (check.why, check.cost, check.key_len) = (why, cost, key.len());
                    check.override_rule = override_rule.cloned();
                }
                old => {
                    let override_rule = override_rule.cloned();
                    let new = RefusedCheck { limit: limit.clone(), why, override_rule, cost, key_len: key.len() };
                    match old {
                        Some(check) => *check = new,
                        None => self.checks.push(new),
                    }
                }
            }
            count += 1;
        }
        self.checks.truncate(count);
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
        self.refusals.push_back(refusal);
        self.drop_surplus(REFUSALS_MAX);
    }

    /// Makes the oldest refusal the newest, to be overwritten. `None` if there is capacity for another one. Until
    /// [`RefusalQueue::count_newest`], its memory is not counted.
    fn take_oldest(&mut self) -> Option<&mut RecordedRefusal> {
        if self.refusals.len() < REFUSALS_MAX {
            return None;
        }
        if self.refusals.front()?.text.capacity() > REUSED_MAX {
            self.drop_surplus(REFUSALS_MAX - 1);
            return None;
        }
        self.refusals.rotate_left(1);
        let oldest = self.refusals.back_mut()?;
        self.bytes = self.bytes.saturating_sub(oldest.memory());
        Some(oldest)
    }

    fn count_newest(&mut self) {
        self.bytes += self.refusals.back().map_or(0, RecordedRefusal::memory);
        self.drop_surplus(REFUSALS_MAX);
    }

    /// Drops the oldest refusals until there are at most `max`, of bounded size.
    fn drop_surplus(&mut self, max: usize) {
        while self.refusals.len() > max || self.bytes > BYTES_MAX {
            let Some(oldest) = self.refusals.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(oldest.memory());
        }
    }
}

/// The refusals of one worker since the last collection.
#[derive(Debug, Default)]
pub struct RefusalRecorder(Mutex<WorkerRefusals>);

#[derive(Debug, Default)]
struct WorkerRefusals {
    queue: RefusalQueue,
    /// A time, and the wall clock at that time in ms since 1970.
    clock: Option<(Instant, i64)>,
}

impl RefusalRecorder {
    /// Records a refusal. The lock is free unless the control thread takes the list at this moment.
    pub fn record<'a>(&self, request: RefusedRequest<'_>, limits: impl Iterator<Item = RefusingLimit<'a>>) {
        let mut own = lock(&self.0);
        let at_ms = own.wall_clock(request.started);
        if let Some(oldest) = own.queue.take_oldest() {
            oldest.write(at_ms, request, limits);
            own.queue.count_newest();
        } else {
            let mut refusal = RecordedRefusal::empty();
            refusal.write(at_ms, request, limits);
            own.queue.push(refusal);
        }
    }
}

impl WorkerRefusals {
    /// Returns the wall clock at `time`, in ms since 1970. Reads it once a second, because that takes as long as the rest
    /// of a record.
    fn wall_clock(&mut self, time: Instant) -> i64 {
        let since = |read: Instant| time.saturating_duration_since(read);
        match self.clock {
            Some((read, at_ms)) if since(read) < CLOCK_EVERY => {
                at_ms + i64::try_from(since(read).as_millis()).unwrap_or(0)
            }
            _ => {
                let at_ms = clock::now_ms();
                self.clock = Some((Instant::now(), at_ms));
                at_ms
            }
        }
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
        let taken = recorders.iter().map(|recorder| std::mem::take(&mut lock(&recorder.0).queue).refusals);
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

    fn refused(started: Instant, id: &str) -> RefusedRequest<'_> {
        RefusedRequest { started, client: CLIENT, status: 429, route: "api", id }
    }

    fn refusing<'a>(limit: &'a Arc<Limit>, key: &'a str) -> RefusingLimit<'a> {
        RefusingLimit { limit, why: CAUSE, override_rule: None, cost: Some(1), key }
    }

    #[test]
    fn the_newest_refusals_of_all_workers_are_kept() {
        let recorders = RefusalRecorders::default();
        let workers = [recorders.register(), recorders.register()];
        let (daily, hourly, mut log) = (limit("daily"), limit("hourly"), RefusalLog::default());
        let start = Instant::now();
        // Less than a second in all, so that the wall clock is read once.
        for n in 0..10_000_u32 {
            let (id, key) = (format!("id-{n}"), format!("sg:{{ip={n}}}:daily:gcra"));
            // Records with one and two limits, and other limits, follow each other in the same memory.
            let limits = [refusing(if n.is_multiple_of(3) { &hourly } else { &daily }, &key), refusing(&daily, "")];
            let count = 1 + usize::from(n.is_multiple_of(5));
            let request = refused(start + Duration::from_micros(90) * n, &id);
            workers[usize::try_from(n).unwrap() % 2].record(request, limits.into_iter().take(count));
        }
        log.collect(&recorders);
        log.collect(&recorders);
        let kept: Vec<&RecordedRefusal> = log.newest().collect();
        assert_eq!(kept.len(), REFUSALS_MAX);
        assert!(kept.is_sorted_by_key(|refusal| std::cmp::Reverse(refusal.at_ms)));
        for refusal in kept {
            let n: u32 = refusal.request_id().strip_prefix("id-").unwrap().parse().unwrap();
            // The order within a millisecond is open.
            assert!(n >= 10_000 - 4096 - 12, "{n}");
            assert_eq!(refusal.route(), "api");
            let first = if n.is_multiple_of(3) { "hourly" } else { "daily" };
            let key = format!("sg:{{ip={n}}}:daily:gcra");
            let mut expected = vec![(first, key.as_str())];
            expected.extend(n.is_multiple_of(5).then_some(("daily", "")));
            let checks: Vec<(&str, &str)> =
                refusal.checks().map(|(check, key)| (check.limit.name.as_str(), key)).collect();
            assert_eq!(checks, expected);
        }
        drop(workers);
        log.collect(&recorders);
        assert!(lock(&recorders.0).is_empty());
    }

    #[test]
    fn long_texts_are_bounded_by_bytes() {
        let recorders = RefusalRecorders::default();
        let (worker, limit, mut log) = (recorders.register(), limit("daily"), RefusalLog::default());
        for n in 0..3000 {
            let id = format!("{n:0>256}");
            worker.record(refused(Instant::now(), &id), std::iter::once(refusing(&limit, &"k".repeat(8000))));
            assert!(lock(&worker.0).queue.bytes <= BYTES_MAX);
        }
        log.collect(&recorders);
        let kept = log.newest().count();
        assert!((400..600).contains(&kept), "{kept}");
        // Short texts do not keep the memory of long ones.
        for n in 0..3000 {
            worker.record(refused(Instant::now(), &n.to_string()), std::iter::once(refusing(&limit, "k")));
        }
        assert!(lock(&worker.0).queue.bytes < 3000 * 1024);
    }

    #[test]
    fn a_step_of_the_wall_clock_is_noticed_after_a_second() {
        let (mut own, now) = (WorkerRefusals { clock: None, ..WorkerRefusals::default() }, Instant::now());
        let first = own.wall_clock(now);
        assert!((first - clock::now_ms()).abs() < 1000);
        own.clock = Some((now, first - 3_600_000));
        assert_eq!(own.wall_clock(now + Duration::from_millis(700)), first - 3_600_000 + 700);
        assert!((own.wall_clock(now + CLOCK_EVERY) - clock::now_ms()).abs() < 1000);
    }
}
