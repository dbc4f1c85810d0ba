//! The last requests that limits refused, with the arithmetic: the data of `/-/refusals`. A flood of refusals must stay
//! cheap, so each worker appends to blocks of memory that it uses again and again. When an operator asks, the control
//! thread collects the blocks and keeps the newest refusals of all workers.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::limiting::algorithm::Rule;
use crate::limiting::answer::Answer;
use crate::limiting::clock;
use crate::limiting::limit::Limit;

/// Number of refusals that are kept of all workers together, and that one worker keeps at least until they are
/// collected.
const REFUSALS_MAX: usize = 4096;
/// Maximum number of bytes that these take. An average refusal has about 250.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Number of refusals in a block.
const BLOCK_REFUSALS: usize = 256;
/// Blocks of a worker: those with the newest refusals, and one that is being filled.
const BLOCKS_MAX: usize = REFUSALS_MAX / BLOCK_REFUSALS + 1;
/// A block with this many bytes of text, or this many checks, is full. Its buffers double, so they have at most twice
/// as much, and the blocks of a worker take at most [`BYTES_MAX`].
const BLOCK_TEXT: usize = 64 * 1024;
const BLOCK_CHECKS: usize = 2 * BLOCK_REFUSALS;
/// Text of an average refusal: its route, its request id and a key.
const TEXT_TYPICAL: usize = 128;
/// A limit is looked up among this many of its block. Others are listed again.
const LIMITS_COMPARED: usize = 4;

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
    pub route: Box<str>,
    /// The request id; empty if it cannot be shown.
    pub request_id: Box<str>,
    /// The limits that refuse. Those in shadow mode come last.
    pub checks: Box<[RefusedCheck]>,
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
    /// The state key; empty if there is none.
    pub key: Box<str>,
}

/// Why a limit refused a request.
#[derive(Clone, Copy, Debug)]
pub struct RefusalCause {
    /// The `reason` label of rejections.
    pub reason: &'static str,
    /// The arithmetic, if there was any.
    pub answer: Option<Answer>,
    /// True if this gateway decided instead of an unavailable store.
    pub is_local: bool,
    /// An override blocks the key.
    pub is_blocked: bool,
}

impl RecordedRefusal {
    fn memory(&self) -> usize {
        let keys: usize = self.checks.iter().map(|check| check.key.len()).sum();
        size_of::<RecordedRefusal>() + self.route.len() + self.request_id.len() + keys + size_of_val(&*self.checks)
    }
}

/// Refusals of a worker in the order of their time. What belongs to one follows what belongs to the one before it, so
/// that a record is written to few cache lines, and without allocations once the block has its size.
#[derive(Debug, Default)]
struct RefusalBlock {
    refusals: Vec<BlockRefusal>,
    checks: Vec<BlockCheck>,
    /// The texts of all refusals. Each has the name of the route, then the request id, then the state keys of its
    /// checks.
    text: String,
    /// The limits of `checks`. A limit may occur several times.
    limits: Vec<Arc<Limit>>,
}

#[derive(Debug)]
struct BlockRefusal {
    /// A monotonic time, because computing the wall clock takes longer than the rest of the record.
    started: Instant,
    client: IpAddr,
    status: u16,
    /// Starts of the parts of `text`.
    route: u32,
    id: u32,
    keys: u32,
    /// Index of the first check. The last one is before the first of the next refusal.
    checks: u32,
}

#[derive(Debug)]
struct BlockCheck {
    why: RefusalCause,
    override_rule: Option<Arc<Rule>>,
    cost: Option<i64>,
    /// Index among the limits of the block.
    limit: u32,
    key_len: u32,
}

impl RefusalBlock {
    /// Creates a block with memory for refusals of average length.
    fn with_typical_size() -> RefusalBlock {
        RefusalBlock {
            refusals: Vec::with_capacity(BLOCK_REFUSALS),
            checks: Vec::with_capacity(BLOCK_REFUSALS),
            text: String::with_capacity(BLOCK_REFUSALS * TEXT_TYPICAL),
            limits: Vec::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.refusals.len() >= BLOCK_REFUSALS || self.checks.len() >= BLOCK_CHECKS || self.text.len() >= BLOCK_TEXT
    }

    /// Empties the block, and keeps its memory.
    fn clear(&mut self) {
        self.refusals.clear();
        self.checks.clear();
        self.text.clear();
        self.limits.clear();
    }

    fn append<'a>(&mut self, request: RefusedRequest<'_>, limits: impl Iterator<Item = RefusingLimit<'a>>) {
        let RefusedRequest { started, client, status, route, id } = request;
        let (start, checks) = (self.text.len(), to_u32(self.checks.len()));
        self.text.push_str(route);
        self.text.push_str(id);
        for RefusingLimit { limit, why, override_rule, cost, key } in limits {
            self.text.push_str(key);
            let (limit, key_len) = (self.find_or_add_limit(limit), to_u32(key.len()));
            self.checks.push(BlockCheck { why, override_rule: override_rule.cloned(), cost, limit, key_len });
        }
        let (route, id, keys) = (start, start + route.len(), start + route.len() + id.len());
        let [route, id, keys] = [route, id, keys].map(to_u32);
        self.refusals.push(BlockRefusal { started, client, status, route, id, keys, checks });
    }

    /// Returns the index of a limit, and lists it if need be. A block rarely has more than a few limits, and cloning a
    /// pointer that all workers share would take longer than the rest of the record.
    fn find_or_add_limit(&mut self, limit: &Arc<Limit>) -> u32 {
        let place = self.limits.iter().rev().take(LIMITS_COMPARED).position(|place| Arc::ptr_eq(place, limit));
        if place.is_none() {
            self.limits.push(limit.clone());
        }
        to_u32(self.limits.len() - 1 - place.unwrap_or(0))
    }

    /// Copies the refusal with this index. `wall`: the wall clock in ms since 1970, and the same time as an instant.
    fn copy_refusal(&self, index: usize, wall: (i64, Instant)) -> Option<RecordedRefusal> {
        let refusal = self.refusals.get(index)?;
        let text = |from: u32, to: u32| self.text.get(from as usize..to as usize).unwrap_or_default();
        let end = self.refusals.get(index + 1).map_or(self.checks.len(), |next| next.checks as usize);
        let checks = self.checks.get(refusal.checks as usize..end)?.iter().scan(refusal.keys, |start, check| {
            let key = text(*start, *start + check.key_len);
            *start += check.key_len;
            Some(self.copy_check(check, key))
        });
        Some(RecordedRefusal {
            at_ms: wall.0 - i64::try_from(wall.1.saturating_duration_since(refusal.started).as_millis()).unwrap_or(0),
            client: refusal.client,
            status: refusal.status,
            route: text(refusal.route, refusal.id).into(),
            request_id: text(refusal.id, refusal.keys).into(),
            checks: checks.collect::<Option<_>>()?,
        })
    }

    fn copy_check(&self, check: &BlockCheck, key: &str) -> Option<RefusedCheck> {
        let BlockCheck { why, cost, .. } = *check;
        let limit = self.limits.get(check.limit as usize)?.clone();
        Some(RefusedCheck { limit, why, override_rule: check.override_rule.clone(), cost, key: key.into() })
    }
}

/// Returns an index or a length within a block, which is far below 2^32.
fn to_u32(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

/// The refusals of one worker since the last collection: the block that is being filled, and before it the earlier
/// ones, the oldest first.
#[derive(Debug, Default)]
pub struct RefusalRecorder(Mutex<VecDeque<RefusalBlock>>);

impl RefusalRecorder {
    /// Records a refusal. The lock is free unless the control thread takes the blocks at this moment.
    pub fn record<'a>(&self, request: RefusedRequest<'_>, limits: impl Iterator<Item = RefusingLimit<'a>>) {
        let mut blocks = lock(&self.0);
        match blocks.back_mut().filter(|block| !block.is_full()) {
            Some(block) => block.append(request, limits),
            None => add_block(&mut blocks).append(request, limits),
        }
    }
}

/// Adds a block to be filled. At the maximum number of blocks, empties the oldest one and uses it again.
fn add_block(blocks: &mut VecDeque<RefusalBlock>) -> &mut RefusalBlock {
    let oldest = if blocks.len() < BLOCKS_MAX { None } else { blocks.pop_front() };
    let mut block = oldest.unwrap_or_else(RefusalBlock::with_typical_size);
    block.clear();
    blocks.push_back_mut(block)
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
#[derive(Debug, Default)]
pub struct RefusalLog {
    /// The oldest first.
    refusals: VecDeque<RecordedRefusal>,
    bytes: usize,
}

impl RefusalLog {
    /// Takes what all workers recorded.
    pub fn collect(&mut self, recorders: &RefusalRecorders) {
        let mut recorders = lock(&recorders.0);
        let batches = recorders.iter().map(|recorder| std::mem::take(&mut *lock(&recorder.0)));
        let blocks: Vec<RefusalBlock> = batches.flatten().collect();
        recorders.retain(|recorder| Arc::strong_count(recorder) > 1);
        // Copies only those that are kept: many workers may have recorded many times as much.
        let mut newest: Vec<(Instant, &RefusalBlock, usize)> = Vec::new();
        for block in &blocks {
            newest.extend(block.refusals.iter().enumerate().map(|(index, refusal)| (refusal.started, block, index)));
        }
        newest.sort_by_key(|(started, ..)| *started);
        let surplus = newest.len().saturating_sub(REFUSALS_MAX);
        let wall = (clock::now_ms(), Instant::now());
        let copies = newest.into_iter().skip(surplus).filter_map(|(_, block, index)| block.copy_refusal(index, wall));
        copies.for_each(|refusal| self.push(refusal));
    }

    /// Returns the refusals, the newest first.
    pub fn newest(&self) -> impl Iterator<Item = &RecordedRefusal> {
        self.refusals.iter().rev()
    }

    fn push(&mut self, refusal: RecordedRefusal) {
        self.bytes += refusal.memory();
        self.refusals.push_back(refusal);
        while self.refusals.len() > REFUSALS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.refusals.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(oldest.memory());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;
    use crate::limiting::algorithm::SPECS;
    use crate::limiting::algorithm::params::{OptionValues, ParamValue, Rate};
    use crate::limiting::limit::Mode;

    const CAUSE: RefusalCause = RefusalCause { reason: "blocked", answer: None, is_local: false, is_blocked: true };
    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn limit_named(name: &str) -> Arc<Limit> {
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
        let (daily, hourly, mut log) = (limit_named("daily"), limit_named("hourly"), RefusalLog::default());
        let start = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
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
        let ago = clock::now_ms() - kept[0].at_ms;
        assert!((100..30_000).contains(&ago), "the last one was a tenth of a second before the end: {ago}");
        for refusal in kept {
            let n: u32 = refusal.request_id.strip_prefix("id-").unwrap().parse().unwrap();
            assert!(n >= 10_000 - 4096, "{n}");
            assert_eq!(&*refusal.route, "api");
            let first = if n.is_multiple_of(3) { "hourly" } else { "daily" };
            let key = format!("sg:{{ip={n}}}:daily:gcra");
            let mut expected = vec![(first, key.as_str())];
            expected.extend(n.is_multiple_of(5).then_some(("daily", "")));
            let checks: Vec<(&str, &str)> =
                refusal.checks.iter().map(|check| (check.limit.name.as_str(), &*check.key)).collect();
            assert_eq!(checks, expected);
        }
        drop(workers);
        log.collect(&recorders);
        assert!(lock(&recorders.0).is_empty());
    }

    #[test]
    fn memory_is_bounded_and_used_again() {
        let recorders = RefusalRecorders::default();
        let (worker, limit, mut log) = (recorders.register(), limit_named("daily"), RefusalLog::default());
        for n in 0..3000 {
            let id = format!("{n:0>256}");
            worker.record(refused(Instant::now(), &id), std::iter::once(refusing(&limit, &"k".repeat(8000))));
            assert!(memory_of(&worker) <= BYTES_MAX);
        }
        log.collect(&recorders);
        let kept = log.newest().count();
        assert!((130..160).contains(&kept), "{kept}");
        assert_eq!(memory_of(&worker), 0);
        // Many limits in a record, each of them another.
        let limits: Vec<Arc<Limit>> = (0..100).map(|n| limit_named(&n.to_string())).collect();
        for _ in 0..1000 {
            worker.record(refused(Instant::now(), "id"), limits.iter().map(|limit| refusing(limit, "k")));
            assert!(memory_of(&worker) <= BYTES_MAX);
        }
        // Usual records: memory of a constant size.
        let (mut sizes, id) = (Vec::new(), "0123456789abcdef0123456789abcdef");
        for n in 0..20_000 {
            worker
                .record(refused(Instant::now(), id), std::iter::once(refusing(&limit, "sg:{ip=192.0.2.1}:daily:gcra")));
            if n >= 10_000 {
                sizes.push(memory_of(&worker));
            }
        }
        assert!(sizes.iter().all(|size| *size == sizes[0]), "{} to {:?}", sizes[0], sizes.last());
    }

    fn memory_of(worker: &RefusalRecorder) -> usize {
        let size = |block: &RefusalBlock| {
            let RefusalBlock { refusals, checks, text, limits } = block;
            let lists = refusals.capacity() * size_of::<BlockRefusal>() + checks.capacity() * size_of::<BlockCheck>();
            lists + text.capacity() + limits.capacity() * size_of::<Arc<Limit>>()
        };
        lock(&worker.0).iter().map(size).sum()
    }
}
