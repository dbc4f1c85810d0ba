//! Slows a socket down whose errors last, so that they do not keep the worker busy.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// Errors in a row that cause no pause: they may be reports of the network about packets that were sent.
const ERRORS_FREE: u32 = 16;
/// The first pause. Each further error in a row doubles it, up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Pauses after errors.
#[derive(Default)]
pub struct Backoff {
    /// Errors since something was received.
    errors: u32,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Backoff {
    /// Records that something was received.
    pub fn reset(&mut self) {
        self.errors = 0;
    }

    /// Records an error. Returns true if it is the first of a row that causes a pause.
    pub fn add_error(&mut self) -> bool {
        self.errors = self.errors.saturating_add(1);
        self.pause = pause_after(self.errors).map(|pause| Box::pin(sleep(pause)));
        self.errors == ERRORS_FREE + 1
    }

    /// Waits for the end of the pause.
    pub fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(pause) = &mut self.pause else { return Poll::Ready(()) };
        let result = pause.as_mut().poll(cx);
        if result.is_ready() {
            self.pause = None;
        }
        result
    }
}

/// Returns the pause after this number of errors in a row.
fn pause_after(errors: u32) -> Option<Duration> {
    let doubled = errors.checked_sub(ERRORS_FREE + 1)?;
    Some(PAUSE_MIN.saturating_mul(1 << doubled.min(10)).min(PAUSE_MAX))
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn errors_that_last_are_slowed_down_and_others_are_not() {
        assert_eq!([0, 1, ERRORS_FREE].map(pause_after), [None; 3]);
        let pauses = [1, 2, 5, 11, 12, u32::MAX - ERRORS_FREE].map(|more| pause_after(ERRORS_FREE + more).unwrap());
        assert_eq!(pauses.map(|pause| pause.as_millis()), [1, 2, 16, 1000, 1000, 1000]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _guard = runtime.enter();
        let (mut backoff, mut cx) = (Backoff::default(), Context::from_waker(Waker::noop()));
        for _ in 0..2 {
            let reported: Vec<bool> = (0..ERRORS_FREE + 3).map(|_| backoff.add_error()).collect();
            assert_eq!(reported.iter().position(|is_first| *is_first), Some(ERRORS_FREE as usize));
            assert_eq!(reported.iter().filter(|is_first| **is_first).count(), 1);
            assert!(backoff.poll_over(&mut cx).is_pending());
            backoff.reset();
            assert!(!backoff.add_error() && backoff.poll_over(&mut cx).is_ready());
            backoff.reset();
        }
    }
}
