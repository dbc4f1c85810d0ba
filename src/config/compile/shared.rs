//! Values that many routes have in common, stored once to save memory and cache lines. Called by `routes`.

use std::sync::Arc;

use crate::limiting::limit::refuse::Refuse;
use crate::net::IpSet;
use crate::route::compress::CompressSettings;
use crate::route::cors::CorsPolicy;
use crate::route::{HeaderEdit, ResponseEdit, Rewrite, Timeouts};

/// The values that routes share.
#[derive(Default)]
pub struct SharedValues {
    pub networks: Values<IpSet>,
    pub rewrites: Values<Rewrite>,
    pub edits: Values<HeaderEdit>,
    pub response_edits: Values<ResponseEdit>,
    pub timeouts: Values<Timeouts>,
    pub refusals: Values<Refuse>,
    pub compressions: Values<CompressSettings>,
    pub cors: Values<CorsPolicy>,
}

/// The most recently used distinct values, newest first. The list is short: a route usually equals its neighbours or
/// none.
pub struct Values<T>(Vec<Arc<T>>);

const VALUES_MAX: usize = 8;

impl<T> Default for Values<T> {
    fn default() -> Values<T> {
        Values(Vec::new())
    }
}

impl<T: PartialEq> Values<T> {
    pub fn share_value(&mut self, value: T) -> Arc<T> {
        let met = self.0.iter().position(|met| **met == value);
        let arc = met.map_or_else(|| Arc::new(value), |place| self.0.remove(place));
        self.0.truncate(VALUES_MAX - 1);
        self.0.insert(0, arc.clone());
        arc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one() {
        let mut values = Values::default();
        let first = values.share_value(7);
        assert!((0..6).all(|value| *values.share_value(value) == value));
        assert!(Arc::ptr_eq(&first, &values.share_value(7)));
        (10..20).for_each(|value| assert_eq!(*values.share_value(value), value));
        let again = values.share_value(7);
        assert!(*again == 7 && !Arc::ptr_eq(&first, &again));
    }
}
