//! Progress of a replay, on one line of standard error that is overwritten. Called by the replay.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::replay::input::source::LogSources;
use crate::replay::report::ticks::group_digits;

pub struct ReplayProgress {
    shown: bool,
    started: Instant,
    last: Instant,
    steps: u64,
}

const EVERY: Duration = Duration::from_millis(200);
/// Number of lines between two checks of the clock.
const STRIDE: u64 = 4096;
const WIDTH: u64 = 20;

impl ReplayProgress {
    pub fn new(shown: bool) -> ReplayProgress {
        ReplayProgress { shown, started: Instant::now(), last: Instant::now(), steps: 0 }
    }

    pub fn count_line(&mut self, sources: &LogSources) {
        self.steps += 1;
        if !self.shown || !self.steps.is_multiple_of(STRIDE) || self.last.elapsed() < EVERY {
            return;
        }
        self.last = Instant::now();
        let lines = sources.count_lines();
        let elapsed_ms = self.started.elapsed().as_millis().max(1);
        let rate = u64::try_from(u128::from(lines) * 1000 / elapsed_ms).unwrap_or(0);
        let (mut bar, mut left) = (String::new(), String::new());
        // Standard input has no known length.
        let (read, total) = (sources.read.get().min(sources.total), sources.total);
        if let Some(share) = (read * 100).checked_div(total) {
            let full = share * WIDTH / 100;
            bar = (0..WIDTH).map(|place| if place < full { '#' } else { '.' }).collect();
            bar = format!("[{bar}] {share:3} % ");
            let left_ms = elapsed_ms * u128::from(total - read) / u128::from(read.max(1));
            left = format!(", {} s left", left_ms.div_ceil(1000));
        }
        let _ = write!(
            std::io::stderr(),
            "\r{bar}{} lines, {} lines/s{left}\x1b[K",
            group_digits(lines),
            group_digits(rate)
        );
    }

    pub fn finish_line(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
