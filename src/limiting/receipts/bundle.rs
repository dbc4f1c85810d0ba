//! The receipt of a decision for another proxy: all of its charges that the outcome of the request may change, signed.
//! The asking proxy may hand it on, and clients may see it, so it must not be possible to make or change one.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::limiting::key::shown_key::KeyHasher;
use crate::limiting::receipts::Receipt;

/// The charges of one decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptBundle {
    /// Name of the decision, under which the receipt is redeemed.
    pub name: String,
    /// The charges, at most one per limit. The mark of the one that expires last makes the whole bundle usable once.
    pub charges: Vec<Receipt>,
}

/// Is part of what is signed, so that no other hash with the same secret is a signature.
const PURPOSE: &str = "receipt of a decision";
/// Maximum length of a token in bytes: proxies have buffers of 4 KiB for the headers of a response.
pub const TOKEN_MAX: usize = 3 * 1024;
const SIGNATURE: usize = 32;

impl ReceiptBundle {
    /// Returns the signed token; `None` if it would be too long.
    pub fn to_token(&self, hasher: &KeyHasher) -> Option<String> {
        let mut text = format!("1 {} {}", self.name.len(), self.name);
        for charge in &self.charges {
            let charge = charge.to_text();
            let _ = write!(text, " {} {charge}", charge.len());
        }
        let mut bytes = hasher.sign(PURPOSE, text.as_bytes()).to_vec();
        bytes.extend_from_slice(text.as_bytes());
        let token = URL_SAFE_NO_PAD.encode(bytes);
        (token.len() <= TOKEN_MAX).then_some(token)
    }

    /// Reads a token; `None` if it was not signed with the secret of this hasher.
    pub fn from_token(token: &str, hasher: &KeyHasher) -> Option<ReceiptBundle> {
        let bytes = Some(token).filter(|token| token.len() <= TOKEN_MAX).map(|token| URL_SAFE_NO_PAD.decode(token))?;
        let bytes = bytes.ok()?;
        let (signature, text) = bytes.split_at_checked(SIGNATURE)?;
        if !hasher.has_signed(PURPOSE, text, signature) {
            return None;
        }
        let mut rest = str::from_utf8(text).ok()?.strip_prefix("1 ")?;
        let name = take_part(&mut rest)?.to_owned();
        let mut charges = Vec::new();
        while !rest.is_empty() {
            rest = rest.strip_prefix(' ')?;
            charges.push(Receipt::from_text(take_part(&mut rest)?)?);
        }
        (!charges.is_empty()).then_some(ReceiptBundle { name, charges })
    }
}

/// Takes a text with its length before it.
fn take_part<'t>(rest: &mut &'t str) -> Option<&'t str> {
    let (length, after) = rest.split_once(' ')?;
    let (part, after) = after.split_at_checked(length.parse().ok()?)?;
    *rest = after;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(limit: &str) -> Receipt {
        Receipt {
            id: 7,
            expires_ms: 1_800_000_000_000,
            local: false,
            cost: 3,
            receipt: -7,
            encoded_rule: "1,1000,5,0,0,0".to_owned(),
            key_values: "a%20b,*".to_owned(),
            tenant: "=acme".to_owned(),
            key: format!("sg:{{header:x-api-key=a b\n,ip=::1}}:{limit}:token_bucket"),
        }
    }

    #[test]
    fn a_token_is_read_only_with_its_secret_and_unchanged() {
        let hasher = KeyHasher::from_secret("0123456789abcdef0123456789abcdef");
        let bundle = ReceiptBundle { name: "a b/c".to_owned(), charges: vec![charge("one"), charge("two")] };
        let token = bundle.to_token(&hasher).unwrap();
        assert_eq!(ReceiptBundle::from_token(&token, &hasher), Some(bundle.clone()));
        assert_eq!(ReceiptBundle::from_token(&token, &KeyHasher::of_process()), None, "another secret");
        for place in 0..token.len() {
            assert_eq!(ReceiptBundle::from_token(&token[..place], &hasher), None, "cut at {place}");
            let mut other = token.clone().into_bytes();
            other[place] = if other[place] == b'A' { b'B' } else { b'A' };
            let read = ReceiptBundle::from_token(str::from_utf8(&other).unwrap(), &hasher);
            // The last digit of base64 has bits that mean nothing; the decoder accepts only one spelling.
            assert_eq!(read, None, "changed at {place}");
        }
        let unsigned = URL_SAFE_NO_PAD.encode([&[0; SIGNATURE][..], b"1 1 a 5 4 0 1"].concat());
        assert_eq!(ReceiptBundle::from_token(&unsigned, &hasher), None);
        let long = ReceiptBundle { name: "n".to_owned(), charges: vec![charge(&"l".repeat(TOKEN_MAX))] };
        assert_eq!(long.to_token(&hasher), None);
        assert_eq!(ReceiptBundle::from_token(&"A".repeat(TOKEN_MAX + 1), &hasher), None);
    }
}
