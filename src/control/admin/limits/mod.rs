//! Limits without a request: decisions, state, resets and refunds for whoever asks the admin
//! listener. Called by `admin`.

mod asked;
mod json;
mod listing;
mod receipt;
mod words;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{spawn_local, yield_now};
use tokio::time::timeout;

use super::cached::Effort;
use crate::config::Config;
use crate::control::link::StoreLink;
use crate::limit::algo::Rule;
use crate::limit::answer::{Answer, NEVER, Policy};
use crate::limit::decision::{Check, ErrorKind, Op};
use crate::limit::key::{COST_MAX, Cost};
use crate::limit::limits::{Limit, Mode};
use crate::limit::overrides::Budget;
use crate::limit::store::once::{Mark, Use};
use crate::limit::{Ask, Checked, Limiter, Outcome, Standing, Verdict, clock};
use crate::snapshot::{Current, Reason};
use asked::{DecideBody, DecisionRequest};
use listing::Listing;
use receipt::Receipt;
use words::{Decider, Kept, Unasked};

pub use json::Problem;

pub struct Limits {
    current: Current,
    link: Rc<StoreLink>,
    listing: Listing,
    /// Spent on names that no limit has.
    hints: Effort,
    large: Semaphore,
}

/// Limits asked at once by one call: few enough that the last answer meets the store's deadline.
const AT_ONCE: usize = 128;
/// Calls with a longer body wait for their turn: they have up to 16,000 limits to ask, and a hundred of
/// them would keep probes waiting for seconds.
const SMALL: usize = 1024;
/// Others run meanwhile, so that the way to a far store is used.
const LARGE_AT_ONCE: usize = 4;
/// For a turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

impl Limits {
    pub fn new(current: Current, link: Rc<StoreLink>) -> Limits {
        Limits {
            current,
            link,
            listing: Listing::default(),
            hints: Effort::default(),
            large: Semaphore::new(LARGE_AT_ONCE),
        }
    }

    /// What the config says of each, as JSON.
    pub fn list(&self) -> Bytes {
        self.listing.all(&self.current.load(), clock::now_ms())
    }

    /// Of one.
    pub fn show(&self, name: &str) -> Result<Bytes, Problem> {
        let snapshot = self.current.load();
        let config = &snapshot.config;
        let text = config.limits.place(name).and_then(|place| self.listing.one(&snapshot, place, clock::now_ms()));
        text.ok_or_else(|| self.unknown(config, name))
    }

    fn find<'c>(&self, config: &'c Config, name: &str) -> Result<&'c Arc<Limit>, Problem> {
        config.limits.named(name).ok_or_else(|| self.unknown(config, name))
    }

    fn unknown(&self, config: &Config, name: &str) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, asked::unknown(config, name, &self.hints))
    }

    /// Waits until decisions that take a body of `length` may begin; they may while the turn lasts.
    ///
    /// # Errors
    /// Too many came before.
    pub async fn turn(&self, length: usize) -> Result<Option<SemaphorePermit<'_>>, Problem> {
        if length <= SMALL {
            return Ok(None);
        }
        let turn = timeout(TURN_TIMEOUT, self.large.acquire()).await;
        let busy = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many large requests at once; try again");
        turn.ok().and_then(Result::ok).map(Some).ok_or_else(busy)
    }

    /// The decisions that `body` asks for.
    pub async fn decide(&self, body: &[u8]) -> Result<Value, Problem> {
        let snapshot = self.current.load_full();
        let DecideBody { op, decisions } = DecideBody::read(body, &snapshot.config, &self.hints)?;
        let limiter = self.link.limiter();
        // To read many takes time, as to decide some and to write all down: others go in between.
        yield_now().await;
        let mut answers = Vec::with_capacity(decisions.len());
        let mut decisions = decisions.into_iter().peekable();
        while decisions.peek().is_some() {
            let (mut running, mut asked) = (Vec::new(), 0);
            while let Some(decision) = decisions.next_if(|next| asked == 0 || asked + next.limits.len() <= AT_ONCE) {
                asked += decision.limits.len();
                running.push(spawn_local(answer(limiter.clone(), op, decision)));
            }
            for task in running {
                let failed = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "a decision broke off");
                answers.push(task.await.map_err(failed)?);
            }
            yield_now().await;
        }
        Ok(json!({ "decisions": answers }))
    }

    /// What is left now, and what the limit would answer; changes nothing.
    pub async fn state(&self, name: &str, query: &str) -> Result<Value, Problem> {
        let snapshot = self.current.load_full();
        let limit = self.find(&snapshot.config, name)?;
        let (parts, cost) = asked::query(limit, query)?;
        let limiter = self.link.limiter();
        let (check, instead) = asked::check(&limiter, limit, &parts, cost.unwrap_or_else(|| cost_of(limit)))?;
        let (key, policy) = (check.key.clone(), check.rule.policy());
        if let Some(outcome) = instead {
            let mut state = unasked(outcome);
            state["limit"] = name.into();
            state["state_key"] = key.into();
            return Ok(state);
        }
        let mut now = check.clone();
        now.cost = 0;
        let now = run(&limiter, Op::Peek, now).await.map_err(|kind| store_away(kind, ""))?;
        let answer = run(&limiter, Op::Peek, check).await.map_err(|kind| store_away(kind, ""))?;
        let mut state = numbers(&Answer { remaining: now.remaining, reset_ms: now.reset_ms, ..answer }, policy);
        state["limit"] = name.into();
        state["state_key"] = key.into();
        Ok(state)
    }

    /// Forgets what the key has used.
    pub async fn reset(&self, name: &str, query: &str) -> Result<Value, Problem> {
        let snapshot = self.current.load_full();
        let limit = self.find(&snapshot.config, name)?;
        let (parts, _) = asked::query(limit, query)?;
        let limiter = self.link.limiter();
        let (check, _) = asked::check(&limiter, limit, &parts, 0)?;
        let key = check.key.clone();
        // What was used while the store was away goes as well.
        limiter.run_local(Op::Reset, check.clone());
        run(&limiter, Op::Reset, check)
            .await
            .map_err(|kind| store_away(kind, "; it is not known whether the key was reset"))?;
        Ok(json!({ "limit": name, "state_key": key, "reset": true }))
    }

    /// Gives back what a receipt stands for, at most once, or units of a key.
    pub async fn refund(&self, name: &str, body: &[u8]) -> Result<Value, Problem> {
        let snapshot = self.current.load_full();
        let limit = self.find(&snapshot.config, name)?;
        let limiter = self.link.limiter();
        let kept = match asked::refund(limit, body)? {
            asked::Refund::Receipt(receipt) => self.refund_receipt(&limiter, limit, &receipt).await?,
            asked::Refund::Units { parts, cost } => {
                let (check, _) = asked::check(&limiter, limit, &parts, cost)?;
                give_back_units(&limiter, check).await?
            }
        };
        let mut answer = json!({ "limit": name, "applied": kept.is_none() });
        if let Some(why) = kept {
            answer["reason"] = why.label().into();
        }
        Ok(answer)
    }

    /// Why nothing was given back; `None` if it was.
    async fn refund_receipt(
        &self,
        limiter: &Limiter,
        limit: &Arc<Limit>,
        receipt: &Receipt,
    ) -> Result<Option<Kept>, Problem> {
        let algorithm = limit.rule.name();
        // By the numbers that made the charge, or else by those that the key has now.
        let rule = match limit.rule.own_numbers() {
            true => Rule::noted(algorithm, &receipt.note).map(Arc::new),
            false => Some(match limit.overrides.find(&receipt.who) {
                Some(Budget::Rule(rule)) => rule,
                _ => limit.rule.clone(),
            }),
        };
        let Some(rule) = rule.filter(|_| receipt.names().is_some_and(|(_, of)| of == algorithm)) else {
            return Ok(Some(Kept::AlgorithmChanged));
        };
        match use_up(limiter, receipt).await? {
            Use::First => {}
            Use::Again => return Ok(Some(Kept::Used)),
            Use::Expired => return Ok(Some(Kept::Expired)),
        }
        let mut check = Check::new(limit, receipt.key.clone(), -receipt.cost);
        (check.tag, check.rule) = (receipt.receipt, rule);
        if receipt.local {
            let changed = limiter.run_local(Op::Adjust, check).is_some_and(|answer| answer.admitted);
            return Ok((!changed).then_some(Kept::NothingCharged));
        }
        let answer = run(limiter, Op::Adjust, check)
            .await
            .map_err(|kind| store_away(kind, "; it is not known whether the refund happened, the receipt is used"))?;
        Ok((!answer.admitted).then_some(Kept::NothingCharged))
    }
}

/// One decision, as JSON.
async fn answer(limiter: Rc<Limiter>, op: Op, decision: DecisionRequest) -> Value {
    let DecisionRequest { limits, parts, cost } = decision;
    let (mut asks, mut checks) = (Vec::with_capacity(limits.len()), Vec::with_capacity(limits.len()));
    for limit in &limits {
        let ask = limiter.ask(limit, &parts, cost.unwrap_or_else(|| cost_of(limit)));
        checks.push(match &ask {
            Ask::Check(check) => Some(check.clone()),
            _ => None,
        });
        asks.push(ask);
    }
    // Asked in front of the decision, on the same connection: no receipt may outlive its charge.
    let clock_ms = async {
        match op {
            Op::Take => limiter.store().now().await.ok(),
            _ => None,
        }
    };
    let (clock_ms, verdict) = tokio::join!(biased; clock_ms, limiter.decide_asks(op, &limits, asks, false));
    // The time by the store, or by this gateway's own memory, and the rule there.
    let made_by = |local: bool, rule: &Arc<Rule>| match clock_ms.filter(|_| !local) {
        Some(clock_ms) => (clock_ms, rule.clone()),
        None => (limiter.memory_ms(), if local { limiter.local_rule(rule) } else { rule.clone() }),
    };
    let entries: Vec<Value> = limits
        .iter()
        .zip(checks)
        .enumerate()
        .map(|(index, (limit, check))| {
            let checked = verdict.checks.iter().find(|checked| checked.limit == index);
            let who = limit.names("", &parts, true).ok().and_then(|names| names.values).unwrap_or_default();
            entry(op, limit, check, who, checked, &verdict, made_by)
        })
        .collect();
    json!({ "admitted": !verdict.refused, "limits": entries })
}

/// `made_by`: of a charge to the store, or to this gateway's own memory, what time it is there and by which
/// rule it was made.
fn entry(
    op: Op,
    limit: &Limit,
    check: Option<Check>,
    who: String,
    checked: Option<&Checked>,
    verdict: &Verdict,
    made_by: impl Fn(bool, &Arc<Rule>) -> (i64, Arc<Rule>),
) -> Value {
    let Some(&Checked { outcome, standing, .. }) = checked else {
        let why = match check {
            None => Unasked::KeyAbsent,
            Some(_) if verdict.refused => Unasked::RefusedBefore,
            Some(_) => Unasked::BaseHasRoom,
        };
        return not_asked(limit, why);
    };
    if standing == Standing::NotYet {
        return not_asked(limit, Unasked::BaseHasRoom);
    }
    let Some((answer, check)) = outcome.answer().zip(check) else {
        let mut entry = unasked(outcome);
        entry["limit"] = limit.name.as_str().into();
        entry["asked"] = true.into();
        entry["source"] = Decider::None.label().into();
        return entry;
    };
    let mut entry = numbers(answer, check.rule.policy());
    entry["limit"] = limit.name.as_str().into();
    entry["asked"] = true.into();
    entry["mode"] = limit.mode.label().into();
    let local = matches!(outcome, Outcome::Local(_));
    entry["source"] = if local { Decider::Local } else { Decider::Store }.label().into();
    let in_force = standing == Standing::InForce;
    let charged = in_force && answer.admitted && (!verdict.refused || limit.mode == Mode::Shadow);
    if op == Op::Take && charged && check.cost > 0 {
        let (now_ms, rule) = made_by(local, &check.rule);
        let receipt = Receipt {
            id: rand::random(),
            expires_ms: now_ms.saturating_add(answer.reset_ms.max(1)),
            local,
            cost: check.cost,
            receipt: answer.receipt,
            note: if rule.own_numbers() { rule.note() } else { String::new() },
            who,
            key: check.key,
        };
        if let Some(token) = receipt.token() {
            entry["receipt"] = token.into();
        }
    }
    entry
}

fn not_asked(limit: &Limit, why: Unasked) -> Value {
    json!({ "limit": limit.name, "asked": false, "reason": why.label() })
}

/// What is known without a store.
fn unasked(outcome: Outcome) -> Value {
    match outcome.admitted() {
        true => json!({ "admitted": true }),
        false => json!({ "admitted": false, "reason": crate::http::answer::refusal::reason(outcome).label() }),
    }
}

/// An answer's numbers. `retry_after_ms` is null when waiting cannot help.
fn numbers(answer: &Answer, policy: Policy) -> Value {
    let mut numbers = json!({
        "admitted": answer.admitted,
        "remaining": answer.remaining,
        "reset_ms": answer.reset_ms,
        "policy": { "quota": policy.quota, "window_ms": policy.window_ms },
    });
    if answer.admitted {
        if answer.retry_ms > 0 {
            numbers["hold_ms"] = answer.retry_ms.into();
        }
    } else {
        let never = answer.retry_ms == NEVER;
        numbers["retry_after_ms"] = if never { Value::Null } else { answer.retry_ms.into() };
        numbers["reason"] = if never { Reason::NeverFits } else { Reason::Exhausted }.label().into();
    }
    numbers
}

/// Without a receipt: of what is charged now. A peek names it.
async fn give_back_units(limiter: &Limiter, mut check: Check) -> Result<Option<Kept>, Problem> {
    let cost = check.cost;
    check.cost = 0;
    let now =
        run(limiter, Op::Peek, check.clone()).await.map_err(|kind| store_away(kind, "; nothing was given back"))?;
    check.cost = -cost;
    check.tag = now.receipt;
    let answer = run(limiter, Op::Adjust, check)
        .await
        .map_err(|kind| store_away(kind, "; it is not known whether the refund happened"))?;
    Ok((!answer.admitted).then_some(Kept::NothingCharged))
}

/// Whether the receipt is used for the first time.
async fn use_up(limiter: &Limiter, receipt: &Receipt) -> Result<Use, Problem> {
    let mark = Mark { id: receipt.id, expires_ms: receipt.expires_ms };
    if receipt.local {
        return Ok(limiter.once_local(mark));
    }
    let good = |kind| store_away(kind, "; nothing was given back, the receipt is still good");
    let now_ms = limiter.store().now().await.map_err(good)?;
    limiter.store().once(mark, receipt.prefix(), now_ms).await.map_err(|kind| match kind.is_unsure() {
        true => store_away(kind, "; nothing was given back, the receipt may count as used"),
        false => good(kind),
    })
}

/// One check, answered by the store alone.
async fn run(limiter: &Limiter, op: Op, check: Check) -> Result<Answer, ErrorKind> {
    let checks = Rc::new(vec![check]);
    let store = limiter.store();
    let decision = match op {
        Op::Take | Op::Peek => store.decide(op, &checks).await?,
        Op::Adjust => store.adjust(&checks).await?,
        Op::Reset => store.reset(&checks).await?,
    };
    decision.answers.first().copied().ok_or(ErrorKind::Reply)
}

fn store_away(kind: ErrorKind, consequence: &str) -> Problem {
    let detail = format!("the limit store gave no answer ({}){consequence}", kind.label());
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
}

/// The cost of one request where it does not depend on the request.
fn cost_of(limit: &Limit) -> i64 {
    match &limit.cost {
        Cost::Fixed(cost) => (*cost).min(COST_MAX),
        _ => 1,
    }
}
