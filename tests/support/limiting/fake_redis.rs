//! Runs the whole Lua script on a fake Redis, which has the commands that the script calls for strings, lists and
//! sorted sets.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "small numbers of a test"
)]

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use mlua::{Function, Lua, Table, Value};
use redis::{Arg, Cmd};
use sluicegate::limiting::decision::{Check, Decision, ErrorKind, Op};
use sluicegate::limiting::store::redis::codec::{ScriptCall, decode_reply};

use super::DecisionRequest;

#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    Text(String),
    List(VecDeque<String>),
    /// Score and member, in the order of the server.
    Sorted(Vec<(i64, String)>),
}

impl Data {
    /// In the format of `State::text`: for tenants, the head and each of them; for a log, its lifetime and the charges;
    /// for leases (`pairs`), units and scores.
    pub fn text(&self, pairs: bool) -> String {
        let parts: Vec<String> = match self {
            Data::Text(text) => return text.clone(),
            Data::List(list) => return super::log_text(list.iter().cloned()),
            Data::Sorted(set) if set.first().is_some_and(|(_, head)| head.contains('|')) => {
                return super::tenants_text(set.iter().cloned());
            }
            Data::Sorted(set) if set.first().is_some_and(|(_, head)| head.contains('/')) => {
                return super::values_text(set.iter().cloned());
            }
            Data::Sorted(set) if pairs => set.iter().map(|(score, member)| format!("{member} {score}")).collect(),
            Data::Sorted(set) => return super::log_text(set.iter().rev().map(|(_, member)| member.clone())),
        };
        parts.join(" ")
    }
}

#[derive(Clone, Debug)]
pub struct StoredKey {
    pub data: Data,
    pub expires: i64,
}

/// The TTL of a key without an expiry.
const NEVER: i64 = i64::MAX;

/// Commands that a full server rejects unless the script has written before.
const GROWING: [&str; 5] = ["SET", "SETRANGE", "LPUSH", "LSET", "ZADD"];
const WRITING: [&str; 8] =
    ["PERSIST", "UNLINK", "PEXPIRE", "LTRIM", "LREM", "ZREM", "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE"];

#[derive(Default)]
pub struct Keys {
    pub held: HashMap<String, StoredKey>,
    now: i64,
    /// True if `maxmemory` is reached; nothing is evicted.
    pub full: bool,
    /// True if the running script has written.
    written: bool,
    /// The keys of the call: the script may use no others.
    declared: HashSet<String>,
}

pub struct Gate {
    lua: Lua,
    script: Function,
    pub keys: Rc<RefCell<Keys>>,
}

impl Gate {
    pub fn load() -> Gate {
        let lua = Lua::new();
        let keys: Rc<RefCell<Keys>> = Rc::default();
        let own = keys.clone();
        let pcall = lua
            .create_function(move |lua, args: mlua::Variadic<Value>| match own.borrow_mut().command(lua, &args) {
                Err(mlua::Error::RuntimeError(what)) => {
                    Ok(Value::Table(lua.create_table_from([("err", what.as_str())])?))
                }
                outcome => outcome,
            })
            .unwrap();
        // Raises errors as tables, like Redis 7.
        let call = "local pcall = ...
            return function(...)
                local reply = pcall(...)
                if type(reply) == 'table' and reply.err then error(reply, 0) end
                return reply
            end";
        let call: Function = lua.load(call).call(&pcall).unwrap();
        let redis = lua.create_table_from([("call", call), ("pcall", pcall)]).unwrap();
        lua.globals().set("redis", redis).unwrap();
        let unpack =
            lua.create_function(|lua, bytes: mlua::LuaString| lua.create_sequence_from(unpack(&bytes.as_bytes())));
        let pack = lua.create_function(|lua, ints: Vec<Value>| lua.create_string(pack(&ints)));
        let cmsgpack = lua.create_table_from([("unpack", unpack.unwrap()), ("pack", pack.unwrap())]).unwrap();
        lua.globals().set("cmsgpack", cmsgpack).unwrap();
        let script = lua.load(super::lua::script()).into_function().unwrap();
        Gate { lua, script, keys }
    }

    /// Runs the script on a server that is not full.
    pub fn decide(&self, decisions: &[DecisionRequest], now: i64) -> Vec<Decision> {
        self.try_decide(decisions, now).into_iter().map(Result::unwrap).collect()
    }

    /// Runs the script. The time is sometimes an argument, sometimes that of the server's clock.
    pub fn try_decide(&self, decisions: &[DecisionRequest], now: i64) -> Vec<Result<Decision, ErrorKind>> {
        let mut keys = self.keys.borrow_mut();
        (keys.now, keys.written) = (now, false);
        drop(keys);
        let slices: Vec<(Op, &[Check])> = decisions.iter().map(|(op, checks)| (*op, checks.as_slice())).collect();
        let time_argument = if now % 3 == 0 { now } else { 0 };
        let cmd = ScriptCall::with_time(&slices, time_argument, now + now % 1_000_000 - 500_000).evalsha_command();
        let (keys, argv) = keys_and_args(&cmd);
        self.keys.borrow_mut().declared = keys.iter().map(|key| String::from_utf8(key.clone()).unwrap()).collect();
        self.lua.globals().set("KEYS", self.strings(&keys)).unwrap();
        self.lua.globals().set("ARGV", self.strings(&argv)).unwrap();
        let reply: Value = self.script.call(()).unwrap();
        let reply = match reply {
            Value::String(reply) => reply,
            other => panic!("the script fails: {:?}", other.as_table().map(|table| table.get::<String>("err"))),
        };
        let reply = reply.as_bytes().to_vec();
        assert_eq!(unpack(&reply)[0], float(now));
        assert!(self.keys.borrow().held.values().all(|held| held.expires != NEVER), "a key without an expiry");
        decode_reply(redis::Value::BulkString(reply), slices.iter().copied()).expect("a valid reply")
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

type Reply = mlua::Result<Value>;

fn wrong_type<T>() -> mlua::Result<T> {
    Err(mlua::Error::RuntimeError("WRONGTYPE".to_owned()))
}

impl Keys {
    fn command(&mut self, lua: &Lua, values: &[Value]) -> Reply {
        let args: Vec<String> = values
            .iter()
            .map(|value| match value {
                Value::String(text) => text.to_string_lossy(),
                number => integer(number).to_string(),
            })
            .collect();
        let (name, args) = args.split_first().unwrap();
        let used = if name == "MGET" { args } else { &args[..args.len().min(1)] };
        used.iter().for_each(|key| assert!(self.declared.contains(key), "{name} of {key}, which is not declared"));
        if self.full && !self.written && GROWING.contains(&name.as_str()) {
            return Err(mlua::Error::RuntimeError("OOM command not allowed".to_owned()));
        }
        self.written |= GROWING.contains(&name.as_str()) || WRITING.contains(&name.as_str());
        let now = self.now;
        self.held.retain(|_, held| now < held.expires);
        match name.as_bytes()[0] {
            b'L' => self.list(lua, name, args),
            b'Z' => self.sorted(lua, name, args),
            _ => self.any(lua, name, args),
        }
    }

    fn any(&mut self, lua: &Lua, name: &str, args: &[String]) -> Reply {
        let now = self.now;
        match name {
            "TIME" => {
                let micros = now % 1000 * 1000 + now % 2 * 999;
                strings(lua, [(now / 1000).to_string(), micros.to_string()])
            }
            "MGET" => {
                let texts = args.iter().map(|key| match self.held.get(key) {
                    Some(StoredKey { data: Data::Text(text), .. }) => Value::String(lua.create_string(text).unwrap()),
                    _ => Value::Boolean(false),
                });
                Ok(Value::Table(lua.create_sequence_from(texts)?))
            }
            "UNLINK" => {
                self.held.remove(&args[0]);
                Ok(Value::Integer(1))
            }
            // Changes nothing. A full server rejects it.
            "SETRANGE" => {
                assert_eq!(args[1..], ["0", ""]);
                Ok(Value::Integer(0))
            }
            "SET" => {
                assert_eq!((args.len(), args[2].as_str()), (4, "PX"));
                self.held.insert(args[0].clone(), StoredKey { data: Data::Text(args[1].clone()), expires: NEVER });
                self.expire(&args[0], &args[3])
            }
            "PTTL" => Ok(Value::Integer(self.held.get(&args[0]).map_or(-2, |held| held.expires - now))),
            // The key does not exist.
            "PERSIST" => Ok(Value::Integer(0)),
            "PEXPIRE" => self.expire(&args[0], &args[1]),
            "TYPE" => {
                let kind = match self.held.get(&args[0]).map(|held| &held.data) {
                    None => "none",
                    Some(Data::Text(_)) => "string",
                    Some(Data::List(_)) => "list",
                    Some(Data::Sorted(_)) => "zset",
                };
                Ok(Value::Table(lua.create_table_from([("ok", kind)])?))
            }
            other => panic!("the script calls {other}"),
        }
    }

    fn expire(&mut self, key: &str, ttl: &str) -> Reply {
        let ttl: i64 = ttl.parse().unwrap();
        assert!(ttl >= 1);
        if let Some(held) = self.held.get_mut(key) {
            held.expires = self.now + ttl;
        }
        Ok(Value::Boolean(true))
    }

    fn list(&mut self, lua: &Lua, name: &str, args: &[String]) -> Reply {
        let key = &args[0];
        let new = StoredKey { data: Data::List(VecDeque::new()), expires: NEVER };
        let Data::List(list) = &mut self.held.entry(key.clone()).or_insert(new).data else { return wrong_type() };
        let reply = match name {
            "LRANGE" => {
                let (from, to) = span(&args[1], &args[2], list.len());
                strings(lua, list.range(from..to).cloned())
            }
            "LPUSH" => {
                args[1..].iter().for_each(|item| list.push_front(item.clone()));
                Ok(Value::Integer(list.len() as i64))
            }
            "LTRIM" => {
                let (from, to) = span(&args[1], &args[2], list.len());
                *list = list.range(from..to).cloned().collect();
                Ok(Value::Boolean(true))
            }
            "LSET" => {
                list[number(&args[1]) as usize] = args[2].clone();
                Ok(Value::Boolean(true))
            }
            "LREM" => {
                let index = match args[1].as_str() {
                    "1" => list.iter().position(|item| *item == args[2]),
                    "-1" => list.iter().rposition(|item| *item == args[2]),
                    other => panic!("the script removes {other}"),
                };
                list.remove(index.expect("the script removes an entry that does not exist"));
                Ok(Value::Integer(1))
            }
            other => panic!("the script calls {other}"),
        };
        if list.is_empty() {
            self.held.remove(key);
        }
        reply
    }

    fn sorted(&mut self, lua: &Lua, name: &str, args: &[String]) -> Reply {
        let key = &args[0];
        let new = StoredKey { data: Data::Sorted(Vec::new()), expires: NEVER };
        let Data::Sorted(set) = &mut self.held.entry(key.clone()).or_insert(new).data else { return wrong_type() };
        let reply = match name {
            // Changes nothing, as no set has such a member. A full server rejects it.
            "ZADD" if args[1] == "XX" => {
                assert_eq!(args[2..], ["0", ""]);
                Ok(Value::Integer(0))
            }
            "ZADD" => {
                for pair in args[1..].chunks(2) {
                    set.retain(|(_, member)| *member != pair[1]);
                    set.push((number(&pair[0]), pair[1].clone()));
                }
                set.sort();
                Ok(Value::Boolean(true))
            }
            "ZREM" => {
                set.retain(|(_, member)| !args[1..].contains(member));
                Ok(Value::Boolean(true))
            }
            "ZSCORE" => {
                let found = set.iter().find(|(_, member)| *member == args[1]);
                text(lua, found.map(|(score, _)| score.to_string()))
            }
            "ZCOUNT" => {
                Ok(Value::Integer(set.iter().filter(|(score, _)| between(*score, &args[1], &args[2])).count() as i64))
            }
            "ZRANGEBYSCORE" => {
                let found = set.iter().filter(|(score, _)| between(*score, &args[1], &args[2]));
                if args[3..] == ["WITHSCORES"] {
                    return strings(lua, found.flat_map(|(score, member)| [member.clone(), score.to_string()]));
                }
                assert_eq!((args[3].as_str(), args[4].as_str()), ("LIMIT", "0"));
                strings(lua, found.take(number(&args[5]) as usize).map(|(_, member)| member.clone()))
            }
            "ZRANGE" => {
                assert_eq!(args[1..], ["0", "0"]);
                strings(lua, set.first().map(|(_, member)| member.clone()))
            }
            "ZREVRANGEBYSCORE" => {
                assert_eq!(args[3..], ["WITHSCORES", "LIMIT", "0", "1"]);
                let found = set.iter().rev().find(|(score, _)| between(*score, &args[2], &args[1]));
                strings(lua, found.into_iter().flat_map(|(score, member)| [member.clone(), score.to_string()]))
            }
            "ZCARD" => Ok(Value::Integer(set.len() as i64)),
            "ZREMRANGEBYSCORE" => {
                set.retain(|(score, _)| !between(*score, &args[1], &args[2]));
                Ok(Value::Boolean(true))
            }
            "ZREMRANGEBYRANK" => {
                let (from, to) = span(&args[1], &args[2], set.len());
                set.drain(from..to);
                Ok(Value::Boolean(true))
            }
            "ZREVRANGE" => {
                let (from, to) = span(&args[1], &args[2], set.len());
                let found = set.iter().rev().skip(from).take(to - from);
                let scores = args.get(3).is_some();
                strings(
                    lua,
                    found.flat_map(|(score, member)| {
                        [Some(member.clone()), scores.then(|| score.to_string())].into_iter().flatten()
                    }),
                )
            }
            other => panic!("the script calls {other}"),
        };
        if set.is_empty() {
            self.held.remove(key);
        }
        reply
    }
}

fn number(text: &str) -> i64 {
    text.parse().unwrap()
}

/// Start and end (exclusive) of an inclusive range, in which negative numbers count from the end.
fn span(from: &str, to: &str, len: usize) -> (usize, usize) {
    let index = |text: &str| match number(text) {
        index if index < 0 => len as i64 + index,
        index => index,
    };
    let from = index(from).clamp(0, len as i64) as usize;
    let to = (index(to) + 1).clamp(from as i64, len as i64) as usize;
    (from, to)
}

fn between(score: i64, from: &str, to: &str) -> bool {
    let above = match from.strip_prefix('(') {
        Some(from) => score > number(from),
        None => score >= number(from),
    };
    above
        && match to.strip_prefix('(') {
            Some(to) => score < number(to),
            None if to == "+inf" => true,
            None => score <= number(to),
        }
}

fn text(lua: &Lua, found: Option<String>) -> Reply {
    Ok(match found {
        Some(found) => Value::String(lua.create_string(found)?),
        None => Value::Boolean(false),
    })
}

fn strings(lua: &Lua, found: impl IntoIterator<Item = String>) -> Reply {
    Ok(Value::Table(lua.create_sequence_from(found)?))
}

/// Decodes MessagePack as the Lua of Redis does.
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

/// Encodes MessagePack as the Lua of Redis may do.
fn pack(values: &[Value]) -> Vec<u8> {
    let head = [&[0xdd], &(values.len() as u32).to_be_bytes()[..]].concat();
    values.iter().fold(head, |bytes, value| [&bytes[..], &[0xd3], &integer(value).to_be_bytes()[..]].concat())
}

pub fn float(int: i64) -> f64 {
    let float = int as f64;
    assert_eq!(float as i64, int, "beyond 2^53");
    float
}

pub fn integer(value: &Value) -> i64 {
    let number = value.as_number().or_else(|| value.as_integer().map(float)).unwrap();
    assert!(number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0, "{number} is not exact");
    number as i64
}
