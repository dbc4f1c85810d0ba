//! FIFO queue of the requests of all workers that wait for a server below its limits. Kept by `roster`; requests wait
//! in `proxy::outbound::select::reserve`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The queue of one upstream.
#[derive(Default)]
pub struct RequestQueue {
    /// Length of `places.taken`, readable without the lock.
    waiting: AtomicUsize,
    places: Mutex<QueuePlaces>,
}

#[derive(Default)]
struct QueuePlaces {
    next: u64,
    /// The waiting requests in order of arrival.
    taken: BTreeMap<u64, Option<Waker>>,
}

/// A place in the queue. Dropping it leaves the queue.
pub struct QueuePlace {
    queue: Arc<RequestQueue>,
    number: u64,
}

impl RequestQueue {
    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Joins the queue at its end. Returns `None` if `max` requests wait already.
    pub fn join(self: &Arc<RequestQueue>, max: usize) -> Option<QueuePlace> {
        let mut places = self.lock();
        if places.taken.len() >= max {
            return None;
        }
        let number = places.next;
        places.next += 1;
        places.taken.insert(number, None);
        self.waiting.store(places.taken.len(), Ordering::SeqCst);
        Some(QueuePlace { queue: self.clone(), number })
    }

    /// Wakes the first request, because a server may be below its limits now.
    pub fn notify_first(&self) {
        if self.len() > 0 {
            self.lock().wake_first();
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueuePlaces> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuePlaces {
    fn wake_first(&self) {
        if let Some(waker) = self.taken.first_key_value().and_then(|(_, waker)| waker.as_ref()) {
            waker.wake_by_ref();
        }
    }
}

impl QueuePlace {
    /// Returns whether this is the first request. `waker` is called when that may have changed, or when a server may be
    /// below its limits. Call this before looking for a server, so that no wake-up is missed.
    pub fn is_first(&self, waker: &Waker) -> bool {
        let mut places = self.queue.lock();
        if let Some(known) = places.taken.get_mut(&self.number)
            && !known.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            *known = Some(waker.clone());
        }
        places.taken.first_key_value().is_some_and(|(first, _)| *first == self.number)
    }
}

impl Drop for QueuePlace {
    /// Wakes the next request: it may find a server that this one left, or was woken for.
    fn drop(&mut self) {
        let mut places = self.queue.lock();
        places.taken.remove(&self.number);
        self.queue.waiting.store(places.taken.len(), Ordering::SeqCst);
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
        let line = Arc::<RequestQueue>::default();
        let woken: [Arc<Woken>; 3] = Default::default();
        let times = |i: usize| woken[i].0.load(Ordering::SeqCst);
        let mut places: Vec<Option<QueuePlace>> = (0..3).map(|_| line.join(3)).collect();
        assert!(line.join(3).is_none());
        for (place, woken) in places.iter().zip(&woken) {
            place.as_ref().unwrap().is_first(&Waker::from(woken.clone()));
        }
        line.notify_first();
        assert_eq!([times(0), times(1), times(2)], [1, 0, 0]);
        // One in the midst leaves, then the first.
        places[1] = None;
        places[0] = None;
        assert_eq!((times(1), times(2), line.len()), (0, 1, 1));
        assert!(places[2].as_ref().unwrap().is_first(Waker::noop()));
        places.clear();
        line.notify_first();
        assert_eq!(line.len(), 0);
    }
}
