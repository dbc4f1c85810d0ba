//! The memory store, and the script in a real redis-server, both with the time as an argument of each call.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

use redis::{Commands, Value};
use sluicegate::limiting::answer::Answer;
use sluicegate::limiting::decision::{Check, Decision, Op};
use sluicegate::limiting::store::memory::MemoryStore;
use sluicegate::limiting::store::redis::codec::{ScriptCall, decode_reply};

use super::RedisServer;

pub enum TimedStore {
    Memory(MemoryStore),
    Redis(Box<Server>),
}

pub struct Server {
    pub client: RefCell<redis::Connection>,
    /// Time at which each key expires, on the clock of the calls. `None` lets the clock of the server expire keys.
    expiries: Option<RefCell<HashMap<String, i64>>>,
    _server: RedisServer,
}

/// Runs `test` on each store.
pub fn on_both(test: impl Fn(&TimedStore)) {
    test(&TimedStore::Memory(MemoryStore::new(1_000_000)));
    test(&TimedStore::redis());
}

/// Runs `test` on each store. No state expires earlier because a busy machine is slow.
pub fn on_both_at_call_time(test: impl Fn(&TimedStore)) {
    test(&TimedStore::Memory(MemoryStore::new(1_000_000)));
    test(&TimedStore::redis_on_call_time());
}

impl TimedStore {
    pub fn redis() -> TimedStore {
        TimedStore::start(None)
    }

    /// Starts a server whose keys expire by the time of the calls, however long a busy machine takes between them.
    pub fn redis_on_call_time() -> TimedStore {
        TimedStore::start(Some(RefCell::default()))
    }

    fn start(expiries: Option<RefCell<HashMap<String, i64>>>) -> TimedStore {
        let server = RedisServer::start(&[]);
        let mut client = server.client();
        let () = ScriptCall::load_command().query(&mut client).unwrap();
        TimedStore::Redis(Box::new(Server { client: RefCell::new(client), expiries, _server: server }))
    }

    /// Runs one decision in one call.
    pub fn run(&self, op: Op, checks: &[Check], now: i64) -> Decision {
        self.run_all(&[(op, checks)], now).remove(0)
    }

    /// Runs several decisions in one call.
    pub fn run_all(&self, decisions: &[(Op, &[Check])], now: i64) -> Vec<Decision> {
        match self {
            TimedStore::Memory(memory) => decisions.iter().map(|(op, checks)| memory.run(*op, checks, now)).collect(),
            TimedStore::Redis(server) => {
                let reply = server.call(decisions, now);
                let results = decode_reply(reply, decisions.iter().copied()).expect("a valid reply");
                results.into_iter().map(Result::unwrap).collect()
            }
        }
    }

    pub fn one(&self, op: Op, check: &Check, now: i64) -> Answer {
        self.run(op, std::slice::from_ref(check), now).answers[0]
    }

    /// Returns how many of `most` requests for `check.cost` units are admitted, one after another.
    pub fn count_admitted(&self, check: &Check, most: usize, now: i64) -> i64 {
        let mut check = check.clone();
        let admitted = (0..most).filter(|_| {
            // Each lease has a name of its own.
            if check.rule.lease_ms().is_some() {
                check.tag = rand::random_range(0..1 << 52);
            }
            self.one(Op::Take, &check, now).admitted
        });
        i64::try_from(admitted.count()).unwrap()
    }

    /// Does the same in one call, for state that expires at once by the server's clock.
    pub fn count_admitted_in_one_call(&self, check: &Check, most: usize, now: i64) -> usize {
        let leases = check.rule.lease_ms().is_some();
        let checks: Vec<Check> = (0..most)
            .map(|_| Check { tag: if leases { rand::random_range(0..1 << 52) } else { check.tag }, ..check.clone() })
            .collect();
        let decisions: Vec<(Op, &[Check])> =
            checks.iter().map(|check| (Op::Take, std::slice::from_ref(check))).collect();
        self.run_all(&decisions, now).iter().filter(|decision| decision.admitted).count()
    }

    /// Returns the stored state of a key, and its TTL in ms; -1 without an expiry.
    pub fn stored_state(&self, key: &str, now: i64) -> Option<(Vec<u8>, i64)> {
        match self {
            TimedStore::Memory(memory) => memory.state(key, now).map(|(state, life)| (state.text().into_bytes(), life)),
            TimedStore::Redis(server) => {
                let client = &mut *server.client.borrow_mut();
                let dump: Option<Vec<u8>> = redis::cmd("DUMP").arg(key).query(client).unwrap();
                dump.map(|dump| (dump, client.pttl(key).unwrap()))
            }
        }
    }

    /// Runs a command on the Redis server. Panics for the memory store.
    pub fn command(&self, words: &[&str]) -> redis::Value {
        let TimedStore::Redis(server) = self else { panic!("the memory store has no commands") };
        redis::cmd(words[0]).arg(&words[1..]).query(&mut *server.client.borrow_mut()).unwrap()
    }
}

impl Server {
    fn call(&self, decisions: &[(Op, &[Check])], now: i64) -> Value {
        let (call, client) = (ScriptCall::new(decisions, now), &mut *self.client.borrow_mut());
        let Some(expiries) = &self.expiries else {
            return call.evalsha_command().query(client).or_else(|_| call.eval_command().query(client)).unwrap();
        };
        let expiries = &mut *expiries.borrow_mut();
        let checks = || decisions.iter().flat_map(|(_, checks)| checks.iter());
        let bans = checks().filter_map(|check| Some(check.ban.as_ref()?.key.as_str()));
        let keys: BTreeSet<&str> = checks().map(|check| check.key.as_ref()).chain(bans).collect();
        // The clock of a transaction stands still, so no state expires before it is told to stay.
        let mut transaction = redis::pipe();
        transaction.atomic();
        for key in keys.iter().filter(|key| expiries.get(**key).is_some_and(|expiry| *expiry <= now)) {
            transaction.del(*key).ignore();
        }
        transaction.add_command(call.evalsha_command());
        for key in &keys {
            transaction.cmd("PEXPIRETIME").arg(*key).cmd("PERSIST").arg(*key).ignore();
        }
        let sent_ms = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
        let mut replies: Vec<Value> = transaction.query(client).unwrap();
        for (key, reply) in keys.into_iter().zip(replies.drain(1..)) {
            match redis::from_redis_value::<i64>(reply).unwrap() {
                // The script did not store the state again: it expires when it did before.
                -1 => {}
                -2 => drop(expiries.remove(key)),
                expiry => drop(expiries.insert(key.to_owned(), now + expiry - sent_ms)),
            }
        }
        replies.remove(0)
    }
}
