//! How throughput responds to the number of requests in flight: the elasticity, which is the slope of log throughput
//! over log requests in flight. 1: a tenth more requests bring a tenth more responses, so the servers have capacity
//! left. 0: further requests only wait at the servers. A regression over the recent windows; older windows, and
//! windows with another number of requests in flight, count less.

/// Windows that are remembered.
const WINDOWS: usize = 16;
/// How much of its weight each window loses when another one is added.
const DECAY: f64 = 0.85;
/// Windows with this many requests in flight more or less, as a logarithm, do not count: the slope is another there.
const BAND: f64 = 0.35;
/// Below this, the requests in flight varied too little for an estimate.
const MIN_VARIATION: f64 = 0.004;

/// Number of windows after which a change of the capacity shows at the latest.
const CHANGE_WINDOWS: usize = 4;
/// Changes smaller than this many standard errors of Poisson counts, or than `MIN_CHANGE` as a logarithm, are noise.
const CHANGE_ERRORS: f64 = 3.0;
const MIN_CHANGE: f64 = 0.15;

/// The recent windows in which the limit was reached, the latest first.
#[derive(Clone, Debug, Default)]
pub struct Elasticity {
    windows: [Observation; WINDOWS],
    len: usize,
}

/// Results of one window.
#[derive(Clone, Copy, Debug, Default)]
struct Observation {
    /// Logarithm of the requests in flight.
    x: f64,
    /// Logarithm of the responses per second.
    y: f64,
    responses: f64,
}

/// An estimate with its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub slope: f64,
    pub error: f64,
}

impl Elasticity {
    /// Adds a window in which the limit was reached. Forgets the windows before a change of the servers' capacity, and
    /// returns whether the capacity rose.
    pub fn add_window(&mut self, in_flight: f64, responses: f64, seconds: f64) -> bool {
        if in_flight < 1.0 || responses < 1.0 || seconds <= 0.0 {
            return false;
        }
        self.windows.rotate_right(1);
        self.windows[0] = Observation { x: in_flight.ln(), y: (responses / seconds).ln(), responses };
        self.len = (self.len + 1).min(WINDOWS);
        for recent in 1..=CHANGE_WINDOWS.min(self.len - 1) {
            let change = self.capacity_change(recent);
            if change != 0.0 {
                self.len = recent;
                return change > 0.0;
            }
        }
        false
    }

    /// Compares the latest `recent` windows with those before. Servers of unchanged capacity have an elasticity from 0
    /// to 1, so throughput beyond these bounds is a change of the capacity. Returns its logarithm; 0: no change that
    /// exceeds the noise.
    fn capacity_change(&self, recent: usize) -> f64 {
        let current = self.windows[0].x;
        let mean = |windows: &[Observation]| {
            let mut sums = Sums::default();
            let near = windows.iter().filter(|window| (window.x - current).abs() < BAND);
            near.for_each(|window| sums.add(window, window.responses));
            sums
        };
        let (after, before) = (mean(&self.windows[..recent]), mean(&self.windows[recent..self.len]));
        if before.weight == 0.0 {
            return 0.0;
        }
        let more_in_flight = after.x / after.weight - before.x / before.weight;
        let more_throughput = after.y / after.weight - before.y / before.weight;
        let noise = CHANGE_ERRORS * (1.0 / after.weight + 1.0 / before.weight).sqrt();
        let [rise, fall] = [more_throughput - more_in_flight.max(0.0), more_throughput - more_in_flight.min(0.0)];
        if rise > noise.max(MIN_CHANGE) {
            rise
        } else if fall < -noise.max(MIN_CHANGE) {
            fall
        } else {
            0.0
        }
    }

    /// Returns the estimate for about as many requests in flight as in the latest window. `None` if they did not vary.
    pub fn estimate(&self) -> Option<Estimate> {
        let recent = self.windows.get(..self.len)?;
        let current = recent.first()?.x;
        let (mut sums, mut fading) = (Sums::default(), 1.0);
        for window in recent {
            let distance = (window.x - current) / BAND;
            let weight = fading * (1.0 - distance * distance).max(0.0);
            sums.add(window, weight);
            fading *= DECAY;
        }
        sums.regress()
    }
}

/// The weighted sums of a regression of y over x.
#[derive(Default)]
struct Sums {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    yy: f64,
    responses: f64,
}

impl Sums {
    fn add(&mut self, window: &Observation, weight: f64) {
        let Observation { x, y, responses } = *window;
        self.weight += weight;
        self.x += weight * x;
        self.y += weight * y;
        self.xx += weight * x * x;
        self.xy += weight * x * y;
        self.yy += weight * y * y;
        self.responses += weight * responses;
    }

    fn regress(&self) -> Option<Estimate> {
        if self.weight < 1.5 {
            return None;
        }
        let xx = self.xx - self.x * self.x / self.weight;
        let xy = self.xy - self.x * self.y / self.weight;
        let yy = self.yy - self.y * self.y / self.weight;
        if xx < MIN_VARIATION {
            return None;
        }
        let slope = xy / xx;
        // Counts vary by themselves, so two windows that happen to agree are not proof.
        let least = 0.25 / (self.responses / self.weight).max(1.0);
        let residual = ((yy - slope * xy) / (self.weight - 1.0).max(0.5)).max(least);
        Some(Estimate { slope, error: (residual / xx).sqrt() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_tells_saturated_servers_from_others() {
        let (mut saturated, mut free) = (Elasticity::default(), Elasticity::default());
        assert_eq!(free.estimate(), None);
        for in_flight in [20.0, 18.0, 20.0, 24.0, 22.0, 18.0] {
            saturated.add_window(in_flight, 500.0, 0.5);
            free.add_window(in_flight, 25.0 * in_flight, 0.5);
        }
        let [saturated, free] = [saturated, free].map(|each| each.estimate().unwrap());
        assert!(saturated.slope.abs() < 0.01 && saturated.error < 0.2, "{saturated:?}");
        assert!((free.slope - 1.0).abs() < 0.01 && free.error < 0.2, "{free:?}");
    }

    #[test]
    fn nothing_is_known_while_nothing_varies() {
        let mut same = Elasticity::default();
        for i in 0..20 {
            same.add_window(20.0, 480.0 + f64::from(i), 0.5);
        }
        assert_eq!(same.estimate(), None);
        same.add_window(0.0, 0.0, 0.0);
        assert_eq!(same.estimate(), None);
    }

    /// Below the knee, the windows from above it say nothing.
    #[test]
    fn windows_with_many_more_requests_do_not_count() {
        let mut windows = Elasticity::default();
        for in_flight in [40.0, 34.0, 29.0, 25.0, 21.0, 18.0] {
            windows.add_window(in_flight, 10.0 * f64::min(in_flight, 24.0), 1.0);
        }
        for in_flight in [17.0, 19.0, 16.0, 18.0] {
            windows.add_window(in_flight, 10.0 * in_flight, 1.0);
        }
        let estimate = windows.estimate().unwrap();
        assert!(estimate.slope > 0.8, "{estimate:?}");
    }
}
