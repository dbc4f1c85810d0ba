//! `sluicegate customer`: shows what all limits know about one value of a source, such as `ip=203.0.113.9`.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::cli::check::ReportFormat;
use crate::cli::gateway::{GatewayOptions, add_parameter};
use crate::cli::operate::key::{describe_ban, describe_override};
use crate::cli::operate::table::Table;
use crate::cli::operate::{Call, CommandFault, fetch_json, format_json, run_command, text_of};
use crate::text::{format_count, format_span};

pub const HELP: &str = "\
Examples:
  sluicegate customer ip=203.0.113.9
  sluicegate customer header:x-api-key=acme
  sluicegate customer header:x-api-key#5f1c0a6e9b3d2784    (as a log shows it)

Nothing is changed. To change something, use `sluicegate key`.";

#[derive(Args)]
pub struct CustomerOptions {
    /// Source and value, such as ip=203.0.113.9 or jwt:sub=anna
    #[arg(value_name = "SOURCE=VALUE")]
    customer: String,
    /// Use VALUE as a client sends it, even if it looks like a part of a key in a log
    #[arg(long)]
    literal: bool,
    /// Also list limits that the customer has not used
    #[arg(long)]
    all: bool,
    /// Number of refusals to show, at most 200
    #[arg(short = 'n', default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=200))]
    count: u8,
    /// Format of the answer
    #[arg(long, default_value = "text")]
    format: ReportFormat,
    #[command(flatten)]
    gateway: GatewayOptions,
}

pub fn run_customer(options: &CustomerOptions) -> ExitCode {
    run_command(&options.gateway, options.format == ReportFormat::Json, |gateway| {
        let page = format!("/-/customers{}", options.build_query()?);
        let answer = fetch_json(gateway, Call::get(&page, "keys"))?;
        Ok(match options.format {
            ReportFormat::Json => format_json(&answer),
            ReportFormat::Text => describe_customer(options, &answer),
        })
    })
}

impl CustomerOptions {
    fn build_query(&self) -> Result<String, CommandFault> {
        let text = &self.customer;
        let value_name = if self.literal { "literal" } else { "value" };
        let (source, name, value) = match (text.split_once('='), text.rsplit_once('#')) {
            (None, Some((source, digits))) if !source.is_empty() => (source, "hash", digits),
            (Some((source, value)), _) => (source, value_name, value),
            (None, _) => {
                let what = format!("`{text}` is not SOURCE=VALUE; write for example ip=203.0.113.9");
                return Err(CommandFault::usage(what));
            }
        };
        let mut query = String::new();
        for (name, value) in [("source", source), (name, value), ("n", &self.count.to_string())] {
            add_parameter(&mut query, name, value);
        }
        Ok(query)
    }
}

fn list<'a>(answer: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    answer[name].as_array().into_iter().flatten()
}

/// Returns whether the customer has used the limit, or something is special about it.
fn is_used(item: &Value) -> bool {
    let is_banned = || item["ban"]["banned"] == true || item["ban"]["bans"].as_i64().is_some_and(|bans| bans > 0);
    item["used"].as_i64().is_none_or(|used| used > 0)
        || item["admitted"] == false
        || item["refused_min"].as_u64() > Some(0)
        || item["override"].is_object()
        || is_banned()
}

fn describe_customer(options: &CustomerOptions, answer: &Value) -> String {
    let limits: Vec<&Value> = list(answer, "limits").collect();
    let count = |test: &dyn Fn(&Value) -> bool| limits.iter().filter(|item| test(item)).count();
    let refusing = count(&|item| item["admitted"] == false && item["mode"] == "enforce");
    let (banned, changed) = (count(&|item| item["ban"]["banned"] == true), count(&|item| item["override"].is_object()));
    let customer = text_of(&Value::from(options.customer.as_str()));
    let verdict = match (refusing, answer["store_fault"].as_str()) {
        (_, Some(fault)) => format!("the store does not answer ({fault}), so numbers are missing"),
        (0, _) => "no limit refuses it now".to_owned(),
        (refusing, _) => format!("refused now by {refusing} of {} limits and keys", limits.len()),
    };
    let mut text = format!("{customer}: {verdict}");
    for (count, what) in [(banned, "ban"), (changed, "override")] {
        if count > 0 {
            text.push_str(&format!("; {}", format_count(count as u64, what)));
        }
    }
    text.push('\n');
    let mut table = Table::new(&["LIMIT", "KEY", "NOW", "USED", "FULL IN", "REFUSED HERE IN 10 MIN", "NOTES"]);
    let (used, unused): (Vec<&Value>, Vec<&Value>) = limits.into_iter().partition(|item| options.all || is_used(item));
    used.into_iter().for_each(|item| table.add_row(list_cells(item)));
    if !table.is_empty() {
        text.push_str(&format!("\n{}", table.render()));
    }
    if !unused.is_empty() {
        let (has, them) = if unused.len() == 1 { ("has", "it") } else { ("have", "them") };
        let limits = format_count(unused.len() as u64, "more limit");
        text.push_str(&format!("\n{limits} {has} seen nothing of it (--all lists {them})\n"));
    }
    text.push_str(&describe_refusals(answer));
    text.push_str(&describe_gaps(answer));
    text
}

fn list_cells(item: &Value) -> Vec<String> {
    let now = match (item["admitted"].as_bool(), item["retry_after_ms"].as_i64()) {
        _ if item["rate_not_known"] == true => "depends on the rate in requests".to_owned(),
        (None, _) => "unknown".to_owned(),
        (Some(true), _) => "admitted".to_owned(),
        (Some(false), Some(ms)) => format!("refused, {}", format_span(ms)),
        (Some(false), None) => "refused".to_owned(),
    };
    let usage = match (item["used"].as_i64(), item["policy"]["quota"].as_i64()) {
        (Some(usage), Some(quota)) => format!("{usage} of {quota}"),
        _ => "-".to_owned(),
    };
    let full = item["reset_ms"].as_i64().filter(|ms| *ms > 0).map_or_else(|| "-".to_owned(), format_span);
    let refusals = match (item["refused_min"].as_u64().unwrap_or(0), item["refused_max"].as_u64().unwrap_or(0)) {
        (least, most) if least == most => least.to_string(),
        (least, most) => format!("{least} to {most}"),
    };
    // Other limits than those that refuse count what was over them.
    let refusals = match (refusals.as_str(), item["outcome"].as_str()) {
        ("0", _) | (_, Some("refused") | None) => refusals,
        (_, Some("would_refuse")) => format!("would be: {refusals}"),
        _ => format!("none, over it: {refusals}"),
    };
    let mut notes = Vec::new();
    if item["mode"] != "enforce" {
        notes.push(format!("{}: refuses nobody", text_of(&item["mode"])));
    }
    if item["ban"]["banned"] == true {
        notes.push(describe_ban(&item["ban"]));
    }
    notes.extend(describe_override(&item["override"]));
    vec![text_of(&item["limit"]), text_of(&item["key"]), now, usage, full, refusals, notes.join("; ")]
}

/// Names a limit that refused. One in shadow mode refused nobody.
fn name_limit(check: &Value) -> String {
    let shadow = if check["mode"] == "enforce" { "" } else { " (shadow)" };
    format!("{}{shadow}", text_of(&check["limit"]))
}

fn describe_refusals(answer: &Value) -> String {
    let gateways = answer["gateways"].as_u64().unwrap_or(1);
    let mut columns = vec!["TIME", "REQUEST ID", "STATUS", "ROUTE", "LIMIT", "REASON"];
    columns.extend((gateways > 1).then_some("GATEWAY"));
    let mut table = Table::new(&columns);
    for refusal in list(answer, "refusals") {
        let limits: Vec<String> = list(refusal, "limits").map(name_limit).collect();
        let reasons: Vec<String> = list(refusal, "limits").map(|check| text_of(&check["reason"])).collect();
        let id = refusal["request_id"].as_str().map_or_else(|| "-".to_owned(), |_| text_of(&refusal["request_id"]));
        let mut row = vec![
            text_of(&refusal["time"]),
            id,
            refusal["status"].to_string(),
            text_of(&refusal["route"]),
            limits.join(", "),
            reasons.join(", "),
        ];
        row.extend((gateways > 1).then(|| text_of(&refusal["host"])));
        table.add_row(row);
    }
    let place = if gateways > 1 { format!("{gateways} gateways") } else { "this gateway".to_owned() };
    match table.is_empty() {
        true if gateways > 1 => {
            "\nNo refusal of it is remembered by this gateway, or among the last 100 of each other gateway.\n"
                .to_owned()
        }
        true => format!("\nNo refusal of it is remembered by {place}.\n"),
        false => format!("\nLast refusals at {place}\n{}", table.render()),
    }
}

/// Says what the answer does not contain.
fn describe_gaps(answer: &Value) -> String {
    let mut text = String::new();
    let names: Vec<String> = list(answer, "incomplete").map(text_of).collect();
    let total = answer["incomplete_total"].as_u64().unwrap_or(0);
    let has_hashes = list(answer, "limits").any(|item| text_of(&item["key"]).contains('#'));
    if answer["keys_comparable"] == false && answer["gateways"].as_u64() > Some(1) && has_hashes {
        text.push_str(
            "\nWithout `keys_secret` in [admin], each gateway shows another hash of the same key, so refusals of other\n\
             gateways are missing here.\n",
        );
    }
    if total > 0 {
        let more = total.saturating_sub(names.len() as u64);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        text.push_str(&format!(
            "\nNot complete: the key of {}{more} has further parts. Only keys that this gateway has seen often in the\n\
             last ten minutes, or refused lately, are listed.\n",
            names.join(", ")
        ));
    }
    for (name, what) in [("limits_left_out", "not asked: too many"), ("limits_hidden", "hidden from this token")] {
        if let Some(count) = answer[name].as_u64().filter(|count| *count > 0) {
            let are = if count == 1 { "is" } else { "are" };
            text.push_str(&format!("{} {are} {what}.\n", format_count(count, "limit")));
        }
    }
    text
}
