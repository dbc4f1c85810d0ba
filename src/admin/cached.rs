//! Limits the time spent on expensive responses: they are computed per request until there are so many requests that
//! they would block the control thread. Called by `pages`, `metrics_text` and `limits`.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::Value;

#[derive(Default)]
pub struct CachedText {
    made: RefCell<Option<Bytes>>,
    effort: TimeBudget,
}

/// A text about the active config, made once per generation.
#[derive(Default)]
pub struct GenerationText(RefCell<Option<(u64, Bytes)>>);

/// An answer that several viewers share for a moment.
#[derive(Default)]
pub struct RecentAnswer(RefCell<Option<(Instant, Value)>>);

/// Time spent on a kind of response that many clients may request.
#[derive(Default)]
pub struct TimeBudget {
    /// When the time spent so far is paid off.
    paid: Cell<Option<Instant>>,
}

/// Such responses take at most one part in `SHARE` of the time, on average.
const SHARE: u32 = 5;
/// A burst may use this much waiting time in advance.
const CREDIT: Duration = Duration::from_millis(500);
/// How long an answer is used again.
const RECENT: Duration = Duration::from_secs(1);

impl CachedText {
    pub fn get_or_make<T: Into<Bytes>, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<Bytes, E> {
        self.get_or_make_at(Instant::now(), make, Instant::now)
    }

    fn get_or_make_at<T: Into<Bytes>, E>(
        &self,
        now: Instant,
        make: impl FnOnce() -> Result<T, E>,
        end: impl FnOnce() -> Instant,
    ) -> Result<Bytes, E> {
        let mut slot = self.made.borrow_mut();
        if let Some(text) = slot.as_ref().filter(|_| self.effort.is_spent(now)) {
            return Ok(text.clone());
        }
        let text: Bytes = make()?.into();
        self.effort.add_spent(now, end());
        *slot = Some(text.clone());
        Ok(text)
    }
}

impl GenerationText {
    pub fn get_or_make(&self, generation: u64, make: impl FnOnce() -> String) -> Bytes {
        let mut slot = self.0.borrow_mut();
        let text = match slot.take() {
            Some((of, text)) if of == generation => text,
            _ => Bytes::from(make()),
        };
        *slot = Some((generation, text.clone()));
        text
    }
}

impl RecentAnswer {
    /// Returns the answer if it is less than [`RECENT`] old.
    pub fn find(&self) -> Option<Value> {
        let answer = self.0.borrow();
        answer.as_ref().filter(|(at, _)| at.elapsed() < RECENT).map(|(_, answer)| answer.clone())
    }

    pub fn keep(&self, answer: Value) {
        *self.0.borrow_mut() = Some((Instant::now(), answer));
    }
}

impl TimeBudget {
    /// Runs `make`; returns `None` if too much time was spent recently.
    pub fn run_within<T>(&self, make: impl FnOnce() -> T) -> Option<T> {
        let now = Instant::now();
        let result = (!self.is_spent(now)).then(make);
        if result.is_some() {
            self.add_spent(now, Instant::now());
        }
        result
    }

    fn is_spent(&self, now: Instant) -> bool {
        self.paid.get().is_some_and(|paid| paid > now + CREDIT)
    }

    fn add_spent(&self, now: Instant, end: Instant) {
        let due = self.paid.get().map_or(now, |paid| paid.max(now));
        self.paid.set(Some(due + (end - now) * SHARE));
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn texts_take_a_bounded_share_of_the_time() {
        let (scrape, start) = (CachedText::default(), Instant::now());
        let cost = Duration::from_millis(20);
        let (mut now, mut made) = (start, 0_u32);
        let mut ask = |now: &mut Instant| {
            let mut fresh = false;
            let make = || Ok::<_, Infallible>(std::mem::replace(&mut fresh, true).to_string());
            let _ = scrape.get_or_make_at(*now, make, || *now + cost);
            if fresh {
                made += 1;
                *now += cost;
            }
            fresh
        };
        for _ in 0..5 {
            assert!(ask(&mut now), "few are made for each");
        }
        let mut fresh = 0;
        while now < start + Duration::from_secs(20) {
            fresh += u32::from(ask(&mut now));
            now += Duration::from_millis(1);
        }
        assert!((190..=210).contains(&fresh), "{fresh} of 20 ms in 20 s");
        now += Duration::from_secs(1);
        assert!(ask(&mut now), "none is old when few ask");
        assert!(made > 190);
    }
}
