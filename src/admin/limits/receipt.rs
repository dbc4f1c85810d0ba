//! Receipts: describe a charge so that it can be refunded. Called by the refund page and by decisions that return
//! receipts.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// One charge of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Random and unique per charge.
    pub id: u128,
    /// Time after which the charge has expired by itself, and a refund would return too much.
    pub expires_ms: i64,
    /// The charge was made in this gateway's memory while the store was unavailable.
    pub local: bool,
    pub cost: i64,
    /// The algorithm's identifier of the charge.
    pub receipt: i64,
    /// The rule that made the charge, if no other numbers can refund it.
    pub note: String,
    /// Values of the key, formatted as a field of the overrides.
    pub who: String,
    /// State key, which ends with limit and algorithm.
    pub key: String,
}

/// Maximum length of a token in bytes; a body with one has at most 64 KiB.
const TOKEN_MAX: usize = 60 * 1024;
const CHECKSUM: usize = 8;

impl Receipt {
    /// Returns the prefix of the keys in Redis. Gateways that share the charge share the mark that it was refunded.
    pub fn key_prefix(&self) -> &str {
        self.key.split_once(":{").map_or("", |(prefix, _)| prefix)
    }

    /// Returns an opaque token; `None` if it would be too long. Its checksum detects truncated and mixed up tokens. It
    /// is not a signature: whoever may send receipts may charge and reset every key anyway.
    pub fn to_token(&self) -> Option<String> {
        let Receipt { id, expires_ms, local, cost, receipt, note, who, key } = self;
        let text = format!("4 {id:032x} {expires_ms} {} {cost} {receipt} {note} {who} {key}", u8::from(*local));
        let mut token = String::with_capacity(2 * (text.len() + CHECKSUM));
        for byte in Sha256::digest(&text)[..CHECKSUM].iter().chain(text.as_bytes()) {
            let _ = write!(token, "{byte:02x}");
        }
        (token.len() <= TOKEN_MAX).then_some(token)
    }

    pub fn from_token(token: &str) -> Option<Receipt> {
        if !token.is_ascii() || !token.len().is_multiple_of(2) || !(2 * CHECKSUM..=TOKEN_MAX).contains(&token.len()) {
            return None;
        }
        let bytes: Vec<u8> = (0..token.len())
            .step_by(2)
            .map(|i| token.get(i..i + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok()))
            .collect::<Option<_>>()?;
        let (sum, text) = bytes.split_at(CHECKSUM);
        if Sha256::digest(text)[..CHECKSUM] != *sum {
            return None;
        }
        let mut words = str::from_utf8(text).ok()?.splitn(9, ' ');
        let mut word = || words.next();
        (word()? == "4").then_some(())?;
        Some(Receipt {
            id: u128::from_str_radix(word()?, 16).ok()?,
            expires_ms: word()?.parse().ok()?,
            local: word()? == "1",
            cost: word()?.parse().ok().filter(|cost| *cost > 0)?,
            receipt: word()?.parse().ok()?,
            note: word()?.to_owned(),
            who: word()?.to_owned(),
            key: word()?.to_owned(),
        })
    }

    /// Returns the parts of the key as the state key has them.
    pub fn key_parts(&self) -> impl Iterator<Item = &str> {
        let (_, rest) = self.key.split_once(":{").unwrap_or_default();
        rest.rsplit_once("}:").map_or("", |(parts, _)| parts).split(',')
    }

    /// Returns limit and algorithm.
    pub fn limit_and_algorithm(&self) -> Option<(&str, &str)> {
        let (rest, algorithm) = self.key.rsplit_once(':')?;
        Some((rest.rsplit_once(':')?.1, algorithm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(id: u128, expires_ms: i64) -> Receipt {
        let key = "sg:{header:x-api-key=a,ip=::1}:daily:token_bucket".to_owned();
        let (note, who) = ("1,1000,5,0,0,0".to_owned(), "a%20b,*".to_owned());
        Receipt { id, expires_ms, local: id % 2 == 1, cost: 3, receipt: -7, note, who, key }
    }

    #[test]
    fn a_token_is_read_whole_or_not_at_all() {
        let receipt = receipt(u128::MAX, 1_800_000_000_000);
        let token = receipt.to_token().unwrap();
        assert_eq!(Receipt::from_token(&token), Some(receipt.clone()));
        assert_eq!(receipt.limit_and_algorithm(), Some(("daily", "token_bucket")));
        for i in 0..token.len() {
            assert_eq!(Receipt::from_token(&token[..i]), None, "cut at {i}");
            let mut other = token.clone().into_bytes();
            other[i] = if other[i] == b'0' { b'1' } else { b'0' };
            assert_eq!(Receipt::from_token(str::from_utf8(&other).unwrap()), None, "changed at {i}");
        }
        assert_eq!(Receipt { who: "a".repeat(TOKEN_MAX / 2), ..receipt }.to_token(), None);
        assert_eq!(Receipt::from_token(&"\u{e9}".repeat(40)), None);
        assert_eq!(Receipt::from_token(&"+1".repeat(40)), None);
    }
}
