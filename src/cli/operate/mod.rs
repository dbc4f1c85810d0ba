//! Commands that show and change what a running gateway does: `key` (with `key_list`), `customer` and `usage` about
//! limits, `rollback` and `status` about the gateway itself. They use its admin API, so that the gateway checks and
//! records every change.
//!
//! `call` sends one request, and `table` prints lists. To add a command, add a file with its options and a function
//! that returns an exit code, and a variant of `Command` in `cli`.

pub mod customer;
pub mod key;
mod key_list;
pub mod rollback;
pub mod status;
mod table;
pub mod usage;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::admin_client::AdminReply;
use crate::cli::gateway::{GatewayContact, GatewayOptions};
use crate::cli::report::report_error;
use crate::cli::visible::{make_json_visible, make_visible};
use crate::cli::{BAD_CONFIG, RUNTIME};

/// Time limit of a request. The gateway searches up to 20 s for the key of a hash.
const TIMEOUT: Duration = Duration::from_secs(25);

/// Why a command failed.
pub struct CommandFault {
    code: u8,
    what: String,
}

/// A request of a command.
pub struct Call<'c> {
    pub method: &'c str,
    pub path: &'c str,
    /// Role that it needs.
    pub role: &'c str,
    /// Value of the `if-match` header.
    pub tag: Option<&'c str>,
    pub body: Option<Value>,
}

impl CommandFault {
    /// An error in the arguments.
    pub fn usage(what: impl Into<String>) -> CommandFault {
        CommandFault { code: BAD_CONFIG, what: what.into() }
    }

    pub fn runtime(what: impl Into<String>) -> CommandFault {
        CommandFault { code: RUNTIME, what: what.into() }
    }
}

impl<'c> Call<'c> {
    pub fn get(path: &'c str, role: &'c str) -> Call<'c> {
        Call { method: "GET", path, role, tag: None, body: None }
    }
}

/// Finds the gateway, runs the command, and prints its text or why it failed. With `is_json`, a program that reads the
/// output gets the reason as JSON, too.
pub fn run_command(
    options: &GatewayOptions,
    is_json: bool,
    command: impl FnOnce(&GatewayContact) -> Result<String, CommandFault>,
) -> ExitCode {
    match options.find_gateway().map_err(CommandFault::usage).and_then(|gateway| command(&gateway)) {
        Ok(text) => {
            // The reader may have closed the pipe.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(CommandFault { code, what }) => {
            if is_json {
                let _ = std::io::stdout().write_all(format_json(&json!({ "error": what })).as_bytes());
            }
            report_error(&what);
            ExitCode::from(code)
        }
    }
}

/// Sends a request. A response other than 200 is a fault: one about the arguments, or one at run time.
pub fn send_call(gateway: &GatewayContact, call: Call<'_>) -> Result<AdminReply, CommandFault> {
    let body = call.body.map(|body| body.to_string()).unwrap_or_default();
    let reply = gateway
        .send_within(TIMEOUT, (call.method, call.path), call.tag, &body)
        .map_err(|error| CommandFault::runtime(gateway.describe_failure(&error)))?;
    match reply.status {
        200 => Ok(reply),
        // The gateway is right, and the command line is not. Without a detail, it is not an admin API of this version.
        400 | 404 | 422 if detail_of(&reply.body).is_some() => {
            let detail = name_argument(&detail_of(&reply.body).unwrap_or_default());
            Err(CommandFault::usage(make_visible(&detail).into_owned()))
        }
        status => Err(CommandFault::runtime(gateway.describe_refusal(status, &reply.body, call.role))),
    }
}

/// Sends a request and parses its response.
pub fn fetch_json(gateway: &GatewayContact, call: Call<'_>) -> Result<Value, CommandFault> {
    parse_json(gateway, &send_call(gateway, call)?)
}

pub fn parse_json(gateway: &GatewayContact, reply: &AdminReply) -> Result<Value, CommandFault> {
    let broken = |error| CommandFault::runtime(format!("{} gave an answer that is not JSON: {error}", gateway.listen));
    serde_json::from_str(&reply.body).map_err(broken)
}

fn detail_of(body: &str) -> Option<String> {
    serde_json::from_str::<Value>(body).ok()?["detail"].as_str().map(str::to_owned)
}

/// Names the argument where the gateway names the member of the body that the argument became.
fn name_argument(detail: &str) -> String {
    match detail.strip_prefix("#/").and_then(|detail| detail.split_once(": ")) {
        Some(("cost", what)) => format!("--units: {what}"),
        Some((member, what)) if !member.contains('/') => format!("--{}: {what}", member.replace('_', "-")),
        _ => detail.to_owned(),
    }
}

/// Formats an answer for programs.
pub fn format_json(answer: &Value) -> String {
    let text = serde_json::to_string_pretty(answer).unwrap_or_default();
    // Newlines are outside of strings.
    text.lines().map(|line| format!("{}\n", make_json_visible(line))).collect()
}

/// Returns a text of an answer, safe to print.
pub fn text_of(value: &Value) -> String {
    make_visible(value.as_str().unwrap_or_default()).into_owned()
}
