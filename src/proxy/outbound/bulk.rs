//! Bulk transfers: HTTP/1.1 connections on which a response arrives at a high rate, because its client keeps up. They are
//! read in larger steps, into buffers that the connections of a worker share, and their sockets get a larger receive
//! buffer. So a large response needs fewer system calls, and its server and its client are woken less often.
//!
//! A client that stops reading leaves a large buffer in use, and the socket's receive buffer full. So both are bounded for
//! all connections of a worker together ([`CONNECTIONS_MAX`], [`SHARES`]), and a connection at a lower rate loses them.
//! Called by `dial` for each read.
//!
//! The kernel derives the largest window of a connection from the size that its receive buffer has when the first large
//! packet arrives, and a later size does not change that. So a connection that was opened with a small buffer is not kept
//! after a bulk transfer. For a while, `pool` opens further connections to that server as bulk connections.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::BytesMut;

/// Size of a shared buffer, and the most bytes that one read returns.
pub const READ_MAX: usize = 1024 * 1024;
/// The most bulk connections of a worker, and the most shared buffers.
const CONNECTIONS_MAX: usize = 16;
/// The receive buffers of the bulk connections of a worker are together at most so many times `max_unread`. Each takes a
/// quarter of what the others leave.
const SHARES: usize = 64;
/// The receive buffer of a bulk connection is at most so many times `max_unread`.
const SHARES_EACH: usize = 16;
/// A connection is opened for a bulk transfer only if so many shares are left.
const EARLY_SHARES: usize = SHARES / 2;
/// The kernel makes a receive buffer so many times as large as asked, because it counts its own overhead.
const OVERHEAD_FACTOR: usize = 2;
/// After so many bytes, a large packet has arrived.
const WINDOW_BYTES: usize = 256 * 1024;
/// Bytes that a connection must receive in one tick of the coarse clock (100 ms) to become a bulk connection: 40 MB/s.
const START_BYTES: usize = 4_000_000;
/// A bulk connection that receives fewer bytes per millisecond ceases to be one: 10 MB/s.
const KEEP_RATE: usize = 10_000;

/// State that the bulk connections of one worker share.
pub struct BulkBudget {
    /// Coarse clock of the worker, in milliseconds.
    now_ms: Rc<Cell<u64>>,
    /// Bound of the bytes that the kernel keeps for each other connection (`max_unread`); 0 leaves it to the kernel.
    max_unread: Rc<Cell<usize>>,
    /// Permits that are left.
    free: Cell<usize>,
    /// Shares that are left.
    free_shares: Cell<usize>,
    /// A buffer is in use as long as a piece of a response refers to it.
    buffers: RefCell<Vec<BytesMut>>,
}

/// Measures the rate of one connection, and holds its permit.
pub struct BulkMeter {
    budget: Rc<BulkBudget>,
    phase: BulkPhase,
    /// Start of the current interval, on the coarse clock.
    since_ms: u64,
    /// Bytes received in this interval.
    received: usize,
    window: ReceiveWindow,
    /// Shares that the connection has. 0 without a permit.
    shares: usize,
}

/// The largest window that the kernel offers to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveWindow {
    Small,
    /// The window becomes large if so many bytes arrive while the receive buffer is large.
    Opening(usize),
    Large,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BulkPhase {
    /// An ordinary connection.
    Usual,
    /// A bulk connection. Holds a permit.
    Bulk,
    /// No bulk connection any more. It holds its permit for as many bytes as the server may still send without waiting.
    Draining(usize),
}

impl BulkBudget {
    /// Returns the budget of a worker. `now_ms` and `max_unread` are shared with its pools.
    pub fn new(now_ms: Rc<Cell<u64>>, max_unread: Rc<Cell<usize>>) -> BulkBudget {
        BulkBudget {
            now_ms,
            max_unread,
            free: Cell::new(CONNECTIONS_MAX),
            free_shares: Cell::new(SHARES),
            buffers: RefCell::default(),
        }
    }

    /// Calls `read` with an empty shared buffer. Returns `None` if all of them are in use.
    pub fn with_buffer<T>(&self, read: impl FnOnce(&mut BytesMut) -> T) -> Option<T> {
        let mut buffers = self.buffers.borrow_mut();
        let index = match buffers.iter_mut().position(|buffer| buffer.try_reclaim(READ_MAX)) {
            Some(index) => index,
            None if buffers.len() < CONNECTIONS_MAX => {
                buffers.push(BytesMut::with_capacity(READ_MAX));
                buffers.len() - 1
            }
            None => return None,
        };
        Some(read(&mut buffers[index]))
    }

    /// Frees unused buffers until there are as many as bulk connections. Those in use are freed by a later call.
    pub fn sweep(&self) {
        let mut buffers = self.buffers.borrow_mut();
        let mut excess = (buffers.len() + self.free.get()).saturating_sub(CONNECTIONS_MAX);
        buffers.retain_mut(|buffer| {
            let is_freed = excess > 0 && buffer.try_reclaim(READ_MAX);
            excess -= usize::from(is_freed);
            !is_freed
        });
    }

    /// Takes a permit. Returns the shares of the connection, or `None` if no permit or share is left.
    fn take_permit(&self) -> Option<usize> {
        let (free, free_shares) = (self.free.get().checked_sub(1)?, self.free_shares.get());
        let shares = (free_shares / 4).clamp(1, SHARES_EACH);
        self.free_shares.set(free_shares.checked_sub(shares)?);
        self.free.set(free);
        Some(shares)
    }
}

impl BulkMeter {
    /// Returns the meter of a new connection.
    pub fn new(budget: Rc<BulkBudget>) -> BulkMeter {
        BulkMeter { budget, phase: BulkPhase::Usual, since_ms: 0, received: 0, window: ReceiveWindow::Small, shares: 0 }
    }

    /// Begins a bulk transfer on a connection that is not open yet. Its first response may turn out to be small, so at
    /// least half of the shares are left to the others.
    pub fn begin_early(&mut self) {
        if self.budget.free_shares.get() >= EARLY_SHARES && self.begin() {
            self.window = ReceiveWindow::Opening(WINDOW_BYTES);
        }
    }

    /// Returns the size that the socket's receive buffer may have. 0 leaves it to the kernel.
    pub fn buffer_size(&self) -> usize {
        self.budget.max_unread.get().saturating_mul(self.shares.max(1))
    }

    /// Returns whether this is a bulk connection that a new one with a large window can replace.
    pub fn needs_window(&self) -> bool {
        let needs_it = self.phase == BulkPhase::Bulk && self.window == ReceiveWindow::Small;
        needs_it && self.budget.max_unread.get() > 0 && self.budget.free_shares.get() + self.shares >= EARLY_SHARES
    }

    /// Returns the shared buffers if the connection is a bulk connection.
    pub fn buffers(&self) -> Option<&BulkBudget> {
        (self.phase == BulkPhase::Bulk).then_some(&*self.budget)
    }

    /// Called before each read. If the rate was too low for a bulk connection, ends that and returns the size that the
    /// socket's receive buffer must now have.
    pub fn check_rate(&mut self) -> Option<usize> {
        let now_ms = self.budget.now_ms.get();
        let elapsed_ms = usize::try_from(now_ms.saturating_sub(self.since_ms)).unwrap_or(usize::MAX);
        if elapsed_ms == 0 {
            return None;
        }
        let is_slow = self.received < KEEP_RATE.saturating_mul(elapsed_ms);
        (self.since_ms, self.received) = (now_ms, 0);
        // A new connection waits for its first response.
        if self.phase != BulkPhase::Bulk || !is_slow || self.window == ReceiveWindow::Opening(WINDOW_BYTES) {
            return None;
        }
        self.phase = BulkPhase::Draining(READ_MAX.max(self.buffer_size().saturating_mul(OVERHEAD_FACTOR)));
        self.leave_window_small();
        Some(self.budget.max_unread.get()).filter(|max| *max > 0)
    }

    /// Called after each read of `count` bytes. If the rate suffices for a bulk connection and there is a permit, begins
    /// that and returns the size that the socket's receive buffer may now have.
    pub fn record(&mut self, count: usize) -> Option<usize> {
        self.received += count;
        if let ReceiveWindow::Opening(left) = self.window {
            self.window = left.checked_sub(count).map_or(ReceiveWindow::Large, ReceiveWindow::Opening);
        }
        if let BulkPhase::Draining(left) = self.phase {
            match left.checked_sub(count) {
                Some(left @ 1..) => self.phase = BulkPhase::Draining(left),
                _ => self.release_permit(),
            }
        }
        let begins = self.received >= START_BYTES && self.begin();
        Some(self.buffer_size()).filter(|size| begins && *size > 0)
    }

    /// Called after a read for which nothing was there. What arrives from now on finds a small receive buffer.
    pub fn record_empty(&mut self) {
        if matches!(self.phase, BulkPhase::Draining(_)) {
            self.release_permit();
        }
    }

    /// Ends a bulk transfer. Called for a connection that becomes a tunnel, as nothing measures the rate of a tunnel, and
    /// for an idle one. Returns the size that the socket's receive buffer must now have.
    pub fn end(&mut self) -> Option<usize> {
        let has_large_buffer = self.phase == BulkPhase::Bulk;
        self.release_permit();
        self.leave_window_small();
        Some(self.budget.max_unread.get()).filter(|max| has_large_buffer && *max > 0)
    }

    /// Begins a bulk transfer if the connection is an ordinary one and there is a permit. Returns whether it did.
    fn begin(&mut self) -> bool {
        if self.phase != BulkPhase::Usual {
            return false;
        }
        let Some(shares) = self.budget.take_permit() else { return false };
        (self.phase, self.shares) = (BulkPhase::Bulk, shares);
        true
    }

    /// The receive buffer becomes small, perhaps before a large packet has arrived.
    fn leave_window_small(&mut self) {
        if self.window != ReceiveWindow::Large {
            self.window = ReceiveWindow::Small;
        }
    }

    fn release_permit(&mut self) {
        if self.phase != BulkPhase::Usual {
            self.phase = BulkPhase::Usual;
            self.budget.free.set(self.budget.free.get() + 1);
            self.budget.free_shares.set(self.budget.free_shares.get() + std::mem::take(&mut self.shares));
        }
    }
}

impl Drop for BulkMeter {
    fn drop(&mut self) {
        self.release_permit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_UNREAD: usize = 256 * 1024;

    /// A budget with its clock.
    fn budget() -> (Rc<Cell<u64>>, Rc<BulkBudget>) {
        let now_ms = Rc::new(Cell::new(1_000));
        (now_ms.clone(), Rc::new(BulkBudget::new(now_ms, Rc::new(Cell::new(MAX_UNREAD)))))
    }

    /// Receives `bytes` at the present time. Returns the last size that the receive buffer got.
    fn receive(meter: &mut BulkMeter, bytes: usize) -> Option<usize> {
        let mut size = None;
        for _ in 0..bytes / 50_000 {
            size = meter.check_rate().or(size);
            size = meter.record(50_000).or(size);
        }
        size
    }

    #[test]
    fn a_bulk_transfer_begins_at_a_high_rate_and_ends_at_a_low_one() {
        let (now_ms, budget) = budget();
        let mut meter = BulkMeter::new(budget.clone());
        for _ in 0..20 {
            now_ms.set(now_ms.get() + 100);
            assert_eq!(receive(&mut meter, START_BYTES - 50_000), None);
        }
        assert!(meter.buffers().is_none());
        now_ms.set(now_ms.get() + 100);
        assert_eq!(receive(&mut meter, START_BYTES), Some(SHARES_EACH * MAX_UNREAD));
        assert!(meter.buffers().is_some());
        // It may slow down to a quarter.
        for _ in 0..20 {
            now_ms.set(now_ms.get() + 100);
            assert_eq!(receive(&mut meter, START_BYTES / 4), None);
        }
        now_ms.set(now_ms.get() + 100);
        assert_eq!(receive(&mut meter, START_BYTES / 8), None);
        now_ms.set(now_ms.get() + 100);
        assert_eq!(meter.check_rate(), Some(MAX_UNREAD), "before the next read");
        assert!(meter.buffers().is_none());
    }

    #[test]
    fn a_pause_ends_a_bulk_transfer_before_the_next_read() {
        let (now_ms, budget) = budget();
        let mut meter = BulkMeter::new(budget);
        receive(&mut meter, START_BYTES);
        now_ms.set(now_ms.get() + 10_000);
        assert_eq!(meter.check_rate(), Some(MAX_UNREAD));
        assert!(meter.buffers().is_none());
    }

    #[test]
    fn permits_are_bounded_and_held_until_the_receive_buffer_is_small_again() {
        let (now_ms, budget) = budget();
        let mut meters: Vec<_> = (0..=CONNECTIONS_MAX).map(|_| BulkMeter::new(budget.clone())).collect();
        meters.iter_mut().for_each(|meter| {
            receive(meter, START_BYTES);
        });
        let bulk = |meters: &[BulkMeter]| meters.iter().filter(|meter| meter.buffers().is_some()).count();
        let (most, last) = (bulk(&meters), CONNECTIONS_MAX);
        let shares: Vec<_> = meters.iter().map(|meter| meter.shares).take_while(|shares| *shares > 0).collect();
        assert_eq!((shares[0], shares.iter().sum::<usize>()), (SHARES_EACH, SHARES));
        assert!(shares.is_sorted_by(|one, next| one >= next) && shares.len() == most && most >= 12, "{shares:?}");
        // The one with the largest buffer slows down. Until its server has used that up, no other gets its place.
        now_ms.set(now_ms.get() + 10_000);
        meters[0].check_rate();
        assert_eq!(bulk(&meters), most - 1);
        assert_eq!(receive(&mut meters[last], START_BYTES), None);
        for _ in 0..10 {
            now_ms.set(now_ms.get() + 100);
            receive(&mut meters[0], KEEP_RATE * 100);
        }
        assert!(receive(&mut meters[last], START_BYTES).is_some());
        // The next one slows down until nothing is there to read.
        now_ms.set(now_ms.get() + 10_000);
        let free = budget.free.get();
        meters[1].record_empty();
        meters[1].check_rate();
        assert_eq!(budget.free.get(), free);
        meters[1].record_empty();
        assert_eq!(budget.free.get(), free + 1);
        // A connection that closes returns its permit.
        meters.clear();
        assert_eq!((budget.free.get(), budget.free_shares.get()), (CONNECTIONS_MAX, SHARES));
    }

    #[test]
    fn a_connection_opened_for_a_bulk_transfer_has_a_large_window() {
        let (now_ms, budget) = budget();
        let open = || {
            let mut meter = BulkMeter::new(budget.clone());
            meter.begin_early();
            meter
        };
        let mut late = BulkMeter::new(budget.clone());
        assert_eq!(late.buffer_size(), MAX_UNREAD);
        receive(&mut late, START_BYTES);
        assert!(late.needs_window());
        drop(late);

        let mut early = open();
        assert_eq!(early.buffer_size(), SHARES_EACH * MAX_UNREAD);
        now_ms.set(now_ms.get() + 10_000);
        assert_eq!(early.check_rate(), None, "the server takes its time");
        receive(&mut early, 2 * WINDOW_BYTES);
        now_ms.set(now_ms.get() + 10_000);
        assert_eq!(early.check_rate(), Some(MAX_UNREAD));
        for _ in 0..10 {
            now_ms.set(now_ms.get() + 100);
            receive(&mut early, KEEP_RATE * 100);
        }
        receive(&mut early, START_BYTES);
        assert!(early.buffers().is_some() && !early.needs_window());
        drop(early);

        // Its receive buffer becomes small before a large packet has arrived.
        let mut small = open();
        receive(&mut small, WINDOW_BYTES / 2);
        now_ms.set(now_ms.get() + 10_000);
        assert_eq!((small.check_rate(), small.window), (Some(MAX_UNREAD), ReceiveWindow::Small));
        drop(small);

        let held: Vec<_> = (0..CONNECTIONS_MAX).map(|_| open()).collect();
        assert_eq!(open().buffer_size(), MAX_UNREAD, "no more are opened early");
        assert!((SHARES / 4..EARLY_SHARES).contains(&budget.free_shares.get()), "others can still begin");
        let mut late = BulkMeter::new(budget.clone());
        receive(&mut late, START_BYTES);
        assert!(late.buffers().is_some() && !late.needs_window(), "a new connection would be no better");
        drop(late);
        drop(held);
        assert_eq!((budget.free.get(), budget.free_shares.get()), (CONNECTIONS_MAX, SHARES));
    }

    #[test]
    fn a_buffer_is_used_again_once_nobody_refers_to_it() {
        let (_, budget) = budget();
        let fill = || {
            budget.with_buffer(|buffer| {
                assert!(buffer.is_empty() && buffer.capacity() == READ_MAX);
                buffer.extend_from_slice(&[b'x'; 1000]);
                buffer.split().freeze()
            })
        };
        for _ in 0..3 {
            assert_eq!(fill().unwrap().len(), 1000);
            assert_eq!(budget.buffers.borrow().len(), 1);
        }
        let held: Vec<_> = (0..CONNECTIONS_MAX).map(|_| fill().unwrap()).collect();
        assert!(fill().is_none(), "all are in use");
        let part = held[7].slice(..1);
        budget.sweep();
        assert_eq!(budget.buffers.borrow().len(), CONNECTIONS_MAX, "a buffer in use still counts");
        drop(held);
        assert!(fill().is_some());
        budget.sweep();
        assert_eq!(budget.buffers.borrow().len(), 1);
        drop(part);
        budget.sweep();
        assert!(budget.buffers.borrow().is_empty());
    }

    #[test]
    fn unused_buffers_beyond_the_bulk_connections_are_freed() {
        let (_, budget) = budget();
        let mut meter = BulkMeter::new(budget.clone());
        receive(&mut meter, START_BYTES);
        let fill = || {
            budget.with_buffer(|buffer| {
                buffer.extend_from_slice(b"x");
                buffer.split().freeze()
            })
        };
        let held: Vec<_> = (0..5).map(|_| fill().unwrap()).collect();
        drop(held);
        budget.sweep();
        assert_eq!(budget.buffers.borrow().len(), 1, "for the one connection");
        assert_eq!(meter.end(), Some(MAX_UNREAD));
        budget.sweep();
        assert!(budget.buffers.borrow().is_empty());
        assert_eq!((meter.end(), budget.free.get()), (None, CONNECTIONS_MAX));
    }
}
