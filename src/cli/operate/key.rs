//! `sluicegate key`: shows and changes what one limit knows about one key.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use crate::cli::check::ReportFormat;
use crate::cli::gateway::{GatewayContact, GatewayOptions, add_parameter};
use crate::cli::operate::key_list::{describe_list, fetch_list};
use crate::cli::operate::{Call, CommandFault, fetch_json, format_json, run_command, text_of};
use crate::limiting::key::KeyPart;
use crate::text::{format_count, format_span};

pub const HELP: &str = "\
Examples:
  sluicegate key show daily acme
  sluicegate key reset per-ip 203.0.113.9
  sluicegate key block per-ip 203.0.113.66 --for 1h --note 'ticket 4711'
  sluicegate key unblock per-ip 203.0.113.66
  sluicegate key override daily acme --rate 50000/day --for 7d
  sluicegate key override daily acme --remove
  sluicegate key refund daily acme --units 3
  sluicegate key list          (what was changed, over all limits)
  sluicegate key list per-ip

KEY is the value of each part of the limit's key, in their order, as a client sends it. A part that is copied from a log
or a usage report works as well: ip=203.0.113.9, header:x-api-key#5f1c0a6e9b3d2784 or #5f1c0a6e9b3d2784. A value that
looks like another part of a key is an error. If a client sends just that, use --literal.
Blocks and overrides apply at once, without a change of the config: in Redis, to all gateways; with a memory store, to
this gateway, until it stops, or with `state` in [store] beyond that.";

/// Characters that no name of a limit has, and that would end the path.
pub const NOT_IN_PATH: &AsciiSet = &CONTROLS.add(b' ').add(b'/').add(b'?').add(b'#').add(b'%');

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum KeyAction {
    /// Show what the key has used, its override and its ban
    Show,
    /// Forget what the key has used, and lift its ban
    Reset,
    /// Give back units that the key has used
    Refund,
    /// Refuse every request of the key
    Block,
    /// End a block
    Unblock,
    /// Give the key another budget
    Override,
    /// List all live overrides, blocks and bans: of one limit, or of all
    List,
}

#[derive(Args)]
pub struct KeyOptions {
    /// What to do
    #[arg(value_name = "ACTION")]
    action: KeyAction,
    /// Name of the limit; `list` may have none
    #[arg(value_name = "LIMIT")]
    limit: Option<String>,
    /// Value of each part of the key; none if the key is all
    #[arg(value_name = "KEY")]
    key: Vec<String>,
    /// Use each KEY as a client sends it, even if it looks like a part of a key in a log
    #[arg(long)]
    literal: bool,
    /// How long a block or an override lasts, such as 1h or 7d [default: until it is removed]
    #[arg(long = "for", value_name = "DURATION", conflicts_with = "until")]
    lasts: Option<String>,
    /// When a block or an override ends, such as 2026-12-31T00:00:00Z
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Why; shown with the key, and by sluicegate explain
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Rate of an override, such as 100/s, or unlimited
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    /// Burst of an override
    #[arg(long, value_name = "N")]
    burst: Option<u64>,
    /// Requests at once, of an override of a concurrency limit
    #[arg(long, value_name = "N")]
    in_flight: Option<String>,
    /// Queue of an override of a leaky bucket, such as 2s
    #[arg(long, value_name = "DURATION")]
    queue: Option<String>,
    /// Remove the override
    #[arg(long, conflicts_with_all = ["lasts", "until", "note", "rate", "burst", "in_flight", "queue"])]
    remove: bool,
    /// Units to refund
    #[arg(long, value_name = "N")]
    units: Option<u64>,
    /// Number of overrides that `list` shows [default: 1000]
    #[arg(short, value_name = "N")]
    n: Option<u64>,
    /// Format of the answer
    #[arg(long, default_value = "text")]
    format: ReportFormat,
    #[command(flatten)]
    gateway: GatewayOptions,
}

pub fn run_key(options: &KeyOptions) -> ExitCode {
    run_command(&options.gateway, options.format == ReportFormat::Json, |gateway| {
        options.check_options()?;
        let (answer, text) = match options.action {
            KeyAction::List => {
                let list = fetch_list(options.limit.as_deref(), options.n, gateway)?;
                let text = describe_list(&list);
                (list, text)
            }
            _ => run_action(options, gateway)?,
        };
        Ok(match options.format {
            ReportFormat::Json => format_json(&answer),
            ReportFormat::Text => text,
        })
    })
}

/// Returns the answer of the gateway, and the same in words.
fn run_action(options: &KeyOptions, gateway: &GatewayContact) -> Result<(Value, String), CommandFault> {
    let limit = options.limit_name();
    let page = format!("/-/limits/{}", utf8_percent_encode(limit, NOT_IN_PATH));
    let about = fetch_json(gateway, Call::get(&page, options.role()))?;
    let query = options.build_query(&about)?;
    let state_page = format!("{page}/state{query}");
    let override_page = format!("{page}/override{query}");
    match options.action {
        KeyAction::Show => {
            let state = fetch_json(gateway, Call::get(&state_page, "keys"))?;
            let text = describe_state(&about, &state);
            Ok((state, text))
        }
        KeyAction::Reset => {
            // A key that is known by its hash may not be found after the reset.
            let before = fetch_json(gateway, Call::get(&state_page, "limits")).unwrap_or_default();
            let call = Call { method: "DELETE", ..Call::get(&state_page, "limits") };
            let answer = fetch_json(gateway, call)?;
            let what = match answer["existed"].as_bool() {
                Some(false) => "there is nothing to reset: the key has used nothing, or is not spelled like this",
                _ => "reset: nothing is used any more, and no ban holds",
            };
            let text = format!("{limit} {}: {what}{}\n", text_of(&answer["key"]), describe_block(&before));
            Ok((answer, text))
        }
        KeyAction::Refund => {
            // Says what is wrong with the key in the words of a query.
            fetch_json(gateway, Call::get(&state_page, "limits"))?;
            let body = json!({ "key": options.name_values(&about)?, "cost": options.units });
            let page = format!("{page}/refund");
            let call = Call { method: "POST", body: Some(body), ..Call::get(&page, "limits") };
            let answer = fetch_json(gateway, call)?;
            let what = match (answer["applied"] == true, answer["reason"].as_str()) {
                (true, _) => describe_refund(answer["units"].as_u64().unwrap_or(0), options.units.unwrap_or(0)),
                (false, Some("nothing_charged")) => "nothing refunded: the key has used nothing".to_owned(),
                (false, reason) => format!("nothing refunded: {}", reason.unwrap_or("no reason given")),
            };
            let text = format!("{limit} {}: {what}\n", text_of(&answer["key"]));
            Ok((answer, text))
        }
        KeyAction::Block | KeyAction::Override if !options.remove => {
            let call = Call {
                method: "PUT",
                body: Some(Value::Object(options.build_override())),
                ..Call::get(&override_page, "limits")
            };
            let answer = fetch_json(gateway, call)?;
            let text = format!(
                "{limit} {}: {}{}{}{}\n",
                text_of(&answer["key"]),
                text_of(&answer["override"]["text"]),
                describe_keeper(&answer),
                describe_replaced(&answer["replaced"]),
                describe_mode(&about)
            );
            Ok((answer, text))
        }
        KeyAction::Block | KeyAction::Unblock | KeyAction::Override | KeyAction::List => {
            remove_override(options, gateway, (&state_page, &override_page))
        }
    }
}

/// Removes the override of the key. `unblock` removes only a block.
fn remove_override(
    options: &KeyOptions,
    gateway: &GatewayContact,
    (state_page, override_page): (&str, &str),
) -> Result<(Value, String), CommandFault> {
    let state = fetch_json(gateway, Call::get(state_page, "limits"))?;
    let (key, before) = (text_of(&state["key"]), &state["override"]);
    let ban = match state["ban"]["banned"] == true {
        true => format!("; it is banned, which `sluicegate key reset {}` lifts", options.limit_name()),
        false => String::new(),
    };
    let limit = options.limit_name();
    if options.action == KeyAction::Unblock && before["blocked"] != true {
        let text = format!("{limit} {key}: it is not blocked{ban}\n");
        return Ok((json!({ "limit": limit, "key": state["key"], "existed": false, "override": before }), text));
    }
    let call = Call { method: "DELETE", ..Call::get(override_page, "limits") };
    let answer = fetch_json(gateway, call)?;
    let now = &answer["override"];
    let what = match (answer["existed"] == true, now["text"].as_str()) {
        (true, None) => {
            let old_entry = describe_override(before).unwrap_or_else(|| "an entry that had no effect".to_owned());
            format!("removed: {old_entry}{}; the limit's own budget applies again", describe_keeper(&answer))
        }
        (true, Some(_)) => {
            format!("removed, and now {} applies, from the {}", text_of(&now["text"]), text_of(&now["source"]))
        }
        (false, None) => "there is no override to remove".to_owned(),
        (false, Some(_)) if now["source"] == "config" => format!(
            "{} by an entry in the config; remove it from `overrides` of the limit, or set another one here",
            text_of(&now["text"])
        ),
        (false, Some(_)) => format!("{}: by an entry for other keys, such as `*`", text_of(&now["text"])),
    };
    Ok((answer.clone(), format!("{limit} {key}: {what}{ban}\n")))
}

fn describe_keeper(answer: &Value) -> String {
    let delay = if answer["applied"] == false { ", within half a minute" } else { "" };
    let keeper = match answer["kept_in"].as_str() {
        Some("redis") => ", on all gateways with this Redis",
        Some("state_file") => ", on this gateway, kept in its state file",
        _ => ", on this gateway, until it stops",
    };
    format!("{keeper}{delay}")
}

/// Names the entry that a new one replaced. A live one does not return.
fn describe_replaced(entry: &Value) -> String {
    match describe_override(entry) {
        Some(old_entry) if entry["source"] == "live" => format!("; this replaced {old_entry}, which does not return"),
        Some(old_entry) => format!("; until it ends, this replaces {old_entry}"),
        None => String::new(),
    }
}

/// Describes the state of a key in lines.
fn describe_state(about: &Value, state: &Value) -> String {
    let mut lines = vec![
        ("limit", format!("{} ({})", text_of(&about["limit"]), describe_limit(about))),
        ("key", text_of(&state["key"])),
    ];
    let reason = text_of(&state["reason"]).replace('_', " ");
    lines.push((
        "now",
        match (state["admitted"] == true, state["retry_after_ms"].as_i64()) {
            _ if state["rate_not_known"] == true => "unknown: requests of this key state its rate".to_owned(),
            (true, _) => "admitted".to_owned(),
            (false, Some(ms)) => format!("refused ({reason}), admitted in {}", format_span(ms)),
            (false, None) => format!("refused ({reason}), waiting does not help"),
        },
    ));
    let (quota, left) = (state["policy"]["quota"].as_i64(), state["remaining"].as_i64());
    if let (Some(quota), Some(left), Some(reset_ms)) = (quota, left, state["reset_ms"].as_i64()) {
        lines.push(("used", format!("{} of {quota}, {left} left", (quota - left).max(0))));
        lines.push(("full", if reset_ms == 0 { "now".to_owned() } else { format!("in {}", format_span(reset_ms)) }));
    }
    if let Some(units) = state["leased"].as_u64() {
        lines.push(("leased", format!("{units} units that this gateway has debited and not spent")));
    }
    if state["ban"].is_object() {
        lines.push(("ban", describe_ban(&state["ban"])));
    }
    lines.push(("override", describe_override(&state["override"]).unwrap_or_else(|| "none".to_owned())));
    if about["mode"] != "enforce" {
        lines.push(("mode", format!("{}: it refuses nobody", text_of(&about["mode"]))));
    }
    lines.into_iter().map(|(name, text)| format!("{name:<10}{text}\n")).collect()
}

/// Says that a block stays after a reset.
fn describe_block(state: &Value) -> String {
    if state["override"]["blocked"] != true {
        return String::new();
    }
    let help = match state["override"]["source"] == "live" {
        true => ", which `sluicegate key unblock` with the same key ends",
        false => "",
    };
    format!("; it stays {}{help}", describe_override(&state["override"]).unwrap_or_default())
}

/// Says that a limit refuses nobody, whatever its overrides are.
fn describe_mode(about: &Value) -> String {
    match about["mode"] == "enforce" {
        true => String::new(),
        false => format!("; the limit has mode = \"{}\", so it refuses nobody", text_of(&about["mode"])),
    }
}

/// Says how many of the `asked` units were refunded.
fn describe_refund(units: u64, asked: u64) -> String {
    let refunded = format_count(units, "unit");
    match units < asked {
        true => format!("refunded {refunded}, all that the key had used"),
        false => format!("refunded {refunded}"),
    }
}

fn describe_limit(about: &Value) -> String {
    format!("{}, by {}", text_of(&about["budget"]), list_names(about).join(", "))
}

/// Describes a ban.
pub fn describe_ban(ban: &Value) -> String {
    let bans = ban["bans"].as_i64().unwrap_or(0);
    match (ban["banned"] == true, ban["left_ms"].as_i64()) {
        (true, left) => format!("banned for {} more (number {bans})", format_span(left.unwrap_or(0))),
        (false, _) => format!("not banned; {} more refusals ban it", ban["refusals_left"]),
    }
}

/// Describes an override; `None` if there is none.
pub fn describe_override(entry: &Value) -> Option<String> {
    let text = entry["text"].as_str()?;
    let note = entry["note"].as_str().map(|note| format!(" ({note})")).unwrap_or_default();
    let source = match entry["source"].as_str().unwrap_or_default() {
        "live" => "live".to_owned(),
        other => format!("from the {other}"),
    };
    let by = entry["set_by"].as_str().map(|name| format!(" by {name}")).unwrap_or_default();
    let set = entry["set_at"].as_str().map(|time| format!(", set{by} at {time}")).unwrap_or_default();
    Some(text_of(&Value::from(format!("{text}{note}, {source}{set}"))))
}

/// Returns the names of the parts of the limit's key.
fn list_names(about: &Value) -> Vec<String> {
    about["key"].as_array().into_iter().flatten().map(text_of).collect()
}

impl KeyOptions {
    /// Role of the token that the action needs.
    fn role(&self) -> &'static str {
        if self.action == KeyAction::Show { "keys" } else { "limits" }
    }

    fn limit_name(&self) -> &str {
        self.limit.as_deref().unwrap_or_default()
    }

    /// Checks that the options belong to the action.
    fn check_options(&self) -> Result<(), CommandFault> {
        let is = |action| self.action == action;
        let has_numbers =
            self.rate.is_some() || self.burst.is_some() || self.in_flight.is_some() || self.queue.is_some();
        let has_end = self.lasts.is_some() || self.until.is_some() || self.note.is_some();
        let wrong = if self.limit.is_none() && !is(KeyAction::List) {
            "name the limit, and its key: sluicegate key show LIMIT KEY"
        } else if is(KeyAction::List) && !self.key.is_empty() {
            "`key list` has no key; `key show` and `customer` are about one"
        } else if self.n.is_some() && !is(KeyAction::List) {
            "-n belongs to `key list`"
        } else if has_numbers && !is(KeyAction::Override) {
            "--rate, --burst, --in-flight and --queue belong to `key override`"
        } else if self.remove && !is(KeyAction::Override) {
            "--remove belongs to `key override`; a block ends with `key unblock`"
        } else if has_end && !is(KeyAction::Override) && !is(KeyAction::Block) {
            "--for, --until and --note belong to `key block` and `key override`"
        } else if self.units.is_some() != is(KeyAction::Refund) {
            "`key refund` needs --units, the number of units; no other action has it"
        } else if is(KeyAction::Override) && !has_numbers && !self.remove {
            "`key override` needs the budget, such as --rate 100/s, or --remove"
        } else {
            return Ok(());
        };
        Err(CommandFault::usage(wrong))
    }

    /// Returns the body that sets the override.
    fn build_override(&self) -> Map<String, Value> {
        let mut body = Map::new();
        let mut add = |name: &str, value: Option<Value>| value.map(|value| body.insert(name.to_owned(), value));
        let text = |text: &Option<String>| text.as_deref().map(Value::from);
        add("block", (self.action == KeyAction::Block).then_some(true.into()));
        add("rate", text(&self.rate));
        add("burst", self.burst.map(Value::from));
        add("in_flight", text(&self.in_flight));
        add("queue", text(&self.queue));
        add("for", text(&self.lasts));
        add("until", text(&self.until));
        add("note", text(&self.note));
        body
    }

    /// Returns each value with the name of its part.
    fn pair_values(&self, about: &Value) -> Result<Vec<(String, KeyValue)>, CommandFault> {
        let names: Vec<String> = list_names(about).into_iter().filter(|name| name != "all").collect();
        if names.len() != self.key.len() {
            let what = match names.as_slice() {
                [] => format!("`{}` has one budget for all: leave the key out", self.limit_name()),
                [name] => format!("`{}` is keyed by {name}: write 1 value, not {}", self.limit_name(), self.key.len()),
                names => format!(
                    "`{}` is keyed by {}: write {} values in this order, not {}",
                    self.limit_name(),
                    names.join(", "),
                    names.len(),
                    self.key.len()
                ),
            };
            return Err(CommandFault::usage(what));
        }
        let parse = |name: &str, text: &String| match self.literal {
            true => KeyValue::Literal(text.clone()),
            false => KeyValue::parse(name, text),
        };
        Ok(names.into_iter().zip(&self.key).map(|(name, text)| (name.clone(), parse(&name, text))).collect())
    }

    fn build_query(&self, about: &Value) -> Result<String, CommandFault> {
        let mut query = String::new();
        for (_, value) in self.pair_values(about)? {
            match value {
                KeyValue::Plain(value) => add_parameter(&mut query, "key", &value),
                KeyValue::Literal(value) => add_parameter(&mut query, "literal", &value),
                KeyValue::Hash(digits) => add_parameter(&mut query, "hash", &digits),
            }
        }
        Ok(query)
    }

    /// Returns the key as JSON has it.
    fn name_values(&self, about: &Value) -> Result<Map<String, Value>, CommandFault> {
        let json = |value| match value {
            KeyValue::Plain(value) => Value::from(value),
            KeyValue::Literal(value) => json!({ "percent": utf8_percent_encode(&value, NON_ALPHANUMERIC).to_string() }),
            KeyValue::Hash(digits) => json!({ "hash": digits }),
        };
        // Any prefix length of an address is called `ip` here.
        let name = |name: String| if name.starts_with("ip/") { "ip".to_owned() } else { name };
        Ok(self.pair_values(about)?.into_iter().map(|(part, value)| (name(part), json(value))).collect())
    }
}

/// A value of the command line.
#[derive(Debug, PartialEq)]
pub enum KeyValue {
    Plain(String),
    /// A value as a client sends it, whatever it looks like.
    Literal(String),
    /// The digits of a hash, as a log or a usage report shows it.
    Hash(String),
}

impl KeyValue {
    /// Parses a value of the part called `name`. It may have the name before it, as in a log, in upper or lower case.
    pub fn parse(name: &str, text: &str) -> KeyValue {
        let is_hash =
            |digits: &str| [16, 32].contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (before, rest) = text.split_at(text.find(['=', '#']).unwrap_or(text.len()));
        // A log shows alternatives without spaces.
        let is_own = before.eq_ignore_ascii_case(name) || before.eq_ignore_ascii_case(&name.replace(KeyPart::OR, "|"));
        match (rest.strip_prefix('='), rest.strip_prefix('#')) {
            (Some(value), _) if is_own && !value.is_empty() => KeyValue::Plain(value.to_owned()),
            (_, Some(digits)) if (is_own || before.is_empty()) && is_hash(digits) => KeyValue::Hash(digits.to_owned()),
            _ => KeyValue::Plain(text.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_may_be_copied_from_a_log() {
        let parse = |text: &str| KeyValue::parse("header:x-api-key", text);
        assert_eq!(parse("acme"), KeyValue::Plain("acme".to_owned()));
        assert_eq!(parse("header:x-api-key=acme"), KeyValue::Plain("acme".to_owned()));
        assert_eq!(parse("header:x-api-key#5f1c0a6e9b3d2784"), KeyValue::Hash("5f1c0a6e9b3d2784".to_owned()));
        assert_eq!(parse("header:X-API-Key=acme"), KeyValue::Plain("acme".to_owned()));
        assert_eq!(parse("#5f1c0a6e9b3d2784"), KeyValue::Hash("5f1c0a6e9b3d2784".to_owned()));
        assert_eq!(parse("5f1c0a6e9b3d2784"), KeyValue::Plain("5f1c0a6e9b3d2784".to_owned()));
        let digest = "63b586b4a93f204837ee1e038f8ce2be";
        let logged = format!("header:x-api-key#{digest}");
        assert_eq!(KeyValue::parse("header:x-api-key", &logged), KeyValue::Hash(digest.to_owned()));
        assert_eq!(KeyValue::parse("header:a | query:b", "header:a|query:b=c"), KeyValue::Plain("c".to_owned()));
        assert_eq!(parse("header:x-api-key#short"), KeyValue::Plain("header:x-api-key#short".to_owned()));
        assert_eq!(KeyValue::parse("ip", "203.0.113.9"), KeyValue::Plain("203.0.113.9".to_owned()));
    }
}
