//! Standard error for log lines: a reader that stops reading blocks no thread for long. The command line installs it;
//! the control thread reports what was lost.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Writes each line completely, or drops it if nobody reads.
pub struct BoundedStderr;

/// How long the first line waits for the reader. Later lines do not wait until it reads again.
const WRITE_TIMEOUT: Duration = Duration::from_millis(200);
/// Bytes that a writable pipe accepts without blocking (POSIX `PIPE_BUF`).
const PIECE: usize = 4096;

static STATE: Mutex<StderrState> = Mutex::new(StderrState { is_stuck: false, lost: 0 });

struct StderrState {
    is_stuck: bool,
    /// Lines lost since the last call of [`take_lost_count`].
    lost: u64,
}

impl Write for BoundedStderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // The lock is held during the write, so that no other thread fills the free space.
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        for piece in line.chunks(PIECE) {
            let timeout = if state.is_stuck { Duration::ZERO } else { WRITE_TIMEOUT };
            state.is_stuck = !is_writable(timeout);
            if state.is_stuck {
                state.lost += 1;
                break;
            }
            io::stderr().write_all(piece)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_writable(timeout: Duration) -> bool {
    let (stderr, end) = (io::stderr(), Instant::now() + timeout);
    loop {
        let timeout = Timespec::try_from(end.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], timeout.as_ref()) {
            Ok(ready) => return ready > 0,
            // A signal says nothing about the reader: a write could block forever.
            Err(Errno::INTR) => {}
            // If the system does not report readiness, the write has to find out.
            Err(_) => return true,
        }
    }
}

/// Returns the number of lines lost since the last call.
pub fn take_lost_count() -> u64 {
    std::mem::take(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner).lost)
}
