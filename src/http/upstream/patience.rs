//! How long a body that is held waits until the server asks for it. Used by each kind of exchange.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// How long a server that is told that a body is coming (`Expect: 100-continue`) may take to ask for it. Some
/// never do; clients wait as long.
const CONTINUE_WAIT: Duration = Duration::from_secs(1);

/// Of a request whose body is held; other requests have no timer.
pub struct Patience(Option<Pin<Box<Sleep>>>);

impl Patience {
    pub fn new(held: bool) -> Patience {
        Patience(held.then(|| Box::pin(sleep(CONTINUE_WAIT))))
    }

    /// True once it has come to its end.
    pub fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let over = self.0.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready());
        if over {
            self.0 = None;
        }
        over
    }
}
