//! Admitted and refused requests over time, in a bounded number of buckets. Filled by the replay, drawn by `plot`.

use std::collections::VecDeque;

#[derive(Clone, Default)]
pub struct Series {
    /// Index into `WIDTHS`, then doublings of the last.
    width: usize,
    /// Number of the first bucket, counted from 1970.
    start: i64,
    /// Admitted and refused requests per bucket.
    pub buckets: VecDeque<(u64, u64)>,
}

/// Bucket widths in ms; each is a multiple of the previous one, so that buckets merge exactly.
const WIDTHS: [i64; 16] = [
    10, 50, 100, 500, 1000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000, 10_800_000,
    21_600_000, 86_400_000,
];
const BUCKETS_MAX: i64 = 360;

impl Series {
    /// Adds a request. Times never go backwards.
    pub fn add_request(&mut self, now_ms: i64, refused: bool) {
        let mut bucket = now_ms.div_euclid(self.width_ms());
        if self.buckets.is_empty() {
            self.start = bucket;
        }
        while bucket - self.start >= BUCKETS_MAX {
            self.double_width();
            bucket = now_ms.div_euclid(self.width_ms());
        }
        let place = usize::try_from(bucket - self.start).unwrap_or(0);
        if self.buckets.len() <= place {
            self.buckets.resize(place + 1, (0, 0));
        }
        let (admitted, refusals) = &mut self.buckets[place];
        *(if refused { refusals } else { admitted }) += 1;
    }

    pub fn width_ms(&self) -> i64 {
        let last = WIDTHS.len() - 1;
        let doublings = u32::try_from(self.width.saturating_sub(last)).unwrap_or(0);
        WIDTHS[self.width.min(last)] << doublings.min(36)
    }

    pub fn start_ms(&self) -> i64 {
        self.start * self.width_ms()
    }

    /// Returns the series with buckets of at least this width.
    pub fn widen_to(&self, width_ms: i64) -> Series {
        let mut series = self.clone();
        while series.width_ms() < width_ms {
            series.double_width();
        }
        series
    }

    fn double_width(&mut self) {
        let before = self.width_ms();
        self.width += 1;
        let factor = self.width_ms() / before;
        let start = self.start.div_euclid(factor);
        let mut merged = VecDeque::new();
        for (number, (admitted, refused)) in (self.start..).zip(&self.buckets) {
            let place = usize::try_from(number.div_euclid(factor) - start).unwrap_or(0);
            if merged.len() <= place {
                merged.resize(place + 1, (0, 0));
            }
            merged[place].0 += admitted;
            merged[place].1 += refused;
        }
        (self.start, self.buckets) = (start, merged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_widen_and_lose_nothing() {
        let mut series = Series::default();
        for second in 0..200_000 {
            series.add_request(1_795_000_007_000 + second * 1000, second % 4 == 0);
        }
        let sums = series.buckets.iter().fold((0, 0), |sum, bucket| (sum.0 + bucket.0, sum.1 + bucket.1));
        assert_eq!((sums, series.width_ms()), ((150_000, 50_000), 600_000));
        assert!(series.buckets.len() <= 360 && series.start_ms() <= 1_795_000_007_000);
        series.add_request(i64::MAX / 2, true);
        assert!(series.buckets.len() <= 360);
    }
}
