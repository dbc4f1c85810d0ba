//! `sluicegate reload`: has a running gateway load its config anew, and says what came of it, which a
//! signal could not. Called by the command line.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::RUNTIME;
use super::ask::{Question, Reply, admin_contact, ask};
use crate::config::{self, AdminContact};
use crate::net::ListenAddr;

/// Ten thousand routes take seconds; a store that is away takes one. The gateway itself ends the connection after
/// half a minute.
const TIMEOUT: Duration = Duration::from_secs(25);
const MAX_ANSWER: usize = 16 * 1024 * 1024;
const UNAUTHORIZED: u16 = 401;

/// How long a gateway may take that sees an edit by itself, and how often it is asked whether it has.
const OWN_RELOAD: Duration = Duration::from_secs(2);
const GLANCE: Duration = Duration::from_millis(100);

pub fn reload(file: &Path, dry_run: bool) -> ExitCode {
    let AdminContact { listen: addr, mut token } = admin_contact(file);
    let mut reply = order(&addr, token.as_deref(), dry_run);
    let until = Instant::now() + OWN_RELOAD;
    // Where the edit is one of the token, the gateway has to see it by itself first, which it does soon.
    while reply.as_ref().is_ok_and(|reply| reply.status == UNAUTHORIZED) && Instant::now() < until {
        std::thread::sleep(GLANCE);
        token = config::admin_contact(file).and_then(|contact| contact.token);
        reply = order(&addr, token.as_deref(), dry_run);
    }
    let reply = match reply {
        // A file that does not load may not tell its token either.
        Ok(reply)
            if reply.status == UNAUTHORIZED
                && let Err(report) = config::load(file) =>
        {
            eprintln!("{report}\nthe config was not loaded");
            return ExitCode::from(RUNTIME);
        }
        Ok(reply) => reply,
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            eprintln!("error: {addr} has not answered in {} s; what came of it is in its log", TIMEOUT.as_secs());
            return ExitCode::from(RUNTIME);
        }
        Err(error) => {
            eprintln!("error: no gateway answers at {addr}: {error}; -c FILE names the config it runs with");
            return ExitCode::from(RUNTIME);
        }
    };
    let answer: Value = serde_json::from_str(&reply.body).unwrap_or_default();
    let list = |key: &str| answer[key].as_array().cloned().unwrap_or_default();
    list("warnings").iter().for_each(|warning| eprintln!("warning: {}", line(warning)));
    if reply.status == 200 {
        println!("{}", outcome(&answer, dry_run));
        for key in list("restart_needed_for") {
            eprintln!("warning: the change of {} needs a restart", key.as_str().unwrap_or_default());
        }
        return ExitCode::SUCCESS;
    }
    let diagnostics = list("diagnostics");
    diagnostics.iter().for_each(|diagnostic| eprintln!("error: {}", line(diagnostic)));
    if diagnostics.is_empty() {
        eprintln!("error: {addr} answered {}: {}", reply.status, answer["detail"].as_str().unwrap_or(&reply.body));
    } else {
        eprintln!("the config was not loaded: generation {} stays in force", answer["generation"]);
    }
    ExitCode::from(RUNTIME)
}

fn order(addr: &ListenAddr, token: Option<&str>, dry_run: bool) -> io::Result<Reply> {
    let path = if dry_run { "/-/reload?dry_run=1" } else { "/-/reload" };
    let question = Question {
        method: "POST",
        path,
        host: "localhost",
        token,
        timeout: TIMEOUT,
        most: MAX_ANSWER,
        status_only: false,
    };
    ask(addr, &question)
}

fn outcome(answer: &Value, dry_run: bool) -> String {
    let generation = &answer["generation"];
    let summary = answer["summary"].as_str().unwrap_or_default();
    match (answer["changed"] == true, dry_run) {
        (false, _) => format!("unchanged: generation {generation} is in force"),
        (true, true) => format!("would change: {summary}"),
        (true, false) => format!("reloaded: generation {generation} is in force: {summary}"),
    }
}

/// `FILE:LINE:COLUMN: message; remedy`.
fn line(diagnostic: &Value) -> String {
    let text = |key: &str| diagnostic[key].as_str().unwrap_or_default();
    let place = match (diagnostic["line"].as_u64(), diagnostic["column"].as_u64()) {
        (Some(line), Some(column)) => format!("{}:{line}:{column}: ", text("file")),
        _ if text("file").is_empty() => String::new(),
        _ => format!("{}: ", text("file")),
    };
    let help = if text("help").is_empty() { String::new() } else { format!("; {}", text("help")) };
    format!("{place}{}{help}", text("message"))
}
