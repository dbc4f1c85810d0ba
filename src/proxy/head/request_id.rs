//! Request ids (`X-Request-Id`): taken from a trusted peer or generated. The access log, servers and clients get the
//! same one.

use std::cell::RefCell;

use http::{HeaderMap, HeaderName, HeaderValue};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

thread_local! {
    /// Generates unique numbers. A generator for secrets would cost ten times as much.
    static UNIQUE: RefCell<SmallRng> = RefCell::new(SmallRng::from_os_rng());
}

/// Returns the id that a trusted peer has sent, or a new one.
pub fn received_or_new(headers: &HeaderMap, trusted_peer: bool) -> HeaderValue {
    let received = headers.get(X_REQUEST_ID).filter(|_| trusted_peer);
    received.cloned().unwrap_or_else(new_id)
}

/// Adds the id of a request to its response.
pub fn add_to_response(headers: &mut HeaderMap, id: &HeaderValue) {
    headers.insert(X_REQUEST_ID, id.clone());
}

/// Returns a new id.
pub fn new_id() -> HeaderValue {
    HeaderValue::from_bytes(&new_id_bytes()).unwrap_or(HeaderValue::from_static("-"))
}

/// Returns a new id: 128 random bits as hexadecimal digits. It is unique, but not secret.
pub fn new_id_bytes() -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut id = [0; 32];
    // An array would be filled byte by byte, each from a number of its own.
    let number: u128 = UNIQUE.with_borrow_mut(|unique| unique.random());
    for (pair, byte) in id.as_chunks_mut().0.iter_mut().zip(number.to_ne_bytes()) {
        *pair = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_are_32_digits_and_differ() {
        let (one, other) = (new_id_bytes(), new_id_bytes());
        assert!(one.iter().all(u8::is_ascii_hexdigit));
        assert_ne!(one, other);
    }
}
