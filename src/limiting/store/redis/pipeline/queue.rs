//! The decisions that wait for one Redis server, the oldest first, and when the next call is sent. The queue survives a
//! panic of the pump.
//!
//! If no call is under way, a call is sent at once. If several decisions wait for it, the worker is busy: it first
//! serves its sockets once more, and twice if that brought decisions, so that those of requests that have just arrived
//! join the call. A call has a fixed cost, about that of three decisions in Redis and of a whole request in the
//! gateway.
//!
//! With N calls under way, the next one is sent when it is full, or N milliseconds after the last one was sent. A near
//! server responds before that, so decisions gather while its only call is under way. A distant server gets several
//! calls at once, about the square root of its round trip in milliseconds: about 10 at 100 ms.
//!
//! In a flood, the calls under way contain no more work than the server does in a part of the deadline. Otherwise the
//! last of them would be late, although the server is healthy. The bound grows by one call per round trip while replies
//! are in time, and halves while they are slow, because other workers and gateways may flood the server, too.
//!
//! As long as the server replies, waiting decisions are sent no matter how old they are: if they are old, the worker is
//! late. They fail only if calls in flight are late, too. A call is sent whenever none is in flight, so each turn of
//! the worker makes progress.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use crate::limiting::decision::ErrorKind;
use crate::limiting::store::redis::codec::{DECISIONS_MAX, WORK_MAX};
use crate::limiting::store::redis::pipeline::waiting::{LaneError, QueuedDecision};

/// Maximum number of decisions that wait for one server; further ones fail.
pub const QUEUE_MAX: usize = 65_536;
/// Number of decisions for which the queue keeps space after a flood.
const KEPT_CAPACITY: usize = 4096;
/// Time that a server needs for a unit of work.
const UNIT_TIME: Duration = Duration::from_micros(5);
/// The part of the deadline in which the server could do all work under way, at most and at first.
const WINDOW_PART: u32 = 3;
const FIRST_PART: u32 = 12;
/// Maximum number of calls under way to one server.
const CALLS_MAX: usize = 32;
/// Maximum number of turns of the worker's event loop for which several decisions wait, so that others join their call.
const TURNS_MAX: u32 = 2;
/// No turn begins once the oldest decision has waited this long: a turn in which a thousand requests arrive takes as
/// long as a deadline.
const GATHER_MAX: Duration = Duration::from_millis(2);
/// Pause between two calls, multiplied by the number of calls under way.
const PAUSE: Duration = Duration::from_millis(1);

/// The waiting decisions of one lane.
pub struct DecisionQueue {
    /// Longest time that a decision waits in the queue while the server is late.
    wait_max: Duration,
    /// Upper bound of the window, in units of work.
    window_max: i64,
    inner: RefCell<PendingQueue>,
}

#[derive(Default)]
struct PendingQueue {
    waiting: VecDeque<QueuedDecision>,
    /// Work of all waiting decisions.
    work: i64,
    pump: Option<Waker>,
    /// Turns of the event loop for which the next call has waited for more decisions.
    turns: u32,
    /// Number of decisions that waited before the last turn.
    gathered: usize,
    /// The pump is woken by the next decision, not only when a call is full.
    listening: bool,
    /// Work of the calls under way.
    sent_work: i64,
    /// Another call is sent only while less work is under way.
    window: i64,
    /// When the window was last reduced. The calls sent before that had the same cause and do not reduce it again.
    reduced: Option<Instant>,
    /// The last call that ended got no reply within the deadline.
    is_late: bool,
}

/// End of a call.
pub struct CallEnd {
    pub started: Instant,
    /// Work of the call.
    pub work: i64,
    /// `None` if the call was not sent.
    pub pace: Option<ReplyPace>,
}

/// How fast a server replied, in time that the worker was not late itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplyPace {
    InTime,
    /// The reply took most of the deadline.
    Slow,
    /// There was no reply within the deadline.
    Late,
}

/// Next action of the pump.
pub enum NextAction {
    /// Let the worker serve its sockets once, so that further decisions join the call, and continue then.
    Gather,
    /// Send a call with these decisions.
    Call(Vec<QueuedDecision>),
    /// Wait until then, unless a call ends or becomes full.
    At(Instant),
    /// Wait until woken.
    Idle,
}

impl DecisionQueue {
    pub fn new(wait_max: Duration) -> DecisionQueue {
        let work_in =
            |part: u32| i64::try_from((wait_max / part).as_micros() / UNIT_TIME.as_micros()).unwrap_or(i64::MAX);
        let window_max = work_in(WINDOW_PART).max(WORK_MAX);
        let inner = PendingQueue { window: work_in(FIRST_PART).max(1), ..PendingQueue::default() };
        DecisionQueue { wait_max, window_max, inner: RefCell::new(inner) }
    }

    /// Adds a decision.
    ///
    /// # Errors
    /// The queue is full: `Overloaded` if the worker cannot keep up, `QueueTimeout` if the server is late.
    pub fn push(&self, waiting: QueuedDecision) -> Result<(), ErrorKind> {
        let mut inner = self.inner.borrow_mut();
        if inner.waiting.len() >= QUEUE_MAX {
            return Err(if inner.is_late { ErrorKind::QueueTimeout } else { ErrorKind::Overloaded });
        }
        inner.work = inner.work.saturating_add(waiting.work);
        inner.waiting.push_back(waiting);
        let is_awaited = inner.listening || inner.is_full();
        let pump = if is_awaited { inner.pump.take() } else { None };
        drop(inner);
        if let Some(pump) = pump {
            pump.wake();
        }
        Ok(())
    }

    /// Records that no call is under way.
    pub fn forget_calls(&self) {
        self.inner.borrow_mut().sent_work = 0;
    }

    /// Records the end of a call that [`DecisionQueue::next_action`] returned.
    pub fn record_end(&self, end: CallEnd) {
        let mut inner = self.inner.borrow_mut();
        let was_full = inner.sent_work >= inner.window;
        inner.sent_work = inner.sent_work.saturating_sub(end.work).max(0);
        let Some(pace) = end.pace else { return };
        inner.is_late = pace == ReplyPace::Late;
        if pace == ReplyPace::InTime {
            // A bound that was not reached shows nothing about the server.
            let more = if was_full { end.work } else { 0 };
            inner.window = inner.window.saturating_add(more).min(self.window_max);
        } else if inner.reduced.is_none_or(|reduced| end.started >= reduced) {
            inner.window = (inner.window / 2).max(1);
            inner.reduced = Some(Instant::now());
        }
    }

    /// Returns what to do next while `calls` are under way, the last of which was sent at `left`. If the server is
    /// late, decisions that have waited too long fail. Unless a call is sent, `pump` is woken when the result changes
    /// before a call ends; to gather, the pump wakes itself.
    pub fn next_action(&self, calls: usize, left: Instant, pump: &Waker) -> NextAction {
        let now = Instant::now();
        self.fail_long_waits(calls, now);
        let mut inner = self.inner.borrow_mut();
        let gate = left + PAUSE * u32::try_from(calls).unwrap_or(u32::MAX);
        let has_capacity = calls < CALLS_MAX && inner.sent_work < inner.window;
        let open = calls == 0 || has_capacity && (now >= gate || inner.is_full());
        if open {
            if inner.gather(now) {
                // It runs earlier if the call becomes full.
                inner.pump = Some(pump.clone());
                return NextAction::Gather;
            }
            let batch = inner.take_batch();
            if !batch.is_empty() {
                inner.sent_work = inner.sent_work.saturating_add(QueuedDecision::total_work(&batch));
                return NextAction::Call(batch);
            }
        }
        inner.listening = open;
        if inner.pump.as_ref().is_none_or(|known| !known.will_wake(pump)) {
            inner.pump = Some(pump.clone());
        }
        // The alarm is set now and not with the next decision, so that a decision does not have to wake the pump.
        let gate = has_capacity.then_some(gate);
        let end = inner.waiting.front().filter(|_| inner.is_late).map(|oldest| oldest.since + self.wait_max);
        match gate.into_iter().chain(end).min() {
            Some(alarm) if !open => NextAction::At(alarm),
            _ => NextAction::Idle,
        }
    }

    /// Fails the decisions that have waited too long, if the server is late. While no call is under way, they are sent
    /// instead, to find out whether it still is.
    fn fail_long_waits(&self, calls: usize, now: Instant) {
        if calls == 0 || !self.inner.borrow().is_late {
            return;
        }
        loop {
            let mut inner = self.inner.borrow_mut();
            if inner.waiting.front().is_none_or(|oldest| now < oldest.since + self.wait_max) {
                return;
            }
            let late = inner.pop();
            drop(inner);
            if let Some(late) = late {
                late.deliver(Err(LaneError::Failed(ErrorKind::QueueTimeout)));
            }
        }
    }
}

impl PendingQueue {
    /// Returns whether the next call is full, so that waiting longer saves nothing.
    fn is_full(&self) -> bool {
        self.waiting.len() >= DECISIONS_MAX || self.work >= WORK_MAX
    }

    fn pop(&mut self) -> Option<QueuedDecision> {
        let waiting = self.waiting.pop_front()?;
        self.work -= waiting.work;
        Some(waiting)
    }

    /// Returns whether the next call waits for a turn of the event loop: several decisions wait, none for long, the
    /// call is not full, and the last turn brought some.
    fn gather(&mut self, now: Instant) -> bool {
        let waiting = self.waiting.len();
        let is_recent = self.waiting.front().is_some_and(|oldest| now < oldest.since + GATHER_MAX);
        let gathers = is_recent && self.turns < TURNS_MAX && waiting > self.gathered.max(1) && !self.is_full();
        if gathers {
            (self.turns, self.gathered, self.listening) = (self.turns + 1, waiting, false);
        }
        gathers
    }

    /// Takes the oldest decisions, up to the size of one call.
    fn take_batch(&mut self) -> Vec<QueuedDecision> {
        (self.turns, self.gathered) = (0, 0);
        let mut batch = Vec::with_capacity(self.waiting.len().min(DECISIONS_MAX));
        let mut work = 0_i64;
        while let Some(next) = self.waiting.front() {
            // A client that has disconnected is not charged.
            let is_wanted = !next.reply.is_closed();
            if is_wanted {
                work = work.saturating_add(next.work);
                if batch.len() == DECISIONS_MAX || (work > WORK_MAX && !batch.is_empty()) {
                    break;
                }
            }
            batch.extend(self.pop().filter(|_| is_wanted));
        }
        if self.waiting.is_empty() && self.waiting.capacity() > KEPT_CAPACITY {
            self.waiting.shrink_to(KEPT_CAPACITY);
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::limiting::decision::Op;
    use crate::limiting::store::redis::pipeline::waiting::{PendingDecision, SendMode};

    const PATIENCE: Duration = Duration::from_secs(60);

    fn pushed(queue: &DecisionQueue, since: Instant) -> PendingDecision {
        let (waiting, result) = QueuedDecision::new(Op::Take, Rc::default(), SendMode::Shared, since);
        assert_eq!(queue.push(waiting), Ok(()));
        result
    }

    /// Returns the next action once nothing more is gathered.
    fn action(queue: &DecisionQueue, calls: usize, left: Instant) -> NextAction {
        match queue.next_action(calls, left, Waker::noop()) {
            NextAction::Gather => queue.next_action(calls, left, Waker::noop()),
            action => action,
        }
    }

    /// Returns how many decisions the next call carries; an error says when to look again.
    fn left(queue: &DecisionQueue, calls: usize, left: Instant) -> Result<usize, Option<Instant>> {
        match action(queue, calls, left) {
            NextAction::Call(batch) => Ok(batch.len()),
            NextAction::At(then) => Err(Some(then)),
            NextAction::Idle | NextAction::Gather => Err(None),
        }
    }

    #[test]
    fn an_idle_pipe_adds_no_wait_and_a_busy_one_gathers() {
        let (queue, now) = (DecisionQueue::new(PATIENCE), Instant::now());
        assert_eq!(left(&queue, 0, now), Err(None));
        let _first = pushed(&queue, now);
        assert_eq!(left(&queue, 0, now), Ok(1));
        let _more = [pushed(&queue, now), pushed(&queue, now)];
        // The pause in ms equals the number of calls under way.
        let ahead = now + PATIENCE / 2;
        for (calls, pauses) in [(1, 1), (5, 5), (CALLS_MAX - 1, 31)] {
            assert_eq!(left(&queue, calls, ahead), Err(Some(ahead + PAUSE * pauses)));
        }
        let Some(past) = Instant::now().checked_sub(PAUSE * 5) else { return };
        assert_eq!(left(&queue, 5, past), Ok(2));
    }

    #[test]
    fn several_decisions_wait_for_those_that_arrive_with_them() {
        let (queue, now) = (DecisionQueue::new(PATIENCE), Instant::now());
        let next = || queue.next_action(0, now, Waker::noop());
        let is_call = |size: usize| matches!(next(), NextAction::Call(batch) if batch.len() == size);
        let gathers = || matches!(next(), NextAction::Gather);
        // None has waited for long, however slow the machine is.
        let push = |count: usize| (0..count).map(|_| pushed(&queue, now + PATIENCE)).collect::<Vec<PendingDecision>>();
        let _alone = push(1);
        assert!(is_call(1));
        // A turn that brings nothing is the last.
        let _two = push(2);
        assert!(gathers() && is_call(2));
        let _more = push(2);
        assert!(gathers());
        let _third = push(1);
        assert!(gathers());
        let _fourth = push(1);
        assert!(is_call(4));
        let _full = push(DECISIONS_MAX);
        assert!(is_call(DECISIONS_MAX));
        let Some(early) = now.checked_sub(GATHER_MAX) else { return };
        let _old = [pushed(&queue, early), pushed(&queue, early)];
        assert!(is_call(2));
    }

    #[test]
    fn a_full_call_leaves_at_once_while_there_is_room_for_calls() {
        let (queue, now) = (DecisionQueue::new(PATIENCE), Instant::now());
        let ahead = now + PATIENCE / 2;
        let _answers: Vec<PendingDecision> = (0..2 * DECISIONS_MAX + 1).map(|_| pushed(&queue, now)).collect();
        assert_eq!(left(&queue, CALLS_MAX, ahead), Err(None));
        assert_eq!(left(&queue, CALLS_MAX - 1, ahead), Ok(DECISIONS_MAX));
        assert_eq!(left(&queue, 1, ahead), Ok(DECISIONS_MAX));
        assert_eq!(left(&queue, 1, ahead), Err(Some(ahead + PAUSE)));
    }

    #[test]
    fn no_one_waits_longer_than_the_bound_while_the_server_is_late() {
        let queue = DecisionQueue::new(Duration::from_millis(50));
        let now = Instant::now();
        let Some(early) = now.checked_sub(Duration::from_millis(51)) else { return };
        let (mut late, other) = (pushed(&queue, early), pushed(&queue, now + PATIENCE));
        assert_eq!(left(&queue, CALLS_MAX, now), Err(None));
        assert!((&mut late).now_or_never().is_none());
        queue.record_end(CallEnd { started: now, work: 1, pace: Some(ReplyPace::Late) });
        assert_eq!(left(&queue, CALLS_MAX, now), Err(Some(now + PATIENCE + Duration::from_millis(50))));
        let late_error = Err(LaneError::Failed(ErrorKind::QueueTimeout));
        assert_eq!(late.now_or_never(), Some(late_error));
        assert!(other.now_or_never().is_none());
    }

    #[test]
    fn a_late_worker_sends_before_anything_fails() {
        let queue = DecisionQueue::new(Duration::from_millis(50));
        let now = Instant::now();
        let Some(early) = now.checked_sub(PATIENCE) else { return };
        let waits: Vec<PendingDecision> = (0..2 * DECISIONS_MAX).map(|_| pushed(&queue, early)).collect();
        // Even if the server was late: the reply to this call shows whether it still is.
        queue.record_end(CallEnd { started: now, work: 1, pace: Some(ReplyPace::Late) });
        assert_eq!(left(&queue, 0, now), Ok(DECISIONS_MAX));
        queue.record_end(CallEnd { started: now, work: 1, pace: Some(ReplyPace::InTime) });
        assert_eq!(left(&queue, 1, now + PATIENCE), Ok(DECISIONS_MAX));
        // The results were lost with the batches, not by the queue.
        let lost = Some(Err(LaneError::Failed(ErrorKind::Internal)));
        assert!(waits.into_iter().all(|wait| wait.now_or_never() == lost));
    }

    #[test]
    fn slow_replies_reduce_the_work_under_way_once() {
        let queue = DecisionQueue::new(Duration::from_millis(30));
        let now = Instant::now();
        for _ in 0..QUEUE_MAX {
            let (waiting, result) = QueuedDecision::new(Op::Take, Rc::default(), SendMode::Shared, now);
            std::mem::forget(result);
            assert_eq!(queue.push(QueuedDecision { work: 1, ..waiting }), Ok(()));
        }
        let sent = |calls: usize| (calls..).take_while(|calls| left(&queue, *calls, now + PATIENCE).is_ok()).count();
        let window = 500;
        let full = DECISIONS_MAX as i64;
        assert_eq!(sent(0) as i64, (window + full - 1) / full);
        let end = |started, pace| queue.record_end(CallEnd { started, work: full, pace: Some(pace) });
        end(now, ReplyPace::Slow);
        end(now, ReplyPace::Slow);
        assert_eq!(queue.inner.borrow().window, window / 2);
        end(Instant::now(), ReplyPace::Late);
        assert_eq!(queue.inner.borrow().window, window / 4);
        end(now, ReplyPace::InTime);
        assert_eq!((queue.inner.borrow().window, queue.inner.borrow().sent_work), (window / 4 + full, 0));
        end(now, ReplyPace::InTime);
        assert_eq!(queue.inner.borrow().window, window / 4 + full, "less was under way");
        for _ in 0..20 {
            assert!(sent(1) > 0);
            end(now, ReplyPace::InTime);
            queue.forget_calls();
        }
        assert_eq!(queue.inner.borrow().window, 2000);
    }

    #[test]
    fn decisions_of_departed_requests_are_not_sent() {
        let (queue, now) = (DecisionQueue::new(PATIENCE), Instant::now());
        let (gone, _stays) = (pushed(&queue, now), pushed(&queue, now));
        drop(gone);
        assert_eq!(left(&queue, 0, now), Ok(1));
        drop(pushed(&queue, now));
        assert_eq!(left(&queue, 0, now), Err(None));
    }
}
