//! Refunds of units without a receipt, for rate limit requests with negative hits.

use std::rc::Rc;

use crate::limiting::answer::Answer;
use crate::limiting::decision::{Check, Op};
use crate::limiting::limiter::Limiter;

impl Limiter {
    /// Refunds units of keys, no matter which request charged them. The cost of each check is the number of units. A
    /// refund never raises the budget of a key above its full size. Returns the state of each key afterwards, if the
    /// store reports it.
    pub async fn refund_units(&self, mut checks: Vec<Check>) -> Vec<Option<Answer>> {
        let peeks: Vec<Check> = checks.iter().map(Check::to_look).collect();
        let peeks = Rc::new(peeks);
        let nothing = || vec![None; peeks.len()];
        let Ok(before) = self.store().decide(Op::Peek, &peeks).await else { return nothing() };
        for (check, answer) in checks.iter_mut().zip(&before.answers) {
            check.cost = -check.cost;
            check.hold_receipt(check.rule.receipt_of_peek(answer));
        }
        let checks = Rc::new(checks);
        let end_leases = || checks.iter().for_each(|check| self.store().end_leases(Op::Adjust, &check.key));
        end_leases();
        // The peek is sent after the refunds, on the same connections.
        let (refunds, after) = tokio::join!(
            biased;
            self.store().adjust_each(&checks),
            self.store().decide(Op::Peek, &peeks)
        );
        end_leases();
        // The usage counts what was refunded, which may be less than what was requested.
        for (check, answer) in checks.iter().zip(&refunds) {
            if let Ok(Answer { admitted: true, remaining: units, .. }) = answer {
                let refund = Check { cost: -units, ..check.clone() };
                self.charges().decisions.ledger.record_correction(&refund);
            }
        }
        after.map_or_else(|_| nothing(), |decision| decision.answers.into_iter().map(Some).collect())
    }
}
