//! The command line: what can be asked for, the log, and the exit code. Called by `main`; each
//! subcommand with more to it than a call is a file of its own.

mod ask;
mod check;
mod demo;
mod healthcheck;
mod manual;
mod reload;
mod replay;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config;
use crate::control::{self, ConfigSource};
use crate::sampled::libraries::SampleLibraries;
use crate::sampled::stderr::BoundedStderr;

/// Bad usage has the same code: clap exits with it.
const BAD_CONFIG: u8 = 2;
const RUNTIME: u8 = 1;

const VERSION: &str = match option_env!("SLUICEGATE_BUILD") {
    Some(_) => concat!(env!("CARGO_PKG_VERSION"), " (profile-guided)"),
    None => env!("CARGO_PKG_VERSION"),
};

#[derive(Parser)]
#[command(name = "sluicegate", version = VERSION, about = "A reverse proxy with exact, distributed throttling built in.")]
#[command(after_help = manual::help(), arg_required_else_help = true, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
#[command(next_display_order = 100)]
struct LogOptions {
    /// What to log: error, warn, info, debug, trace, or a filter such as info,sluicegate::control=debug
    #[arg(long, global = true, env = "SLUICEGATE_LOG", default_value = "info", value_name = "LEVEL")]
    log: String,
    /// How to log, on standard error
    #[arg(long, global = true, env = "SLUICEGATE_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gateway
    Run {
        #[command(flatten)]
        config: NamedConfig,
    },
    /// Check a config and say everything that is wrong with it
    Check {
        #[command(flatten)]
        config: NamedConfig,
        /// How to answer; json goes to standard output
        #[arg(long, default_value = "text")]
        format: check::ReportFormat,
    },
    /// Put the gateway in front of one server, without a config file
    Proxy(Proxy),
    /// Try it: gateway, echo server and sample limits in one process
    Demo {
        /// Keep the config in DIR, which is made if missing [default: a temporary directory, removed at the end]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Say what the limits of a config would have done to the requests of an access log
    Replay(replay::ReplayOptions),
    /// Have the running gateway load its config anew, and say what came of it: exit code 1 if it was not loaded
    Reload {
        #[command(flatten)]
        config: ConfigFile,
        /// Only say what would change
        #[arg(long)]
        dry_run: bool,
    },
    /// Ask a running gateway whether it is ready: exit code 0 if so, else 1
    Healthcheck {
        #[command(flatten)]
        config: ConfigFile,
        /// Ask this URL instead of the admin listener that the config names
        #[arg(long)]
        url: Option<String>,
    },
    /// Write the completions of a shell: sluicegate completions bash > /etc/bash_completion.d/sluicegate
    Completions { shell: clap_complete::Shell },
    /// Write the manual page, in roff: sluicegate man > sluicegate.1
    Man,
}

#[derive(Args)]
struct ConfigFile {
    /// The config file
    #[arg(short, long, env = "SLUICEGATE_CONFIG", default_value = "sluicegate.toml", value_name = "FILE")]
    config: PathBuf,
}

/// A config file with or without `-c`.
#[derive(Args)]
struct NamedConfig {
    #[command(flatten)]
    config: ConfigFile,
    /// The config file, as with -c
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

impl NamedConfig {
    fn path(self) -> PathBuf {
        self.file.unwrap_or(self.config.config)
    }
}

#[derive(Args)]
struct Proxy {
    /// The server to send requests to: a URL, or HOST:PORT. A path in it is put before the path of each request
    #[arg(long, value_name = "URL")]
    to: String,
    /// Where to accept requests
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR")]
    listen: String,
    /// A limit, such as '10/s burst 100 by ip'; several may be given
    #[arg(long, value_name = "LIMIT")]
    limit: Vec<String>,
    /// Serve HTTPS with this certificate, a PEM file with the chain after it; needs --key
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<String>,
    /// The private key of --cert, a PEM file
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<String>,
    /// Log each request as a line of JSON on standard output
    #[arg(long)]
    access_log: bool,
    /// Where to serve metrics and probes
    #[arg(long, default_value = "127.0.0.1:9900", value_name = "ADDR")]
    admin: String,
}

/// Parses the arguments of the process and obeys them.
pub fn main() -> ExitCode {
    run(std::env::args_os())
}

fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let cli = match parse(args) {
        Ok(cli) => cli,
        // Help and version come this way too, with code 0.
        Err(message) => {
            let _ = message.print();
            return ExitCode::from(u8::try_from(message.exit_code()).unwrap_or(BAD_CONFIG));
        }
    };
    if let Err(error) = start_log(&cli.log) {
        eprintln!("error: --log {}: {error}", cli.log.log);
        return ExitCode::from(BAD_CONFIG);
    }
    match cli.command {
        Command::Run { config } => gateway(ConfigSource::File(config.path())),
        Command::Check { config, format } => check::check(&config.path(), format),
        Command::Proxy(proxy) => match proxy_config(&proxy) {
            Ok(text) => gateway(ConfigSource::Text { name: "proxy".to_owned(), text }),
            Err(report) => bad_config(&report),
        },
        Command::Demo { dir } => demo::demo(dir),
        Command::Replay(replay) => replay::replay(&replay),
        Command::Reload { config, dry_run } => reload::reload(&config.config, dry_run),
        Command::Completions { shell } => write(Ok(manual::completions(Cli::command(), shell))),
        Command::Man => write(manual::man(Cli::command())),
        Command::Healthcheck { config, url } => healthcheck::healthcheck(&config.config, url.as_deref()),
    }
}

fn parse(args: impl Iterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    let matches = command.try_get_matches_from_mut(args)?;
    // The environment may name a file beside either.
    let given =
        |of: &ArgMatches, id| of.try_contains_id(id).is_ok() && of.value_source(id) == Some(ValueSource::CommandLine);
    if let Some((_, of)) = matches.subcommand()
        && given(of, "file")
        && given(of, "config")
    {
        return Err(command.error(ErrorKind::ArgumentConflict, "a config file stands there twice: FILE and -c FILE"));
    }
    Cli::from_arg_matches(&matches)
}

fn write(text: io::Result<Vec<u8>>) -> ExitCode {
    match text.and_then(|text| io::stdout().write_all(&text)) {
        // Whoever reads may have seen enough and gone.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("error: {error}");
            ExitCode::from(RUNTIME)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Runs the gateway to its end.
fn gateway(source: ConfigSource) -> ExitCode {
    match control::run(source) {
        Ok(()) => ExitCode::SUCCESS,
        Err(control::Error::Config(report)) => bad_config(&report),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(RUNTIME)
        }
    }
}

fn bad_config(report: &config::Report) -> ExitCode {
    eprintln!("{}", report.render(std::io::stderr().is_terminal()));
    ExitCode::from(BAD_CONFIG)
}

fn proxy_config(proxy: &Proxy) -> Result<String, config::Report> {
    let mut text = config::proxy_text(&config::ProxyArguments {
        to: &proxy.to,
        listen: &proxy.listen,
        limits: &proxy.limit,
        certificate: proxy.cert.as_deref().zip(proxy.key.as_deref()),
        access_log: proxy.access_log,
    })?;
    // A JSON string is a TOML string.
    let admin = serde_json::Value::from(proxy.admin.as_str());
    text.push_str(&format!("\n[admin]\nlisten = {admin}\n"));
    Ok(text)
}

fn start_log(log: &LogOptions) -> Result<(), String> {
    // Clients could cause the warnings of the HTTP/2 library at will, and connections that it ends are counted.
    let filter = match log.log.as_str() {
        "" | "off" => log.log.clone(),
        own => format!("h2=error,{own}"),
    };
    let filter = EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| BoundedStderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    let started = match log.log_format {
        LogFormat::Text => builder.finish().with(SampleLibraries).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().with(SampleLibraries).try_init(),
    };
    started.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
