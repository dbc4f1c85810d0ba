//! Bulk transfers: HTTP/1.1 connections on which a response arrives at a high rate, because its client keeps up. They
//! are read in larger steps, into buffers that the connections of a worker share, and their sockets get a larger
//! receive buffer. So a large response needs fewer system calls, and its server and its client are woken less often.
//!
//! A client that stops reading leaves a large buffer in use, and the socket's receive buffer full. So both are bounded
//! for all connections of a worker together ([`CONNECTIONS_MAX`], [`SHARES`]), and a connection at a lower rate loses
//! them. Called by `dial` for each read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::BytesMut;
use nix::libc;
use nix::sys::socket::SetSockOpt;
use nix::sys::socket::sockopt::SetUsize;
use socket2::Socket;

/// Size of a shared buffer, and the most bytes that one read returns.
pub const READ_MAX: usize = 1024 * 1024;
/// The most bulk connections of a worker, and the most shared buffers.
const CONNECTIONS_MAX: usize = 16;
/// Bound on the receive buffers of all bulk connections of a worker together, as a multiple of `max_unread`.
const SHARES: usize = 4 * CONNECTIONS_MAX;
/// Bytes that a connection must receive in one tick of the coarse clock (100 ms) to become a bulk connection: 40 MB/s.
const START_BYTES: usize = 4_000_000;
/// A connection that receives fewer bytes per millisecond is no longer a bulk connection: 10 MB/s.
const KEEP_RATE: usize = 10_000;

nix::setsockopt_impl!(TcpWindowClamp, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, usize, SetUsize);

/// Socket option: the largest window that the kernel offers.
#[derive(Clone, Copy)]
struct TcpWindowClamp;

/// Sets the size of a socket's receive buffer, and lets its window use all of it. The kernel derives the largest window
/// from the size that the buffer has when the first large packet arrives, and a later size alone does not change that.
pub fn set_receive_buffer(socket: &Socket, size: usize) {
    // The options are a C `int`. Errors are harmless: the kernel then uses its default. It doubles the size of the
    // buffer, so the clamp bounds less than the buffer: below a packet, the server could send only when its timer
    // expires.
    let size = size.min(i32::MAX as usize / 2);
    let _ = socket.set_recv_buffer_size(size);
    let _ = TcpWindowClamp.set(socket, &(2 * size));
}

/// State that the bulk connections of one worker share.
pub struct BulkBudget {
    /// Coarse clock of the worker, in milliseconds.
    now_ms: Rc<Cell<u64>>,
    /// Bound of the bytes that the kernel keeps for each other connection (`max_unread`); 0 leaves it to the kernel.
    max_unread: Rc<Cell<usize>>,
    /// Permits that are left.
    free: Cell<usize>,
    /// Shares that are left, at least one for each permit.
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
    /// Size of the receive buffer, as a multiple of `max_unread`. 0 without a permit.
    shares: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BulkPhase {
    /// An ordinary connection.
    Usual,
    /// A bulk connection. Holds a permit.
    Bulk,
    /// The connection is no longer a bulk connection. It keeps its permit for as many bytes as the server may still
    /// send without waiting.
    Draining(usize),
}

impl BulkBudget {
    /// Returns the budget of a worker. `now_ms` and `max_unread` are shared with its pools.
    pub fn new(now_ms: Rc<Cell<u64>>, max_unread: Rc<Cell<usize>>) -> BulkBudget {
        let (free, free_shares) = (Cell::new(CONNECTIONS_MAX), Cell::new(SHARES));
        BulkBudget { now_ms, max_unread, free, free_shares, buffers: RefCell::default() }
    }

    /// Takes a permit: one share, and a quarter of the shares that the other permits do not need. This way, a single
    /// transfer gets a large buffer, and no permit is left without a share. Returns the number of shares, or `None` if
    /// no permit is left.
    fn take_permit(&self) -> Option<usize> {
        let (free, free_shares) = (self.free.get(), self.free_shares.get());
        let left = free.checked_sub(1)?;
        let shares = 1 + free_shares.saturating_sub(free) / 4;
        self.free.set(left);
        self.free_shares.set(free_shares.saturating_sub(shares));
        Some(shares)
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

    /// Returns the size of all shared buffers in kilobytes.
    pub fn buffers_kb(&self) -> usize {
        self.buffers.borrow().len() * READ_MAX / 1024
    }
}

impl BulkMeter {
    pub fn new(budget: Rc<BulkBudget>) -> BulkMeter {
        BulkMeter { budget, phase: BulkPhase::Usual, since_ms: 0, received: 0, shares: 0 }
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
        if self.phase != BulkPhase::Bulk || !is_slow {
            return None;
        }
        let max_unread = self.budget.max_unread.get();
        self.phase = BulkPhase::Draining(READ_MAX.max(max_unread.saturating_mul(self.shares)));
        Some(max_unread).filter(|max| *max > 0)
    }

    /// Called after each read of `count` bytes. If the rate suffices for a bulk connection and there is a permit,
    /// begins that and returns the size that the socket's receive buffer may now have.
    pub fn record(&mut self, count: usize) -> Option<usize> {
        self.received += count;
        if let BulkPhase::Draining(left) = self.phase {
            match left.checked_sub(count) {
                Some(left @ 1..) => self.phase = BulkPhase::Draining(left),
                _ => self.release_permit(),
            }
        }
        if self.phase != BulkPhase::Usual || self.received < START_BYTES {
            return None;
        }
        self.shares = self.budget.take_permit()?;
        self.phase = BulkPhase::Bulk;
        Some(self.budget.max_unread.get().saturating_mul(self.shares)).filter(|max| *max > 0)
    }

    /// Ends a bulk transfer. Called for a connection that becomes a tunnel, as nothing measures the rate of a tunnel.
    /// Returns the size that the socket's receive buffer must now have.
    pub fn end(&mut self) -> Option<usize> {
        let has_large_buffer = self.phase == BulkPhase::Bulk;
        self.release_permit();
        Some(self.budget.max_unread.get()).filter(|max| has_large_buffer && *max > 0)
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
        assert_eq!(receive(&mut meter, START_BYTES), Some(13 * MAX_UNREAD));
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
        assert_eq!(bulk(&meters), CONNECTIONS_MAX);
        // One connection slows down. Its server may still send more than the others leave free.
        now_ms.set(now_ms.get() + 10_000);
        meters[0].check_rate();
        assert_eq!(bulk(&meters), CONNECTIONS_MAX - 1);
        assert_eq!(receive(&mut meters[CONNECTIONS_MAX], START_BYTES), None);
        now_ms.set(now_ms.get() + 100);
        receive(&mut meters[0], START_BYTES - 50_000);
        assert!(receive(&mut meters[CONNECTIONS_MAX], START_BYTES).is_some());
        // A connection that closes returns its permit.
        assert_eq!(budget.free.get(), 0);
        meters.clear();
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
