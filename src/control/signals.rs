//! Signals that end the process, received on their own thread, so that a second signal ends the process even if the
//! control thread is busy. Used by the control loop.

use std::io;
use std::process::exit;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// TERM and INT for the control loop.
pub struct StopSignals {
    received: watch::Receiver<u32>,
    /// Number of signals that the control loop has handled.
    seen: u32,
}

/// Time that the control thread has to end the process in order after the second signal.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Exit status of a process whose requests were cut.
const CUT_STATUS: i32 = 1;

impl StopSignals {
    /// Starts to receive the signals. SIGPIPE is not among them, because Rust programs ignore it from the start.
    ///
    /// # Errors
    /// If the system refuses the handler or the thread.
    pub fn start_receiving() -> io::Result<StopSignals> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let [term, int] = {
            let _inside = runtime.enter();
            [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?]
        };
        let (sender, received) = watch::channel(0);
        let forward = move || runtime.block_on(forward_signals(term, int, sender));
        std::thread::Builder::new().name("signals".to_owned()).spawn(forward)?;
        Ok(StopSignals { received, seen: 0 })
    }

    /// Waits for the next signal.
    pub async fn next_signal(&mut self) {
        let last = self.seen;
        if self.received.wait_for(|count| *count > last).await.is_ok() {
            self.seen += 1;
        }
    }
}

async fn forward_signals(mut term: Signal, mut int: Signal, sender: watch::Sender<u32>) {
    for count in 1.. {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        sender.send_replace(count);
        if count > 1 {
            tokio::time::sleep(EXIT_TIMEOUT).await;
            exit(CUT_STATUS);
        }
    }
}
