//! Requests of all workers that wait for a server with room, first come, first served. Pure: who waits is woken
//! by what is called a waker. Kept by `roster`, waited in by `http::upstream::turn`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

#[derive(Default)]
pub struct WaitingLine {
    /// Of `places`, to be read without a lock.
    waiting: AtomicUsize,
    places: Mutex<LinePlaces>,
}

#[derive(Default)]
struct LinePlaces {
    next: u64,
    /// By the order of coming.
    taken: BTreeMap<u64, Option<Waker>>,
}

/// A place in the line, left when it is dropped.
pub struct LinePlace {
    line: Arc<WaitingLine>,
    number: u64,
}

impl WaitingLine {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// The last place, unless `max` wait already.
    pub fn join(self: &Arc<WaitingLine>, max: usize) -> Option<LinePlace> {
        let mut places = self.lock();
        if places.taken.len() >= max {
            return None;
        }
        let number = places.next;
        places.next += 1;
        places.taken.insert(number, None);
        self.waiting.store(places.taken.len(), Ordering::SeqCst);
        Some(LinePlace { line: self.clone(), number })
    }

    /// There may be room: the first looks.
    pub fn stir(&self) {
        if self.len() > 0 {
            self.lock().wake_first();
        }
    }

    fn lock(&self) -> MutexGuard<'_, LinePlaces> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinePlaces {
    fn wake_first(&self) {
        if let Some(waker) = self.taken.first_key_value().and_then(|(_, waker)| waker.as_ref()) {
            waker.wake_by_ref();
        }
    }
}

impl LinePlace {
    /// Whether it is the first; `waker` is called when that may have changed, or when there may be room. Asked
    /// before looking for room, no call is missed.
    pub fn is_first(&self, waker: &Waker) -> bool {
        let mut places = self.line.lock();
        if let Some(known) = places.taken.get_mut(&self.number)
            && !known.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            *known = Some(waker.clone());
        }
        places.taken.first_key_value().is_some_and(|(first, _)| *first == self.number)
    }
}

impl Drop for LinePlace {
    /// The next may find room that this one left, or was woken for.
    fn drop(&mut self) {
        let mut places = self.line.lock();
        places.taken.remove(&self.number);
        self.line.waiting.store(places.taken.len(), Ordering::SeqCst);
        places.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_first_is_woken_and_whoever_comes_after_it_when_it_leaves() {
        let line = Arc::<WaitingLine>::default();
        let woken: [Arc<Woken>; 3] = Default::default();
        let times = |i: usize| woken[i].0.load(Ordering::SeqCst);
        let mut places: Vec<Option<LinePlace>> = (0..3).map(|_| line.join(3)).collect();
        assert!(line.join(3).is_none());
        for (place, woken) in places.iter().zip(&woken) {
            place.as_ref().unwrap().is_first(&Waker::from(woken.clone()));
        }
        line.stir();
        assert_eq!([times(0), times(1), times(2)], [1, 0, 0]);
        // One in the midst leaves, then the first.
        places[1] = None;
        places[0] = None;
        assert_eq!((times(1), times(2), line.len()), (0, 1, 1));
        assert!(places[2].as_ref().unwrap().is_first(Waker::noop()));
        places.clear();
        line.stir();
        assert_eq!(line.len(), 0);
    }
}
