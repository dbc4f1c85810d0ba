//! The signals that end the process, received on a thread of their own: whatever the control thread does meanwhile, a
//! second signal ends the process. Used by the control loop.

use std::io;
use std::process::exit;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// TERM and INT as the control loop sees them.
pub struct Stop {
    received: watch::Receiver<u32>,
    /// Signals that the control loop has acted upon.
    seen: u32,
}

/// How long the control thread may take to end the process in good order after the second signal.
const GRACE: Duration = Duration::from_secs(2);
/// The exit status of a process whose requests were cut.
const CUT: i32 = 1;

impl Stop {
    /// Starts to receive the signals. SIGPIPE is not among them: Rust programs ignore it from the start.
    ///
    /// # Errors
    /// The system refuses the handler or the thread.
    pub fn listen() -> io::Result<Stop> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let [term, int] = {
            let _inside = runtime.enter();
            [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?]
        };
        let (sender, received) = watch::channel(0);
        let forward = move || runtime.block_on(forward(term, int, sender));
        std::thread::Builder::new().name("signals".to_owned()).spawn(forward)?;
        Ok(Stop { received, seen: 0 })
    }

    /// Waits for the next signal.
    pub async fn wait(&mut self) {
        let seen = self.seen;
        if self.received.wait_for(|count| *count > seen).await.is_ok() {
            self.seen += 1;
        }
    }
}

async fn forward(mut term: Signal, mut int: Signal, sender: watch::Sender<u32>) {
    for count in 1.. {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        sender.send_replace(count);
        if count > 1 {
            tokio::time::sleep(GRACE).await;
            exit(CUT);
        }
    }
}
