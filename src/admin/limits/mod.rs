//! Limits over HTTP: decisions, state, resets and refunds without a proxied request. Called by `pages`.
//!
//! Input: JSON bodies (`json`) and queries, parsed and checked by `requests`; `hash_lookup` finds keys by their hash.
//! Output: decisions with receipts (`decide`), the listing of limits (`listing`), the explanation of a request
//! (`explain`), the states of keys (`state`), their overrides (`overrides`), the lists of all live overrides
//! (`live_list`, with ids of `row_id`) and of bans (`bans`), everything about one customer (`customers`), the most
//! refused keys (`top`), what keys used by day (`usage_days`), the last refusals (`refusals`) with those of other
//! gateways (`peer_refusals`), and the refusals that a changed limit would have made (`what_if`). `labels` has the
//! closed sets of texts in responses.
//!
//! To add an operation, parse and check its body in `requests`, run it here on the store, and add its page to `pages`.

mod bans;
mod customers;
mod decide;
mod explain;
mod hash_lookup;
mod json;
mod labels;
mod listing;
mod live_list;
mod overrides;
mod peer_refusals;
mod refusals;
mod requests;
mod row_id;
mod state;
mod store_check;
mod top;
mod usage_days;
mod what_if;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{spawn_local, yield_now};
use tokio::time::timeout;

use crate::admin::cached::TimeBudget;
use crate::admin::ledger::UsageLedger;
use crate::admin::limits::hash_lookup::HashLookup;
use crate::admin::limits::labels::NotRefundedReason;
use crate::admin::limits::listing::Listing;
use crate::admin::limits::peer_refusals::PeerExchange;
use crate::admin::limits::requests::DecideBody;
use crate::admin::limits::store_check::{run_check, store_unavailable};
use crate::admin::live_overrides::LiveOverrides;
use crate::admin::problem::{Problem, ProblemKind};
use crate::admin::store_link::StoreLink;
use crate::config::Config;
use crate::config::admin_tokens::Role;
use crate::limiting::decision::{Check, Op};
use crate::limiting::limit::Limit;
use crate::limiting::receipts::Receipt;
use crate::limiting::store::memory::Evictions;
use crate::limiting::store::once::MarkUse;
use crate::limiting::usage::history::UsageMonitor;
use crate::limiting::{Limiter, clock};
use crate::snapshot::CurrentSnapshot;

pub use crate::admin::limits::overrides::OverrideChange;

pub struct LimitsApi {
    current: CurrentSnapshot,
    link: Rc<StoreLink>,
    live: Rc<LiveOverrides>,
    listing: Listing,
    /// Time spent on suggestions for unknown names.
    hints: TimeBudget,
    large: Semaphore,
    hashes: HashLookup,
    usage: Rc<UsageMonitor>,
    ledger: Rc<UsageLedger>,
    /// Time spent on lists of keys.
    top_effort: TimeBudget,
    /// Ids of limits whose usage was changed over this API, with the last time.
    managed: RefCell<HashMap<u64, Instant>>,
    peers: PeerExchange,
}

/// Result of a refund.
pub struct Refunded {
    pub answer: Value,
    /// The key as logs show it.
    pub key: Option<String>,
}

/// How many units were refunded, or why none were.
type RefundOutcome = Result<i64, NotRefundedReason>;

/// Number of limits per store call: few enough that the last response meets the store's deadline.
const LIMITS_PER_CALL: usize = 128;
/// Requests with a longer body wait for their turn: each may contain 16,000 decisions, and a hundred of them would
/// block probes for seconds.
const SMALL_MAX: usize = 1024;
/// Number of such requests that run concurrently, so that a distant store is used well.
const LARGE_MAX: usize = 4;
/// How long such a request waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long it is known that the usage of a limit was changed: longer than the longest window.
const MANAGED_FOR: Duration = Duration::from_secs(900);
/// Number of such limits from which older ones are forgotten.
const MANAGED_SWEEP: usize = 1024;

impl LimitsApi {
    /// Returns the connection to the store.
    pub fn store_link(&self) -> &StoreLink {
        &self.link
    }

    /// Returns the number of keys in use that were evicted from memory, and when.
    pub fn evictions(&self) -> Evictions {
        self.link.evictions()
    }

    pub fn new(
        current: &CurrentSnapshot,
        (link, live): (&Rc<StoreLink>, &Rc<LiveOverrides>),
        (usage, ledger): (&Rc<UsageMonitor>, &Rc<UsageLedger>),
    ) -> LimitsApi {
        LimitsApi {
            current: current.clone(),
            link: link.clone(),
            live: live.clone(),
            listing: Listing::default(),
            hints: TimeBudget::default(),
            large: Semaphore::new(LARGE_MAX),
            hashes: HashLookup::default(),
            usage: usage.clone(),
            ledger: ledger.clone(),
            top_effort: TimeBudget::default(),
            managed: RefCell::default(),
            peers: PeerExchange::default(),
        }
    }

    /// Saves the usage by day for the last time, when the process ends.
    pub async fn save_usage(&self) {
        self.ledger.save_last().await;
    }

    /// Returns the configured limits as JSON.
    pub fn list_limits(&self) -> Bytes {
        self.listing.list_all(&self.current.load(), clock::now_ms())
    }

    /// Returns one configured limit.
    pub fn show_limit(&self, name: &str) -> Result<Bytes, Problem> {
        let snapshot = self.current.load();
        let config = &snapshot.config;
        let text =
            config.limits.index_of(name).and_then(|place| self.listing.show_one(&snapshot, place, clock::now_ms()));
        text.ok_or_else(|| self.unknown_limit(config, name))
    }

    /// Checks that there is a limit with this name.
    pub fn check_limit(&self, name: &str) -> Result<(), Problem> {
        self.find_limit(&self.current.load().config, name).map(|_| ())
    }

    fn find_limit<'c>(&self, config: &'c Config, name: &str) -> Result<&'c Arc<Limit>, Problem> {
        config.limits.find(name).ok_or_else(|| self.unknown_limit(config, name))
    }

    fn unknown_limit(&self, config: &Config, name: &str) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, requests::describe_unknown_limit(config, name, &self.hints))
    }

    /// Waits until decisions with a body of `length` may start; they may run while the permit exists.
    ///
    /// # Errors
    /// If too many requests are waiting.
    pub async fn wait_for_turn(&self, length: usize) -> Result<Option<SemaphorePermit<'_>>, Problem> {
        if length <= SMALL_MAX {
            return Ok(None);
        }
        let turn = timeout(TURN_TIMEOUT, self.large.acquire()).await;
        let busy = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many large requests at once; try again");
        turn.ok().and_then(Result::ok).map(Some).ok_or_else(busy)
    }

    /// Makes the decisions that `body` requests.
    pub async fn decide_all(&self, body: &[u8]) -> Result<Value, Problem> {
        let snapshot = self.current.load_full();
        let DecideBody { op, mut decisions } = DecideBody::parse_body(body, &snapshot.config, &self.hints)?;
        let limiter = self.link.limiter();
        let parts = decisions.iter_mut().map(|decision| &mut decision.parts).collect();
        self.hashes.find_values(&limiter, (&snapshot.config, &self.usage), parts).await?;
        // Parsing, deciding and formatting many decisions takes time, so other tasks get a turn in between.
        yield_now().await;
        if op == Op::Take {
            decisions.iter().flat_map(|decision| &decision.limits).for_each(|limit| self.note_managed(limit));
        }
        let mut answers = Vec::with_capacity(decisions.len());
        let mut decisions = decisions.into_iter().peekable();
        while decisions.peek().is_some() {
            let (mut running, mut running_limits) = (Vec::new(), 0);
            while let Some(decision) =
                decisions.next_if(|next| running_limits == 0 || running_limits + next.limits.len() <= LIMITS_PER_CALL)
            {
                running_limits += decision.limits.len();
                running.push(spawn_local(decide::decide_named(limiter.clone(), op, decision)));
            }
            for task in running {
                let internal_error = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "a decision was aborted");
                answers.push(task.await.map_err(internal_error)?);
            }
            yield_now().await;
        }
        Ok(json!({ "decisions": answers }))
    }

    /// Refunds a receipt, at most once, or units of a key.
    pub async fn refund_charge(&self, name: &str, body: &[u8]) -> Result<Refunded, Problem> {
        let snapshot = self.current.load_full();
        let limit = self.find_limit(&snapshot.config, name)?;
        let display = &snapshot.config.admin.key_display;
        let limiter = self.link.limiter();
        self.note_managed(limit);
        let prefix = &snapshot.config.store.prefix;
        let (outcome, key) = match requests::parse_refund(limit, prefix, body)? {
            requests::Refund::Receipt(receipt) => {
                let parts = receipt.key_parts();
                (self.refund_receipt(&limiter, limit, &receipt).await?, display.show_state_parts(&limit.key, parts))
            }
            requests::Refund::Units { mut parts, cost } => {
                self.hashes.find_values(&limiter, (&snapshot.config, &self.usage), vec![&mut parts]).await?;
                let (check, _) = requests::build_check(&limiter, limit, &parts, cost)?;
                let mut key = String::new();
                let _ = display.write_key(&mut key, &limit.key, &parts, limit.repeated);
                (refund_units(&limiter, check).await?, key)
            }
        };
        let key = Some(key).filter(|key| !key.is_empty());
        let answer = match outcome {
            Ok(units) => json!({ "limit": name, "key": key, "applied": true, "units": units }),
            Err(why) => {
                json!({ "limit": name, "key": key, "applied": false, "units": 0, "reason": why.label() })
            }
        };
        Ok(Refunded { answer, key })
    }

    /// Records that this API changes the usage of a limit now.
    fn note_managed(&self, limit: &Limit) {
        let mut times = self.managed.borrow_mut();
        if times.len() >= MANAGED_SWEEP {
            times.retain(|_, at| at.elapsed() < MANAGED_FOR);
        }
        times.insert(limit.store_ref.id, Instant::now());
    }

    /// Refunds a receipt. Returns how many units were refunded, or why none were.
    async fn refund_receipt(
        &self,
        limiter: &Limiter,
        limit: &Arc<Limit>,
        receipt: &Receipt,
    ) -> Result<RefundOutcome, Problem> {
        let Some(rule) = receipt.correcting_rule(limit) else {
            return Ok(Err(NotRefundedReason::AlgorithmChanged));
        };
        let mark = receipt.use_once(limiter).await.map_err(|(kind, is_unsure)| match is_unsure {
            true => store_unavailable(kind, "; nothing was refunded, and the receipt may count as used"),
            false => store_unavailable(kind, "; nothing was refunded, and the receipt is still valid"),
        })?;
        match mark {
            MarkUse::First => {}
            MarkUse::Again => return Ok(Err(NotRefundedReason::Used)),
            MarkUse::Expired => return Ok(Err(NotRefundedReason::Expired)),
        }
        let refund = receipt.correct_charge(limiter, limit, rule, -receipt.cost, |units| -units).await;
        let units = refund.map_err(|kind| {
            store_unavailable(kind, "; it is not known whether the refund happened, the receipt is used")
        })?;
        Ok(units.ok_or(NotRefundedReason::NothingCharged))
    }
}

/// Refuses what would confirm a guess of a hidden value. `reason` says which values the config hides.
fn refuse_hidden(reason: &str, role: Role) -> Problem {
    let detail = format!("{reason}, and the role `limits` sees more");
    let mut problem = Problem::new(StatusCode::FORBIDDEN, detail).with_kind(ProblemKind::RoleTooLow);
    problem.more = json!({ "required_role": Role::Limits.label(), "token_role": role.label() });
    problem
}

/// Refunds units without a receipt, from what is charged now; a peek finds the charge. Less may be charged than `check`
/// says; the usage counts what was refunded.
async fn refund_units(limiter: &Limiter, check: Check) -> Result<RefundOutcome, Problem> {
    let cost = check.cost;
    let now = run_check(limiter, Op::Peek, check.to_look())
        .await
        .map_err(|kind| store_unavailable(kind, "; nothing was refunded"))?;
    let receipt = check.rule.receipt_of_peek(&now);
    let mut correction = check.correction(-cost, receipt);
    let answer = run_check(limiter, Op::Adjust, correction.clone())
        .await
        .map_err(|kind| store_unavailable(kind, "; it is not known whether the refund happened"))?;
    if !answer.admitted {
        return Ok(Err(NotRefundedReason::NothingCharged));
    }
    correction.cost = -answer.remaining;
    limiter.charges().decisions.ledger.record_correction(&correction);
    Ok(Ok(answer.remaining))
}
