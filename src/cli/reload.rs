//! `sluicegate reload`: makes a running gateway reload its config and reports the result, which a signal cannot.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cli::admin_client::{AdminReply, AdminRequest, resolve_admin_contact, send_request};
use crate::cli::report::{report_bad_config, report_error, report_failure, report_warning};
use crate::cli::{BAD_CONFIG, RUNTIME};
use crate::config;
use crate::config::AdminContact;
use crate::net::ListenAddr;

/// Time limit. Ten thousand routes take seconds to load, an unavailable store one second. The gateway itself closes
/// the connection after half a minute.
const TIMEOUT: Duration = Duration::from_secs(25);
const MAX_ANSWER: usize = 16 * 1024 * 1024;
const UNAUTHORIZED: u16 = 401;
/// After several wrong tokens. The gateway still accepts the right one.
const TOO_MANY_ATTEMPTS: u16 = 429;

/// How long a gateway that watches its file may take to reload by itself.
const OWN_RELOAD: Duration = Duration::from_secs(5);
/// First pause before the command tries again. Each further pause is twice as long, because each try is a wrong token.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

pub fn request_reload(file: &Path, dry_run: bool) -> ExitCode {
    let AdminContact { listen: addr, mut token } = match resolve_admin_contact(file) {
        Ok(contact) => contact,
        Err(error) => {
            report_error(error);
            return ExitCode::from(BAD_CONFIG);
        }
    };
    let mut reply = send_order(&addr, token.as_deref(), dry_run);
    let until = Instant::now() + OWN_RELOAD;
    let mut pause = FIRST_PAUSE;
    // If the edit changed the token, the gateway must first notice it by itself.
    while reply.as_ref().is_ok_and(|reply| matches!(reply.status, UNAUTHORIZED | TOO_MANY_ATTEMPTS))
        && Instant::now() < until
    {
        std::thread::sleep(pause);
        pause *= 2;
        token = config::find_admin_contact(file).and_then(|contact| contact.token);
        reply = send_order(&addr, token.as_deref(), dry_run);
    }
    let reply = match reply {
        // A file that does not load may hide its token as well.
        Ok(reply)
            if reply.status == UNAUTHORIZED
                && let Err(report) = config::load_config(file) =>
        {
            report_bad_config(&report);
            report_failure("the config was not loaded");
            return ExitCode::from(RUNTIME);
        }
        Ok(reply) => reply,
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            report_error(format_args!("{addr} did not respond within {} s; its log has the result", TIMEOUT.as_secs()));
            return ExitCode::from(RUNTIME);
        }
        Err(error) => {
            report_error(format_args!("no gateway responds at {addr}: {error}; pass its config with -c FILE"));
            return ExitCode::from(RUNTIME);
        }
    };
    let answer: Value = serde_json::from_str(&reply.body).unwrap_or_default();
    let list = |key: &str| answer[key].as_array().cloned().unwrap_or_default();
    list("warnings").iter().for_each(|warning| report_warning(format_diagnostic(warning)));
    if reply.status == 200 {
        println!("{}", print_outcome(&answer, dry_run));
        let changes = list("changes");
        changes.iter().for_each(|change| println!("  {}", change["text"].as_str().unwrap_or_default()));
        if let Some(more) = answer["changes_total"].as_u64().and_then(|total| total.checked_sub(changes.len() as u64))
            && more > 0
        {
            println!("  and {more} more");
        }
        for key in list("restart_needed_for") {
            report_warning(format_args!("the change of {} needs a restart", key.as_str().unwrap_or_default()));
        }
    }
    let diagnostics = list("diagnostics");
    diagnostics.iter().for_each(|diagnostic| report_error(format_diagnostic(diagnostic)));
    if reply.status == 200 {
        return if diagnostics.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(RUNTIME) };
    }
    if diagnostics.is_empty() {
        report_error(format_args!(
            "{addr} answered {}: {}",
            reply.status,
            answer["detail"].as_str().unwrap_or(&reply.body)
        ));
    } else {
        report_failure(format_args!("the config was not loaded: generation {} stays active", answer["generation"]));
    }
    ExitCode::from(RUNTIME)
}

fn send_order(addr: &ListenAddr, token: Option<&str>, dry_run: bool) -> io::Result<AdminReply> {
    let path = if dry_run { "/-/reload?dry_run=1" } else { "/-/reload" };
    let request = AdminRequest {
        method: "POST",
        path,
        host: "localhost",
        token,
        if_match: None,
        timeout: TIMEOUT,
        most: MAX_ANSWER,
        status_only: false,
    };
    send_request(addr, &request)
}

fn print_outcome(answer: &Value, dry_run: bool) -> String {
    let generation = &answer["generation"];
    let summary = answer["summary"].as_str().unwrap_or_default();
    match (answer["changed"] == true, dry_run) {
        (false, _) if answer["pinned"].is_u64() => format!(
            "unchanged: a rollback keeps generation {} active in place of the files, until you save a change",
            answer["pinned"]
        ),
        (false, _) => format!("unchanged: generation {generation} is active"),
        (true, true) => format!("would change: {summary}"),
        (true, false) => format!("reloaded: generation {generation} is active: {summary}"),
    }
}

/// Formats an error as `FILE:LINE:COLUMN: message; remedy`.
fn format_diagnostic(diagnostic: &Value) -> String {
    let text = |key: &str| diagnostic[key].as_str().unwrap_or_default();
    let place = match (diagnostic["line"].as_u64(), diagnostic["column"].as_u64()) {
        (Some(line), Some(column)) => format!("{}:{line}:{column}: ", text("file")),
        _ if text("file").is_empty() => String::new(),
        _ => format!("{}: ", text("file")),
    };
    let help = if text("help").is_empty() { String::new() } else { format!("; {}", text("help")) };
    format!("{place}{}{help}", text("message"))
}
