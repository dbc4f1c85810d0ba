//! How many copies of requests (`mirror`) a worker makes at a time. Each upstream that gets copies has its own places,
//! so that one that does not respond stops no copies for others.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Copies of a worker for one upstream at a time.
pub const PLACES: usize = 64;

/// The copies that a worker makes, by the name of the upstream: names outlive reloads, and copies do too. An upstream
/// without copies has no entry.
#[derive(Default)]
pub struct MirrorPlaces(RefCell<HashMap<String, usize>>);

/// The place of one copy, until it is dropped.
pub struct MirrorPlace {
    places: Rc<MirrorPlaces>,
    upstream: String,
}

impl MirrorPlaces {
    /// Returns a place for a copy to this upstream, or `None` if all of its places are taken.
    pub fn take_place(self: &Rc<Self>, upstream: &str) -> Option<MirrorPlace> {
        let mut taken = self.0.borrow_mut();
        match taken.get_mut(upstream) {
            Some(count) if *count >= PLACES => return None,
            Some(count) => *count += 1,
            None => drop(taken.insert(upstream.to_owned(), 1)),
        }
        Some(MirrorPlace { places: self.clone(), upstream: upstream.to_owned() })
    }
}

impl Drop for MirrorPlace {
    fn drop(&mut self) {
        let mut taken = self.places.0.borrow_mut();
        match taken.get_mut(&self.upstream) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(&self.upstream)),
        }
    }
}
