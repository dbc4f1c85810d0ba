//! The text of the metrics: made for each who asks, unless so many ask that it would take the control
//! thread's time. Called by `pages`.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::metrics::Metrics;

#[derive(Default)]
pub struct CachedScrape(RefCell<Option<Made>>);

struct Made {
    text: Bytes,
    /// When all time spent so far has been waited for.
    paid: Instant,
}

/// Of the time at most one part in so many is spent on making texts,
const SHARE: u32 = 5;
/// after a burst that this much waiting pays for.
const CREDIT: Duration = Duration::from_millis(500);

impl CachedScrape {
    pub fn text(&self, metrics: &Metrics) -> prometheus::Result<Bytes> {
        self.at(Instant::now(), || metrics.render(), Instant::now)
    }

    fn at<T: Into<Bytes>, E>(
        &self,
        now: Instant,
        make: impl FnOnce() -> Result<T, E>,
        end: impl FnOnce() -> Instant,
    ) -> Result<Bytes, E> {
        let mut made = self.0.borrow_mut();
        if let Some(made) = made.as_ref().filter(|made| made.paid > now + CREDIT) {
            return Ok(made.text.clone());
        }
        let text: Bytes = make()?.into();
        let end = end();
        let due = made.as_ref().map_or(now, |made| made.paid.max(now));
        *made = Some(Made { text: text.clone(), paid: due + (end - now) * SHARE });
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn texts_take_a_bounded_share_of_the_time() {
        let (scrape, start) = (CachedScrape::default(), Instant::now());
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
