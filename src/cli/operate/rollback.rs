//! `sluicegate rollback`: activates an earlier config of a running gateway, until the files are changed.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::check::ReportFormat;
use crate::cli::gateway::{GatewayContact, GatewayOptions};
use crate::cli::operate::table::Table;
use crate::cli::operate::{Call, CommandFault, fetch_json, format_json, parse_json, run_command, send_call, text_of};
use crate::cli::report::ask;

pub const HELP: &str = "\
Examples:
  sluicegate rollback --list
  sluicegate rollback          (to the config before the active one)
  sluicegate rollback 41
  sluicegate rollback --dry-run

On a terminal, the command shows what would change and asks first. The files are not changed unless the gateway may edit them (`edit` in [admin]): otherwise the rollback holds until you
save a change.";

#[derive(Args)]
pub struct RollbackOptions {
    /// Generation of the config to activate again [default: the one before]
    #[arg(value_name = "GENERATION")]
    generation: Option<u64>,
    /// List the configs that the gateway remembers, and change nothing
    #[arg(long, conflicts_with = "generation")]
    list: bool,
    /// Show what would change, and change nothing
    #[arg(long, conflicts_with = "list")]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Format of the answer
    #[arg(long, default_value = "text")]
    format: ReportFormat,
    #[command(flatten)]
    gateway: GatewayOptions,
}

pub fn run_rollback(options: &RollbackOptions) -> ExitCode {
    run_command(&options.gateway, options.format == ReportFormat::Json, |gateway| {
        let reply = send_call(gateway, Call::get("/-/config/history", "read"))?;
        let history = parse_json(gateway, &reply)?;
        let is_json = options.format == ReportFormat::Json;
        match options.list {
            true if is_json => Ok(format_json(&history)),
            true => Ok(list_generations(&history)),
            false => roll_back(options, gateway, (&history, reply.etag.as_deref())),
        }
    })
}

fn roll_back(
    options: &RollbackOptions,
    gateway: &GatewayContact,
    (history, tag): (&Value, Option<&str>),
) -> Result<String, CommandFault> {
    let generation = match options.generation {
        Some(generation) => generation,
        None => find_previous(history)
            .ok_or_else(|| CommandFault::runtime("the gateway remembers no other config; `--list` shows them"))?,
    };
    let send = |path: &str| {
        let body = Some(json!({ "generation": generation }));
        fetch_json(gateway, Call { method: "POST", tag, body, ..Call::get(path, "edit") })
    };
    let asks = !options.yes && !options.dry_run && io::stdin().is_terminal();
    if options.dry_run || asks {
        let preview = send("/-/rollback?dry_run=1")?;
        let is_last = options.dry_run || preview["changed"] == false;
        if is_last && options.format == ReportFormat::Json {
            return Ok(format_json(&preview));
        }
        let text = describe_changes(&preview, &format!("a rollback to generation {generation} would change"));
        let text = text.unwrap_or_else(|| describe_unchanged(generation));
        if is_last {
            return Ok(text);
        }
        ask(format_args!("{text}roll back? [y/N] "));
        if !is_confirmed() {
            return Err(CommandFault::runtime("not rolled back, because you did not answer with y"));
        }
    }
    let answer = send("/-/rollback")?;
    if options.format == ReportFormat::Json {
        return Ok(format_json(&answer));
    }
    let Some(mut text) = describe_changes(&answer, &format!("rolled back to the config of generation {generation}"))
    else {
        return Ok(describe_unchanged(generation));
    };
    if answer["pinned"].is_u64() {
        text.push_str("the files still have the other config: the rollback holds until you save a change\n");
    }
    Ok(text)
}

/// Reads the operator's answer to a question.
fn is_confirmed() -> bool {
    let mut line = String::new();
    // Without an answer, nothing is changed.
    let _ = io::stdin().read_line(&mut line);
    ["y", "yes"].contains(&line.trim().to_ascii_lowercase().as_str())
}

fn describe_unchanged(generation: u64) -> String {
    format!("unchanged: the config of generation {generation} is already active\n")
}

/// Describes what a rollback changes, after a title; `None` if nothing.
fn describe_changes(answer: &Value, title: &str) -> Option<String> {
    if answer["changed"] == false {
        return None;
    }
    if answer["changes_total"] == 0 {
        return Some(format!("{title}: no difference in effect\n"));
    }
    let mut text = format!("{title}: {}\n", text_of(&answer["summary"]));
    for change in answer["changes"].as_array().into_iter().flatten() {
        text.push_str(&format!("  {}\n", text_of(&change["text"])));
    }
    Some(text)
}

/// Returns the newest generation with other contents than the active one.
fn find_previous(history: &Value) -> Option<u64> {
    let entries = history["generations"].as_array()?;
    let current = entries.last()?;
    let is_other = |entry: &&Value| entry["restorable"] == true && entry["hash"] != current["hash"];
    entries.iter().rev().find(is_other)?["generation"].as_u64()
}

fn list_generations(history: &Value) -> String {
    let entries: Vec<&Value> = history["generations"].as_array().into_iter().flatten().collect();
    let mut table = Table::new(&["GENERATION", "LOADED", "BY", "TOKEN", "CHANGES", ""]);
    for (place, entry) in entries.iter().enumerate() {
        let mark = match (place + 1 == entries.len(), entry["restorable"] == true) {
            (true, _) => "active",
            (false, true) => "",
            (false, false) => "not kept",
        };
        table.add_row(vec![
            entry["generation"].to_string(),
            text_of(&entry["loaded_at"]),
            text_of(&entry["trigger"]),
            text_of(&entry["token"]),
            text_of(&entry["summary"]),
            mark.to_owned(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_previous_config_is_the_newest_with_other_contents() {
        let entry = |generation: u64, hash: &str, restorable: bool| json!({ "generation": generation, "hash": hash, "restorable": restorable });
        let previous = |entries: &[Value]| find_previous(&json!({ "generations": entries }));
        assert_eq!(previous(&[entry(1, "a", true), entry(2, "b", true)]), Some(1));
        assert_eq!(previous(&[entry(1, "a", true), entry(2, "b", false), entry(3, "c", true)]), Some(1));
        assert_eq!(previous(&[entry(1, "a", true), entry(2, "b", true), entry(3, "a", true)]), Some(2));
        assert_eq!(previous(&[entry(1, "a", true)]), None);
        assert_eq!(previous(&[]), None);
    }
}
