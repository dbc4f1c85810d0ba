//! Runs single checks on the store, and describes its errors.

use std::rc::Rc;

use http::StatusCode;

use crate::admin::problem::{Problem, ProblemKind};
use crate::limiting::Limiter;
use crate::limiting::answer::Answer;
use crate::limiting::decision::{Check, ErrorKind, Op};

/// Runs one check on the store alone.
pub async fn run_check(limiter: &Limiter, op: Op, check: Check) -> Result<Answer, ErrorKind> {
    let checks = Rc::new(vec![check]);
    let (store, key) = (limiter.store(), &checks[0].key);
    store.end_leases(op, key);
    let outcome = match op {
        Op::Take | Op::Peek => store.decide(op, &checks).await,
        Op::Adjust => store.adjust(&checks).await,
        Op::Reset => store.reset(&checks).await,
    };
    store.end_leases(op, key);
    let decision = outcome?;
    decision.answers.first().copied().ok_or(ErrorKind::Reply)
}

pub fn store_unavailable(kind: ErrorKind, consequence: &str) -> Problem {
    let detail = format!("the limit store is unavailable ({}){consequence}", kind.label());
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).with_kind(ProblemKind::StoreUnavailable)
}
