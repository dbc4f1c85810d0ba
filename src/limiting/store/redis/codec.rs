//! The protocol of the script `lua/gate.lua`: encodes decisions as one EVALSHA, decodes its reply, and classifies error
//! replies as [`ErrorKind`]. Nothing here does I/O.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use foldhash::fast::RandomState;
use redis::{Cmd, RedisError, Value};

use crate::limiting::algorithm::{Rule, SCRIPT};
use crate::limiting::answer::{Answer, BanAnswer};
use crate::limiting::clock;
use crate::limiting::decision::{Check, CheckLink, Decision, ErrorKind, Op, Role};
use crate::limiting::integers::EXACT_MAX;
use crate::limiting::store::redis::msgpack::{IntReader, IntWriter};

/// Maximum number of decisions of one call, so that a script never blocks Redis for long.
pub const DECISIONS_MAX: usize = 128;
/// Maximum work of one call, in units of [`Rule::work`]. Each check is at least one unit, so this also bounds the
/// number of keys, which the script unpacks on its stack.
pub const WORK_MAX: i64 = 1000;

/// Space for the operation and the number of checks of a decision.
const BYTES_PER_DECISION: usize = 2;
/// Space for a check. Most of its five integers are small; the tag of some is large.
const BYTES_PER_CHECK: usize = 15;

/// Cost of a check that charges nothing, but is admitted only while a unit is left.
const COSTS_LATER: i64 = -1;

/// Added to the operation of a decision whose checks have links.
const LINKED: i64 = 4;

static SHA: LazyLock<String> = LazyLock::new(|| sha1_smol::Sha1::from(SCRIPT).digest().to_string());

/// Returns whether the operation includes the bans of its checks.
fn asks_ban(op: Op) -> bool {
    op != Op::Adjust
}

/// Returns the number of answers of the script to these checks: one for each, and one for its ban.
fn count_answers(op: Op, checks: &[Check]) -> usize {
    checks.len() + checks.iter().filter(|check| check.ban.is_some() && asks_ban(op)).count()
}

/// Returns the cost of the ban of the check with index `place` among those that are sent.
fn of_check(place: usize) -> i64 {
    -2 - i64::try_from(place).unwrap_or(0)
}

/// One call of the script, with the decisions that it carries.
pub struct ScriptCall<'a> {
    keys: Vec<&'a str>,
    /// The only argument of the script, in MessagePack.
    args: Vec<u8>,
}

impl<'a> ScriptCall<'a> {
    /// Encodes decisions at the time `now_ms`; 0 uses the clock of the server.
    pub fn new(decisions: &[(Op, &'a [Check])], now_ms: i64) -> ScriptCall<'a> {
        ScriptCall::with_time(decisions, now_ms, if now_ms == 0 { clock::now_ms() } else { now_ms })
    }

    /// Encodes decisions. `assumed_ms` is the approximate time at which the script decides: the call contains the
    /// calendar windows around it, of which the script chooses one by its clock.
    pub fn with_time(decisions: &[(Op, &'a [Check])], now_ms: i64, assumed_ms: i64) -> ScriptCall<'a> {
        let count = decisions.iter().map(|(_, checks)| checks.len()).sum();
        let places = HashMap::with_capacity_and_hasher(count, RandomState::default());
        let mut keys = WireKeys { places, items: Vec::with_capacity(count) };
        let mut rules = Vec::new();
        let mut arguments = IntWriter::with_capacity(BYTES_PER_DECISION * decisions.len() + BYTES_PER_CHECK * count);
        for (op, checks) in decisions {
            let decides = matches!(op, Op::Take | Op::Peek);
            let is_linked = decides && checks.first().is_some_and(|check| check.role.link.is_some());
            arguments.push(*op as i64 + if is_linked { LINKED } else { 0 });
            arguments.push_len(count_answers(*op, checks));
            for (place, check) in checks.iter().enumerate() {
                let role = match check.role.after {
                    None => check.role,
                    // Bans come between the checks.
                    Some(base) => Role { after: Some(count_answers(*op, &checks[..base])), ..check.role },
                };
                arguments.push_len(keys.number_of(&check.key));
                arguments.push_len(rule_number(&mut rules, &check.rule));
                arguments.push(if decides && check.needs_unit() { COSTS_LATER } else { check.cost });
                arguments.push(role.encode());
                arguments.push(check.tag);
                if let Some(ban) = check.ban.as_ref().filter(|_| asks_ban(*op)) {
                    arguments.push_len(keys.number_of(&ban.key));
                    arguments.push_len(rule_number(&mut rules, &ban.rule));
                    arguments.push(of_check(count_answers(*op, &checks[..place])));
                    arguments.push(role.encode());
                    arguments.push(0);
                }
            }
            if is_linked {
                for check in *checks {
                    let link = check.role.link.map_or(0, CheckLink::encode);
                    (0..count_answers(*op, std::slice::from_ref(check))).for_each(|_| arguments.push(link));
                }
            }
        }
        let mut head = IntWriter::default();
        head.push(now_ms);
        head.push_len(rules.len());
        rules.into_iter().for_each(|rule| push_rule(&mut head, rule, assumed_ms));
        ScriptCall { keys: keys.items, args: head.encode_array(&arguments) }
    }

    /// Returns the command that calls the script by its hash, which works once Redis has the script.
    pub fn evalsha_command(&self) -> Cmd {
        self.command("EVALSHA", &SHA)
    }

    /// Returns the command that calls the script by its text, which also loads it.
    pub fn eval_command(&self) -> Cmd {
        self.command("EVAL", SCRIPT)
    }

    /// Returns the command that loads the script.
    pub fn load_command() -> Cmd {
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

/// Keys of a call, each sent once, and their numbers from 1.
struct WireKeys<'a> {
    /// One call has few keys, so a faster hash than the default is sufficient.
    places: HashMap<&'a str, usize, RandomState>,
    items: Vec<&'a str>,
}

impl<'a> WireKeys<'a> {
    fn number_of(&mut self, key: &'a str) -> usize {
        *self.places.entry(key).or_insert_with(|| {
            self.items.push(key);
            self.items.len()
        })
    }
}

/// Number of rules that are compared to find one that the call already contains. With more rules, some are sent twice.
const KNOWN_RULES: usize = 16;

/// Returns the number, from 1, of a rule in the call. Adds the rule if it is new.
fn rule_number<'a>(rules: &mut Vec<&'a Arc<Rule>>, rule: &'a Arc<Rule>) -> usize {
    let known_place = rules.iter().take(KNOWN_RULES).position(|known| Arc::ptr_eq(known, rule));
    known_place.map_or_else(
        || {
            rules.push(rule);
            rules.len()
        },
        |place| place + 1,
    )
}

fn push_rule(ints: &mut IntWriter, rule: &Rule, now_ms: i64) {
    let params = rule.params(now_ms);
    ints.push_len(rule.index());
    ints.push_len(params.len());
    params.into_iter().for_each(|param| ints.push(param));
}

/// Value instead of the verdict of a decision for which a full server has no memory. No answers follow, and nothing
/// was charged.
const UNDECIDED: i64 = 2;

/// Decodes the reply to these decisions. A decision for which a full server has no memory is an error. Returns `None`
/// if the reply is malformed.
pub fn decode_reply<'c>(
    reply: Value,
    decisions: impl Iterator<Item = (Op, &'c [Check])>,
) -> Option<Vec<Result<Decision, ErrorKind>>> {
    let Value::BulkString(bytes) = reply else { return None };
    let mut ints = IntReader::open(&bytes)?;
    let _now = ints.read_int()?;
    let decisions = decisions.map(|(op, checks)| decode_decision(&mut ints, op, checks)).collect::<Option<_>>()?;
    ints.is_done().then_some(decisions)
}

fn decode_decision(ints: &mut IntReader<'_>, op: Op, checks: &[Check]) -> Option<Result<Decision, ErrorKind>> {
    let head = ints.read_int()?;
    if head == UNDECIDED {
        return Some(Err(ErrorKind::OutOfMemory));
    }
    let admitted = decode_flag(head)?;
    let mut answers = Vec::with_capacity(checks.len());
    for check in checks {
        let answer = decode_answer(ints)?;
        answers.push(match check.ban.is_some() && asks_ban(op) {
            true => answer.with_ban(&decode_answer(ints)?),
            false => answer,
        });
    }
    Some(Ok(Decision { admitted, answers }))
}

fn decode_answer(ints: &mut IntReader<'_>) -> Option<Answer> {
    Some(Answer {
        admitted: decode_flag(ints.read_int()?)?,
        remaining: decode_number(ints)?,
        retry_ms: decode_number(ints)?,
        reset_ms: decode_number(ints)?,
        receipt: decode_number(ints)?,
        ban: BanAnswer::None,
    })
}

/// Reads a number of an answer. The script returns only numbers that are exact, and a server that does not run it must
/// not make later arithmetic overflow.
fn decode_number(ints: &mut IntReader<'_>) -> Option<i64> {
    Some(ints.read_int()?.clamp(-EXACT_MAX, EXACT_MAX))
}

/// Decodes the reply to TIME, in ms. Returns `None` if it is malformed.
pub fn decode_time(reply: Value) -> Option<i64> {
    let (seconds, micros) = redis::from_redis_value::<(i64, i64)>(reply).ok()?;
    Some(seconds.saturating_mul(1000).saturating_add(micros / 1000).clamp(0, EXACT_MAX))
}

fn decode_flag(int: i64) -> Option<bool> {
    match int {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Returns whether the server does not have the script. The call certainly had no effect. This is the only error after
/// which the same server gets the same call again.
pub fn is_noscript(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// Redirection by a node of a cluster. The node has decided nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum ClusterRedirect {
    /// The slot is on this node now.
    Moved(String),
    /// The slot is migrating to this node, which already has these keys.
    Ask(String),
    /// The slot is migrating, and its keys are on two nodes.
    TryAgain,
}

/// Returns the redirection in an error reply, if it is one.
pub fn redirect_of(error: &RedisError) -> Option<ClusterRedirect> {
    let node = || error.redirect_node().map(|(node, _)| node.to_owned());
    match error.code()? {
        "MOVED" => node().map(ClusterRedirect::Moved),
        "ASK" => node().map(ClusterRedirect::Ask),
        "TRYAGAIN" => Some(ClusterRedirect::TryAgain),
        _ => None,
    }
}

/// Returns the command by which a connection finds out whether the server is a node of a cluster: its keys are in two
/// slots, and only a cluster objects to that.
pub fn single_test_command(prefix: &str) -> Cmd {
    let mut cmd = redis::cmd("EXISTS");
    cmd.arg(format!("{prefix}:{{a}}:test")).arg(format!("{prefix}:{{b}}:test"));
    cmd
}

/// Returns whether only a server in cluster mode gives this error.
pub fn is_of_cluster(error: &RedisError) -> bool {
    matches!(error.code(), Some("CROSSSLOT" | "MOVED" | "ASK" | "CLUSTERDOWN"))
}

/// Describes an error for the log. `clustered`: the config says that the server is a node of a cluster.
pub fn describe_error(error: &RedisError, clustered: bool) -> String {
    match !clustered && is_of_cluster(error) {
        true => format!("the server is in cluster mode: write `redis+cluster://` in `url` of [store] ({error})"),
        false => error.to_string(),
    }
}

/// Creates the error of a command without a connection.
pub fn not_connected() -> RedisError {
    RedisError::from((NOT_CONNECTED, "the server of the key is not connected"))
}

/// Kind of errors that occur before anything is sent.
pub const NOT_CONNECTED: redis::ErrorKind = redis::ErrorKind::Client;

/// Classifies the error of a command. If the connection broke after it was sent, the command may have been executed.
pub fn sent_error_kind(error: &RedisError) -> ErrorKind {
    match error_kind(error) {
        ErrorKind::Disconnected if error.kind() != NOT_CONNECTED => ErrorKind::Lost,
        kind => kind,
    }
}

/// Classifies an error.
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

/// Returns the text of an error, without the name that the library has for its kind.
pub fn error_text(error: &RedisError) -> String {
    let text = error.to_string();
    match text.rsplit_once("- ") {
        Some((what, kind)) if kind == format!("{:?}", error.kind()) => what.trim_end().to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind as Redis, ServerErrorKind};

    use super::*;
    use crate::limiting::algorithm::fixed_window::FixedWindow;
    use crate::limiting::limit::{Limit, Mode};

    fn ints(ints: &[i64]) -> Value {
        let mut reply = IntWriter::default();
        ints.iter().for_each(|int| reply.push(*int));
        Value::BulkString(reply.encode_array(&IntWriter::default()))
    }

    /// Decodes a reply to decisions that have these numbers of checks.
    fn decoded(reply: Value, counts: &[usize]) -> Option<Vec<Result<Decision, ErrorKind>>> {
        let rule = Rule::FixedWindow(FixedWindow { limit: 1, window_ms: 1, clock: false });
        let check = Check::new(&Limit::bare("one", rule, Mode::Enforce), "key".to_owned(), 1);
        let checks = vec![check; counts.iter().copied().max().unwrap_or(0)];
        decode_reply(reply, counts.iter().map(|count| (Op::Take, &checks[..*count])))
    }

    #[test]
    fn a_reply_is_read_whole_or_not_at_all() {
        let whole = [9, 1, 1, 4, 0, 60, 7, 0, 0, 0, 30, 60, 7, 1, 2, 0, 5, 7];
        let decisions = decoded(ints(&whole), &[1, 2]).unwrap();
        let decisions: Vec<Decision> = decisions.into_iter().map(Result::unwrap).collect();
        assert_eq!((decisions[0].admitted, decisions[1].admitted), (true, false));
        let answer =
            Answer { admitted: false, remaining: 0, retry_ms: 30, reset_ms: 60, receipt: 7, ban: BanAnswer::None };
        assert_eq!(decisions[1].answers[0], answer);
        for len in 0..whole.len() {
            assert_eq!(decoded(ints(&whole[..len]), &[1, 2]), None, "{len} integers");
        }
        assert_eq!(decoded(ints(&[&whole[..], &[0]].concat()), &[1, 2]), None);
        assert_eq!(decoded(ints(&[9, 3, 1, 4, 0, 60, 7]), &[1]), None);
        assert_eq!(decoded(ints(&[9, 1, -1, 4, 0, 60, 7]), &[1]), None);
    }

    #[test]
    fn numbers_that_the_script_cannot_return_are_clamped() {
        let reply = ints(&[9, 1, 1, i64::MIN, i64::MAX, i64::MAX, i64::MIN]);
        let decision = decoded(reply, &[1]).unwrap().remove(0).unwrap();
        let answer = decision.answers[0];
        let numbers = [answer.remaining, answer.retry_ms, answer.reset_ms, answer.receipt];
        assert_eq!(numbers, [-EXACT_MAX, EXACT_MAX, EXACT_MAX, -EXACT_MAX]);
        let time = |seconds: i64, micros: i64| decode_time(Value::Array(vec![Value::Int(seconds), Value::Int(micros)]));
        assert_eq!(time(1_800_000_000, 999_999), Some(1_800_000_000_999));
        assert_eq!([time(i64::MAX, i64::MAX), time(i64::MIN, 0)], [Some(EXACT_MAX), Some(0)]);
        assert_eq!(decode_time(Value::Nil), None);
    }

    #[test]
    fn a_decision_that_found_no_room_has_no_answers() {
        let found = decoded(ints(&[9, 2, 1, 1, 4, 0, 60, 7, 2]), &[3, 1, 2]).unwrap();
        assert_eq!(found.iter().map(Result::is_ok).collect::<Vec<bool>>(), [false, true, false]);
        assert_eq!(found[0], Err(ErrorKind::OutOfMemory));
        assert_eq!(decoded(ints(&[9, 2, 1, 4, 0, 60, 7]), &[1]), None);
    }

    #[test]
    fn a_reply_of_another_kind_is_none() {
        let integers = Value::Array([9, 1, 1, 4, 0, 60, 7].map(Value::Int).into());
        for reply in [Value::Nil, Value::Okay, Value::Int(1), Value::BulkString(b"9".to_vec()), integers] {
            assert_eq!(decoded(reply, &[1]), None);
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
    fn only_sent_calls_may_have_charged() {
        let of = |kind: Redis| sent_error_kind(&RedisError::from((kind, "")));
        assert_eq!(of(Redis::Io), ErrorKind::Lost);
        assert_eq!(of(Redis::Server(ServerErrorKind::BusyLoading)), ErrorKind::Loading);
        assert_eq!(sent_error_kind(&not_connected()), ErrorKind::Disconnected);
        assert!(ErrorKind::Lost.is_unsure() && !ErrorKind::Disconnected.is_unsure());
    }
}
