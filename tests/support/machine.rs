//! Separates delays caused by a busy machine from those of the tested code, for tests that assert an upper bound of a
//! time.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Runs `attempt` until it takes at most `most`, and panics if three attempts take longer. A busy machine delays some
/// attempts; slow code delays all of them.
#[track_caller]
pub fn retry_within<T>(most: Duration, what: &str, mut attempt: impl FnMut() -> T) -> T {
    let mut durations = Vec::new();
    for _ in 0..3 {
        let since = Instant::now();
        let done = attempt();
        durations.push(since.elapsed());
        if since.elapsed() <= most {
            return done;
        }
    }
    panic!("{what}: took {durations:?}, each more than {most:?}");
}

/// Returns how long this thread, or the first thread of a process, was ready to run but did not run.
pub fn scheduling_delay(process: Option<u32>) -> Duration {
    read_schedstat(process, 1)
}

/// Returns the CPU time of a process, with all its threads, in steps of 10 ms.
pub fn process_cpu_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // What follows the name, which may contain spaces: the state is field 3 of the line, the times are fields 14 and 15.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks: u64 = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

/// Returns the CPU time of this thread.
pub fn cpu_time() -> Duration {
    read_schedstat(None, 0)
}

/// Reads a column of `/proc/PID/schedstat`: 0 is the time on a CPU, 1 the time waiting for one. Returns zero if the
/// kernel does not count them.
fn read_schedstat(process: Option<u32>, column: usize) -> Duration {
    let directory = process.map_or("thread-self".to_owned(), |process| process.to_string());
    let line = std::fs::read_to_string(format!("/proc/{directory}/schedstat")).unwrap_or_default();
    Duration::from_nanos(line.split(' ').nth(column).and_then(|time| time.parse().ok()).unwrap_or_default())
}

/// Measures a time, and how late the machine woke threads during it.
pub struct Stopwatch {
    since: Instant,
    lateness: Lateness,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch { lateness: Lateness::watch(), since: Instant::now() }
    }

    /// Asserts that the elapsed milliseconds are in `expected`, whose end is extended by the lateness of the machine.
    #[track_caller]
    pub fn assert_ms(&self, expected: Range<u64>) {
        let (took, allowance) = (self.since.elapsed(), self.lateness.allowance());
        let [least, most] = [expected.start, expected.end].map(Duration::from_millis);
        assert!(
            took >= least && took < most + allowance,
            "took {took:?}, expected {expected:?} ms; the machine was late by {allowance:?}"
        );
    }

    /// Returns the elapsed time without the delays by the machine. For operations in which several processes take
    /// turns.
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

    /// Returns the sum of all delays.
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
