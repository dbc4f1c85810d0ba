//! The words of the script `lua/gate.lua`: decisions to one EVALSHA, its flat reply to answers,
//! error replies to [`ErrorKind`]. Called by `lane`, `link` and `nodes`; nothing here does I/O.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use redis::{Cmd, RedisError, Value};

use super::ints::{Ints, Reader};
use crate::limit::algo::{Rule, SCRIPT};
use crate::limit::answer::Answer;
use crate::limit::clock;
use crate::limit::decision::{Check, Decision, ErrorKind, Op};

/// Decisions carried by one call, so that a script never blocks Redis for long.
pub const DECISIONS_MAX: usize = 128;
/// Work of one call, in units of [`Rule::work`]. No check is less than one, so this bounds the keys
/// too, which the script unpacks on its stack.
pub const WORK_MAX: i64 = 1000;

static SHA: LazyLock<String> = LazyLock::new(|| sha1_smol::Sha1::from(SCRIPT).digest().to_string());

/// Decisions to be asked in one call. `now_ms` is 0 for the clock of the server.
pub struct Call<'a> {
    keys: Vec<&'a str>,
    /// The script's only argument: MessagePack.
    args: Vec<u8>,
}

impl<'a> Call<'a> {
    pub fn new(decisions: &[(Op, &'a [Check])], now_ms: i64) -> Call<'a> {
        Call::assuming(decisions, now_ms, if now_ms == 0 { clock::now_ms() } else { now_ms })
    }

    /// `assumed_ms` is about the time at which the script decides: the calendar windows around it
    /// go with the call, and the script's clock picks one.
    pub fn assuming(decisions: &[(Op, &'a [Check])], now_ms: i64, assumed_ms: i64) -> Call<'a> {
        let count = decisions.iter().map(|(_, checks)| checks.len()).sum();
        let mut keys = WireKeys { places: HashMap::with_capacity(count), items: Vec::with_capacity(count) };
        let mut rules = Vec::new();
        let mut asked = Ints::default();
        for (op, checks) in decisions {
            asked.push(*op as i64);
            asked.push_len(checks.len());
            for check in *checks {
                asked.push_len(keys.place(&check.key));
                asked.push_len(rule_place(&mut rules, &check.rule));
                asked.push(check.cost);
                asked.push(check.role.code());
                asked.push(check.tag);
            }
        }
        let mut head = Ints::default();
        head.push(now_ms);
        head.push_len(rules.len());
        rules.into_iter().for_each(|rule| push_rule(&mut head, rule, assumed_ms));
        Call { keys: keys.items, args: head.array_with(&asked) }
    }

    /// By hash: what Redis knows once it has seen the script.
    pub fn evalsha(&self) -> Cmd {
        self.command("EVALSHA", &SHA)
    }

    /// In full: what teaches it.
    pub fn eval(&self) -> Cmd {
        self.command("EVAL", SCRIPT)
    }

    /// The script alone, before any decision needs it.
    pub fn load() -> Cmd {
        let mut cmd = Cmd::with_capacity(3, SCRIPT.len() + 32);
        cmd.arg("SCRIPT").arg("LOAD").arg(SCRIPT);
        cmd
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let size = self.keys.iter().map(|key| key.len()).sum::<usize>() + self.args.len() + script.len();
        let mut cmd = Cmd::with_capacity(self.keys.len() + 4, size + 32);
        cmd.arg(name).arg(script).arg(self.keys.len());
        for key in &self.keys {
            cmd.arg(*key);
        }
        cmd.arg(self.args.as_slice());
        cmd
    }
}

/// Keys, each sent once, and their places, from 1.
struct WireKeys<'a> {
    places: HashMap<&'a str, usize>,
    items: Vec<&'a str>,
}

impl<'a> WireKeys<'a> {
    fn place(&mut self, key: &'a str) -> usize {
        *self.places.entry(key).or_insert_with(|| {
            self.items.push(key);
            self.items.len()
        })
    }
}

/// Rules that are looked through for one that is sent already: of more, some are sent twice.
const KNOWN_RULES: usize = 16;

/// The place, from 1, of a rule that is sent with the call.
fn rule_place<'a>(rules: &mut Vec<&'a Arc<Rule>>, rule: &'a Arc<Rule>) -> usize {
    let known = rules.iter().take(KNOWN_RULES).position(|known| Arc::ptr_eq(known, rule));
    known.map_or_else(
        || {
            rules.push(rule);
            rules.len()
        },
        |place| place + 1,
    )
}

fn push_rule(ints: &mut Ints, rule: &Rule, now_ms: i64) {
    let params = rule.params(now_ms);
    ints.push_len(rule.index());
    ints.push_len(params.len());
    params.into_iter().for_each(|param| ints.push(param));
}

/// Says, in place of a verdict, that the server has no room for what the decision would store;
/// no answers follow, and nothing was charged.
const UNDECIDED: i64 = 2;

/// The decisions in a reply; `checks` says how many answers each has. One that a full server could
/// not make is an error of its own. `None` if the reply is not what the script sends.
pub fn decode(reply: Value, checks: impl Iterator<Item = usize>) -> Option<Vec<Result<Decision, ErrorKind>>> {
    let Value::BulkString(bytes) = reply else { return None };
    let mut ints = Reader::open(&bytes)?;
    let _now = ints.int()?;
    let decisions = checks.map(|count| decision(&mut ints, count)).collect::<Option<_>>()?;
    ints.is_done().then_some(decisions)
}

fn decision(ints: &mut Reader<'_>, checks: usize) -> Option<Result<Decision, ErrorKind>> {
    let head = ints.int()?;
    if head == UNDECIDED {
        return Some(Err(ErrorKind::OutOfMemory));
    }
    let admitted = flag(head)?;
    let mut answers = Vec::with_capacity(checks);
    for _ in 0..checks {
        answers.push(Answer {
            admitted: flag(ints.int()?)?,
            remaining: ints.int()?,
            retry_ms: ints.int()?,
            reset_ms: ints.int()?,
            receipt: ints.int()?,
        });
    }
    Some(Ok(Decision { admitted, answers }))
}

fn flag(int: i64) -> Option<bool> {
    match int {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Whether the script is not in the server's cache: the one error after which nothing happened
/// and the same call is made again.
pub fn is_noscript(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// What a node of a cluster says instead of an answer; nothing has happened then.
#[derive(Clone, Debug, PartialEq)]
pub enum Redirect {
    /// The slot lives at this node now.
    Moved(String),
    /// The slot is on its way to this node, and these keys are there already.
    Ask(String),
    /// The slot is on its way, and the keys are at both ends.
    TryAgain,
}

pub fn redirect(error: &RedisError) -> Option<Redirect> {
    let node = || error.redirect_node().map(|(node, _)| node.to_owned());
    match error.code()? {
        "MOVED" => node().map(Redirect::Moved),
        "ASK" => node().map(Redirect::Ask),
        "TRYAGAIN" => Some(Redirect::TryAgain),
        _ => None,
    }
}

/// What is said instead of a reply while there is no connection.
pub fn not_connected() -> RedisError {
    RedisError::from((NOT_CONNECTED, "the server of the key is not connected"))
}

/// Of an error before anything is sent.
const NOT_CONNECTED: redis::ErrorKind = redis::ErrorKind::Client;

/// Of a command that was to be sent: where the connection broke, it may have been carried out.
pub fn sent_error_kind(error: &RedisError) -> ErrorKind {
    match error_kind(error) {
        ErrorKind::Disconnected if error.kind() != NOT_CONNECTED => ErrorKind::Lost,
        kind => kind,
    }
}

pub fn error_kind(error: &RedisError) -> ErrorKind {
    match error.code() {
        Some("LOADING") => ErrorKind::Loading,
        Some("BUSY") => ErrorKind::Busy,
        Some("READONLY" | "MASTERDOWN" | "CLUSTERDOWN") => ErrorKind::Readonly,
        Some("OOM") => ErrorKind::OutOfMemory,
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => ErrorKind::Denied,
        Some(_) => ErrorKind::Reply,
        None if error.kind() == redis::ErrorKind::AuthenticationFailed => ErrorKind::Denied,
        None => ErrorKind::Disconnected,
    }
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind as Redis, ServerErrorKind};

    use super::*;

    fn ints(ints: &[i64]) -> Value {
        let mut reply = Ints::default();
        ints.iter().for_each(|int| reply.push(*int));
        Value::BulkString(reply.array_with(&Ints::default()))
    }

    #[test]
    fn a_reply_is_read_whole_or_not_at_all() {
        let whole = [9, 1, 1, 4, 0, 60, 7, 0, 0, 0, 30, 60, 7, 1, 2, 0, 5, 7];
        let decisions = decode(ints(&whole), [1, 2].into_iter()).unwrap();
        let decisions: Vec<Decision> = decisions.into_iter().map(Result::unwrap).collect();
        assert_eq!((decisions[0].admitted, decisions[1].admitted), (true, false));
        let answer = Answer { admitted: false, remaining: 0, retry_ms: 30, reset_ms: 60, receipt: 7 };
        assert_eq!(decisions[1].answers[0], answer);
        for len in 0..whole.len() {
            assert_eq!(decode(ints(&whole[..len]), [1, 2].into_iter()), None, "{len} integers");
        }
        assert_eq!(decode(ints(&[&whole[..], &[0]].concat()), [1, 2].into_iter()), None);
        assert_eq!(decode(ints(&[9, 3, 1, 4, 0, 60, 7]), [1].into_iter()), None);
        assert_eq!(decode(ints(&[9, 1, -1, 4, 0, 60, 7]), [1].into_iter()), None);
    }

    #[test]
    fn a_decision_that_found_no_room_has_no_answers() {
        let found = decode(ints(&[9, 2, 1, 1, 4, 0, 60, 7, 2]), [3, 1, 2].into_iter()).unwrap();
        assert_eq!(found.iter().map(Result::is_ok).collect::<Vec<bool>>(), [false, true, false]);
        assert_eq!(found[0], Err(ErrorKind::OutOfMemory));
        assert_eq!(decode(ints(&[9, 2, 1, 4, 0, 60, 7]), [1].into_iter()), None);
    }

    #[test]
    fn a_reply_of_another_kind_is_none() {
        let integers = Value::Array([9, 1, 1, 4, 0, 60, 7].map(Value::Int).into());
        for reply in [Value::Nil, Value::Okay, Value::Int(1), Value::BulkString(b"9".to_vec()), integers] {
            assert_eq!(decode(reply, [1].into_iter()), None);
        }
    }

    #[test]
    fn client_side_errors_are_losses_of_the_connection() {
        let of = |kind: Redis| error_kind(&RedisError::from((kind, "")));
        assert_eq!(of(Redis::Io), ErrorKind::Disconnected);
        assert_eq!(error_kind(&not_connected()), ErrorKind::Disconnected);
        assert_eq!(of(Redis::AuthenticationFailed), ErrorKind::Denied);
        assert_eq!(of(Redis::Server(ServerErrorKind::ResponseError)), ErrorKind::Reply);
        assert_eq!(of(Redis::Server(ServerErrorKind::MasterDown)), ErrorKind::Readonly);
        assert_eq!(of(Redis::Server(ServerErrorKind::ClusterDown)), ErrorKind::Readonly);
    }

    #[test]
    fn only_what_was_sent_may_have_happened() {
        let of = |kind: Redis| sent_error_kind(&RedisError::from((kind, "")));
        assert_eq!(of(Redis::Io), ErrorKind::Lost);
        assert_eq!(of(Redis::Server(ServerErrorKind::BusyLoading)), ErrorKind::Loading);
        assert_eq!(sent_error_kind(&not_connected()), ErrorKind::Disconnected);
        assert!(ErrorKind::Lost.is_unsure() && !ErrorKind::Disconnected.is_unsure());
    }
}
