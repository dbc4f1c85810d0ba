//! The Lua and Rust halves of each algorithm decide alike: same answer, same stored state, same
//! life of it, after every step of long random walks. Then the whole gate against the memory store.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a test that fails says so"
)]

mod support;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};
use rand::Rng;
use rand::rngs::StdRng;
use redis::{Arg, Cmd};
use sluicegate::limit::algo::{NAMES, Rule, SCRIPT, State};
use sluicegate::limit::rule::{Answer, Mode, NEVER};
use sluicegate::limit::store::memory::Memory;
use sluicegate::limit::store::redis::wire::{Call, decode};
use sluicegate::limit::store::{Check, Decision, Op};
use support::Asked;

const STEPS: usize = 40_000;
const NOW: i64 = 1_795_000_000_000;
const TAG: i64 = 77;

#[test]
fn every_algorithm_decides_like_its_twin() {
    for name in NAMES {
        let mut seeded = support::seeded();
        let twin = Twin::load(name);
        let rng = &mut seeded.rng;
        let mut walk = Walk { rule: support::random_rule(name, rng), state: None, now: NOW };
        for step in 0..STEPS {
            walk.wander(name, rng);
            let most = walk.rule.policy().window_ms.min(1 << 40) * 9 / 20;
            twin.skew.set(if rng.random_bool(0.5) { 0 } else { rng.random_range(-most..=most) });
            let cost = random_cost(&walk.rule, rng);
            let (answer, next) = walk.decide(cost);
            let lua = twin.decide(&walk, cost);
            assert_eq!((answer, text(&next)), lua, "step {step} of {name}: {walk:?} cost {cost}");
            walk.assert_retry_is_exact(&answer, cost);
            walk.keep(next);
            if rng.random_bool(0.2) {
                let delta = if rng.random_bool(0.5) { -cost } else { rng.random_range(-9..9) };
                let receipt = if rng.random_bool(0.7) { answer.receipt } else { walk.now };
                let next = walk.rule.adjust(walk.state.as_ref(), walk.now, delta, receipt);
                let lua = twin.adjust(&walk, delta, receipt);
                assert_eq!(text(&next), lua, "step {step} of {name}: {walk:?} adjusts {delta} by {receipt}");
                walk.keep(next);
            }
        }
    }
}

#[derive(Debug)]
struct Walk {
    rule: Rule,
    state: Option<State>,
    now: i64,
}

type Next = Option<(State, i64)>;

fn text(next: &Next) -> Option<(String, i64)> {
    next.as_ref().map(|(state, ttl_ms)| (state.text(), *ttl_ms))
}

impl Walk {
    fn decide(&self, cost: i64) -> (Answer, Next) {
        let step = self.rule.decide(self.state.as_ref(), self.now, cost, TAG);
        (step.answer, step.next)
    }

    fn keep(&mut self, next: Next) {
        if let Some((state, ttl_ms)) = next {
            assert!(ttl_ms >= 1, "{self:?} lives {ttl_ms} ms");
            self.state = Some(state);
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
                    _ => self.rule = support::random_rule(name, rng),
                }
                0
            }
        };
        // Far jumps stay within a plausible clock.
        self.now = self.now.clamp(NOW / 4, NOW * 4);
    }

    /// One ms before its time it refuses, at its time it admits.
    fn assert_retry_is_exact(&self, answer: &Answer, cost: i64) {
        if answer.admitted || answer.retry_ms == NEVER {
            return;
        }
        assert!(answer.retry_ms > 0, "{self:?} refuses, but for {} ms", answer.retry_ms);
        let state = self.decide(cost).1.map(|(state, _)| state).or_else(|| self.state.clone());
        let at = |ms: i64| self.rule.decide(state.as_ref(), self.now + ms, cost, TAG).answer.admitted;
        assert!(at(answer.retry_ms), "{self:?} cost {cost} refuses after {} ms", answer.retry_ms);
        assert!(!at(answer.retry_ms - 1), "{self:?} cost {cost} admits before {} ms", answer.retry_ms);
    }
}

fn random_cost(rule: &Rule, rng: &mut StdRng) -> i64 {
    let quota = rule.policy().quota;
    match rng.random_range(0..10) {
        0 => 0,
        1 => sluicegate::limit::key::COST_MAX,
        2 => quota.min(1_000_000_000),
        3 => (quota + 1).min(1_000_000_000),
        4 => rng.random_range(1..=quota.min(1_000_000_000)),
        _ => rng.random_range(1..4),
    }
}

/// An algorithm's Lua file, loaded as Redis would.
struct Twin {
    lua: Lua,
    /// How far the clock of whoever sends the rule is ahead of the store's.
    skew: std::cell::Cell<i64>,
    decide: Function,
    adjust: Function,
}

impl Twin {
    fn load(name: &str) -> Twin {
        let path = format!("{}/lua/{name}.lua", env!("CARGO_MANIFEST_DIR"));
        let lua = Lua::new();
        let module: Table = lua.load(std::fs::read_to_string(path).unwrap()).eval().unwrap();
        let (decide, adjust) = (module.get("decide").unwrap(), module.get("adjust").unwrap());
        Twin { lua, skew: std::cell::Cell::new(0), decide, adjust }
    }

    fn decide(&self, walk: &Walk, cost: i64) -> (Answer, Option<(String, i64)>) {
        let arguments = (self.rule(walk), self.state(walk), float(walk.now), float(cost), float(TAG));
        let values: Vec<Value> = self.decide.call::<MultiValue>(arguments).unwrap().into_iter().collect();
        let answer = Answer {
            admitted: values[0].as_boolean().unwrap(),
            remaining: integer(&values[1]),
            retry_ms: integer(&values[2]),
            reset_ms: integer(&values[3]),
            receipt: integer(&values[4]),
        };
        (answer, next(&values[5..]))
    }

    fn adjust(&self, walk: &Walk, delta: i64, receipt: i64) -> Option<(String, i64)> {
        let arguments = (self.rule(walk), self.state(walk), float(walk.now), float(delta), float(receipt));
        let values: Vec<Value> = self.adjust.call::<MultiValue>(arguments).unwrap().into_iter().collect();
        next(&values)
    }

    fn rule(&self, walk: &Walk) -> Table {
        self.lua.create_sequence_from(walk.rule.params(walk.now + self.skew.get()).into_iter().map(float)).unwrap()
    }

    fn state(&self, walk: &Walk) -> Value {
        let Some(state) = &walk.state else { return Value::Boolean(false) };
        let fields = state.text().split(' ').map(|field| field.parse().unwrap()).collect::<Vec<f64>>();
        Value::Table(self.lua.create_sequence_from(fields).unwrap())
    }
}

/// Life and fields of the state that a function leaves behind, if it leaves one.
fn next(values: &[Value]) -> Option<(String, i64)> {
    let ttl = values.first().filter(|ttl| !matches!(ttl, Value::Boolean(false)))?;
    let fields: Vec<Value> = values[1].as_table().unwrap().sequence_values().map(Result::unwrap).collect();
    let fields: Vec<String> = fields.iter().map(|field| integer(field).to_string()).collect();
    Some((fields.join(" "), integer(ttl)))
}

fn float(int: i64) -> f64 {
    let float = int as f64;
    assert_eq!(float as i64, int, "beyond 2^53");
    float
}

fn integer(value: &Value) -> i64 {
    let number = value.as_number().or_else(|| value.as_integer().map(float)).unwrap();
    assert!(number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0, "{number} is not exact");
    number as i64
}

/// A clock too far from that of whoever sent the windows: nothing that another gateway counts is
/// disturbed, the limit holds, and it ends.
#[test]
fn a_calendar_of_another_age_is_no_harm() {
    let twin = Twin::load("calendar");
    let hours = 3_600_000;
    let mut walk =
        Walk { rule: support::calendar(3, sluicegate::limit::algo::calendar::Unit::Hour), state: None, now: NOW };
    for skew in [-9 * hours, 9 * hours, -2 * hours, 3 * hours] {
        twin.skew.set(skew);
        walk.state = walk.decide(2).1.map(|(state, _)| state);
        let (answer, next) = twin.decide(&walk, 1);
        let state = next.unwrap();
        assert_eq!((answer.admitted, answer.remaining, answer.reset_ms), (true, 0, hours));
        let id = walk.decide(1).0.receipt;
        assert_eq!(state, (format!("3 {id}"), hours));
        let (answer, next) = twin.decide(&walk, 2);
        assert_eq!((answer.admitted, answer.retry_ms, next), (false, hours, None));
        walk.state = None;
        let (answer, next) = twin.decide(&walk, 3);
        assert!(answer.admitted && next.is_some_and(|(_, ttl_ms)| ttl_ms == hours));
    }
}

#[test]
fn the_gate_decides_like_the_memory_store() {
    let mut seeded = support::seeded();
    let rng = &mut seeded.rng;
    for _ in 0..60 {
        let memory = Memory::new(1_000_000);
        let gate = Gate::load();
        let mut now = NOW;
        let mut limits = random_limits(rng);
        let mut receipt = 0;
        for call in 0..100 {
            now += if rng.random_bool(0.5) { rng.random_range(0..5) } else { rng.random_range(0..2000) };
            if rng.random_bool(0.02) {
                limits = random_limits(rng);
            }
            let decisions = support::random_decisions(&limits, 8, receipt, rng);
            let expected: Vec<Decision> = decisions.iter().map(|(op, checks)| memory.run(*op, checks, now)).collect();
            receipt = expected[0].answers[0].receipt;
            assert_eq!(gate.decide(&decisions, now), expected, "call {call} at {now}: {decisions:?}");
        }
    }
}

/// Every algorithm, some twice, some as a shadow.
fn random_limits(rng: &mut StdRng) -> Vec<std::sync::Arc<sluicegate::limit::rule::Limit>> {
    (0..NAMES.len() * 2)
        .map(|i| {
            let mode = if rng.random_bool(0.25) { Mode::Shadow } else { Mode::Enforce };
            support::limit(&format!("limit-{i}"), support::random_rule(NAMES[i % NAMES.len()], rng), mode)
        })
        .collect()
}

/// What stands in for the server's data: text and the time it expires.
type Data = Rc<RefCell<HashMap<String, (String, i64)>>>;

/// The whole script, on a Redis of three commands.
struct Gate {
    lua: Lua,
    script: Function,
    data: Data,
    clock: Rc<RefCell<i64>>,
}

impl Gate {
    fn load() -> Gate {
        let lua = Lua::new();
        let data: Data = Rc::default();
        let clock = Rc::new(RefCell::new(0));
        let (keys, time) = (data.clone(), clock.clone());
        let call = lua
            .create_function(move |lua, args: mlua::Variadic<Value>| command(lua, &args, &keys, *time.borrow()))
            .unwrap();
        let redis = lua.create_table_from([("call", call)]).unwrap();
        lua.globals().set("redis", redis).unwrap();
        let unpack =
            lua.create_function(|lua, bytes: mlua::LuaString| lua.create_sequence_from(unpack(&bytes.as_bytes())));
        let cmsgpack = lua.create_table_from([("unpack", unpack.unwrap())]).unwrap();
        lua.globals().set("cmsgpack", cmsgpack).unwrap();
        let script = lua.load(SCRIPT).into_function().unwrap();
        Gate { lua, script, data, clock }
    }

    /// The time goes by argument and by the server's clock in turn.
    fn decide(&self, decisions: &[Asked], now: i64) -> Vec<Decision> {
        self.clock.replace(now);
        let slices: Vec<(Op, &[Check])> = decisions.iter().map(|(op, checks)| (*op, checks.as_slice())).collect();
        let cmd =
            Call::assuming(&slices, if now % 2 == 0 { now } else { 0 }, now + now % 1_000_000 - 500_000).evalsha();
        let (keys, argv) = keys_and_args(&cmd);
        self.lua.globals().set("KEYS", self.strings(&keys)).unwrap();
        self.lua.globals().set("ARGV", self.strings(&argv)).unwrap();
        let reply: Vec<Value> = self.script.call(()).unwrap();
        assert_eq!(integer(&reply[0]), now);
        assert!(self.data.borrow().values().all(|(_, expires)| *expires > now || *expires != 0));
        let reply = redis::Value::Array(reply.iter().map(|value| redis::Value::Int(integer(value))).collect());
        decode(reply, decisions.iter().map(|(_, checks)| checks.len())).expect("a reply of the right form")
    }

    fn strings(&self, values: &[Vec<u8>]) -> Table {
        let strings = values.iter().map(|value| self.lua.create_string(value).unwrap());
        self.lua.create_sequence_from(strings).unwrap()
    }
}

fn keys_and_args(cmd: &Cmd) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let args: Vec<Vec<u8>> = cmd
        .args_iter()
        .map(|arg| match arg {
            Arg::Simple(bytes) => bytes.to_vec(),
            _ => panic!("only plain arguments"),
        })
        .collect();
    let count: usize = str::from_utf8(&args[2]).unwrap().parse().unwrap();
    (args[3..3 + count].to_vec(), args[3 + count..].to_vec())
}

fn command(lua: &Lua, args: &[Value], data: &Data, now: i64) -> mlua::Result<Value> {
    let arg = |i: usize| match &args[i] {
        Value::String(text) => text.to_string_lossy(),
        number => integer(number).to_string(),
    };
    match arg(0).as_str() {
        "TIME" => {
            let parts = [(now / 1000).to_string(), (now % 1000 * 1000 + 999).to_string()];
            Ok(Value::Table(lua.create_sequence_from(parts)?))
        }
        "MGET" => {
            let data = data.borrow();
            let values = (1..args.len()).map(|i| match data.get(&arg(i)) {
                Some((text, expires)) if now < *expires => Value::String(lua.create_string(text).unwrap()),
                _ => Value::Boolean(false),
            });
            Ok(Value::Table(lua.create_sequence_from(values)?))
        }
        "DEL" => {
            data.borrow_mut().remove(&arg(1));
            Ok(Value::Integer(1))
        }
        "SET" => {
            assert_eq!((args.len(), arg(3).as_str()), (5, "PX"));
            let ttl: i64 = arg(4).parse().unwrap();
            assert!(ttl >= 1);
            data.borrow_mut().insert(arg(1), (arg(2), now + ttl));
            Ok(Value::Boolean(true))
        }
        other => panic!("the gate calls {other}"),
    }
}

/// MessagePack as the server's Lua reads it.
fn unpack(bytes: &[u8]) -> Vec<f64> {
    assert_eq!(bytes[0], 0xdd);
    let mut rest = &bytes[5..];
    let mut ints = Vec::new();
    while let Some((&tag, tail)) = rest.split_first() {
        let size = match tag {
            0..=0x7f => 0,
            0xcd => 2,
            0xce => 4,
            0xd3 => 8,
            other => panic!("tag {other}"),
        };
        let number = tail[..size].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        ints.push(if size == 0 { f64::from(tag) } else { float(number as i64) });
        rest = &tail[size..];
    }
    assert_eq!(u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize, ints.len());
    ints
}
