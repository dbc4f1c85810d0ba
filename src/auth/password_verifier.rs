//! Verifies passwords on threads of its own, because a hash takes as long as thousands of requests. A bounded queue
//! (`guess_queue`) leads to these threads. Recent successes are remembered, and equal credentials are verified once at
//! a time.
//!
//! Nothing here contains a password after its verification: credentials are identified by a keyed hash, whose key is
//! random and never leaves the process.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;
use tokio::sync::watch;

use crate::auth::credentials::Credentials;
use crate::auth::guess_queue::{Guess, GuessQueue};
use crate::auth::password_hash::PasswordHash;
use crate::auth::user_table::Candidate;
use crate::telemetry::metrics::{PasswordCheck, PasswordMetrics};

/// Verifies passwords for all workers.
pub struct PasswordVerifier {
    key: hmac::Key,
    metrics: PasswordMetrics,
    memory: Mutex<VerifierMemory>,
    queue: Mutex<VerifierQueue>,
    /// Signals that the queue is not empty.
    filled: Condvar,
}

/// Identifies credentials: who sent them, and the password with the stored hash that it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CredentialId {
    /// The user with a stored hash, and the address of the client.
    login: [u8; 32],
    /// The same and the password.
    password: [u8; 32],
}

/// End of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    Match,
    Mismatch,
    /// The queue was too long.
    Busy,
    /// The request that was to verify the credentials has left. Another one that waits must do it.
    Abandoned,
}

/// Result of looking credentials up.
pub enum CachedResult {
    /// The credentials were verified recently.
    Match,
    /// Another request verifies them.
    Pending(PendingVerification),
    /// The caller must verify them.
    Unknown(VerificationPermit),
}

/// A verification that is in progress.
pub struct PendingVerification(watch::Receiver<Option<Verified>>);

/// The task to verify certain credentials. While it exists, other requests with the same credentials wait for it.
pub struct VerificationPermit {
    verifier: Arc<PasswordVerifier>,
    id: CredentialId,
    result: watch::Sender<Option<Verified>>,
}

/// Credentials that were verified recently, and those that are being verified.
#[derive(Default)]
struct VerifierMemory {
    /// The last success of each login. Two generations: when the young one is full, it replaces the old one.
    young: HashMap<[u8; 32], RememberedSuccess>,
    old: HashMap<[u8; 32], RememberedSuccess>,
    pending: HashMap<CredentialId, watch::Receiver<Option<Verified>>>,
}

#[derive(Clone, Copy)]
struct RememberedSuccess {
    password: [u8; 32],
    since: Instant,
}

#[derive(Default)]
struct VerifierQueue {
    jobs: GuessQueue<PasswordJob>,
    /// The threads have been started. Without `auth`, there are none.
    has_threads: bool,
}

struct PasswordJob {
    permit: VerificationPermit,
    hash: PasswordHash,
    password: Vec<u8>,
    /// False for an unknown user. The password is then compared with the hash of another user, and the result ignored.
    is_known: bool,
    queued: Instant,
}

/// Longest wait for a thread. The client of an older request has probably given up.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Size of a generation of remembered successes. There are at most twice as many.
const GENERATION_MAX: usize = 5000;
/// Niceness of the threads: the workers take precedence over them.
const NICENESS: i32 = 5;

impl PasswordVerifier {
    pub fn new(metrics: PasswordMetrics) -> Arc<PasswordVerifier> {
        Arc::new(PasswordVerifier {
            key: hmac::Key::new(hmac::HMAC_SHA256, &rand::random::<[u8; 32]>()),
            metrics,
            memory: Mutex::default(),
            queue: Mutex::default(),
            filled: Condvar::new(),
        })
    }

    /// Returns a number that depends on `user` alone, and that nobody else can compute.
    pub fn seed_of(&self, user: &str) -> u64 {
        let tag = hmac::sign(&self.key, user.as_bytes());
        tag.as_ref().iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte))
    }

    /// Identifies credentials together with the address of the client and the hash that they are compared with.
    pub fn identify(
        &self,
        Credentials { user, password }: &Credentials,
        Candidate { hash, is_known }: Candidate<'_>,
        client: IpAddr,
    ) -> CredentialId {
        let mut context = hmac::Context::with_key(&self.key);
        let add = |context: &mut hmac::Context, part: &[u8]| {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        };
        let client = client.to_canonical().to_string();
        for part in [user.as_bytes(), hash.text().as_bytes(), &[u8::from(is_known)], client.as_bytes()] {
            add(&mut context, part);
        }
        let login = tag_bytes(&context.clone().sign());
        add(&mut context, password);
        CredentialId { login, password: tag_bytes(&context.sign()) }
    }

    /// Looks up credentials. A success counts for `max_age`.
    pub fn look_up(self: &Arc<Self>, id: &CredentialId, max_age: Duration) -> CachedResult {
        let mut memory = self.lock_memory();
        if memory.find_success(id).is_some_and(|since| since.elapsed() < max_age) {
            self.metrics.count(PasswordCheck::Cached);
            return CachedResult::Match;
        }
        if let Some(pending) = memory.pending.get(id) {
            return CachedResult::Pending(PendingVerification(pending.clone()));
        }
        let (result, receiver) = watch::channel(None);
        memory.pending.insert(*id, receiver);
        CachedResult::Unknown(VerificationPermit { verifier: self.clone(), id: *id, result })
    }

    /// Forgets the successful check of this user for this client, with any password.
    pub fn forget_success(&self, id: &CredentialId) {
        let mut memory = self.lock_memory();
        memory.young.remove(&id.login);
        memory.old.remove(&id.login);
    }

    /// Queues a password for verification. If the queue is full, the result for the last one in line is
    /// [`Verified::Busy`] at once.
    pub fn queue_password(
        self: &Arc<Self>,
        permit: VerificationPermit,
        guess: Guess,
        Candidate { hash, is_known }: Candidate<'_>,
        password: Vec<u8>,
    ) -> PendingVerification {
        let pending = PendingVerification(permit.result.subscribe());
        let job = PasswordJob { permit, hash: hash.clone(), password, is_known, queued: Instant::now() };
        let mut queue = self.lock_queue();
        let over = queue.take_over_jobs();
        let surplus = if queue.start_threads(self) { queue.jobs.push(guess, job) } else { Some(job) };
        drop(queue);
        self.filled.notify_one();
        over.into_iter().for_each(PasswordJob::end_unverified);
        surplus.into_iter().for_each(PasswordJob::end_unverified);
        pending
    }

    /// Verifies passwords of the queue forever.
    fn run(&self) {
        // Without the permission, the threads are as important as the workers.
        let _ = rustix::process::nice(NICENESS);
        loop {
            let mut queue = self.lock_queue();
            let (over, (guess, job)) = loop {
                let over = queue.take_over_jobs();
                match queue.jobs.pop() {
                    Some(next) => break (over, next),
                    None if !over.is_empty() => {
                        drop(queue);
                        over.into_iter().for_each(PasswordJob::end_unverified);
                        queue = self.lock_queue();
                    }
                    None => queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(queue);
            over.into_iter().for_each(PasswordJob::end_unverified);
            if job.run() == Verified::Mismatch {
                self.lock_queue().jobs.record_wrong(guess, Instant::now());
            }
        }
    }

    fn lock_memory(&self) -> MutexGuard<'_, VerifierMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_queue(&self) -> MutexGuard<'_, VerifierQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tag_bytes(tag: &hmac::Tag) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(tag.as_ref());
    bytes
}

impl VerifierQueue {
    /// Takes the jobs for which nobody waits any longer, and those that have waited for too long.
    fn take_over_jobs(&mut self) -> Vec<PasswordJob> {
        self.jobs.take_if(|job| job.is_abandoned() || job.queued.elapsed() > WAIT_MAX)
    }

    /// Starts the threads, one for two cores, unless they run. Returns false if the system refuses all of them.
    fn start_threads(&mut self, verifier: &Arc<PasswordVerifier>) -> bool {
        if !self.has_threads {
            let cores = thread::available_parallelism().map_or(1, usize::from);
            let start = |number: usize| {
                let verifier = verifier.clone();
                thread::Builder::new().name(format!("password-{number}")).spawn(move || verifier.run())
            };
            let count = (0..cores.div_ceil(2)).filter(|number| start(*number).is_ok()).count();
            self.has_threads = count > 0;
        }
        self.has_threads
    }
}

impl PasswordJob {
    /// Returns whether all clients that wait for the result have gone: only the entry of pending verifications is left.
    fn is_abandoned(&self) -> bool {
        self.permit.result.receiver_count() <= 1
    }

    /// Verifies the password.
    fn run(self) -> Verified {
        let PasswordJob { permit, hash, password, is_known, .. } = self;
        let result = if hash.matches(&password) && is_known { Verified::Match } else { Verified::Mismatch };
        permit.end(result);
        result
    }

    /// Ends the job without a verification, outside of the lock of the queue.
    fn end_unverified(self) {
        if !self.is_abandoned() {
            self.permit.end(Verified::Busy);
        }
    }
}

impl VerificationPermit {
    /// Publishes the result to all requests that wait for it.
    fn end(self, result: Verified) {
        self.verifier.metrics.count(match result {
            Verified::Match => PasswordCheck::Match,
            Verified::Mismatch => PasswordCheck::Mismatch,
            Verified::Busy | Verified::Abandoned => PasswordCheck::QueueFull,
        });
        let mut memory = self.verifier.lock_memory();
        if result == Verified::Match {
            memory.add_success(self.id);
        }
        // Before the result is published: nobody may use it once the requests that waited for it have it.
        memory.pending.remove(&self.id);
        drop(memory);
        self.result.send_replace(Some(result));
    }
}

/// Ends the verification. If it has no result, one of the requests that wait must start another one.
impl Drop for VerificationPermit {
    fn drop(&mut self) {
        if self.result.borrow().is_none() {
            self.verifier.lock_memory().pending.remove(&self.id);
            self.result.send_replace(Some(Verified::Abandoned));
        }
    }
}

impl PendingVerification {
    /// Waits for the result.
    pub async fn wait(mut self) -> Verified {
        match self.0.wait_for(Option::is_some).await {
            Ok(result) => result.unwrap_or(Verified::Abandoned),
            Err(_) => Verified::Abandoned,
        }
    }
}

impl VerifierMemory {
    /// Returns when the credentials were verified.
    fn find_success(&mut self, id: &CredentialId) -> Option<Instant> {
        let success = match self.young.get(&id.login) {
            Some(success) => *success,
            None => {
                let success = self.old.remove(&id.login)?;
                self.put(id.login, success);
                success
            }
        };
        (success.password == id.password).then_some(success.since)
    }

    fn add_success(&mut self, id: CredentialId) {
        self.old.remove(&id.login);
        self.put(id.login, RememberedSuccess { password: id.password, since: Instant::now() });
    }

    fn put(&mut self, login: [u8; 32], success: RememberedSuccess) {
        if self.young.len() >= GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(login, success);
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;
    use crate::telemetry::metrics::Metrics;

    fn verifier() -> Arc<PasswordVerifier> {
        PasswordVerifier::new(Metrics::new().unwrap().passwords)
    }

    fn wait(pending: PendingVerification) -> Verified {
        Builder::new_current_thread().build().unwrap().block_on(pending.wait())
    }

    fn id(login: u8) -> CredentialId {
        CredentialId { login: [login; 32], password: [login; 32] }
    }

    /// Looks up credentials that nobody verifies yet.
    fn claim(verifier: &Arc<PasswordVerifier>, login: u8) -> VerificationPermit {
        match verifier.look_up(&id(login), Duration::from_secs(60)) {
            CachedResult::Unknown(permit) => permit,
            CachedResult::Match | CachedResult::Pending(_) => panic!("{login} is known"),
        }
    }

    fn hash() -> PasswordHash {
        // Of "x", with the lowest cost.
        PasswordHash::parse("$2y$04$VztUob8vTanlIcicUnKc2OzVG7nMOQ7OdWl7FDqlEAwyT56N31oI2").unwrap()
    }

    fn guess() -> Guess {
        Guess::new(IpAddr::from([192, 0, 2, 1]), 1)
    }

    #[test]
    fn remembered_successes_are_bounded() {
        let mut memory = VerifierMemory::default();
        let id = |number: u64| {
            let login = std::array::from_fn(|place| number.to_le_bytes()[place % 8]);
            CredentialId { login, password: login }
        };
        for number in 0..30_000 {
            memory.add_success(id(number));
            assert!(memory.young.len() + memory.old.len() <= 2 * GENERATION_MAX);
        }
        assert!(memory.find_success(&id(29_999)).is_some() && memory.find_success(&id(0)).is_none());
        // Whatever is used again survives the next generation, with its first time.
        let since = memory.find_success(&id(24_000));
        assert_eq!((since.is_some(), memory.find_success(&id(24_000))), (true, since));
    }

    #[test]
    fn an_abandoned_verification_is_left_to_another_request() {
        let verifier = verifier();
        let permit = claim(&verifier, 1);
        let CachedResult::Pending(pending) = verifier.look_up(&id(1), Duration::ZERO) else {
            panic!("it is not pending")
        };
        drop(permit);
        assert_eq!(wait(pending), Verified::Abandoned);
        let again = claim(&verifier, 1);
        let candidate = Candidate { hash: &hash(), is_known: true };
        assert_eq!(wait(verifier.queue_password(again, guess(), candidate, b"wrong".to_vec())), Verified::Mismatch);
        drop(claim(&verifier, 1));
        assert!(verifier.lock_memory().pending.is_empty());
    }

    #[test]
    fn the_queue_is_bounded() {
        let verifier = verifier();
        // No thread takes anything out.
        verifier.lock_queue().has_threads = true;
        let hash = hash();
        let candidate = || Candidate { hash: &hash, is_known: true };
        let queue = |id| verifier.queue_password(claim(&verifier, id), guess(), candidate(), b"wrong".to_vec());
        let waiting: Vec<_> = (0..64).map(queue).collect();
        assert_eq!(wait(queue(64)), Verified::Busy);
        assert_eq!((verifier.lock_queue().jobs.count_waiting(), verifier.lock_memory().pending.len()), (64, 64));
        // Nobody waits any longer, so they give up their places to the next one.
        drop(waiting);
        let _next = queue(64);
        assert_eq!((verifier.lock_queue().jobs.count_waiting(), verifier.lock_memory().pending.len()), (1, 1));
    }

    #[test]
    fn credentials_differ_by_each_part() {
        let verifier = verifier();
        let (hash, other) = (hash(), PasswordHash::parse(&hash().text().replace("$04$", "$05$")).unwrap());
        let identify = |verifier: &PasswordVerifier, user: &str, password: &str, hash, is_known, client: &str| {
            let credentials = Credentials { user: user.to_owned(), password: password.into() };
            verifier.identify(&credentials, Candidate { hash, is_known }, client.parse().unwrap())
        };
        let one = "192.0.2.1";
        let ids = [
            identify(&verifier, "ab", "c", &hash, true, one),
            identify(&verifier, "a", "bc", &hash, true, one),
            identify(&verifier, "ab", "d", &hash, true, one),
            identify(&verifier, "ab", "c", &other, true, one),
            identify(&verifier, "ab", "c", &hash, false, one),
            identify(&verifier, "ab", "c", &hash, true, "192.0.2.2"),
            identify(&verifier, "ab", "c", &hash, true, "2001:db8::1"),
            identify(&self::verifier(), "ab", "c", &hash, true, one),
        ];
        for (place, id) in ids.iter().enumerate() {
            assert!(!ids[..place].contains(id), "{place}");
        }
        // The password is not part of the login.
        assert_eq!(ids.iter().filter(|id| id.login == ids[0].login).count(), 2);
        assert_eq!(identify(&verifier, "ab", "c", &hash, true, "::ffff:192.0.2.1"), ids[0]);
    }

    #[test]
    fn a_refusal_forgets_the_success_of_its_login_alone() {
        let verifier = verifier();
        let guess = CredentialId { password: [9; 32], ..id(1) };
        let is_remembered = |id| verifier.lock_memory().find_success(&id).is_some();
        [id(1), id(2)].into_iter().for_each(|id| verifier.lock_memory().add_success(id));
        assert_eq!([id(1), id(2), guess].map(is_remembered), [true, true, false]);
        verifier.forget_success(&guess);
        assert_eq!([id(1), id(2)].map(is_remembered), [false, true]);
        // In the old generation, too.
        let mut memory = verifier.lock_memory();
        memory.old = std::mem::take(&mut memory.young);
        drop(memory);
        verifier.forget_success(&id(2));
        assert!(!is_remembered(id(2)));
    }
}
