//! What a request is told apart by, as a number: the same in every gateway. Called by `http::limits`.

use super::balance::{START, digest};
use crate::limit::key::{Key, KeyPart};
use crate::limit::source::{Facts, Repeated};

/// `None` where the request lacks a part of `key`. Of what stands there more than once the first counts:
/// every server serves it alike.
pub fn hash(key: &Key, facts: &Facts) -> Option<u64> {
    key.0.iter().try_fold(START, |hash, part| match part {
        KeyPart::All => Some(hash),
        KeyPart::Source(source) => Some(digest(hash, &facts.text(source, Repeated::First).ok()??)),
        KeyPart::Alternatives(sources) => {
            let found = sources.iter().find_map(|source| facts.text(source, Repeated::First).ok()?);
            Some(digest(hash, &found?))
        }
    })
}
