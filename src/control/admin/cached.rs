//! What takes time to make: made for each who asks, unless so many ask that it would take the control
//! thread's. Called by `pages` and `limits`.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use bytes::Bytes;

#[derive(Default)]
pub struct CachedText {
    made: RefCell<Option<Bytes>>,
    effort: Effort,
}

/// Time spent on something that many may ask for.
#[derive(Default)]
pub struct Effort {
    /// When all time spent so far has been waited for.
    paid: Cell<Option<Instant>>,
}

/// Of the time at most one part in so many is spent on making texts,
const SHARE: u32 = 5;
/// after a burst that this much waiting pays for.
const CREDIT: Duration = Duration::from_millis(500);

impl CachedText {
    pub fn get<T: Into<Bytes>, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<Bytes, E> {
        self.at(Instant::now(), make, Instant::now)
    }

    fn at<T: Into<Bytes>, E>(
        &self,
        now: Instant,
        make: impl FnOnce() -> Result<T, E>,
        end: impl FnOnce() -> Instant,
    ) -> Result<Bytes, E> {
        let mut made = self.made.borrow_mut();
        if let Some(text) = made.as_ref().filter(|_| self.effort.is_too_much(now)) {
            return Ok(text.clone());
        }
        let text: Bytes = make()?.into();
        self.effort.spend(now, end());
        *made = Some(text.clone());
        Ok(text)
    }
}

impl Effort {
    /// `None` where too much time has been spent of late.
    pub fn make<T>(&self, make: impl FnOnce() -> T) -> Option<T> {
        let now = Instant::now();
        let made = (!self.is_too_much(now)).then(make);
        if made.is_some() {
            self.spend(now, Instant::now());
        }
        made
    }

    fn is_too_much(&self, now: Instant) -> bool {
        self.paid.get().is_some_and(|paid| paid > now + CREDIT)
    }

    fn spend(&self, now: Instant, end: Instant) {
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
            let _ = scrape.at(*now, make, || *now + cost);
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
