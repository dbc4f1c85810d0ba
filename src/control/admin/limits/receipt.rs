//! Receipts: what a charge was, for whoever gives it back, and which of them were given back
//! already. Called by the refund page and by the decisions that hand receipts out.

use std::collections::BTreeSet;
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
    /// The values of the key, as a field of the overrides.
    pub who: String,
    /// The state key, which ends with limit and algorithm.
    pub key: String,
}

/// A longer token is no receipt. A body with one is not longer than 64 KiB.
const TOKEN_MAX: usize = 60 * 1024;
const CHECKSUM: usize = 8;

impl Receipt {
    /// An opaque token; `None` if it would be too long, for values of many KiB. The sum in it catches cut and mixed up tokens; it is no signature, as
    /// whoever may send a receipt may take and reset everything anyway.
    pub fn token(&self) -> Option<String> {
        let Receipt { id, expires_ms, local, cost, receipt, who, key } = self;
        let text = format!("2 {id:032x} {expires_ms} {} {cost} {receipt} {who} {key}", u8::from(*local));
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
        let mut words = str::from_utf8(text).ok()?.splitn(8, ' ');
        let mut word = || words.next();
        (word()? == "2").then_some(())?;
        Some(Receipt {
            id: u128::from_str_radix(word()?, 16).ok()?,
            expires_ms: word()?.parse().ok()?,
            local: word()? == "1",
            cost: word()?.parse().ok().filter(|cost| *cost > 0)?,
            receipt: word()?.parse().ok()?,
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

/// The receipts used on this gateway. Bounded, and yet none is ever accepted twice: to forget one
/// is to refuse all that expire no later.
#[derive(Default)]
pub struct Used {
    ids: BTreeSet<(i64, u128)>,
    /// Receipts that expire by then count as expired.
    floor_ms: i64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Use {
    First,
    Again,
    Expired,
}

/// Used receipts remembered.
const USED_MAX: usize = 65_536;

impl Used {
    pub fn note(&mut self, receipt: &Receipt, now_ms: i64) -> Use {
        if receipt.expires_ms <= now_ms.max(self.floor_ms) {
            return Use::Expired;
        }
        // What is forgotten here stays refused, also by a clock that is set back.
        self.floor_ms = self.floor_ms.max(now_ms);
        self.ids = self.ids.split_off(&(now_ms, 0));
        if !self.ids.insert((receipt.expires_ms, receipt.id)) {
            return Use::Again;
        }
        if self.ids.len() > USED_MAX
            && let Some((expires_ms, _)) = self.ids.pop_first()
        {
            self.floor_ms = self.floor_ms.max(expires_ms);
        }
        Use::First
    }

    /// Nothing came of it: it may be used again.
    pub fn forget(&mut self, receipt: &Receipt) {
        self.ids.remove(&(receipt.expires_ms, receipt.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(id: u128, expires_ms: i64) -> Receipt {
        let key = "sg:{header:x-api-key=a,ip=::1}:daily:token_bucket".to_owned();
        Receipt { id, expires_ms, local: id % 2 == 1, cost: 3, receipt: -7, who: "a%20b,*".to_owned(), key }
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

    #[test]
    fn a_receipt_counts_once_until_it_expires() {
        let mut used = Used::default();
        assert_eq!(used.note(&receipt(1, 100), 99), Use::First);
        assert_eq!(used.note(&receipt(1, 100), 99), Use::Again);
        assert_eq!(used.note(&receipt(2, 100), 99), Use::First);
        assert_eq!(used.note(&receipt(1, 100), 100), Use::Expired);
        used.note(&receipt(3, 300), 200);
        assert_eq!(used.ids.len(), 1, "expired ones are forgotten");
        used.forget(&receipt(3, 300));
        assert_eq!(used.note(&receipt(3, 300), 200), Use::First);
    }

    #[test]
    fn what_had_to_be_forgotten_is_not_accepted_again() {
        let mut used = Used::default();
        let all: Vec<Receipt> =
            (0..).zip(1000..).take(USED_MAX + 10).map(|(id, expires_ms)| receipt(id, expires_ms)).collect();
        assert!(all.iter().all(|receipt| used.note(receipt, 1) == Use::First));
        assert_eq!(used.ids.len(), USED_MAX);
        assert!(all.iter().all(|receipt| used.note(receipt, 1) != Use::First));
    }
}
