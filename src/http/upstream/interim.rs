//! Interim responses (1xx) of a server to one request. They are bounded in rate, not in number: servers send them as
//! heartbeats of long work. Filled by the readers of HTTP/1.1 and HTTP/2, taken by `forward`.

use http::{HeaderMap, StatusCode};

use super::rate_allowance::RateAllowance;

/// Interim responses at once, and per second in the long run.
pub const INTERIMS_AT_ONCE: u32 = 100;
const PER_SECOND: u32 = 50;
/// Bytes of header fields that wait for `forward`; interim responses beyond them are not forwarded.
const WAITING_MAX: usize = 16 * 1024;

/// An interim response, other than 100 and 101.
#[derive(Debug)]
pub struct InterimHead {
    pub status: StatusCode,
    pub fields: HeaderMap,
}

/// The interim responses to one request.
#[derive(Debug, Default)]
pub struct InterimHeads {
    /// `None` before the first.
    allowance: Option<RateAllowance>,
    waiting: Vec<InterimHead>,
    waiting_bytes: usize,
    /// The server asked for the body (100).
    pub continued: bool,
}

impl InterimHeads {
    /// Adds one that has arrived; false when the server sends more than the rate permits.
    pub fn add(&mut self, status: StatusCode, fields: HeaderMap) -> bool {
        let allowance = self.allowance.get_or_insert_with(|| RateAllowance::new(INTERIMS_AT_ONCE, PER_SECOND));
        if !allowance.spend() {
            return false;
        }
        if status == StatusCode::CONTINUE {
            self.continued = true;
            return true;
        }
        let bytes: usize = fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        // The first tells `forward` of a heartbeat, whatever its size.
        if self.waiting.is_empty() || self.waiting_bytes + bytes <= WAITING_MAX {
            self.waiting_bytes += bytes;
            self.waiting.push(InterimHead { status, fields });
        }
        true
    }

    /// Whether none has arrived so far.
    pub fn is_empty(&self) -> bool {
        self.allowance.is_none()
    }

    /// Takes those that arrived since the last call.
    pub fn take(&mut self) -> Vec<InterimHead> {
        self.waiting_bytes = 0;
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header::LINK};

    use super::*;

    #[test]
    fn a_flood_ends_the_exchange_and_what_waits_is_bounded() {
        let mut heads = InterimHeads::default();
        assert!(heads.is_empty());
        let fields = || HeaderMap::from_iter([(LINK, HeaderValue::from_str(&"x".repeat(5000)).unwrap())]);
        let passed = (0..1000).take_while(|_| heads.add(StatusCode::EARLY_HINTS, fields())).count();
        assert!((INTERIMS_AT_ONCE as usize..INTERIMS_AT_ONCE as usize + 20).contains(&passed), "{passed}");
        assert_eq!((heads.take().len(), heads.take().len(), heads.is_empty()), (3, 0, false));
    }
}
