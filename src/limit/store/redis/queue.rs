//! What waits for one Redis server, oldest first, and when the next call with it leaves. Filled by
//! `lane.rs`, emptied by `pump.rs`; it outlives a pump that fails.
//!
//! A call leaves at once when none is under way. Later ones leave when they are full, or when the
//! last one left as many milliseconds ago as there are calls under way: a server that is near has
//! answered before that, so that decisions gather while its only call is under way, and one that is
//! far gets several calls at once, about the square root of its round trip in milliseconds.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use super::waiting::{LaneFault, Waiting};
use super::wire::{DECISIONS_MAX, WORK_MAX};
use crate::limit::decision::ErrorKind;

/// Decisions that may wait for a call to one server; more are not queued.
pub const QUEUE_MAX: usize = 4096;
/// Calls under way to one server at once.
const CALLS_MAX: usize = 32;
/// Pause between two calls, for each that is under way.
const PAUSE: Duration = Duration::from_millis(1);

pub struct Queue {
    /// Longest wait for a call to leave.
    patience: Duration,
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Waiting>,
    /// Of all that wait.
    work: i64,
    pump: Option<Waker>,
    /// The pump wants to know of whatever comes, not only of a call that is full.
    listening: bool,
}

/// What the pump does next.
pub enum Next {
    /// These leave now.
    Call(Vec<Waiting>),
    /// Nothing leaves before then, unless a call ends or fills up.
    At(Instant),
    /// Nothing waits.
    Idle,
}

impl Queue {
    pub fn new(patience: Duration) -> Queue {
        Queue { patience, inner: RefCell::default() }
    }

    /// False when there is no room.
    pub fn push(&self, waiting: Waiting) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.waiting.len() >= QUEUE_MAX {
            return false;
        }
        inner.work = inner.work.saturating_add(waiting.work());
        inner.waiting.push_back(waiting);
        let awaited = inner.listening || inner.is_full();
        let pump = if awaited { inner.pump.take() } else { None };
        drop(inner);
        if let Some(pump) = pump {
            pump.wake();
        }
        true
    }

    /// Decides what is next, with `calls` under way of which the last left at `left`. Those that
    /// have waited too long are told so. Unless a call leaves, `pump` is woken when that changes.
    pub fn next(&self, calls: usize, left: Instant, pump: &Waker) -> Next {
        let now = Instant::now();
        self.end_long_waits(now);
        let mut inner = self.inner.borrow_mut();
        let gate = left + PAUSE * u32::try_from(calls).unwrap_or(u32::MAX);
        let open = calls == 0 || calls < CALLS_MAX && (now >= gate || inner.is_full());
        if open {
            let batch = inner.batch();
            if !batch.is_empty() {
                return Next::Call(batch);
            }
        }
        inner.listening = open;
        if inner.pump.as_ref().is_none_or(|known| !known.will_wake(pump)) {
            inner.pump = Some(pump.clone());
        }
        match inner.waiting.front().map(|oldest| oldest.since + self.patience) {
            _ if open => Next::Idle,
            None if calls == CALLS_MAX => Next::Idle,
            Some(end) if calls == CALLS_MAX => Next::At(end),
            // Now, and not when something comes: a pump that is not woken costs nothing.
            None => Next::At(gate),
            Some(end) => Next::At(end.min(gate)),
        }
    }

    fn end_long_waits(&self, now: Instant) {
        loop {
            let mut inner = self.inner.borrow_mut();
            if inner.waiting.front().is_none_or(|oldest| now < oldest.since + self.patience) {
                return;
            }
            let late = inner.pop();
            drop(inner);
            if let Some(late) = late {
                late.answer(Err(LaneFault::Failed(ErrorKind::QueueTimeout)));
            }
        }
    }
}

impl Inner {
    /// Whether waiting longer would save no call.
    fn is_full(&self) -> bool {
        self.waiting.len() >= DECISIONS_MAX || self.work >= WORK_MAX
    }

    fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        self.work -= waiting.work();
        Some(waiting)
    }

    /// The oldest, up to the size of one call.
    fn batch(&mut self) -> Vec<Waiting> {
        let (mut batch, mut work) = (Vec::new(), 0_i64);
        while let Some(next) = self.waiting.front() {
            // A client that has left is not charged.
            if !next.reply.is_closed() {
                work = work.saturating_add(next.work());
                if batch.len() == DECISIONS_MAX || (work > WORK_MAX && !batch.is_empty()) {
                    break;
                }
            }
            batch.extend(self.pop().filter(|waiting| !waiting.reply.is_closed()));
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tokio::sync::oneshot;

    use super::super::waiting::Way;
    use super::*;
    use crate::limit::decision::{Decision, Op};

    const PATIENCE: Duration = Duration::from_secs(60);

    type Answer = oneshot::Receiver<Result<Decision, LaneFault>>;

    fn pushed(queue: &Queue, since: Instant) -> Answer {
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting { op: Op::Take, checks: Rc::default(), way: Way::Shared, since, reply };
        assert!(queue.push(waiting));
        answer
    }

    /// How many leave; `Err` says how long nothing does.
    fn left(queue: &Queue, calls: usize, left: Instant) -> Result<usize, Option<Instant>> {
        match queue.next(calls, left, Waker::noop()) {
            Next::Call(batch) => Ok(batch.len()),
            Next::At(then) => Err(Some(then)),
            Next::Idle => Err(None),
        }
    }

    #[test]
    fn an_idle_pipe_adds_no_wait_and_a_busy_one_gathers() {
        let (queue, now) = (Queue::new(PATIENCE), Instant::now());
        assert_eq!(left(&queue, 0, now), Err(None));
        let _first = pushed(&queue, now);
        assert_eq!(left(&queue, 0, now), Ok(1));
        let _more = [pushed(&queue, now), pushed(&queue, now)];
        // As many milliseconds as calls are under way.
        let ahead = now + PATIENCE / 2;
        for (calls, pauses) in [(1, 1), (5, 5), (CALLS_MAX - 1, 31)] {
            assert_eq!(left(&queue, calls, ahead), Err(Some(ahead + PAUSE * pauses)));
        }
        let Some(past) = Instant::now().checked_sub(PAUSE * 5) else { return };
        assert_eq!(left(&queue, 5, past), Ok(2));
    }

    #[test]
    fn a_full_call_leaves_at_once_while_there_is_room_for_calls() {
        let (queue, now) = (Queue::new(PATIENCE), Instant::now());
        let ahead = now + PATIENCE / 2;
        let _answers: Vec<Answer> = (0..2 * DECISIONS_MAX + 1).map(|_| pushed(&queue, now)).collect();
        assert_eq!(left(&queue, CALLS_MAX, ahead), Err(Some(now + PATIENCE)));
        assert_eq!(left(&queue, CALLS_MAX - 1, ahead), Ok(DECISIONS_MAX));
        assert_eq!(left(&queue, 1, ahead), Ok(DECISIONS_MAX));
        assert_eq!(left(&queue, 1, ahead), Err(Some(ahead + PAUSE)));
    }

    #[test]
    fn no_one_waits_longer_than_the_bound() {
        let queue = Queue::new(Duration::from_millis(50));
        let now = Instant::now();
        let Some(early) = now.checked_sub(Duration::from_millis(51)) else { return };
        let (mut late, mut other) = (pushed(&queue, early), pushed(&queue, now + PATIENCE));
        assert_eq!(left(&queue, CALLS_MAX, now), Err(Some(now + PATIENCE + Duration::from_millis(50))));
        assert_eq!(late.try_recv(), Ok(Err(LaneFault::Failed(ErrorKind::QueueTimeout))));
        assert!(other.try_recv().is_err());
    }

    #[test]
    fn who_has_left_is_not_sent() {
        let (queue, now) = (Queue::new(PATIENCE), Instant::now());
        let (gone, _stays) = (pushed(&queue, now), pushed(&queue, now));
        drop(gone);
        assert_eq!(left(&queue, 0, now), Ok(1));
        drop(pushed(&queue, now));
        assert_eq!(left(&queue, 0, now), Err(None));
    }
}
