//! Ids of rows in lists of the admin API. An id names one live override with its value, and the place in the list after
//! which the next page begins. It is encrypted, because the key of an override may be secret, and valid as long as the
//! process runs. Used by `live_list`.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Random key of this process; `None` if the library refuses it, which its length rules out.
static KEY: LazyLock<Option<RandomizedNonceKey>> =
    LazyLock::new(|| RandomizedNonceKey::new(&AES_256_GCM, &rand::random::<[u8; 32]>()).ok());

/// Hashes values, which tells whether an entry has changed since the list was shown.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Separates the name of the limit, which never has this byte, from the field.
const SEPARATOR: u8 = 0;

/// The entry that an id names.
#[derive(Debug, PartialEq)]
pub struct RowId {
    pub limit: String,
    /// The field as it is written.
    pub field: Vec<u8>,
    value_hash: u64,
}

impl RowId {
    /// Returns whether the entry still has the value that it had in the list.
    pub fn has_value(&self, value: &[u8]) -> bool {
        self.value_hash == HASHER.hash_one(value)
    }
}

/// Returns the id of the live override of `limit` that is written as `field`; `None` if it cannot be encrypted.
pub fn seal_row_id(limit: &str, field: &[u8], value: &[u8]) -> Option<String> {
    let mut sealed = [&HASHER.hash_one(value).to_be_bytes(), limit.as_bytes(), &[SEPARATOR], field].concat();
    let nonce = KEY.as_ref()?.seal_in_place_append_tag(Aad::empty(), &mut sealed).ok()?;
    sealed.extend(nonce.as_ref());
    Some(URL_SAFE_NO_PAD.encode(sealed))
}

/// Returns what an id names; `None` if this process did not make it.
pub fn open_row_id(id: &str) -> Option<RowId> {
    let mut sealed = URL_SAFE_NO_PAD.decode(id).ok()?;
    let nonce: [u8; NONCE_LEN] = sealed.split_off(sealed.len().checked_sub(NONCE_LEN)?).try_into().ok()?;
    let plain = KEY.as_ref()?.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed).ok()?;
    let (hash, names) = plain.split_first_chunk()?;
    let at = names.iter().position(|byte| *byte == SEPARATOR)?;
    let limit = str::from_utf8(&names[..at]).ok()?.to_owned();
    Some(RowId { limit, field: names[at + 1..].to_vec(), value_hash: u64::from_be_bytes(*hash) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_opened_only_as_it_was_made_and_shows_nothing() {
        for (limit, field) in [("daily", &b"acme"[..]), ("a", b""), ("daily", b"\xff\x00,%2A")] {
            let id = seal_row_id(limit, field, b"rate=0").unwrap();
            let row = open_row_id(&id).unwrap();
            assert_eq!((row.limit.as_str(), row.field.as_slice()), (limit, field));
            assert!(row.has_value(b"rate=0") && !row.has_value(b"rate=1/s"));
            assert_ne!(seal_row_id(limit, field, b"rate=0").unwrap(), id, "equal rows have different ids");
            let mut other = id.clone().into_bytes();
            other[0] = if other[0] == b'A' { b'B' } else { b'A' };
            for wrong in ["", "A", "=", &id[1..], &id[..id.len() - 1], str::from_utf8(&other).unwrap()] {
                assert_eq!(open_row_id(wrong), None, "{wrong}");
            }
        }
    }
}
