//! Divides the file descriptors that the system grants (RLIMIT_NOFILE): some are reserved for files, listeners and
//! stores, the others are shared half and half by connections of clients and connections to upstream servers. The
//! control thread divides them at the start; workers check where they accept and make connections.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

/// Number of reserved descriptors: a fixed part and a part per worker, together at most half of all.
const RESERVE: usize = 64;
const RESERVE_OF_WORKER: usize = 8;

/// The process's budget. It is global because the limit is: the system counts descriptors per process.
static BUDGET: DescriptorBudget = DescriptorBudget::unlimited();

/// How many descriptors connections may have.
struct DescriptorBudget {
    /// Maximum number of client connections, and of connections to upstream servers.
    half: AtomicUsize,
    /// Connections to upstream servers, those that are being made included.
    to_servers: AtomicUsize,
    /// How often a connection to an upstream server found no descriptor.
    shortages: AtomicUsize,
}

/// The right to one connection to an upstream server. Dropping it returns the right.
pub struct DescriptorPermit(&'static DescriptorBudget);

impl DescriptorBudget {
    /// Makes a budget that bounds nothing until it is divided.
    const fn unlimited() -> DescriptorBudget {
        let (half, to_servers, shortages) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0), AtomicUsize::new(0));
        DescriptorBudget { half, to_servers, shortages }
    }

    /// Takes a descriptor for a connection to an upstream server. Returns false, and counts that, if there is none.
    fn acquire_for_server(&self) -> bool {
        let half = self.half.load(Ordering::Relaxed);
        let next = |taken| (taken < half).then_some(taken + 1);
        let is_free = self.to_servers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok();
        if !is_free {
            self.shortages.fetch_add(1, Ordering::Relaxed);
        }
        is_free
    }
}

/// Divides the descriptors that the system grants to the process.
pub fn divide_budget(limit: u64, workers: usize) {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    BUDGET.half.store(half(limit, workers), Ordering::Relaxed);
}

fn half(granted: usize, workers: usize) -> usize {
    let reserve = RESERVE.saturating_add(workers.saturating_mul(RESERVE_OF_WORKER)).min(granted / 2);
    ((granted - reserve) / 2).max(1)
}

/// Returns whether another client may be accepted, beside `clients` of all workers.
pub fn can_accept_client(clients: usize) -> bool {
    clients < BUDGET.half.load(Ordering::Relaxed)
}

/// Reserves a descriptor for a connection to an upstream server. `None` if all are in use.
pub fn acquire_server_descriptor() -> Option<DescriptorPermit> {
    BUDGET.acquire_for_server().then(|| DescriptorPermit(&BUDGET))
}

/// Returns how often there was no descriptor for an upstream server. When it changes, pools close idle connections.
pub fn shortage_count() -> usize {
    BUDGET.shortages.load(Ordering::Relaxed)
}

impl Drop for DescriptorPermit {
    fn drop(&mut self) {
        self.0.to_servers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether `error` says that no descriptor is left, to the process (EMFILE) or to the whole system (ENFILE).
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_servers_share_the_unreserved_descriptors() {
        assert_eq!(half(256, 2), 88);
        assert_eq!(half(20_000, 4), 9_952);
        assert_eq!([half(100, 8), half(2, 1), half(0, 1)], [25, 1, 1], "few are divided, too");
        assert!(half(usize::MAX, 1024) > 1 << 60);
    }

    #[test]
    fn a_budget_counts_shortages() {
        let budget = DescriptorBudget::unlimited();
        budget.half.store(2, Ordering::Relaxed);
        assert_eq!([(); 3].map(|()| budget.acquire_for_server()), [true, true, false]);
        assert_eq!(budget.shortages.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn shortages_of_the_process_and_of_the_system_are_recognised() {
        assert!([Errno::MFILE, Errno::NFILE].iter().all(|errno| is_shortage(&io::Error::from(*errno))));
        assert!(!is_shortage(&Errno::NOMEM.into()) && !is_shortage(&io::ErrorKind::TimedOut.into()));
    }
}
