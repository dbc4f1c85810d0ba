//! Holding admitted requests back until their turn, a bounded number at once. Used by `gateway`
//! after a verdict that says so.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// A worker's requests that wait for their turn.
#[derive(Default)]
pub struct WaitingRoom {
    waiting: Cell<usize>,
    by_limit: RefCell<HashMap<String, usize>>,
}

/// One request's place; dropping it leaves.
pub struct Seat {
    room: Rc<WaitingRoom>,
    limit: String,
}

impl WaitingRoom {
    /// A seat for a request that `limit` holds back, unless `max` wait already or `max_of_limit`
    /// for this limit.
    pub fn enter(self: &Rc<Self>, limit: &str, max: usize, max_of_limit: usize) -> Option<Seat> {
        let mut by_limit = self.by_limit.borrow_mut();
        let own = by_limit.get(limit).copied().unwrap_or(0);
        if self.waiting.get() >= max || own >= max_of_limit {
            return None;
        }
        self.waiting.set(self.waiting.get() + 1);
        by_limit.insert(limit.to_owned(), own + 1);
        Some(Seat { room: self.clone(), limit: limit.to_owned() })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.room.waiting.set(self.room.waiting.get() - 1);
        let mut by_limit = self.room.by_limit.borrow_mut();
        if let Some(own) = by_limit.get_mut(&self.limit) {
            *own -= 1;
            if *own == 0 {
                by_limit.remove(&self.limit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_bounded_in_all_and_by_limit_and_come_back() {
        let room = Rc::new(WaitingRoom::default());
        let a: Vec<Seat> = (0..2).filter_map(|_| room.enter("a", 3, 2)).collect();
        assert!(a.len() == 2 && room.enter("a", 3, 2).is_none());
        let b = room.enter("b", 3, 2);
        assert!(b.is_some() && room.enter("c", 3, 2).is_none());
        drop(a);
        assert!(room.enter("a", 3, 2).is_some());
        drop(b);
        assert!(room.waiting.get() == 0 && room.by_limit.borrow().is_empty());
    }
}
