//! Minimum rates: how fast a client must send a request body or read a response, on average. `Upload` applies one to
//! request bodies; connections, streams of HTTP/2 and HTTP/3, and tunnels apply one to responses.

use std::cell::Cell;
use std::time::Duration;

use crate::proxy::connection::timeouts::Ticks;

/// A budget of time. The peer has `patience` at the beginning, spends it while the gateway waits for it, and earns it
/// back with the bytes that it moves. It never has more than at the beginning, so neither a quick start nor hours of
/// good conduct pay for a stall.
pub struct MinRate {
    patience_ms: Cell<i64>,
    /// Bytes per second that earn back one second. 0: any byte earns back all of the patience.
    rate: Cell<u64>,
    /// Negative if the peer has overdrawn its budget: one more byte does not save it.
    left_ms: Cell<i64>,
    /// Start of the current wait, in milliseconds on the worker's coarse clock.
    waits_since_ms: Cell<Option<u64>>,
}

impl MinRate {
    pub fn new(patience: Duration, rate: u64) -> MinRate {
        let patience_ms = ms(patience);
        MinRate {
            patience_ms: Cell::new(patience_ms),
            rate: Cell::new(rate),
            left_ms: Cell::new(patience_ms),
            waits_since_ms: Cell::new(None),
        }
    }

    /// Makes the budget of a peer without a minimum rate.
    pub fn unlimited() -> MinRate {
        MinRate::new(Duration::MAX, 0)
    }

    /// Replaces the budget by a full one. A wait that has begun continues.
    pub fn set(&self, patience: Duration, rate: u64) {
        let patience_ms = ms(patience);
        self.patience_ms.set(patience_ms);
        self.rate.set(rate);
        self.left_ms.set(patience_ms);
    }

    /// Ends the current wait and restores the full budget.
    pub fn reset(&self) {
        self.waits_since_ms.set(None);
        self.left_ms.set(self.patience_ms.get());
    }

    /// Begins a wait for the peer, unless one has begun already.
    pub fn begin_wait(&self, now_ms: u64) {
        if self.waits_since_ms.get().is_none() {
            self.waits_since_ms.set(Some(now_ms));
        }
    }

    /// Returns the full budget: the longest pause.
    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms.get().unsigned_abs())
    }

    /// Returns whether the gateway waits for the peer.
    pub fn is_waiting(&self) -> bool {
        self.waits_since_ms.get().is_some()
    }

    /// Ends the wait, if there is one, and credits the peer with `bytes`.
    pub fn credit_bytes(&self, now_ms: u64, bytes: u64) {
        let most = self.patience_ms.get();
        let earned = match self.rate.get() {
            0 if bytes > 0 => None,
            rate => i64::try_from(bytes.saturating_mul(1000) / rate.max(1)).ok(),
        };
        let left = earned.map_or(most, |earned| self.left_ms(now_ms).saturating_add(earned).min(most));
        self.left_ms.set(left);
        self.waits_since_ms.set(None);
    }

    /// Returns the rest of the budget, zero if it is used up.
    pub fn time_left(&self, now_ms: u64) -> Duration {
        Duration::from_millis(u64::try_from(self.left_ms(now_ms)).unwrap_or(0))
    }

    /// Returns whether the peer has spent some of its budget in earlier waits. If it runs out now, the reason is its
    /// average rate and not the length of one pause.
    pub fn is_below_average(&self) -> bool {
        self.left_ms.get() < self.patience_ms.get()
    }

    fn left_ms(&self, now_ms: u64) -> i64 {
        let waited_ms = self.waits_since_ms.get().map_or(0, |since_ms| now_ms.saturating_sub(since_ms));
        self.left_ms.get().saturating_sub(i64::try_from(waited_ms).unwrap_or(i64::MAX))
    }
}

/// Output to a client's socket: whether anything remains to be written, what waits for that, and the minimum rate at
/// which the client must read.
pub(super) struct Output {
    is_flushed: Cell<bool>,
    /// Bytes that the socket has accepted since all was flushed or a wait began: they are credited at the end of
    /// the next wait.
    written: Cell<u64>,
    /// Set while a response that has failed waits for the output before it.
    last_output: Cell<LastOutput>,
    /// Set from the beginning of a request until its response has been written (HTTP/1.1 only).
    owes_response: Cell<bool>,
    /// Set while the end of the client's stream is withheld from the parser (HTTP/1.1 only).
    withholds_end: Cell<bool>,
    pub(super) min_rate: MinRate,
}

/// Makes a response that has failed wait until its first part is written. The library would drop what is not written
/// yet. A client that gets no byte at all may send its request again, because it looks as if it had never been served.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LastOutput {
    Unwanted,
    Awaited,
    Written,
}

impl Default for Output {
    fn default() -> Output {
        Output {
            is_flushed: Cell::new(true),
            written: Cell::new(0),
            last_output: Cell::new(LastOutput::Unwanted),
            owes_response: Cell::new(false),
            withholds_end: Cell::new(false),
            min_rate: MinRate::unlimited(),
        }
    }
}

impl Output {
    pub(super) fn is_flushed(&self) -> bool {
        self.is_flushed.get()
    }

    /// Records whether the socket has accepted all that was written. Returns true if the connection's task waits for
    /// that: to end a response that has failed, or to read the end of the client's stream after the last request.
    pub(super) fn set_flushed(&self, is_flushed: bool, has_requests: bool) -> bool {
        self.is_flushed.set(is_flushed);
        if !is_flushed {
            return false;
        }
        // Bytes written before a flush do not count for a later wait.
        self.written.set(0);
        let is_failure_due = self.last_output.get() == LastOutput::Awaited;
        if is_failure_due {
            self.last_output.set(LastOutput::Written);
        }
        if !has_requests {
            self.owes_response.set(false);
        }
        is_failure_due || (!has_requests && self.withholds_end.take())
    }

    /// Returns whether all that precedes the failure of a response has been written. If not, `set_flushed` tells when.
    pub(super) fn has_written_rest(&self) -> bool {
        let is_written = self.last_output.get() == LastOutput::Written;
        self.last_output.set(if is_written { LastOutput::Unwanted } else { LastOutput::Awaited });
        is_written
    }

    /// Records that a request has begun.
    pub(super) fn await_response(&self) {
        self.owes_response.set(true);
    }

    /// Returns whether the response of the last request has not been written yet.
    pub(super) fn owes_response(&self) -> bool {
        self.owes_response.get()
    }

    /// Records whether the parser does not know yet that the client's stream has ended.
    pub(super) fn withhold_end(&self, is_withheld: bool) {
        self.withholds_end.set(is_withheld);
    }

    /// Adds bytes that the socket has accepted. Returns true if that ends a wait for the client; only then is the clock
    /// read.
    pub(super) fn add_written(&self, bytes: u64, ticks: &Ticks) -> bool {
        let total = self.written.get() + bytes;
        if !self.min_rate.is_waiting() {
            self.written.set(total);
            return false;
        }
        self.written.set(0);
        self.min_rate.credit_bytes(ticks.get(), total);
        true
    }
}

fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the budget that is left after waits of `pause_ms`, each of which ends with `bytes`.
    fn left_after(pace: &MinRate, times: u64, pause_ms: u64, bytes: u64) -> u128 {
        for round in 0..times {
            pace.begin_wait(round * pause_ms);
            pace.credit_bytes((round + 1) * pause_ms, bytes);
        }
        pace.time_left(times * pause_ms).as_millis()
    }

    fn pace() -> MinRate {
        MinRate::new(Duration::from_secs(10), 100)
    }

    #[test]
    fn a_peer_at_the_minimum_rate_never_runs_out_of_time_and_a_slower_one_does() {
        assert_eq!(left_after(&pace(), 100_000, 1000, 100), 10_000);
        assert_eq!(left_after(&pace(), 10, 1000, 50), 5_000);
        assert_eq!(left_after(&pace(), 20, 1000, 50), 0);
        let owes = pace();
        assert_eq!(left_after(&owes, 20, 2000, 1), 0);
        owes.credit_bytes(40_000, 100);
        assert_eq!(owes.time_left(40_000).as_millis(), 0, "it owes more than that");
        // In large pieces as in small ones.
        assert_eq!(left_after(&pace(), 10, 9000, 900), 10_000);
    }

    #[test]
    fn a_quick_start_does_not_pay_for_a_stall() {
        let pace = pace();
        pace.credit_bytes(0, 1 << 40);
        assert!(!pace.is_below_average());
        pace.begin_wait(0);
        pace.begin_wait(4_000);
        assert_eq!(pace.time_left(9_999).as_millis(), 1);
        assert_eq!(pace.time_left(20_000).as_millis(), 0);
    }

    #[test]
    fn time_without_a_wait_costs_nothing() {
        let pace = pace();
        pace.begin_wait(0);
        pace.credit_bytes(5_000, 0);
        assert!(pace.is_below_average() && !pace.is_waiting());
        assert_eq!(pace.time_left(1 << 40).as_millis(), 5_000);
    }

    #[test]
    fn without_a_rate_any_byte_restores_the_budget() {
        let pace = MinRate::new(Duration::from_secs(10), 0);
        pace.begin_wait(0);
        pace.credit_bytes(9_000, 0);
        assert_eq!(pace.time_left(9_000).as_millis(), 1_000);
        pace.credit_bytes(9_000, 1);
        assert_eq!(pace.time_left(9_000).as_millis(), 10_000);
    }
}
