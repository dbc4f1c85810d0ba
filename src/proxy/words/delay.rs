//! Slots for requests that a limit delays (`leaky_bucket`), so that only a bounded number of requests waits at once.
//!
//! A request takes its slot before the limits decide: the store would otherwise reserve a turn for a request that
//! cannot wait, and the turn would be lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limiting::Evaluation;
use crate::limiting::decision::Check;
use crate::limiting::limit::{Limit, Mode};

/// The slots of all workers.
#[derive(Default)]
pub struct DelaySlots(Mutex<SlotCounts>);

/// Numbers of waiting requests. A request counts for every limit that may delay it until one of them does.
#[derive(Default)]
struct SlotCounts {
    all: usize,
    by_limit: HashMap<String, usize>,
}

/// A limit that may delay the request.
struct WantedSlot<'a> {
    /// Index among the limits of the route.
    place: usize,
    name: &'a str,
    /// Number of requests that may wait for the limit.
    max: usize,
}

/// The slots of one request: one for each limit that may delay it. Dropping it releases them.
pub struct DelayPermit {
    slots: Arc<DelaySlots>,
    limits: Vec<String>,
}

impl DelaySlots {
    /// Takes the slots for a request, by the checks that its limits will make. Returns `None` if no limit can delay it.
    /// `max`: the number of requests that may wait in all, and for each limit without a number of its own.
    ///
    /// # Errors
    /// Index of the limit whose slots are all taken.
    pub fn reserve(
        self: &Arc<Self>,
        limits: &[Arc<Limit>],
        evaluations: &[Evaluation],
        max: usize,
    ) -> Result<Option<DelayPermit>, usize> {
        let slots = evaluations.iter().zip(limits).enumerate().filter_map(|(place, (evaluation, limit))| {
            let Evaluation::Check(Check { rule, .. }) = evaluation else { return None };
            let max = limit.charge_rules.as_ref().and_then(|rules| rules.max_delayed).unwrap_or(max);
            (rule.has_queue() && limit.mode == Mode::Enforce).then_some(WantedSlot { place, name: &limit.name, max })
        });
        // An empty list is not allocated, so limits without a delay cost nothing here.
        let slots: Vec<WantedSlot> = slots.collect();
        if slots.is_empty() { Ok(None) } else { self.take_slots(&slots, max).map(Some) }
    }

    /// Takes one slot of each of `limits`, of which there is at least one.
    ///
    /// # Errors
    /// Index of the limit whose slots are all taken, or of the first one if `max` requests wait already.
    fn take_slots(self: &Arc<Self>, limits: &[WantedSlot], max: usize) -> Result<DelayPermit, usize> {
        let mut counts = self.lock();
        let is_full = |wanted: &&WantedSlot| {
            counts.all >= max
                || counts.by_limit.get(wanted.name).is_some_and(|own| *own >= wanted.max)
                || wanted.max == 0
        };
        if let Some(wanted) = limits.iter().find(is_full) {
            return Err(wanted.place);
        }
        counts.all += 1;
        for wanted in limits {
            *counts.by_limit.entry(wanted.name.to_owned()).or_default() += 1;
        }
        Ok(DelayPermit { slots: self.clone(), limits: limits.iter().map(|wanted| wanted.name.to_owned()).collect() })
    }

    fn lock(&self) -> MutexGuard<'_, SlotCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DelayPermit {
    /// Releases all slots but the one of `limit`, which delays the request.
    pub fn keep_only(&mut self, limit: &str) {
        let mut counts = self.slots.lock();
        let (kept, left): (Vec<_>, Vec<_>) = self.limits.drain(..).partition(|name| name == limit);
        left.iter().for_each(|name| counts.release(name));
        drop(counts);
        self.limits = kept;
    }
}

impl SlotCounts {
    fn release(&mut self, limit: &str) {
        if let Some(own) = self.by_limit.get_mut(limit) {
            *own -= 1;
            if *own == 0 {
                self.by_limit.remove(limit);
            }
        }
    }
}

impl Drop for DelayPermit {
    fn drop(&mut self) {
        let mut counts = self.slots.lock();
        counts.all -= 1;
        self.limits.iter().for_each(|name| counts.release(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_bounded_in_all_and_by_limit_and_come_back() {
        let room = Arc::new(DelaySlots::default());
        let wanted = |name, place| WantedSlot { place, name, max: 2 };
        let enter = |names: &[&'static str]| {
            let wanted: Vec<WantedSlot> = names.iter().enumerate().map(|(place, name)| wanted(name, place)).collect();
            room.take_slots(&wanted, 4)
        };
        let mut both = enter(&["a", "b"]).ok();
        let a = enter(&["a"]).ok();
        assert!(both.is_some() && a.is_some());
        assert_eq!(enter(&["b", "a"]).err(), Some(1));
        if let Some(both) = &mut both {
            both.keep_only("b");
        }
        let more = [enter(&["b", "a"]).ok(), enter(&["c"]).ok()];
        assert!(more.iter().all(Option::is_some));
        assert_eq!(enter(&["d"]).err(), Some(0));
        drop((both, a, more));
        assert!(room.lock().all == 0 && room.lock().by_limit.is_empty());
        assert_eq!(room.take_slots(&[WantedSlot { place: 3, name: "a", max: 0 }], 4).err(), Some(3));
    }
}
