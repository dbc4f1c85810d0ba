//! How many copies of requests (`mirror`) a worker makes at a time.

use std::cell::Cell;
use std::rc::Rc;

/// Copies of a worker at a time.
pub const PLACES: usize = 64;

/// The copies that a worker makes.
#[derive(Default)]
pub struct MirrorPlaces(Cell<usize>);

/// The place of one copy, until it is dropped.
pub struct MirrorPlace(Rc<MirrorPlaces>);

impl MirrorPlaces {
    /// Returns a place, or `None` if all of them are taken.
    pub fn take_place(self: &Rc<Self>) -> Option<MirrorPlace> {
        let count = self.0.get();
        (count < PLACES).then(|| {
            self.0.set(count + 1);
            MirrorPlace(self.clone())
        })
    }
}

impl Drop for MirrorPlace {
    fn drop(&mut self) {
        self.0.0.set(self.0.0.get() - 1);
    }
}
