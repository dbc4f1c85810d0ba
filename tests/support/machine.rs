//! The influence of the machine on measured times: it delays what is not slow by itself. For tests that bound a time
//! from above.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Repeats `attempt` until it takes at most `most`, three times at most: the machine delays some attempts, slow code
/// all of them.
#[track_caller]
pub fn retry_within<T>(most: Duration, what: &str, mut attempt: impl FnMut() -> T) -> T {
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

/// How long this thread, or the first thread of a process, was ready to run but did not run.
pub fn scheduling_delay(process: Option<u32>) -> Duration {
    counted(process, 1)
}

/// The CPU time of this thread.
pub fn cpu_time() -> Duration {
    counted(None, 0)
}

/// Time on a CPU, and time waiting for one. Zero if the kernel does not count them.
fn counted(process: Option<u32>, place: usize) -> Duration {
    let whose = process.map_or("thread-self".to_owned(), |process| process.to_string());
    let counted = std::fs::read_to_string(format!("/proc/{whose}/schedstat")).unwrap_or_default();
    Duration::from_nanos(counted.split(' ').nth(place).and_then(|time| time.parse().ok()).unwrap_or_default())
}

/// Measures how long something takes, and how late the machine was meanwhile.
pub struct Stopwatch {
    since: Instant,
    lateness: Lateness,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch { lateness: Lateness::watch(), since: Instant::now() }
    }

    /// Checks the elapsed milliseconds. The end may be exceeded by the lateness of the machine.
    #[track_caller]
    pub fn assert_ms(&self, expected: Range<u64>) {
        let (took, own) = (self.since.elapsed(), self.lateness.allowance());
        let [least, most] = [expected.start, expected.end].map(Duration::from_millis);
        assert!(took >= least && took < most + own, "{took:?} for {expected:?} ms, on a machine late by {own:?}");
    }

    /// The elapsed time without that in which the machine kept a thread waiting. For something that several processes
    /// do step by step.
    pub fn elapsed_without_delay(&self) -> Duration {
        self.since.elapsed().saturating_sub(self.lateness.sum())
    }
}

/// Measures in a thread of its own how late this machine wakes threads.
pub struct Lateness {
    worst_us: Arc<AtomicU64>,
    sum_us: Arc<AtomicU64>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lateness {
    pub fn watch() -> Lateness {
        const NAP: Duration = Duration::from_millis(1);
        let [worst_us, sum_us] = [(); 2].map(|()| Arc::<AtomicU64>::default());
        let stopped = Arc::<AtomicBool>::default();
        let (worst, sum, stop) = (worst_us.clone(), sum_us.clone(), stopped.clone());
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let since = Instant::now();
                std::thread::sleep(NAP);
                let late = u64::try_from(since.elapsed().saturating_sub(NAP).as_micros()).unwrap();
                worst.fetch_max(late, Ordering::Relaxed);
                sum.fetch_add(late, Ordering::Relaxed);
            }
        });
        Lateness { worst_us, sum_us, stopped, thread: Some(thread) }
    }

    /// Returns how much an upper bound may be exceeded on a busy machine: a request and its response wait for the CPU
    /// four times, here and at the server.
    pub fn allowance(&self) -> Duration {
        4 * Duration::from_micros(self.worst_us.load(Ordering::Relaxed))
    }

    /// How long the machine kept this thread waiting in all.
    fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us.load(Ordering::Relaxed))
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
