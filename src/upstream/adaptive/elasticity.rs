//! How throughput responds to the number of requests in flight: the elasticity, which is the slope of log throughput
//! over log requests in flight. 1: a tenth more requests bring a tenth more responses, so the servers have capacity left.
//! 0: further requests only wait at the servers. A regression over the recent windows, in which older ones count less.

/// How much of its weight each window keeps when another one is added.
const KEPT: f64 = 0.8;
/// Below this, the requests in flight varied too little to tell anything.
const LEAST_VARIATION: f64 = 0.004;

/// The weighted sums of a regression of y = ln(throughput) over x = ln(requests in flight).
#[derive(Clone, Debug, Default)]
pub struct Elasticity {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    yy: f64,
    /// Mean number of responses per window.
    responses: f64,
}

/// An estimate with its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub slope: f64,
    pub error: f64,
}

impl Elasticity {
    /// Adds a window in which the limit was reached.
    pub fn add_window(&mut self, in_flight: f64, responses: f64, seconds: f64) {
        if in_flight < 1.0 || responses < 1.0 || seconds <= 0.0 {
            return;
        }
        let (x, y) = (in_flight.ln(), (responses / seconds).ln());
        for sum in [&mut self.weight, &mut self.x, &mut self.y, &mut self.xx, &mut self.xy, &mut self.yy] {
            *sum *= KEPT;
        }
        self.weight += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
        self.yy += y * y;
        self.responses += (responses - self.responses) / self.weight.max(1.0);
    }

    /// Returns the estimate. `None` if the requests in flight did not vary.
    pub fn estimate(&self) -> Option<Estimate> {
        if self.weight < 1.5 {
            return None;
        }
        let xx = self.xx - self.x * self.x / self.weight;
        let xy = self.xy - self.x * self.y / self.weight;
        let yy = self.yy - self.y * self.y / self.weight;
        if xx < LEAST_VARIATION {
            return None;
        }
        let slope = xy / xx;
        // Counts vary by themselves, so two windows that happen to agree are no proof.
        let least = 0.25 / self.responses.max(1.0);
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
        (0..20).for_each(|i| same.add_window(20.0, 480.0 + f64::from(i), 0.5));
        assert_eq!(same.estimate(), None);
        same.add_window(0.0, 0.0, 0.0);
        assert_eq!(same.estimate(), None);
    }
}
