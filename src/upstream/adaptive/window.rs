//! One sample window: a histogram of response times, and the counts that a decision needs. Recording a sample costs the
//! same however many there were.

/// Buckets of each power of two. Neighbouring buckets differ by at most an eighth, and quantiles interpolate within
/// one.
const PER_OCTAVE: u64 = 8;
/// Response times below this many microseconds share the first bucket.
const MIN_US: u64 = 64;
/// Powers of two above `MIN_US`. The last bucket begins at about 9 minutes.
const OCTAVES: u64 = 23;
/// Number of buckets.
const BUCKETS: usize = 184;
const _: () = assert!(BUCKETS as u64 == PER_OCTAVE * OCTAVES);

/// The samples of one window.
#[derive(Clone, Debug)]
pub struct SampleWindow {
    counts: [u32; BUCKETS],
    /// All samples.
    pub samples: u32,
    /// Samples with a response.
    pub responses: u32,
    /// Samples without a response in time.
    pub timeouts: u32,
    /// Samples that found the limit reached.
    at_limit: u32,
    /// Sum of the requests in flight at each sample.
    in_flight: u64,
    /// When the window began.
    pub began_us: u64,
}

/// How one attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleKind {
    /// The head of a response arrived.
    Response,
    /// No response arrived in time.
    Timeout,
    /// The client disconnected after it had waited longer than most requests.
    ClientLeft,
}

/// One sample.
#[derive(Clone, Copy, Debug)]
pub struct ResponseSample {
    pub kind: SampleKind,
    /// The time from the end of the request to the head of the response.
    pub response_us: u64,
    /// Requests in flight when it ended, itself included.
    pub in_flight: u32,
    /// The limit was reached, or requests were waiting.
    pub at_limit: bool,
}

impl SampleWindow {
    pub fn new(began_us: u64) -> SampleWindow {
        SampleWindow {
            counts: [0; BUCKETS],
            samples: 0,
            responses: 0,
            timeouts: 0,
            at_limit: 0,
            in_flight: 0,
            began_us,
        }
    }

    /// Adds a sample.
    pub fn record(&mut self, sample: ResponseSample) {
        self.counts[bucket(sample.response_us)] += 1;
        self.samples += 1;
        self.responses += u32::from(sample.kind == SampleKind::Response);
        self.timeouts += u32::from(sample.kind == SampleKind::Timeout);
        self.at_limit += u32::from(sample.at_limit);
        self.in_flight += u64::from(sample.in_flight);
    }

    /// Returns the response time that `part` of the samples do not exceed, in microseconds.
    #[allow(clippy::cast_precision_loss, reason = "bounds of buckets are below 2^40")]
    pub fn quantile_us(&self, part: f64) -> f64 {
        let rank = part * f64::from(self.samples);
        let mut below = 0.0;
        for (index, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = f64::from(*count);
            if below + count >= rank {
                let [from, to] = [lower_bound(index), lower_bound(index + 1)].map(|bound| bound as f64);
                return from + (to - from) * ((rank - below) / count).clamp(0.0, 1.0);
            }
            below += count;
        }
        0.0
    }

    /// Returns the fraction of the samples that found the limit reached.
    pub fn part_at_limit(&self) -> f64 {
        f64::from(self.at_limit) / f64::from(self.samples.max(1))
    }

    /// Returns the mean of the requests in flight.
    #[allow(clippy::cast_precision_loss, reason = "a mean needs no 53 bits")]
    pub fn mean_in_flight(&self) -> f64 {
        self.in_flight as f64 / f64::from(self.samples.max(1))
    }
}

/// Returns the bucket of a response time.
fn bucket(response_us: u64) -> usize {
    let bounded_us = response_us.clamp(MIN_US, MIN_US << OCTAVES);
    let octave = u64::from(bounded_us.ilog2() - MIN_US.ilog2());
    let within = (bounded_us - (MIN_US << octave)) * PER_OCTAVE / (MIN_US << octave);
    usize::try_from(octave * PER_OCTAVE + within).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// Returns the least response time of a bucket.
fn lower_bound(index: usize) -> u64 {
    let index = index as u64;
    let octave = MIN_US << (index / PER_OCTAVE);
    octave + octave * (index % PER_OCTAVE) / PER_OCTAVE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(response_us: u64) -> ResponseSample {
        ResponseSample { kind: SampleKind::Response, response_us, in_flight: 1, at_limit: false }
    }

    #[test]
    fn buckets_are_in_order_and_hold_every_time() {
        for index in 0..BUCKETS {
            assert_eq!(bucket(lower_bound(index)), index);
            assert_eq!(bucket(lower_bound(index + 1) - 1), index);
        }
        assert_eq!([bucket(0), bucket(1), bucket(u64::MAX)], [0, 0, BUCKETS - 1]);
    }

    #[test]
    fn quantiles_are_near_the_true_ones() {
        let mut window = SampleWindow::new(0);
        (1..=1000).for_each(|ms| window.record(sample(ms * 1000)));
        for part in [0.1_f64, 0.5, 0.9, 0.99] {
            let error = window.quantile_us(part) / (part * 1_000_000.0);
            assert!((0.97..1.03).contains(&error), "{part}: {error}");
        }
        assert_eq!(SampleWindow::new(0).quantile_us(0.9), 0.0);
    }
}
