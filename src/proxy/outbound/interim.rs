//! Interim responses (1xx) of a server to one request. Their rate is bounded, not their number: servers send them as
//! heartbeats of long work. The readers of HTTP/1.1 and HTTP/2 add them; `forward` takes them.

use http::{HeaderMap, StatusCode};

use crate::rate::{Bucket, monotonic_ms};

/// Most interim responses at once.
pub const INTERIMS_AT_ONCE: u32 = 100;
/// Interim responses at once, and per second in the long run.
const RATE: (u32, u32) = (INTERIMS_AT_ONCE, 50);
/// Bytes of headers that wait for `forward`. Further interim responses are not forwarded.
const WAITING_MAX: usize = 16 * 1024;

/// An interim response, other than 100 and 101.
#[derive(Debug)]
pub struct InterimResponse {
    pub status: StatusCode,
    pub fields: HeaderMap,
}

/// The interim responses to one request.
#[derive(Debug, Default)]
pub struct InterimResponses {
    /// `None` before the first interim response.
    bucket: Option<Bucket>,
    waiting: Vec<InterimResponse>,
    waiting_bytes: usize,
    /// The server has requested the body (`100 Continue`).
    pub continued: bool,
}

impl InterimResponses {
    /// Adds an interim response. Returns false if the server sends more than the rate permits.
    pub fn add(&mut self, status: StatusCode, fields: HeaderMap) -> bool {
        if !self.bucket.get_or_insert_with(|| Bucket::new(RATE, 0, monotonic_ms())).take_at(monotonic_ms) {
            return false;
        }
        if status == StatusCode::CONTINUE {
            self.continued = true;
            return true;
        }
        let bytes: usize = fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        // The first is kept whatever its size, so that `forward` notices the heartbeat.
        if self.waiting.is_empty() || self.waiting_bytes + bytes <= WAITING_MAX {
            self.waiting_bytes += bytes;
            self.waiting.push(InterimResponse { status, fields });
        }
        true
    }

    /// Returns whether no interim response has arrived so far.
    pub fn is_empty(&self) -> bool {
        self.bucket.is_none()
    }

    /// Returns the interim responses since the last call.
    pub fn take(&mut self) -> Vec<InterimResponse> {
        self.waiting_bytes = 0;
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::LINK;

    use super::*;

    #[test]
    fn a_flood_ends_the_exchange_and_what_waits_is_bounded() {
        let mut heads = InterimResponses::default();
        assert!(heads.is_empty());
        let fields = || HeaderMap::from_iter([(LINK, HeaderValue::from_str(&"x".repeat(5000)).unwrap())]);
        let passed = (0..1000).take_while(|_| heads.add(StatusCode::EARLY_HINTS, fields())).count();
        assert!((INTERIMS_AT_ONCE as usize..INTERIMS_AT_ONCE as usize + 20).contains(&passed), "{passed}");
        assert_eq!((heads.take().len(), heads.take().len(), heads.is_empty()), (3, 0, false));
    }
}
