//! A list of calls. It is read only up to a maximum, so that no request takes long.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{IgnoredAny, SeqAccess, Visitor};

/// Maximum number of calls in a batch.
pub const CALLS_MAX: usize = 1000;

/// The first calls of a JSON array.
pub struct Batch<T> {
    pub calls: Vec<T>,
    /// The array has more than [`CALLS_MAX`] elements. The others are only skipped.
    pub has_more: bool,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Batch<T> {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<Batch<T>, D::Error> {
        reader.deserialize_seq(BatchVisitor(PhantomData))
    }
}

struct BatchVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for BatchVisitor<T> {
    type Value = Batch<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Batch<T>, A::Error> {
        let mut calls = Vec::new();
        while calls.len() < CALLS_MAX {
            match items.next_element()? {
                Some(call) => calls.push(call),
                None => return Ok(Batch { calls, has_more: false }),
            }
        }
        let mut has_more = false;
        while items.next_element::<IgnoredAny>()?.is_some() {
            has_more = true;
        }
        Ok(Batch { calls, has_more })
    }
}

/// Returns whether a JSON document is an array.
pub fn is_batch(document: &[u8]) -> bool {
    document.trim_ascii_start().first() == Some(&b'[')
}
