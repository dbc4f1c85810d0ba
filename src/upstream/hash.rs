//! Hash of the `hash_on` key of a request; the same in every gateway. Called by `proxy::steps::limits`.

use crate::limiting::key::{Key, KeyPart};
use crate::limiting::source::{Facts, Repeated, SourceValue};
use crate::upstream::balance::{HASH_START, fnv1a};

/// Returns the hash of `key`, or `None` if the request lacks a part of it. Of a repeated header or parameter the first
/// value counts, because every server can serve the request.
pub fn hash_key(key: &Key, facts: &Facts) -> Option<u64> {
    key.0.iter().try_fold(HASH_START, |hash, part| match part {
        KeyPart::All => Some(hash),
        KeyPart::Source(source) => Some(fnv1a(hash, &facts.text(source, Repeated::First).ok()??)),
        KeyPart::Alternatives(sources) => {
            let value = sources.iter().find_map(|source| facts.text(source, Repeated::First).ok()?);
            Some(fnv1a(hash, &value?))
        }
        KeyPart::Normalized(_) => match part.value(facts, Repeated::First).ok()?? {
            SourceValue::Bytes(value) => Some(fnv1a(hash, &value)),
            SourceValue::Ip(_) | SourceValue::Digest(_) => None,
        },
    })
}
