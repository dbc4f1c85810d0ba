//! `sluicegate top`: shows which keys the limits of a running gateway refuse most. On a terminal the list refreshes and
//! keys can be reset; otherwise it is printed once.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde_json::Value;

use crate::cli::gateway::{GatewayContact, GatewayOptions, add_parameter};
use crate::cli::live::screen::{TopAction, TopList, TopScreen, name_shown_key};
use crate::cli::live::terminal::{FullScreen, SavedTerminal, exit_on_signal, terminal_size};
use crate::cli::report::report_error;
use crate::cli::{BAD_CONFIG, RUNTIME};

#[derive(Args)]
pub struct TopOptions {
    #[command(flatten)]
    gateway: GatewayOptions,
    /// Keys of this limit only
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Which decisions to count
    #[arg(long, default_value = "refused", value_parser = PossibleValuesParser::new(["refused", "would_refuse", "would_admit", "exceeded", "admitted"]))]
    by: String,
    /// Recent time to count in
    #[arg(long, default_value = "1m", value_parser = PossibleValuesParser::new(["10s", "1m", "10m"]))]
    window: String,
    /// Number of keys, at most 100
    #[arg(short = 'n', default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=100))]
    count: u8,
}

const REFRESH: Duration = Duration::from_secs(1);

pub fn run_top(options: &TopOptions) -> ExitCode {
    let gateway = match options.gateway.find_gateway() {
        Ok(gateway) => gateway,
        Err(what) => {
            report_error(what);
            return ExitCode::from(BAD_CONFIG);
        }
    };
    let target = build_target(options);
    // Without access, or without a gateway, there is nothing to show.
    let first = match fetch_list(&gateway, &target) {
        Ok(list) => list,
        Err(what) => return report_failure(&what),
    };
    if io::stdout().is_terminal() && io::stdin().is_terminal() {
        return match show_screen(&gateway, &target, first) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => report_failure(&format!("terminal: {error}")),
        };
    }
    let text: String = first.lines().map(|line| line + "\n").collect();
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => report_failure(&format!("cannot write: {error}")),
        _ => ExitCode::SUCCESS,
    }
}

fn report_failure(what: &str) -> ExitCode {
    report_error(what);
    ExitCode::from(RUNTIME)
}

fn build_target(options: &TopOptions) -> String {
    let mut query = String::new();
    options.limit.iter().for_each(|limit| add_parameter(&mut query, "limit", limit));
    add_parameter(&mut query, "by", &options.by);
    add_parameter(&mut query, "window", &options.window);
    add_parameter(&mut query, "n", &options.count.to_string());
    format!("/-/top{query}")
}

fn fetch_list(gateway: &GatewayContact, target: &str) -> Result<TopList, String> {
    let reply = gateway.send("GET", target).map_err(|error| gateway.describe_failure(&error))?;
    match reply.status {
        200 => Ok(TopList::new(&serde_json::from_str::<Value>(&reply.body).unwrap_or_default())),
        status => Err(gateway.describe_refusal(status, &reply.body, "keys")),
    }
}

/// Shows the list and refreshes it until the operator quits.
fn show_screen(gateway: &GatewayContact, target: &str, first: TopList) -> io::Result<()> {
    let restorer = Arc::<OnceLock<_>>::default();
    let saved_terminal = restorer.clone();
    exit_on_signal(move || {
        saved_terminal.get().into_iter().for_each(|terminal: &Arc<SavedTerminal>| terminal.restore());
    });
    let terminal = FullScreen::enter(&restorer)?;
    let mut screen = TopScreen::default();
    screen.show_list(first);
    let mut fetch_time = Instant::now();
    loop {
        terminal.draw(&screen.frame(terminal_size()))?;
        let action = terminal.read_key(REFRESH.saturating_sub(fetch_time.elapsed()))?.map(|key| screen.press(key));
        match action {
            Some(Some(TopAction::Quit)) => return Ok(()),
            Some(Some(TopAction::Reset { limit, key })) => {
                screen.show_message(&reset_key(gateway, &limit, &key));
            }
            Some(None) => {}
            None => {
                match fetch_list(gateway, target) {
                    Ok(list) => screen.show_list(list),
                    Err(what) => screen.show_failure(&what),
                }
                fetch_time = Instant::now();
            }
        }
    }
}

/// Resets the usage of a key. Returns the result, for the operator.
fn reset_key(gateway: &GatewayContact, limit: &str, key: &str) -> String {
    let parts = match name_shown_key(key) {
        Ok(parts) => parts,
        Err(why) => return format!("not reset: {why}"),
    };
    let parts: Vec<String> =
        parts.iter().map(|(name, value)| format!("{name}={}", percent_encode(value, NON_ALPHANUMERIC))).collect();
    // Names of limits need no encoding.
    let target = format!("/-/limits/{limit}/state?{}", parts.join("&"));
    match gateway.send("DELETE", &target) {
        Ok(reply) if reply.status == 200 => format!("reset: {key}"),
        Ok(reply) => format!("not reset: {}", gateway.describe_refusal(reply.status, &reply.body, "limits")),
        Err(error) => format!("not reset: {}", gateway.describe_failure(&error)),
    }
}
