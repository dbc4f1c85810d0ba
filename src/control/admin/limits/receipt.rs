//! Receipts: what a charge was, for whoever gives it back. Called by the refund page and by the decisions
//! that hand receipts out.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// One charge of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Random: no two charges have the same.
    pub id: u128,
    /// By then the charge has healed by itself, and giving it back would give too much.
    pub expires_ms: i64,
    /// Charged to this gateway's own memory while the store was away.
    pub local: bool,
    pub cost: i64,
    /// The algorithm's name of the charge.
    pub receipt: i64,
    /// The note of the rule that made it, where it is given back by no other numbers.
    pub note: String,
    /// The values of the key, as a field of the overrides.
    pub who: String,
    /// The state key, which ends with limit and algorithm.
    pub key: String,
}

/// A longer token is no receipt. A body with one is not longer than 64 KiB.
const TOKEN_MAX: usize = 60 * 1024;
const CHECKSUM: usize = 8;

impl Receipt {
    /// Of the keys in Redis: whoever shares the charge shares the mark that it was given back.
    pub fn prefix(&self) -> &str {
        self.key.split_once(":{").map_or("", |(prefix, _)| prefix)
    }

    /// An opaque token; `None` if it would be too long, for values of many KiB. The sum in it catches cut and mixed up tokens; it is no signature, as
    /// whoever may send a receipt may take and reset everything anyway.
    pub fn token(&self) -> Option<String> {
        let Receipt { id, expires_ms, local, cost, receipt, note, who, key } = self;
        let text = format!("4 {id:032x} {expires_ms} {} {cost} {receipt} {note} {who} {key}", u8::from(*local));
        let mut token = String::with_capacity(2 * (text.len() + CHECKSUM));
        for byte in Sha256::digest(&text)[..CHECKSUM].iter().chain(text.as_bytes()) {
            let _ = write!(token, "{byte:02x}");
        }
        (token.len() <= TOKEN_MAX).then_some(token)
    }

    pub fn read(token: &str) -> Option<Receipt> {
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

    /// Limit and algorithm.
    pub fn names(&self) -> Option<(&str, &str)> {
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
        let token = receipt.token().unwrap();
        assert_eq!(Receipt::read(&token), Some(receipt.clone()));
        assert_eq!(receipt.names(), Some(("daily", "token_bucket")));
        for i in 0..token.len() {
            assert_eq!(Receipt::read(&token[..i]), None, "cut at {i}");
            let mut other = token.clone().into_bytes();
            other[i] = if other[i] == b'0' { b'1' } else { b'0' };
            assert_eq!(Receipt::read(str::from_utf8(&other).unwrap()), None, "changed at {i}");
        }
        assert_eq!(Receipt { who: "a".repeat(TOKEN_MAX / 2), ..receipt }.token(), None);
        assert_eq!(Receipt::read(&"\u{e9}".repeat(40)), None);
        assert_eq!(Receipt::read(&"+1".repeat(40)), None);
    }
}
