//! Answers of the last seconds (`once`). Proxies that redirect a request internally ask about it twice; the second
//! question gets the answer of the first, and charges nothing.
//!
//! The id comes with the question, and clients may know ids of others or choose their own. So an answer is found only
//! with the same name, the same id, and the same charges: the state keys and costs that the limits work out.
//!
//! In one process this is exact for all workers: a question waits for the answer to the first one. With Redis, gateways
//! claim the answer there first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderValue;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::limiting::Evaluation;
use crate::limiting::store::{AnswerState, Store};
use crate::proxy::context::recorded_answer;
use crate::proxy::context::recorded_answer::RecentAnswer;
use crate::route::Route;

/// Identifies a question that repeats.
pub type RecentKey = [u8; 32];

/// Answers of all workers. When there are [`ANSWERS_MAX`], the oldest is forgotten.
#[derive(Default)]
pub struct RecentAnswers(Mutex<KnownAnswers>);

#[derive(Default)]
struct KnownAnswers {
    by_key: HashMap<RecentKey, KnownAnswer>,
    /// Keys in the order in which they expire, each with the number of its entry. An answer is listed when it is
    /// claimed and again when it is published.
    expiry: VecDeque<(Instant, RecentKey, u64)>,
    last_number: u64,
}

struct KnownAnswer {
    number: u64,
    answer: watch::Receiver<Option<Arc<RecentAnswer>>>,
}

/// The right and duty to answer a question. Dropping it without an answer lets another question claim it.
pub struct AnswerClaim {
    answers: Arc<RecentAnswers>,
    key: RecentKey,
    number: u64,
    sender: watch::Sender<Option<Arc<RecentAnswer>>>,
    /// The key in the store, if this gateway has claimed the answer there.
    shared: Option<String>,
}

/// Access to the answers about requests on a route that gateways share through their store.
#[derive(Clone, Copy)]
pub struct SharedAnswers<'a> {
    pub store: &'a Store,
    /// Prefix of the keys in the store.
    pub prefix: &'a str,
    pub route: &'a Route,
}

/// Result of looking up an earlier answer to a question.
pub enum Recent {
    Answered(Arc<RecentAnswer>),
    /// There is no answer yet: the caller must decide.
    Claimed(AnswerClaim),
}

/// How long an answer is known.
const KNOWN_FOR: Duration = Duration::from_secs(10);
/// Maximum number of remembered answers.
const ANSWERS_MAX: usize = 65_536;
/// How long to wait for the answer of another gateway, and how often to look for it.
const PEER_WAIT: Duration = Duration::from_secs(1);
const PEER_POLL: Duration = Duration::from_millis(10);

/// Returns the key of a question about `name` for the request with `id`, whose limits in effect are evaluated.
pub fn recent_key<'e>(name: &str, id: &HeaderValue, evaluations: impl Iterator<Item = &'e Evaluation>) -> RecentKey {
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    };
    add(name.as_bytes());
    add(id.as_bytes());
    for evaluation in evaluations {
        match evaluation {
            Evaluation::Check(check) => {
                add(check.counted_key().as_bytes());
                add(&check.cost.to_le_bytes());
            }
            Evaluation::NotApplicable | Evaluation::Shared(_) => add(b"-"),
            Evaluation::MissingKey(part) => add(&part.to_le_bytes()),
            Evaluation::Unclear(_) => add(b"?"),
            Evaluation::UnreadableBody(_) => add(b"body"),
            Evaluation::Blocked(_, key) => add(format!("blocked {key}").as_bytes()),
            Evaluation::Unlimited(_) => add(b"unlimited"),
        }
    }
    let mut key = [0; 32];
    key.copy_from_slice(&hash.finalize());
    key
}

/// Returns the answer to an earlier question with this key, or claims it. Waits for an answer that is under way.
pub async fn find_or_claim(answers: &Arc<RecentAnswers>, shared: SharedAnswers<'_>, key: RecentKey) -> Recent {
    loop {
        let mut pending = match answers.look(key, Instant::now()) {
            Ok(pending) => pending,
            Err(claim) => return share_claim(shared, claim).await,
        };
        // An error means that the question that was about to be answered is gone.
        if let Ok(known) = pending.wait_for(Option::is_some).await
            && let Some(answer) = known.clone()
        {
            return Recent::Answered(answer);
        }
    }
}

/// Claims the answer for all gateways that share the store, if there are any.
async fn share_claim(SharedAnswers { store, prefix, route }: SharedAnswers<'_>, mut claim: AnswerClaim) -> Recent {
    let store_key = format!("{prefix}:{{once={}}}:answer", hex::encode(claim.key));
    let start = Instant::now();
    loop {
        match store.claim_answer(&store_key, KNOWN_FOR).await {
            Some(Ok(AnswerState::Claimed)) => {
                claim.shared = Some(store_key);
                return Recent::Claimed(claim);
            }
            Some(Ok(AnswerState::Published(text))) => {
                let Some(answer) = recorded_answer::read_answer(&text, route) else { return Recent::Claimed(claim) };
                return Recent::Answered(claim.publish_here(answer));
            }
            Some(Ok(AnswerState::Pending)) if start.elapsed() < PEER_WAIT => sleep(PEER_POLL).await,
            // Without the store, and if the other gateway never answers, a second charge is safer than none.
            None | Some(Ok(AnswerState::Pending) | Err(_)) => return Recent::Claimed(claim),
        }
    }
}

impl AnswerClaim {
    /// Publishes the answer to all workers, and to the gateways that share the store.
    pub async fn publish(self, SharedAnswers { store, route, .. }: SharedAnswers<'_>, answer: RecentAnswer) {
        let entry = self.shared.clone().map(|key| (key, recorded_answer::write_answer(&answer, route)));
        self.publish_here(answer);
        if let Some((key, text)) = entry {
            store.publish_answer(&key, &text, KNOWN_FOR).await;
        }
    }

    fn publish_here(self, answer: RecentAnswer) -> Arc<RecentAnswer> {
        let answer = Arc::new(answer);
        self.sender.send_replace(Some(answer.clone()));
        self.answers.extend(self.key, self.number, Instant::now());
        answer
    }
}

impl Drop for AnswerClaim {
    fn drop(&mut self) {
        if self.sender.borrow().is_none() {
            self.answers.remove(self.key, self.number);
        }
    }
}

impl RecentAnswers {
    /// Returns the answer with this key, which may be under way.
    ///
    /// # Errors
    /// The claim of the answer, if there is none.
    fn look(
        self: &Arc<Self>,
        key: RecentKey,
        now: Instant,
    ) -> Result<watch::Receiver<Option<Arc<RecentAnswer>>>, AnswerClaim> {
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answers.forget_expired(now);
        if let Some(found) = answers.by_key.get(&key) {
            return Ok(found.answer.clone());
        }
        let (sender, answer) = watch::channel(None);
        answers.last_number += 1;
        let number = answers.last_number;
        answers.by_key.insert(key, KnownAnswer { number, answer });
        answers.expiry.push_back((now + KNOWN_FOR, key, number));
        while answers.by_key.len() > ANSWERS_MAX {
            answers.forget_oldest();
        }
        Err(AnswerClaim { answers: self.clone(), key, number, sender, shared: None })
    }

    /// Restarts the time of an answer.
    fn extend(&self, key: RecentKey, number: u64, now: Instant) {
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answers.last_number += 1;
        let next = answers.last_number;
        let Some(found) = answers.by_key.get_mut(&key).filter(|found| found.number == number) else { return };
        found.number = next;
        answers.expiry.push_back((now + KNOWN_FOR, key, next));
    }

    fn remove(&self, key: RecentKey, number: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key, number);
    }
}

impl KnownAnswers {
    fn forget_expired(&mut self, now: Instant) {
        while self.expiry.front().is_some_and(|(expires, ..)| *expires <= now) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, key, number)) = self.expiry.pop_front() {
            self.remove(key, number);
        }
    }

    fn remove(&mut self, key: RecentKey, number: u64) {
        if self.by_key.get(&key).is_some_and(|found| found.number == number) {
            self.by_key.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> RecentAnswer {
        RecentAnswer { refused: false, checks: Vec::new(), receipt: None }
    }

    #[test]
    fn an_answer_is_known_for_its_time_and_claimed_once() {
        let answers = Arc::new(RecentAnswers::default());
        let start = Instant::now();
        let claim = answers.look([1; 32], start).map(|_| ()).unwrap_err();
        assert!(answers.look([1; 32], start).ok().unwrap().borrow().is_none(), "the second question waits");
        claim.publish_here(answer());
        assert!(answers.look([1; 32], start + KNOWN_FOR / 2).ok().unwrap().borrow().is_some());
        assert!(answers.look([2; 32], start).is_err(), "another question has no answer");
        assert!(answers.look([1; 32], start + KNOWN_FOR * 2).is_err(), "it is forgotten in time");
    }

    #[test]
    fn a_question_that_is_gone_leaves_its_claim() {
        let answers = Arc::new(RecentAnswers::default());
        let claim = answers.look([1; 32], Instant::now()).map(|_| ()).unwrap_err();
        let waiting = answers.look([1; 32], Instant::now()).ok().unwrap();
        drop(claim);
        assert!(waiting.has_changed().is_err(), "who waits learns it");
        assert!(answers.look([1; 32], Instant::now()).is_err());
    }

    #[test]
    fn the_number_of_answers_is_bounded() {
        let answers = Arc::new(RecentAnswers::default());
        let key = |n: usize| -> RecentKey { Sha256::digest(n.to_le_bytes()).into() };
        let now = Instant::now();
        for n in 0..ANSWERS_MAX + 10 {
            answers.look(key(n), now).map(|_| ()).unwrap_err().publish_here(answer());
        }
        let known = answers.0.lock().unwrap();
        assert_eq!(known.by_key.len(), ANSWERS_MAX);
        assert!(known.expiry.len() <= 2 * ANSWERS_MAX + 20);
        assert!(!known.by_key.contains_key(&key(0)) && known.by_key.contains_key(&key(ANSWERS_MAX + 9)));
    }
}
