//! Who may have how many of the file descriptors that the system grants: some are kept back for files, listeners and the
//! store, the others are for clients and for upstream servers, half each. Divided at the start; asked where
//! connections are accepted and made.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Kept back, and so many more for each worker; at most half of all.
const RESERVE: usize = 64;
const RESERVE_OF_WORKER: usize = 8;
/// EMFILE and ENFILE: of the process and of the system.
const SHORT: [i32; 2] = [24, 23];

// Of the process, as descriptors are. Nothing is bounded before it is divided.
static HALF: AtomicUsize = AtomicUsize::new(usize::MAX);
static TO_SERVERS: AtomicUsize = AtomicUsize::new(0);
static SHORTAGES: AtomicUsize = AtomicUsize::new(0);

/// A connection to an upstream server has it, from before it is made.
pub struct ServerDescriptor(());

/// Divides what the system grants.
pub fn divide(granted: u64, workers: usize) {
    let granted = usize::try_from(granted).unwrap_or(usize::MAX);
    HALF.store(half(granted, workers), Ordering::Relaxed);
}

fn half(granted: usize, workers: usize) -> usize {
    let reserve = RESERVE.saturating_add(workers.saturating_mul(RESERVE_OF_WORKER)).min(granted / 2);
    ((granted - reserve) / 2).max(1)
}

/// Whether another client may be accepted, beside so many; else it waits.
pub fn has_room_for_client(clients: usize) -> bool {
    clients < HALF.load(Ordering::Relaxed)
}

/// For one more connection to an upstream server.
pub fn for_server() -> Option<ServerDescriptor> {
    let free = |taken| (taken < HALF.load(Ordering::Relaxed)).then_some(taken + 1);
    if TO_SERVERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).is_err() {
        SHORTAGES.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    Some(ServerDescriptor(()))
}

/// How often there was none for a server: when it changes, idle connections are to be closed.
pub fn shortages() -> usize {
    SHORTAGES.load(Ordering::Relaxed)
}

impl Drop for ServerDescriptor {
    fn drop(&mut self) {
        TO_SERVERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The system grants no more of them.
pub fn are_short(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| SHORT.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_servers_have_half_each_of_what_is_not_kept_back() {
        assert_eq!(half(256, 2), 88);
        assert_eq!(half(20_000, 4), 9_952);
        assert_eq!([half(100, 8), half(2, 1), half(0, 1)], [25, 1, 1], "little is divided, too");
        assert!(half(usize::MAX, 1024) > 1 << 60);
    }
}
