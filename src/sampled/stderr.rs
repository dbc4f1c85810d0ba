//! Standard error as the log writes to it: whoever does not read it stops no thread for long. Used by the command line;
//! what was lost is reported by the control thread.

use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Writes each line whole, or not at all where nobody reads.
pub struct BoundedStderr;

/// How long the first line waits for a reader. Those after it do not wait until there is one again.
const PATIENCE: Duration = Duration::from_millis(200);
/// What a pipe takes without waiting once it is writable (POSIX: `PIPE_BUF`).
const PIECE: usize = 4096;

static STATE: Mutex<StderrState> = Mutex::new(StderrState { is_stuck: false, lost: 0 });

struct StderrState {
    is_stuck: bool,
    /// Lines since the last call of [`lost`].
    lost: u64,
}

impl Write for BoundedStderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Held while it writes, so that nobody else fills what was found free.
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        for piece in line.chunks(PIECE) {
            let patience = if state.is_stuck { Duration::ZERO } else { PATIENCE };
            state.is_stuck = !is_writable(patience);
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

fn is_writable(patience: Duration) -> bool {
    let stderr = io::stderr();
    let timeout = Timespec::try_from(patience).ok();
    let ready = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], timeout.as_ref());
    // Where the system does not tell, the write has to.
    ready != Ok(0)
}

/// How many lines were lost since the last call.
pub fn lost() -> u64 {
    std::mem::take(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner).lost)
}
