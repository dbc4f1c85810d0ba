//! What else the machine does: it makes things late that are not late by themselves. For tests that bound
//! a time from above.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Does something until it took no longer than `most`, three times at most: what is slow by itself is slow
/// each time, what the machine delays is not.
#[track_caller]
pub fn within<T>(most: Duration, what: &str, mut attempt: impl FnMut() -> T) -> T {
    let mut took = Vec::new();
    for _ in 0..3 {
        let since = Instant::now();
        let done = attempt();
        took.push(since.elapsed());
        if since.elapsed() <= most {
            return done;
        }
    }
    panic!("{what}: {took:?}, each longer than {most:?}");
}

/// How long this thread, or the first thread of a process, was kept from running while it could have.
pub fn kept_waiting(process: Option<u32>) -> Duration {
    counted(process, 1)
}

/// How long this thread has been on a processor.
pub fn spent() -> Duration {
    counted(None, 0)
}

/// Time on a processor, time in wait for one; a kernel that does not count has none of it.
fn counted(process: Option<u32>, place: usize) -> Duration {
    let whose = process.map_or("thread-self".to_owned(), |process| process.to_string());
    let counted = std::fs::read_to_string(format!("/proc/{whose}/schedstat")).unwrap_or_default();
    Duration::from_nanos(counted.split(' ').nth(place).and_then(|time| time.parse().ok()).unwrap_or_default())
}

/// How long something takes, and how late the machine was meanwhile.
pub struct Stopwatch {
    since: Instant,
    lateness: Lateness,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch { lateness: Lateness::watch(), since: Instant::now() }
    }

    /// In ms; beyond the end by no more than the machine's own lateness.
    #[track_caller]
    pub fn assert_ms(&self, expected: Range<u64>) {
        let (took, own) = (self.since.elapsed(), self.lateness.allowance());
        let [least, most] = [expected.start, expected.end].map(Duration::from_millis);
        assert!(took >= least && took < most + own, "{took:?} for {expected:?} ms, on a machine late by {own:?}");
    }
}

/// Measures on a thread of its own how late this machine wakes who sleeps.
pub struct Lateness {
    worst_us: Arc<AtomicU64>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lateness {
    pub fn watch() -> Lateness {
        const NAP: Duration = Duration::from_millis(1);
        let (worst_us, stopped) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (worst, stop) = (worst_us.clone(), stopped.clone());
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let since = Instant::now();
                std::thread::sleep(NAP);
                let late = since.elapsed().saturating_sub(NAP);
                worst.fetch_max(u64::try_from(late.as_micros()).unwrap(), Ordering::Relaxed);
            }
        });
        Lateness { worst_us, stopped, thread: Some(thread) }
    }

    /// What a bound may be exceeded by: a request and its answer wait for the machine four times, here and at
    /// the server.
    pub fn allowance(&self) -> Duration {
        4 * Duration::from_micros(self.worst_us.load(Ordering::Relaxed))
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
