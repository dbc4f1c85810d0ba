//! Queue of the requests of all workers that wait for capacity of an upstream. Kept by `roster`; requests wait in
//! `proxy::steps::select::reserve`.
//!
//! Requests with a higher priority go first. Within a priority, the oldest goes first, until the queue of that priority
//! has not been empty for a while (`newest_first_after`). Then the servers cannot keep up, and the oldest
//! would exceed their timeout anyway: the newest goes first, and each waits only briefly (`patience`). Time is an
//! argument.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::upstream::priority::{PRIORITIES, Priority, RecentArrivals};

/// `newest_first_after` and `patience` of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewestFirst {
    /// How long the queue must not have been empty.
    pub after: Duration,
    /// How long a request then waits.
    pub patience: Duration,
}

/// How fast the servers respond, as far as it is known: times of zero are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerPace {
    /// The time between two responses, in which one place becomes free.
    pub gap: Duration,
    /// The recent response time.
    pub response: Duration,
}

/// Gaps and response times that pass before the newest goes first: slow servers need so much time to work off the
/// requests of a random burst, which is not an overload.
const GAPS: u32 = 20;
const RESPONSES: u32 = 2;

/// The queue of one upstream.
#[derive(Default)]
pub struct RequestQueue {
    /// Number of waiting requests, readable without the lock.
    waiting: AtomicUsize,
    places: Mutex<QueuePlaces>,
}

#[derive(Default)]
struct QueuePlaces {
    next: u64,
    /// One queue per priority.
    queues: [PriorityQueue; PRIORITIES],
    arrivals: RecentArrivals,
}

/// The waiting requests of one priority in order of arrival.
#[derive(Default)]
struct PriorityQueue {
    taken: BTreeMap<u64, Option<Waker>>,
    /// Since when it is not empty.
    since: Option<Instant>,
    newest_first: bool,
}

/// A place in the queue. Dropping it leaves the queue.
pub struct QueuePlace {
    queue: Arc<RequestQueue>,
    priority: Priority,
    number: u64,
    joined: Instant,
}

/// A request that joins the queue.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub priority: Priority,
    /// Maximum number of requests that wait.
    pub max: usize,
    pub now: Instant,
    /// A random number.
    pub random: u32,
    /// Refuses the least important requests while the queue is more than half full.
    pub sheds: bool,
}

/// The turn of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The request may look for capacity.
    First,
    /// Others go first.
    Waits,
    /// The request has waited for too long, or a more important request has taken its place.
    Over,
}

impl RequestQueue {
    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Joins the queue. Returns `None` if `max` requests of the same or a higher priority wait already, or if the
    /// request is among the least important while many wait.
    pub fn join(self: &Arc<RequestQueue>, arrival: Arrival) -> Option<QueuePlace> {
        let mut places = self.lock();
        if arrival.sheds && places.refuses(&arrival) {
            return None;
        }
        if places.len() >= arrival.max && !places.evict_below(arrival.priority) {
            return None;
        }
        let number = places.next;
        places.next += 1;
        let queue = &mut places.queues[arrival.priority.index()];
        queue.since.get_or_insert(arrival.now);
        queue.taken.insert(number, None);
        self.waiting.store(places.len(), Ordering::SeqCst);
        Some(QueuePlace { queue: self.clone(), priority: arrival.priority, number, joined: arrival.now })
    }

    /// Returns whether [`RequestQueue::join`] would certainly refuse a request: `max` requests of its priority or
    /// higher ones wait. Asked before a request is charged.
    pub fn is_full_for(&self, priority: Priority, max: usize) -> bool {
        self.len() >= max && {
            let places = self.lock();
            places.len() >= max && places.queues[..priority.index()].iter().all(|queue| queue.taken.is_empty())
        }
    }

    /// Returns whether the newest request goes first in some queue.
    pub fn is_newest_first(&self) -> bool {
        self.len() > 0 && self.lock().queues.iter().any(|queue| queue.newest_first)
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
    fn len(&self) -> usize {
        self.queues.iter().map(|queue| queue.taken.len()).sum()
    }

    /// Counts the arrival, and returns whether it is refused: while the queue is between half full and full, an
    /// increasing part of the requests, the least important first. None is refused while less important ones wait.
    fn refuses(&mut self, arrival: &Arrival) -> bool {
        self.arrivals.count(arrival.priority);
        let half = arrival.max / 2;
        let above = self.len().saturating_sub(half);
        let has_lower = self.queues[..arrival.priority.index()].iter().any(|queue| !queue.taken.is_empty());
        above > 0
            && !has_lower
            && self.arrivals.is_shed(arrival.priority, above, (arrival.max - half).max(1), arrival.random)
    }

    /// Removes the request that has waited shortest of the lowest priority below `priority`. Returns false if there is
    /// none.
    fn evict_below(&mut self, priority: Priority) -> bool {
        let lower = self.queues[..priority.index()].iter_mut();
        let Some(queue) = lower.into_iter().find(|queue| !queue.taken.is_empty()) else { return false };
        let victim = queue.taken.pop_last();
        queue.reset_if_empty();
        if let Some((_, Some(waker))) = victim {
            waker.wake();
        }
        true
    }

    /// Returns the queue and the number of the request that goes first.
    fn first(&self) -> Option<(usize, u64)> {
        let (index, queue) = self.queues.iter().enumerate().rev().find(|(_, queue)| !queue.taken.is_empty())?;
        queue.first().map(|number| (index, number))
    }

    fn wake_first(&self) {
        let Some((index, number)) = self.first() else { return };
        if let Some(Some(waker)) = self.queues[index].taken.get(&number) {
            waker.wake_by_ref();
        }
    }
}

impl PriorityQueue {
    fn first(&self) -> Option<u64> {
        let mut numbers = self.taken.keys();
        if self.newest_first { numbers.next_back().copied() } else { numbers.next().copied() }
    }

    fn reset_if_empty(&mut self) {
        if self.taken.is_empty() {
            (self.since, self.newest_first) = (None, false);
        }
    }

    /// Lets the newest go first if the queue has not been empty for long, and wakes all, whose patience may be over.
    fn update_order(&mut self, rule: &NewestFirst, pace: ServerPace, now: Instant) {
        let burst = pace.gap.saturating_mul(GAPS).max(pace.response.saturating_mul(RESPONSES));
        let after = rule.after.max(burst);
        let is_long = self.since.is_some_and(|since| now.saturating_duration_since(since) > after);
        if is_long && !self.newest_first {
            self.newest_first = true;
            self.taken.values().flatten().for_each(Waker::wake_by_ref);
        }
    }
}

impl QueuePlace {
    /// Returns whose turn it is. `waker` is called when that may have changed, or when a server may be below its
    /// limits. Call this before looking for a server, so that no wake-up is missed.
    pub fn check_turn(&self, waker: &Waker, rule: Option<&NewestFirst>, pace: ServerPace, now: Instant) -> Turn {
        let mut places = self.queue.lock();
        let queue = &mut places.queues[self.priority.index()];
        if let Some(rule) = rule {
            queue.update_order(rule, pace, now);
        }
        let Some(known) = queue.taken.get_mut(&self.number) else { return Turn::Over };
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
        let is_over = rule.filter(|_| queue.newest_first).is_some_and(|rule| self.leaves_at(rule, pace) <= now);
        match places.first() {
            Some((_, first)) if first == self.number => Turn::First,
            _ if is_over => Turn::Over,
            _ => Turn::Waits,
        }
    }

    /// Returns when the patience of the request ends, if the newest goes first.
    pub fn leaves_at(&self, rule: &NewestFirst, pace: ServerPace) -> Instant {
        self.joined + rule.patience.max(pace.gap)
    }

    /// Returns whether the newest goes first among the requests of this priority.
    pub fn is_newest_first(&self) -> bool {
        self.queue.lock().queues[self.priority.index()].newest_first
    }
}

impl Drop for QueuePlace {
    /// Wakes the next request: it may find a server that this one left, or was woken for.
    fn drop(&mut self) {
        let mut places = self.queue.lock();
        let queue = &mut places.queues[self.priority.index()];
        queue.taken.remove(&self.number);
        queue.reset_if_empty();
        self.queue.waiting.store(places.len(), Ordering::SeqCst);
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

    const RULE: NewestFirst = NewestFirst { after: Duration::from_millis(100), patience: Duration::from_millis(5) };

    fn arrival(priority: i64, max: usize, now: Instant) -> Arrival {
        Arrival { priority: Priority::from_number(priority).unwrap(), max, now, random: 0, sheds: false }
    }

    fn turn(place: &QueuePlace, now: Instant) -> Turn {
        place.check_turn(Waker::noop(), Some(&RULE), ServerPace::default(), now)
    }

    #[test]
    fn the_first_request_is_woken_and_the_next_one_when_it_leaves() {
        let (queue, now) = (Arc::<RequestQueue>::default(), Instant::now());
        let woken: [Arc<Woken>; 3] = Default::default();
        let times = |i: usize| woken[i].0.load(Ordering::SeqCst);
        let mut places: Vec<Option<QueuePlace>> = (0..3).map(|_| queue.join(arrival(2, 3, now))).collect();
        assert!(queue.join(arrival(2, 3, now)).is_none());
        for (place, woken) in places.iter().zip(&woken) {
            place.as_ref().unwrap().check_turn(&Waker::from(woken.clone()), None, ServerPace::default(), now);
        }
        queue.notify_first();
        assert_eq!([times(0), times(1), times(2)], [1, 0, 0]);
        // One in the midst leaves, then the first.
        places[1] = None;
        places[0] = None;
        assert_eq!((times(1), times(2), queue.len()), (0, 1, 1));
        assert_eq!(
            places[2].as_ref().unwrap().check_turn(Waker::noop(), None, ServerPace::default(), now),
            Turn::First
        );
        places.clear();
        queue.notify_first();
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn the_newest_goes_first_once_the_queue_has_not_been_empty_for_a_while() {
        let (queue, start) = (Arc::<RequestQueue>::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let old = queue.join(arrival(2, 9, start)).unwrap();
        let middle = queue.join(arrival(2, 9, at(98))).unwrap();
        assert_eq!([turn(&old, at(100)), turn(&middle, at(100))], [Turn::First, Turn::Waits]);
        let new = queue.join(arrival(2, 9, at(101))).unwrap();
        assert_eq!(turn(&new, at(101)), Turn::First);
        assert!(queue.is_newest_first());
        // Their patience: 5 ms since they came.
        assert_eq!(
            [turn(&old, at(101)), turn(&middle, at(101)), turn(&middle, at(103))],
            [Turn::Over, Turn::Waits, Turn::Over]
        );
        // Slow servers get the time that one response takes them.
        let slow = middle.check_turn(
            Waker::noop(),
            Some(&RULE),
            ServerPace { gap: Duration::from_millis(30), ..ServerPace::default() },
            at(103),
        );
        assert_eq!(slow, Turn::Waits);
        drop((old, middle, new));
        // An empty queue is a new one.
        let again = [queue.join(arrival(2, 9, at(300))).unwrap(), queue.join(arrival(2, 9, at(301))).unwrap()];
        assert_eq!(again.each_ref().map(|place| turn(place, at(302))), [Turn::First, Turn::Waits]);
        assert!(!queue.is_newest_first());
    }

    #[test]
    fn the_highest_priority_goes_first_and_replaces_the_lowest() {
        let (queue, now) = (Arc::<RequestQueue>::default(), Instant::now());
        let woken = Arc::new(Woken::default());
        let low = queue.join(arrival(1, 3, now)).unwrap();
        let lowest = queue.join(arrival(0, 3, now)).unwrap();
        let high = queue.join(arrival(3, 3, now)).unwrap();
        assert_eq!([&low, &lowest, &high].map(|place| turn(place, now)), [Turn::Waits, Turn::Waits, Turn::First]);
        lowest.check_turn(&Waker::from(woken.clone()), None, ServerPace::default(), now);
        // No request has a lower priority than the lowest.
        assert!(queue.is_full_for(Priority::from_number(0).unwrap(), 3));
        assert!(queue.join(arrival(0, 3, now)).is_none());
        assert!(!queue.is_full_for(Priority::from_number(3).unwrap(), 3));
        let highest = queue.join(arrival(4, 3, now)).unwrap();
        assert_eq!((turn(&lowest, now), woken.0.load(Ordering::SeqCst), queue.len()), (Turn::Over, 1, 3));
        drop(lowest);
        assert_eq!(queue.len(), 3);
        assert_eq!(turn(&highest, now), Turn::First);
        drop((highest, high));
        assert_eq!(turn(&low, now), Turn::First);
    }

    #[test]
    fn the_least_important_are_refused_while_the_queue_fills() {
        let (queue, now) = (Arc::<RequestQueue>::default(), Instant::now());
        let join = |priority, random| queue.join(Arrival { random, sheds: true, ..arrival(priority, 8, now) });
        let places: Vec<_> = (0..4).map(|i| join(i % 2 * 4, 0).unwrap()).collect();
        // Half full: everyone joins. Above: a growing part is refused.
        let one_more = join(0, u32::MAX).unwrap();
        assert!(join(0, 0).is_none());
        assert!(join(4, 0).is_some());
        drop((places, one_more));
        assert_eq!(queue.len(), 0);
    }
}
