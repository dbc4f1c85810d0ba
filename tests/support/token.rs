//! Signed tokens (RFC 7519).

use aws_lc_rs::hmac;

pub const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A token with these claims in JSON.
pub fn hs256(secret: &str, claims: &str) -> String {
    let message = format!("{}.{}", base64(b"{\"alg\":\"HS256\"}"), base64(claims.as_bytes()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    format!("{message}.{}", base64(hmac::sign(&key, message.as_bytes()).as_ref()))
}

/// URL-safe base64 without padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for i in 0..=chunk.len() {
            text.push(char::from(LETTERS[(bits >> (18 - 6 * i)) as usize & 63]));
        }
    }
    text
}
