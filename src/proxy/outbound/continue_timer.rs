//! How long a held request body waits for `100 Continue`. Used by the exchanges of HTTP/1.1 and HTTP/2.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// How long the gateway waits for `100 Continue`. Some servers never send it. Clients wait for about as long.
const CONTINUE_WAIT: Duration = Duration::from_secs(1);

/// The timer of a held body. Other requests have no timer.
pub struct ContinueTimer(Option<Pin<Box<Sleep>>>);

impl ContinueTimer {
    pub fn new(held: bool) -> ContinueTimer {
        ContinueTimer(held.then(|| Box::pin(sleep(CONTINUE_WAIT))))
    }

    /// Returns true once when the time is over.
    pub fn poll_expired(&mut self, cx: &mut Context<'_>) -> bool {
        let over = self.0.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready());
        if over {
            self.0 = None;
        }
        over
    }
}
