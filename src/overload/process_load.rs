//! Counts of the requests of the process, and the decision whether one more is admitted. All workers share it. Only
//! requests of a config with `[server.overload]` are counted.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::overload::{OverloadCondition, OverloadRule};
use crate::rate::RecentCounts;

/// Parts of the second over which `qps` counts. One more part is kept, so that no second exceeds the bound.
const RATE_PARTS: usize = 11;
const PART_MS: u64 = 100;

/// The whole of a share that is refused.
pub const WHOLE_SHARE: u32 = 1 << 16;

/// The load of the process.
pub struct ProcessLoad {
    /// Requests until the end of their response.
    in_flight: AtomicU64,
    /// Requests until the head of their response.
    awaiting: AtomicU64,
    /// Requests that were served, and the sum of their times to the response head.
    served: AtomicU64,
    served_us: AtomicU64,
    /// Requests admitted in each part of the last second.
    rate: Mutex<RecentCounts<RATE_PARTS>>,
    /// Shares of requests that are refused because of the response time and of the CPU, of `WHOLE_SHARE`.
    latency_share: AtomicU32,
    cpu_share: AtomicU32,
    /// Most requests that may await their response while the load average is too high; otherwise `u64::MAX`.
    capacity: AtomicU64,
    /// Refused requests, indexed by `OverloadCondition`.
    refused: [AtomicU64; OverloadCondition::ALL.len()],
}

/// Totals of served requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServedTotals {
    pub requests: u64,
    pub latency_us: u64,
}

/// A request in flight. Dropped at the end of its response.
pub struct OverloadPermit {
    load: Arc<ProcessLoad>,
    begun: Instant,
    awaits_head: bool,
    /// The part of a second in which the request was counted for `qps`.
    counted_in: Option<u64>,
}

impl Default for ProcessLoad {
    fn default() -> ProcessLoad {
        ProcessLoad {
            in_flight: AtomicU64::new(0),
            awaiting: AtomicU64::new(0),
            served: AtomicU64::new(0),
            served_us: AtomicU64::new(0),
            rate: Mutex::default(),
            latency_share: AtomicU32::new(0),
            cpu_share: AtomicU32::new(0),
            capacity: AtomicU64::new(u64::MAX),
            refused: Default::default(),
        }
    }
}

impl ProcessLoad {
    /// Evaluates all conditions for a request that has arrived, and returns the first that refuses it. The request is
    /// not counted: it may wait for its client for a long time. `random` is below `WHOLE_SHARE`; it is drawn only if a
    /// share is refused.
    ///
    /// # Errors
    /// The process is overloaded.
    pub fn check(&self, rule: &OverloadRule, now_ms: u64, random: impl Fn() -> u32) -> Result<(), OverloadCondition> {
        let is_drawn = |share: &AtomicU32| match share.load(Ordering::Relaxed) {
            0 => false,
            share => random() < share,
        };
        let is_at = |qps| self.lock_rate().sum(now_ms / PART_MS) >= qps;
        let condition = if rule.qps.is_some_and(is_at) {
            OverloadCondition::Qps
        } else if rule.in_flight.is_some_and(|most| self.in_flight() >= most) {
            OverloadCondition::InFlight
        } else if rule.latency_ms.is_some() && is_drawn(&self.latency_share) {
            OverloadCondition::Latency
        } else if self.exceeds_capacity(rule) {
            OverloadCondition::Load
        } else if rule.cpu.is_some() && is_drawn(&self.cpu_share) {
            OverloadCondition::Cpu
        } else {
            return Ok(());
        };
        self.refused[condition as usize].fetch_add(1, Ordering::Relaxed);
        Err(condition)
    }

    /// Takes the places of a request that `check` admitted, and that is served from `begun` on. Shares are not drawn
    /// again.
    ///
    /// # Errors
    /// A place is taken that was free when the request arrived.
    pub fn admit(
        self: &Arc<Self>,
        rule: &OverloadRule,
        now_ms: u64,
        begun: Instant,
    ) -> Result<OverloadPermit, OverloadCondition> {
        let admission = match rule.qps {
            None => self.take_place(rule).map(|()| None),
            Some(qps) => {
                let part = now_ms / PART_MS;
                let mut rate = self.lock_rate();
                // The lock is held until the request is counted, so that no second has more than `qps`.
                if rate.sum(part) >= qps {
                    Err(OverloadCondition::Qps)
                } else {
                    self.take_place(rule).map(|()| Some(rate.add(part, 1)))
                }
            }
        };
        let counted_in = admission.inspect_err(|condition| {
            self.refused[*condition as usize].fetch_add(1, Ordering::Relaxed);
        })?;
        self.awaiting.fetch_add(1, Ordering::Relaxed);
        Ok(OverloadPermit { load: self.clone(), begun, awaits_head: true, counted_in })
    }

    /// Counts a request as in flight, if there is a place.
    fn take_place(&self, rule: &OverloadRule) -> Result<(), OverloadCondition> {
        let in_flight = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        let condition = if rule.in_flight.is_some_and(|most| in_flight > most) {
            OverloadCondition::InFlight
        } else if self.exceeds_capacity(rule) {
            OverloadCondition::Load
        } else {
            return Ok(());
        };
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        Err(condition)
    }

    /// Returns whether as many requests await their response as may while the load average is too high.
    fn exceeds_capacity(&self, rule: &OverloadRule) -> bool {
        rule.load_thousandths.is_some()
            && self.awaiting.load(Ordering::Relaxed) >= self.capacity.load(Ordering::Relaxed)
    }

    fn lock_rate(&self) -> MutexGuard<'_, RecentCounts<RATE_PARTS>> {
        self.rate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the requests in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the totals of served requests since the start.
    pub fn served(&self) -> ServedTotals {
        ServedTotals {
            requests: self.served.load(Ordering::Relaxed),
            latency_us: self.served_us.load(Ordering::Relaxed),
        }
    }

    /// Returns how many requests a condition has refused.
    pub fn refused(&self, condition: OverloadCondition) -> u64 {
        self.refused[condition as usize].load(Ordering::Relaxed)
    }

    /// Sets the shares to refuse, and the measured capacity while the load average is too high.
    pub fn apply_sample(&self, latency_share: u32, cpu_share: u32, capacity: Option<u64>) {
        self.latency_share.store(latency_share, Ordering::Relaxed);
        self.cpu_share.store(cpu_share, Ordering::Relaxed);
        self.capacity.store(capacity.unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl OverloadPermit {
    /// Records the head of the response. `is_served`: it is the response of a server or of the route, not a refusal.
    pub fn record_head(&mut self, is_served: bool) {
        if !std::mem::replace(&mut self.awaits_head, false) {
            return;
        }
        self.load.awaiting.fetch_sub(1, Ordering::Relaxed);
        if is_served {
            let us = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.load.served.fetch_add(1, Ordering::Relaxed);
            self.load.served_us.fetch_add(us, Ordering::Relaxed);
        }
    }
}

impl OverloadPermit {
    /// Gives the place in `qps` back, because the request is refused before it is served. Otherwise a client that its
    /// limits refuse would use up the places of all others.
    pub fn return_place(&mut self) {
        if let Some(part) = self.counted_in.take() {
            self.load.lock_rate().take_back(part, 1);
        }
    }
}

impl Drop for OverloadPermit {
    fn drop(&mut self) {
        self.record_head(false);
        self.load.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Fraction;

    fn admit(load: &Arc<ProcessLoad>, rule: &OverloadRule, now_ms: u64) -> Result<OverloadPermit, OverloadCondition> {
        load.check(rule, now_ms, || WHOLE_SHARE / 2)?;
        load.admit(rule, now_ms, Instant::now())
    }

    #[test]
    fn no_second_has_more_requests_than_qps() {
        let (load, rule) = (Arc::new(ProcessLoad::default()), OverloadRule { qps: Some(7), ..OverloadRule::default() });
        let admitted: Vec<u64> = (0..5_000).filter(|now_ms| admit(&load, &rule, *now_ms).is_ok()).collect();
        for start in 0..4_000 {
            let within = admitted.iter().filter(|at| (start..start + 1_000).contains(*at)).count();
            assert!(within <= 7, "{within} requests from {start} ms");
        }
        assert!(admitted.len() >= 4 * 7, "{admitted:?}");
        // A refused request is not counted, nor is one that a later condition refuses.
        let both = OverloadRule { in_flight: Some(1), ..rule };
        let held = admit(&load, &both, 60_000).unwrap();
        (0..20).for_each(|_| assert_eq!(admit(&load, &both, 60_000).err(), Some(OverloadCondition::InFlight)));
        drop(held);
        (0..6).for_each(|_| drop(admit(&load, &both, 60_000).unwrap()));
        assert_eq!(admit(&load, &both, 60_000).err(), Some(OverloadCondition::Qps));
    }

    #[test]
    fn places_are_exact_over_threads_and_all_return() {
        let (load, rule) =
            (Arc::new(ProcessLoad::default()), OverloadRule { in_flight: Some(3), ..Default::default() });
        let highest = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let held: Vec<_> = (0..2).filter_map(|_| admit(&load, &rule, 0).ok()).collect();
                        highest.fetch_max(held.len() as u64, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!((load.in_flight(), load.awaiting.load(Ordering::Relaxed)), (0, 0));
        let held: Vec<_> = (0..3).map(|_| admit(&load, &rule, 0).unwrap()).collect();
        assert_eq!(admit(&load, &rule, 0).err(), Some(OverloadCondition::InFlight));
        drop(held);
    }

    #[test]
    fn a_refused_request_returns_its_place_in_the_rate() {
        let (load, rule) = (Arc::new(ProcessLoad::default()), OverloadRule { qps: Some(3), ..Default::default() });
        for now_ms in [0, 50, 950, 1_000, 10_000, 10_001] {
            for _ in 0..10 {
                let mut permit = admit(&load, &rule, now_ms).unwrap();
                permit.return_place();
                permit.return_place();
            }
        }
        let mut old = admit(&load, &rule, 20_000).unwrap();
        let held: Vec<_> = (0..2).map(|_| admit(&load, &rule, 20_900).unwrap()).collect();
        assert_eq!(admit(&load, &rule, 20_900).err(), Some(OverloadCondition::Qps));
        let third = admit(&load, &rule, 21_100).unwrap();
        // Its part has left the ring, and does not belong to another request.
        old.return_place();
        assert_eq!(admit(&load, &rule, 21_100).err(), Some(OverloadCondition::Qps));
        drop((held, third));
        assert_eq!(admit(&load, &rule, 21_100).err(), Some(OverloadCondition::Qps), "they were served");
    }

    #[test]
    fn conditions_are_evaluated_in_order_and_only_those_of_the_rule() {
        let load = Arc::new(ProcessLoad::default());
        let all = OverloadRule {
            qps: Some(3),
            in_flight: Some(2),
            latency_ms: Some(1),
            load_thousandths: Some(1_000),
            cpu: Some(Fraction::HALF),
        };
        load.apply_sample(WHOLE_SHARE, WHOLE_SHARE, Some(0));
        let refused = |rule: &OverloadRule| admit(&load, rule, 0).err();
        assert_eq!(refused(&all), Some(OverloadCondition::Latency));
        assert_eq!(refused(&OverloadRule { latency_ms: None, ..all.clone() }), Some(OverloadCondition::Load));
        let cpu = OverloadRule { cpu: all.cpu, ..OverloadRule::default() };
        assert_eq!(refused(&cpu), Some(OverloadCondition::Cpu));
        assert_eq!(refused(&OverloadRule::default()), None);
        // Of a share of one third, the number one half is not part.
        load.apply_sample(0, WHOLE_SHARE / 3, None);
        assert_eq!(refused(&all), None);
        let held: Vec<_> = (0..2).map(|_| admit(&load, &all, 0).unwrap()).collect();
        assert_eq!(refused(&all), Some(OverloadCondition::Qps), "it comes first");
        drop(held);
        assert_eq!(load.refused(OverloadCondition::Latency), 1);
        assert_eq!(load.refused(OverloadCondition::Qps), 1);
    }
}
