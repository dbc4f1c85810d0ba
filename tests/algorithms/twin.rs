//! The Lua and Rust halves of each algorithm decide alike: same answer, same stored state, same TTL, after every step
//! of long random walks. Then the whole script is compared with the memory store.

use mlua::{Function, Lua, MultiValue, Table, Value};
use rand::Rng;
use rand::rngs::StdRng;
use sluicegate::limiting::algorithm::{LATEST, NAMES, Rule, State};
use sluicegate::limiting::answer::{Answer, BanAnswer, NEVER};
use sluicegate::limiting::decision::{Check, Decision, Op};
use sluicegate::limiting::limit::Mode;
use sluicegate::limiting::store::memory::MemoryStore;

use crate::support::limiting::DecisionRequest;
use crate::support::limiting::fake_redis::{Data, Gate, StoredKey, float, integer};

const STEPS: usize = 40_000;
pub const NOW: i64 = 1_795_000_000_000;
/// Number of steps of algorithms whose state has a native type of Redis. These steps run the whole script.
const NATIVE_STEPS: usize = 4_000;

/// Defines a test for each algorithm, with its name.
macro_rules! twins {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            decides_like_its_twin(stringify!($name));
        })*

        #[test]
        fn every_algorithm_is_walked_beside_its_twin() {
            assert_eq!(NAMES, [$(stringify!($name)),*]);
        }
    };
}

twins!(
    token_bucket,
    fixed_window,
    gcra,
    sliding_window,
    calendar,
    sliding_log,
    leaky_bucket,
    concurrency,
    fair,
    ban,
    distinct,
    warm_up
);

fn decides_like_its_twin(name: &str) {
    let mut seeded = crate::support::limiting::seeded();
    let twin = Twin::load(name);
    let rng = &mut seeded.rng;
    let mut walk = Walk {
        rule: crate::support::limiting::rules::random_rule(name, rng),
        known: Vec::new(),
        state: None,
        now: NOW,
        tag: 0,
    };
    let mut receipts = [0; 8];
    for step in 0..if twin.gate.is_some() { NATIVE_STEPS } else { STEPS } {
        walk.wander(name, rng);
        if rng.random_bool(0.05) {
            walk.switch(rng);
        }
        walk.tag = crate::support::limiting::rules::random_tag(&walk.rule, rng);
        let most = walk.rule.policy().window_ms.min(1 << 40) * 9 / 20;
        twin.skew.set(if rng.random_bool(0.5) { 0 } else { rng.random_range(-most..=most) });
        let cost = random_cost(&walk.rule, rng);
        let (answer, next) = walk.decide(cost);
        let lua = twin.decide(&walk, cost);
        assert_eq!((answer, text(&next)), lua, "step {step} of {name}: {walk:?} cost {cost}");
        walk.assert_retry_is_exact(&answer, cost);
        walk.keep(next);
        receipts[step % receipts.len()] = answer.receipt;
        if rng.random_bool(0.2) {
            let mut delta = if rng.random_bool(0.5) { -cost } else { rng.random_range(-9..9) };
            let receipt = match rng.random_range(0..10) {
                0..4 => answer.receipt,
                4..8 => receipts[rng.random_range(0..receipts.len())],
                8 if matches!(walk.rule, Rule::SlidingLog(_)) => {
                    // Several entries and a part of another.
                    delta = -rng.random_range(1..=walk.rule.policy().quota.min(40));
                    LATEST
                }
                8 => answer.receipt,
                // A multiple of 64, because Redis stores a lease under the numbers from its tag to its tag plus 52.
                _ => walk.now & !63,
            };
            let rule = walk.rule.clone();
            walk.rule = rule.for_tenant(walk.tag).unwrap_or_else(|| rule.clone());
            let next = walk.rule.adjust(walk.state.as_ref(), walk.now, delta, receipt);
            let units = next.as_ref().map_or(0, |(_, _, units)| *units);
            let next = next.map(|(state, ttl_ms, _)| (state, ttl_ms));
            let lua = twin.adjust(&walk, delta, receipt);
            assert_eq!((text(&next), units), lua, "step {step} of {name}: {walk:?} adjusts {delta} by {receipt}");
            assert!((0..=delta.abs()).contains(&units), "{walk:?} changes {units} of {delta}");
            walk.keep(next);
            walk.rule = rule;
        }
    }
}

#[derive(Debug)]
struct Walk {
    rule: Rule,
    /// Rules under which the state has been used.
    known: Vec<Rule>,
    state: Option<State>,
    now: i64,
    tag: i64,
}

type Next = Option<(State, i64)>;

fn text(next: &Next) -> Option<(String, i64)> {
    next.as_ref().map(|(state, ttl_ms)| canonical(state, *ttl_ms))
}

/// Returns a comparable form: leases that expire together have no order, and an empty key in Redis counts as absent.
fn canonical(state: &State, ttl_ms: i64) -> (String, i64) {
    let text = match state {
        State::Concurrency(_) => sorted_pairs(&state.text()),
        _ => state.text(),
    };
    let ttl_ms = if text.is_empty() { 0 } else { ttl_ms };
    (text, ttl_ms)
}

fn stored_text(data: &Data, leases: bool) -> String {
    let text = data.text(leases);
    if leases { sorted_pairs(&text) } else { text }
}

fn sorted_pairs(text: &str) -> String {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let mut pairs: Vec<String> = fields.chunks(2).map(|pair| format!("{} {}", pair[0], pair[1])).collect();
    pairs.sort();
    pairs.join(" ")
}

impl Walk {
    fn decide(&self, cost: i64) -> (Answer, Next) {
        let step = self.rule.decide(self.state.as_ref(), self.now, cost, self.tag);
        (step.answer, step.next)
    }

    fn keep(&mut self, next: Next) {
        if let Some((state, ttl_ms)) = next {
            assert!(ttl_ms >= 1, "{self:?} lives {ttl_ms} ms");
            self.state = Some(state);
        }
    }

    /// Switches to one of the recent rules.
    fn switch(&mut self, rng: &mut StdRng) {
        let from = self.known.len().saturating_sub(6);
        if from < self.known.len() {
            self.rule = self.known[rng.random_range(from..self.known.len())].clone();
        }
    }

    /// Time passes, most often by about one answer's wait; now and then the rule changes under
    /// the state, the clock jumps, or the state is lost.
    fn wander(&mut self, name: &str, rng: &mut StdRng) {
        let (answer, _) = self.decide(1);
        self.now += match rng.random_range(0..20) {
            0..6 => 0,
            6..9 => rng.random_range(0..3),
            9..12 => answer.retry_ms.max(0),
            12 => (answer.retry_ms - 1).max(0),
            13..15 => answer.reset_ms + rng.random_range(-1..=1),
            15 => rng.random_range(0..=self.rule.policy().window_ms.min(1 << 40)),
            16 => -rng.random_range(0..=self.rule.policy().window_ms.min(1 << 40)),
            17 => -rng.random_range(0..10),
            18 => rng.random_range(-(1 << 36)..1 << 36),
            _ => {
                match rng.random_range(0..4) {
                    0 => self.state = None,
                    1 => {
                        self.rule = crate::support::limiting::rules::random_rule(name, rng);
                        self.known.push(self.rule.clone());
                    }
                    _ => self.switch(rng),
                }
                0
            }
        };
        // Large jumps stay within plausible times.
        self.now = self.now.clamp(NOW / 4, NOW * 4);
    }

    /// One ms before its time it refuses, at its time it admits.
    fn assert_retry_is_exact(&self, answer: &Answer, cost: i64) {
        if answer.admitted || answer.retry_ms == NEVER || crate::support::limiting::shares_backlog(&self.rule, answer) {
            return;
        }
        let stored = self.decide(cost).1.map(|(state, _)| state);
        // A refusal that is counted is no ban yet. During a ban, nothing is counted.
        let cost = match self.rule {
            Rule::Ban(_) if answer.retry_ms == 0 => return,
            Rule::Ban(_) => 0,
            _ => cost,
        };
        assert!(answer.retry_ms > 0, "{self:?} refuses, but for {} ms", answer.retry_ms);
        let state = stored.or_else(|| self.state.clone());
        let at = |ms: i64| self.rule.decide(state.as_ref(), self.now + ms, cost, self.tag).answer.admitted;
        assert!(at(answer.retry_ms), "{self:?} cost {cost} refuses after {} ms", answer.retry_ms);
        assert!(!at(answer.retry_ms - 1), "{self:?} cost {cost} admits before {} ms", answer.retry_ms);
    }
}

fn random_cost(rule: &Rule, rng: &mut StdRng) -> i64 {
    let quota = rule.policy().quota;
    match rng.random_range(0..10) {
        0 => 0,
        1 => sluicegate::limiting::integers::COST_MAX,
        2 => quota.min(1_000_000_000),
        3 => (quota + 1).min(1_000_000_000),
        4 => rng.random_range(1..=quota.min(1_000_000_000)),
        _ => rng.random_range(1..4),
    }
}

/// An algorithm's Lua file, loaded as Redis would.
struct Twin {
    lua: Lua,
    /// How far the clock of the gateway that sends the rule is ahead of the store's.
    skew: std::cell::Cell<i64>,
    decide: Function,
    adjust: Function,
    /// The whole script, for an algorithm whose state is more than an array of numbers.
    gate: Option<Gate>,
}

impl Twin {
    fn load(name: &str) -> Twin {
        let lua = Lua::new();
        let file = crate::support::limiting::lua::file;
        let shared = |name: &str, arguments: &str| format!("local function {name}({arguments})\n{}end\n", file(name));
        let text = [
            file("records"),
            shared("refill", "fields"),
            shared("counted", ""),
            shared("bucket", "fields"),
            file(name),
        ];
        let module: Table = lua.load(text.concat()).eval().unwrap();
        let (decide, adjust) = (module.get("decide").unwrap(), module.get("adjust").unwrap());
        let gate = module.contains_key("shape").unwrap().then(Gate::load);
        Twin { lua, skew: std::cell::Cell::new(0), decide, adjust, gate }
    }

    fn decide(&self, walk: &Walk, cost: i64) -> (Answer, Option<(String, i64)>) {
        if let Some(gate) = &self.gate {
            return through(gate, walk, Op::Take, cost, walk.tag);
        }
        let arguments = (self.rule(walk), self.state(walk), float(walk.now), float(cost), float(walk.tag));
        let values: Vec<Value> = self.decide.call::<MultiValue>(arguments).unwrap().into_iter().collect();
        let answer = Answer {
            admitted: values[0].as_boolean().unwrap(),
            remaining: integer(&values[1]),
            retry_ms: integer(&values[2]),
            reset_ms: integer(&values[3]),
            receipt: integer(&values[4]),
            ban: BanAnswer::None,
        };
        (answer, next(&values[5..]))
    }

    /// Returns the corrected state, how long to store it, and how many units the correction changed.
    fn adjust(&self, walk: &Walk, delta: i64, receipt: i64) -> (Option<(String, i64)>, i64) {
        if let Some(gate) = &self.gate {
            let (answer, next) = through(gate, walk, Op::Adjust, delta, receipt);
            assert_eq!(answer.admitted, next.is_some());
            return (next, answer.remaining);
        }
        let arguments = (self.rule(walk), self.state(walk), float(walk.now), float(delta), float(receipt));
        let values: Vec<Value> = self.adjust.call::<MultiValue>(arguments).unwrap().into_iter().collect();
        (next(&values), values.get(2).map_or(0, integer))
    }

    fn rule(&self, walk: &Walk) -> Table {
        self.lua.create_sequence_from(walk.rule.params(walk.now + self.skew.get()).into_iter().map(float)).unwrap()
    }

    fn state(&self, walk: &Walk) -> Value {
        let Some(state) = &walk.state else { return Value::Boolean(false) };
        let text = state.text();
        let mut records = text.split(" | ").map(|record| {
            let fields = record.split(' ').map(|field| field.parse().unwrap()).collect::<Vec<f64>>();
            self.lua.create_sequence_from(fields).unwrap()
        });
        let own = records.next().unwrap();
        let others: Vec<Table> = records.collect();
        for other in &others {
            other.set("drop_at", other.get::<f64>(1).unwrap()).unwrap();
            other.raw_remove(1).unwrap();
        }
        if !others.is_empty() {
            own.set("others", others).unwrap();
        }
        Value::Table(own)
    }
}

/// One check through the whole script, on a key that holds the walk's state and is written for
/// sure if its expiry changes.
fn through(gate: &Gate, walk: &Walk, op: Op, cost: i64, tag: i64) -> (Answer, Option<(String, i64)>) {
    const UNTOUCHED: i64 = i64::MAX - 1;
    let limit = crate::support::limiting::limit("one", walk.rule.clone(), Mode::Enforce);
    let check = Check { tag, ..crate::support::limiting::check(&limit, "all", cost) };
    let key = check.key.clone();
    gate.keys.borrow_mut().held.clear();
    let before = walk.state.as_ref().filter(|state| !state.text().is_empty()).map(|state| native(state, walk.now));
    if let Some(data) = before.clone() {
        gate.keys.borrow_mut().held.insert(key.clone(), StoredKey { data, expires: UNTOUCHED });
    }
    let answer = gate.decide(&[(op, vec![check])], walk.now)[0].answers[0];
    let after = gate.keys.borrow_mut().held.remove(&key);
    let next = match after {
        Some(StoredKey { data, expires: UNTOUCHED }) => {
            assert_eq!(Some(data), before);
            None
        }
        Some(StoredKey { data, expires }) => {
            Some((stored_text(&data, matches!(walk.rule, Rule::Concurrency(_))), expires - walk.now))
        }
        None => before.map(|_| (String::new(), 0)),
    };
    (answer, next)
}

/// Returns the state as the server stores it; a log alternates between both formats, independent of its rule.
fn native(state: &State, now: i64) -> Data {
    let text = state.text();
    let fields: Vec<&str> = text.split_whitespace().collect();
    let number = |text: &str| text.parse::<i64>().unwrap();
    let mut set: Vec<(i64, String)> = match state {
        State::Fair(_) => {
            let mut parts = text.split(';');
            let mut set = vec![(-(1 << 53), parts.next().unwrap().to_owned())];
            for tenant in parts {
                let [id, tat_us, weight] = tenant.split(' ').collect::<Vec<_>>().try_into().unwrap();
                set.push((number(tat_us), id.to_owned()));
                if weight != "1" {
                    set.push((-number(weight), format!("w{id}")));
                }
            }
            set
        }
        State::Distinct(_) if fields.is_empty() => Vec::new(),
        State::Distinct(_) => {
            let entry = |field: &&str| {
                let (value, score) = field.split_once(':').unwrap();
                (number(score), value.to_owned())
            };
            let head = (-(1 << 53), fields[0].to_owned());
            std::iter::once(head).chain(fields[1..].iter().map(entry)).collect()
        }
        State::Concurrency(_) => fields.chunks(2).map(|pair| (number(pair[1]), pair[0].to_owned())).collect(),
        _ if fields.is_empty() => Vec::new(),
        _ => {
            let (head, charges) = fields.split_at(4);
            // Blocks of any size are summed up.
            let size = [1, 3, 700][(now % 7 % 3) as usize];
            let units = |charge: &&str| charge.split_once(':').map_or(1, |(_, units)| number(units));
            let block = |block: &[&str]| format!("{}:{}", block.len(), block.iter().map(units).sum::<i64>());
            let blocks = charges.chunks(size).map(block);
            let head = head.iter().map(|part| (*part).to_owned()).chain(blocks).collect::<Vec<_>>().join(" ");
            let stored = std::iter::once(head).chain(charges.iter().map(|charge| (*charge).to_owned()));
            if now % 3 == 0 {
                return Data::List(stored.collect());
            }
            let ms = |text: &str| number(text.split(':').next().unwrap());
            let times = std::iter::once(number(fields[2])).chain(charges.iter().map(|charge| ms(charge)));
            times.zip(stored).collect()
        }
    };
    set.sort();
    Data::Sorted(set)
}

/// Returns the TTL and the text of the state that a Lua function returns, if it returns one.
fn next(values: &[Value]) -> Option<(String, i64)> {
    let ttl = values.first().filter(|ttl| !matches!(ttl, Value::Boolean(false)))?;
    let own = values[1].as_table().unwrap();
    let fields = |record: &Table| -> Vec<String> {
        record
            .clone()
            .sequence_values()
            .map(|field: mlua::Result<Value>| integer(&field.unwrap()).to_string())
            .collect()
    };
    let mut text = fields(own).join(" ");
    for other in own.get::<Option<Vec<Table>>>("others").unwrap().unwrap_or_default() {
        let drop_at = integer(&other.get::<Value>("drop_at").unwrap());
        text.push_str(&format!(" | {drop_at} {}", fields(&other).join(" ")));
    }
    Some((text, integer(ttl)))
}

/// The store's clock differs too much from that of the gateway that sent the windows: the counts of other gateways are
/// not disturbed, the limit is kept, and the state expires.
#[test]
fn a_calendar_of_another_age_is_no_harm() {
    let twin = Twin::load("calendar");
    let hours = 3_600_000;
    let mut walk = Walk {
        rule: crate::support::limiting::rules::calendar(
            3,
            sluicegate::limiting::algorithm::calendar::CalendarUnit::Hour,
        ),
        known: Vec::new(),
        state: None,
        now: NOW,
        tag: 0,
    };
    // The last time is the first moment that is too late.
    let start = NOW - NOW % hours;
    for (skew, now) in [(-9 * hours, NOW), (9 * hours, NOW), (-2 * hours, NOW), (3 * hours, NOW), (-2 * hours, start)] {
        twin.skew.set(skew);
        walk.now = now;
        walk.state = walk.decide(2).1.map(|(state, _)| state);
        let (answer, next) = twin.decide(&walk, 1);
        let state = next.unwrap();
        assert_eq!((answer.admitted, answer.remaining, answer.reset_ms), (true, 0, hours));
        assert_eq!(state, (format!("3 {start} {hours}"), hours));
        let (answer, next) = twin.decide(&walk, 2);
        assert_eq!((answer.admitted, answer.retry_ms, next), (false, hours, None));
        walk.state = None;
        let (answer, next) = twin.decide(&walk, 3);
        assert!(answer.admitted && next.is_some_and(|(_, ttl_ms)| ttl_ms == hours));
    }
}

#[test]
fn the_gate_decides_like_the_memory_store() {
    let mut seeded = crate::support::limiting::seeded();
    let rng = &mut seeded.rng;
    for _ in 0..60 {
        let memory = MemoryStore::new(1_000_000);
        let gate = Gate::load();
        let mut now = NOW;
        let mut limits = random_limits(rng);
        let mut receipt = 0;
        for call in 0..100 {
            now += if rng.random_bool(0.5) { rng.random_range(0..5) } else { rng.random_range(0..2000) };
            if rng.random_bool(0.02) {
                limits = random_limits(rng);
            }
            let decisions = crate::support::limiting::random_decisions(&limits, 8, receipt, rng);
            let expected: Vec<Decision> = decisions.iter().map(|(op, checks)| memory.run(*op, checks, now)).collect();
            receipt = expected[0].answers[0].receipt;
            assert_eq!(gate.decide(&decisions, now), expected, "call {call} at {now}: {decisions:?}");
            assert_same_state(&gate, &memory, &decisions, now);
        }
    }
}

/// Asserts that the script and the memory store have the same state of what was decided.
pub fn assert_same_state(gate: &Gate, memory: &MemoryStore, decided: &[DecisionRequest], now: i64) {
    let keys = gate.keys.borrow();
    let checks = decided.iter().flat_map(|(_, checks)| checks);
    let decided = checks.flat_map(|check| [Some(&check.key), check.ban.as_ref().map(|ban| &ban.key)]).flatten();
    for (key, held) in decided.filter_map(|key| keys.held.get_key_value(key)) {
        let (state, ttl_ms) = memory.state(key, now).unwrap_or_else(|| panic!("{key} holds {held:?}"));
        let text = stored_text(&held.data, matches!(state, State::Concurrency(_)));
        assert_eq!((text, held.expires - now), canonical(&state, ttl_ms), "{key} at {now}");
    }
}

/// Limits of every algorithm, twice, some with bans, some in shadow mode, some that forward what exceeds them.
pub fn random_limits(rng: &mut StdRng) -> Vec<std::sync::Arc<sluicegate::limiting::limit::Limit>> {
    let names = crate::support::limiting::rules::all_limit_rules();
    (0..names.len() * 2)
        .map(|i| {
            let (name, rule) =
                (format!("limit-{i}"), crate::support::limiting::rules::random_rule(names[i % names.len()], rng));
            let limit = match rng.random_range(0..6) {
                0 => crate::support::limiting::limit(&name, rule, Mode::Shadow),
                1 => crate::support::limiting::forwarding(&name, rule),
                _ => crate::support::limiting::limit(&name, rule, Mode::Enforce),
            };
            match rng.random_bool(0.4) {
                true => {
                    crate::support::limiting::with_ban(limit, crate::support::limiting::rules::random_ban(5000, rng))
                }
                false => limit,
            }
        })
        .collect()
}
