//! Cache of recently verified tokens. It has two generations: when the young one is full, it replaces the old one,
//! which drops all tokens that were not used in the meantime.

use std::collections::HashMap;
use std::sync::Arc;

use crate::limiting::source::jwt::claims::Claims;

/// Size of a generation. The cache has at most twice as many tokens.
pub const GENERATION_MAX: usize = 1024;

#[derive(Default)]
pub struct TokenCache {
    /// Digest of the key set that verified the tokens. With another set, the cache starts empty: a token whose key the
    /// issuer has withdrawn is not valid any more.
    keys: [u8; 32],
    pub young: HashMap<[u8; 32], Arc<Claims>>,
    pub old: HashMap<[u8; 32], Arc<Claims>>,
}

impl TokenCache {
    /// Returns the claims of a token that a key of the set with the digest `keys` has verified.
    pub fn get(&mut self, keys: &[u8; 32], id: &[u8; 32]) -> Option<Arc<Claims>> {
        if self.keys != *keys {
            return None;
        }
        if let Some(claims) = self.young.get(id) {
            return Some(claims.clone());
        }
        let claims = self.old.remove(id)?;
        self.put(keys, *id, claims.clone());
        Some(claims)
    }

    pub fn put(&mut self, keys: &[u8; 32], id: [u8; 32], claims: Arc<Claims>) {
        if self.keys != *keys {
            *self = TokenCache { keys: *keys, ..TokenCache::default() };
        }
        if self.young.len() >= GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, claims);
    }
}
