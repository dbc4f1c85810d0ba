//! `sluicegate replay`: what the limits of a config would have done to the requests of access
//! logs. Called by the command line.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::check::Format;
use super::{BAD_CONFIG, ConfigFile, RUNTIME, bad_config};
use crate::config;
use crate::replay::{self, Options};

const HELP: &str = "\
Logs: the common and combined formats of nginx and Apache (also with the virtual host in front), and
Sluicegate's own JSON lines; plain or gzip. Several logs are merged by time. What a log does not hold
(most header fields, often the host) counts as absent, and the answer says so.

Tightest numbers, had nothing ever been refused:
  token_bucket, gcra, leaky_bucket   the smallest burst at the configured rate
  fixed_window                       the smallest count per window
  sliding_log, sliding_window        a count that suffices (the most in two adjacent windows)
Other algorithms have none. Requests count at the time logged, for nginx that of their end, and those
of one second as simultaneous where a log has whole seconds: then fewer would be refused live.

Exit codes: 0 ok, 1 a log cannot be read or has no good line, 2 bad config or usage.";

#[derive(Args)]
#[command(after_help = HELP)]
pub struct Replay {
    #[command(flatten)]
    config: ConfigFile,
    /// Access logs; - is standard input
    #[arg(required = true, value_name = "ACCESS_LOG")]
    logs: Vec<PathBuf>,
    /// Draw admitted and refused requests over time into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Keys to name for each limit, those with most refusals
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1000))]
    top: u16,
    /// Host of the requests whose log line names none
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// How to answer
    #[arg(long, default_value = "text")]
    format: Format,
}

pub fn replay(args: &Replay) -> ExitCode {
    let config = match config::load(&args.config.config) {
        Ok(config) => config,
        Err(report) => return bad_config(&report),
    };
    let host = match args.host.as_deref().map(|host| replay::host(host.as_bytes())) {
        Some(None) => {
            eprintln!("error: --host: not a host name");
            return ExitCode::from(BAD_CONFIG);
        }
        other => other.flatten(),
    };
    let options = Options { top: usize::from(args.top), host, progress: std::io::stderr().is_terminal() };
    let outcome = match replay::run(&config, &args.logs, &options) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(RUNTIME);
        }
    };
    if let Some(path) = &args.plot
        && let Err(error) = std::fs::write(path, outcome.svg())
    {
        eprintln!("error: cannot write {}: {error}", path.display());
        return ExitCode::from(RUNTIME);
    }
    let answer = match args.format {
        Format::Text => outcome.text(),
        Format::Json => format!("{}\n", outcome.json()),
    };
    // Whoever reads may have seen enough and gone.
    let _ = std::io::stdout().write_all(answer.as_bytes());
    ExitCode::SUCCESS
}
