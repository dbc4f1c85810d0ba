//! What an incident does to the promise of a limit: a restart, a lost store, an outage, a clock that is set, a crash.

use crate::contract::bound::Bound;
use crate::contract::clauses::{Clause, ClauseKind, ClauseWriter, FORWARD_MS, UnitBound};
use crate::limiting::algorithm::Rule;
use crate::limiting::algorithm::describe::format_duration;
use crate::limiting::limit::OnError;

impl ClauseWriter<'_> {
    pub(super) fn describe_restart(&self) -> Clause {
        let losses = i64::from(!self.setting.is_shared);
        let most = self.list_bounds(|interval_ms| self.bound.max_units_in(interval_ms, losses));
        let text = match (self.setting.is_shared, self.bound) {
            (true, _) => "A restart of a gateway changes nothing, because the state is in Redis.".to_owned(),
            (false, Bound::Slots { .. }) => format!(
                "A restart of the gateway frees all slots. If an upstream still works on the requests of before, a key has \
                 at most {}.",
                self.format_bounds(&most)
            ),
            (false, _) => format!(
                "A restart of the gateway makes every budget full again. With one in the interval, a key gets at most {}.",
                self.format_bounds(&most)
            ),
        };
        let most = if self.setting.is_shared { Vec::new() } else { most };
        self.clause(ClauseKind::Restart, text, most)
    }

    pub(super) fn describe_loss(&self) -> Clause {
        let most = self.list_bounds(|interval_ms| self.bound.max_units_in(interval_ms, 1));
        let when = match (self.setting.is_shared, self.setting.keys.bounds_of(self.limit)) {
            (true, _) => "If Redis loses or evicts the state of a key, or an operator resets it".to_owned(),
            (false, (least, most)) if least == most => format!(
                "If the state of a key is evicted because the limit has more than {most} keys (`max_keys`), or an operator \
                 resets it"
            ),
            (false, (least, most)) => format!(
                "If the state of a key is evicted because the limit has more than {least} keys while all limits have \
                 {most} (`max_keys`), or an operator resets it"
            ),
        };
        let what = match self.bound {
            Bound::Slots { .. } => "its slots are free while the requests still run",
            _ => "its budget is full again",
        };
        let numbers = self.format_bounds(&most);
        let text = format!("{when}, {what}. With one loss in the interval, a key gets at most {numbers}.");
        self.clause(ClauseKind::StoreLoss, text, most)
    }

    pub(super) fn describe_outage(&self) -> Clause {
        let gateways = self.setting.gateways;
        let (text, most) = match (self.limit.on_error, self.limit.forwards_excess()) {
            (OnError::Open, _) => {
                let text =
                    "While Redis is unavailable, every request is admitted (on_error = \"open\"): there is no bound.";
                (text.to_owned(), Vec::new())
            }
            (OnError::Closed, false) => {
                let text = "While Redis is unavailable, every request is refused (on_error = \"closed\"): nothing is \
                            admitted in addition.";
                (text.to_owned(), Vec::new())
            }
            (OnError::Closed, true) => {
                let text =
                    "While Redis is unavailable, every request counts as over the limit (on_error = \"closed\").";
                (text.to_owned(), Vec::new())
            }
            (OnError::Local, _) => {
                let share = Bound::of(&self.limit.rule.share(gateways));
                let most = self.list_bounds(|interval_ms| {
                    let own = share.max_units_in(interval_ms, 0).saturating_mul(gateways);
                    self.bound.max_units_in(interval_ms, 0).saturating_add(own)
                });
                let subject = match gateways {
                    1 => "the gateway admits the limit from its own memory as well".to_owned(),
                    _ => {
                        format!("each of {gateways} gateways that have shared it admits its share from its own memory")
                    }
                };
                let text = format!(
                    "While Redis is unavailable, {subject} (on_error = \"local\"). With outages in the interval, a key \
                     gets at most {}, as long as no gateway restarts during an outage.",
                    self.format_bounds(&most)
                );
                (text, most)
            }
        };
        self.clause(ClauseKind::Outage, text, most)
    }

    pub(super) fn describe_clock(&self) -> Vec<Clause> {
        let is_calendar = self.limit.rule.is_calendar();
        if !self.setting.is_shared {
            let text = match is_calendar {
                true => {
                    "The wall clock of the gateway decides which window counts a request. A clock that is set back by less \
                     than a window reopens none."
                }
                false => "Setting the clock of the machine has no effect: the time since the start counts.",
            };
            return vec![self.clause(ClauseKind::ClockBack, text.to_owned(), self.window_numbers())];
        }
        let back = match is_calendar {
            true => {
                "The clock of Redis decides which window counts a request. If it is set back by less than a window, none is \
                 reopened."
            }
            false => {
                "If the clock of Redis is set back by at most a period, no usage is lost. The clocks of gateways do not matter."
            }
        };
        let mut clauses = vec![self.clause(ClauseKind::ClockBack, back.to_owned(), self.window_numbers())];
        if !matches!(self.bound, Bound::Slots { .. }) {
            // Budgets refill as if the time had passed.
            let is_anchored = is_calendar || matches!(&*self.limit.rule, Rule::FixedWindow(window) if window.clock);
            let most = self.list_bounds(|interval_ms| {
                let units = self.bound.max_units_in(interval_ms.saturating_add(FORWARD_MS), 0);
                units.min(self.bound.max_units_across_jump(interval_ms, is_anchored))
            });
            let text = format!(
                "If the clock of Redis is set forward, that time counts as passed. By {}, once in the interval, a key gets \
                 at most {}.",
                format_duration(FORWARD_MS),
                self.format_bounds(&most)
            );
            clauses.push(self.clause(ClauseKind::ClockForward, text, most));
        }
        clauses
    }

    pub(super) fn describe_crash(&self) -> Option<Clause> {
        let lease_ms = self.limit.rule.lease_ms()?;
        let text = format!(
            "If a gateway crashes, the slots of its requests are free after {} at the latest. If a gateway cannot reach the \
             store for as long, its slots can go to other requests while its own still run.",
            format_duration(lease_ms)
        );
        Some(self.clause(ClauseKind::Crash, text, vec![UnitBound { interval_ms: lease_ms, units: 0 }]))
    }
}
