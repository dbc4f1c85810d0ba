//! Holding admitted requests back until their turn, a bounded number at once. A request takes its
//! seat before the store is asked: a turn that nobody can wait for would be lost. Used by `gateway`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limit::Ask;
use crate::limit::decision::Check;
use crate::limit::limits::Mode;

/// The seats of all workers.
#[derive(Default)]
pub struct WaitingRoom(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    all: usize,
    by_limit: HashMap<String, usize>,
}

/// A limit that may hold a request back.
struct WantedSeat<'a> {
    /// Its place among the limits of the route.
    place: usize,
    name: &'a str,
    /// How many requests may wait for it.
    max: usize,
}

/// One request's place, among those of every limit that may hold it back; dropping it leaves.
pub struct Seat {
    room: Arc<WaitingRoom>,
    limits: Vec<String>,
}

impl WaitingRoom {
    /// A seat for a request that may have to wait, by what its limits are asked, or the place of the limit
    /// that has none left. `max` requests may wait in all, and for a limit that says no number.
    pub fn seat_for(self: &Arc<Self>, asks: &[Ask], max: usize) -> Result<Option<Seat>, usize> {
        let wanted = asks.iter().enumerate().filter_map(|(place, ask)| {
            let Ask::Check(Check { limit, rule, .. }) = ask else { return None };
            let max = limit.afterwards.as_ref().and_then(|wants| wants.max_delayed).unwrap_or(max);
            (rule.delays() && limit.mode == Mode::Enforce).then_some(WantedSeat { place, name: &limit.name, max })
        });
        // Without such a limit nothing is allocated.
        let wanted: Vec<WantedSeat> = wanted.collect();
        if wanted.is_empty() { Ok(None) } else { self.enter(&wanted, max).map(Some) }
    }

    /// A seat with all `limits`, of which there is at least one, unless `max` requests wait
    /// already. Else the place of the limit that has no seat left.
    fn enter(self: &Arc<Self>, limits: &[WantedSeat], max: usize) -> Result<Seat, usize> {
        let mut taken = self.taken();
        let full = |wanted: &&WantedSeat| {
            taken.all >= max || taken.by_limit.get(wanted.name).is_some_and(|own| *own >= wanted.max) || wanted.max == 0
        };
        if let Some(wanted) = limits.iter().find(full) {
            return Err(wanted.place);
        }
        taken.all += 1;
        for wanted in limits {
            *taken.by_limit.entry(wanted.name.to_owned()).or_default() += 1;
        }
        Ok(Seat { room: self.clone(), limits: limits.iter().map(|wanted| wanted.name.to_owned()).collect() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// The request waits for `limit` alone.
    pub fn wait_for(&mut self, limit: &str) {
        let mut taken = self.room.taken();
        let (kept, left): (Vec<_>, Vec<_>) = self.limits.drain(..).partition(|name| name == limit);
        left.iter().for_each(|name| taken.leave(name));
        drop(taken);
        self.limits = kept;
    }
}

impl Taken {
    fn leave(&mut self, limit: &str) {
        if let Some(own) = self.by_limit.get_mut(limit) {
            *own -= 1;
            if *own == 0 {
                self.by_limit.remove(limit);
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.room.taken();
        taken.all -= 1;
        self.limits.iter().for_each(|name| taken.leave(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_bounded_in_all_and_by_limit_and_come_back() {
        let room = Arc::new(WaitingRoom::default());
        let wanted = |name, place| WantedSeat { place, name, max: 2 };
        let enter = |names: &[&'static str]| {
            let wanted: Vec<WantedSeat> = names.iter().enumerate().map(|(place, name)| wanted(name, place)).collect();
            room.enter(&wanted, 4)
        };
        let mut both = enter(&["a", "b"]).ok();
        let a = enter(&["a"]).ok();
        assert!(both.is_some() && a.is_some());
        assert_eq!(enter(&["b", "a"]).err(), Some(1));
        if let Some(both) = &mut both {
            both.wait_for("b");
        }
        let more = [enter(&["b", "a"]).ok(), enter(&["c"]).ok()];
        assert!(more.iter().all(Option::is_some));
        assert_eq!(enter(&["d"]).err(), Some(0));
        drop((both, a, more));
        assert!(room.taken().all == 0 && room.taken().by_limit.is_empty());
        assert_eq!(room.enter(&[WantedSeat { place: 3, name: "a", max: 0 }], 4).err(), Some(3));
    }
}
