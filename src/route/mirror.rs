//! `mirror`: copies of requests go to another upstream, whose responses nobody gets.

use http::HeaderName;

/// Marks a copy, so that the application can leave out what must happen once, such as sending mail. Removed from
/// requests of clients, like the other headers that only the gateway may set.
pub const MIRRORED_HEADER: HeaderName = HeaderName::from_static("x-mirrored");

/// A compiled `mirror`.
#[derive(Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Index into `Config::upstreams`.
    pub upstream: usize,
    /// How many of 100 requests are copied.
    pub percent: u8,
    /// The largest body that is copied, in bytes.
    pub max_body: usize,
}

impl Mirror {
    /// Returns whether a request is copied, for a random number.
    pub fn selects(&self, number: u64) -> bool {
        number % 100 < u64::from(self.percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_copied() {
        for percent in [0, 1, 50, 99, 100] {
            let mirror = Mirror { upstream: 0, percent, max_body: 0 };
            assert_eq!((0..1000).filter(|number| mirror.selects(*number)).count(), usize::from(percent) * 10);
        }
    }
}
