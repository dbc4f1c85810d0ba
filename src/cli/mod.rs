//! Command line: subcommands, logging setup and exit codes. Called by `main`.
//!
//! `run` and `proxy` start the gateway from here, and each other subcommand is a file of its own. `admin_client` sends
//! requests to a running gateway, `gateway` finds one by its config or address, `report` writes the errors and notes of
//! all commands, and `manual` generates the man page and completions. The commands of `operate` show and change what a running gateway does, and those of `live` watch it.
//!
//! To add a subcommand, add a variant to `Command`, a file for it, and its entry in `docs/reference/command-line.md` or
//! `docs/reference/operator-commands.md`.

mod admin_client;
mod check;
mod contract;
mod demo;
mod diff;
mod effective;
mod explain;
mod gateway;
mod healthcheck;
mod import;
mod live;
mod manual;
mod operate;
mod reference;
mod reload;
mod replay;
mod report;
mod test_cases;
mod trust;
mod ui;
mod visible;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::report::{report_bad_config, report_error};
use crate::control::ConfigSource;
use crate::telemetry::sampled::libraries::SampleLibraries;
use crate::telemetry::sampled::stderr::BoundedStderr;
use crate::{config, control, heap};

/// Exit code of an invalid config; clap uses the same for invalid usage.
const BAD_CONFIG: u8 = 2;
const RUNTIME: u8 = 1;

const VERSION: &str = match option_env!("SLUICEGATE_BUILD") {
    Some(_) => concat!(env!("CARGO_PKG_VERSION"), " (profile-guided)"),
    None => env!("CARGO_PKG_VERSION"),
};

#[derive(Parser)]
#[command(name = "sluicegate", version = VERSION, about = "A reverse proxy and rate limit service with exact limits.")]
#[command(after_help = manual::help_text(), arg_required_else_help = true, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
#[command(next_display_order = 100)]
struct LogOptions {
    /// Log level (error, warn, info, debug, trace), or a filter such as info,sluicegate::control=debug
    #[arg(long, global = true, env = "SLUICEGATE_LOG", default_value = "info", value_name = "LEVEL")]
    log: String,
    /// Format of the log on standard error
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
    /// Check a config and report every error
    Check {
        #[command(flatten)]
        config: NamedConfig,
        /// Format of the report; json is written to standard output
        #[arg(long, default_value = "text")]
        format: check::ReportFormat,
        /// Exit with 2 if there are warnings
        #[arg(long)]
        deny_warnings: bool,
        /// Also ask the limit store: whether it can be reached, accepts the login, decides, and never evicts keys
        #[arg(long)]
        store: bool,
    },
    /// Print what differs between two configs in effect, and what weakens protection
    Diff(diff::DiffOptions),
    /// Print the effective config: all files merged, without secrets
    #[command(after_help = effective::HELP)]
    Config(effective::EffectiveOptions),
    /// Print the most that each limit admits, in sentences: in any interval, after a restart, in an outage
    #[command(after_help = contract::HELP)]
    Contract(contract::ContractOptions),
    /// Run the gateway in front of one server, without a config file
    Proxy(Proxy),
    /// Try it: gateway, echo server and sample limits in one process
    Demo {
        /// Keep the config in DIR, which is created if missing [default: a temporary directory, removed at the end]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Replay an access log and report what the configured limits would have done
    Replay(replay::ReplayOptions),
    /// Explain what happens to one request, and why: exit code 3 if it is refused, 4 if no route matches
    #[command(after_help = explain::HELP)]
    Explain(explain::ExplainOptions),
    /// Run test cases against a config in virtual time: exit code 1 if one fails
    #[command(after_help = test_cases::HELP)]
    Test(test_cases::TestOptions),
    /// Translate the config of another proxy and print it: exit code 3 if parts could not be translated
    #[command(after_help = import::HELP)]
    Import(import::ImportOptions),
    /// Reload the running gateway's config and report the result: exit code 1 if it was rejected
    Reload {
        #[command(flatten)]
        config: ConfigFile,
        /// Report what would change, without applying it
        #[arg(long)]
        dry_run: bool,
    },
    /// Watch the requests of a running gateway as they end, with what the limits decided
    Tap(live::tap::TapOptions),
    /// Watch which keys a running gateway refuses most
    Top(live::top::TopOptions),
    /// Show, reset, refund, block or unblock one key of a limit at a running gateway, give it another budget, or list
    /// what was changed
    #[command(after_help = operate::key::HELP)]
    Key(operate::key::KeyOptions),
    /// Show what all limits know about one customer: what is used and left, refusals, overrides and bans
    #[command(after_help = operate::customer::HELP)]
    Customer(operate::customer::CustomerOptions),
    /// Report what each key of a limit used on each day, if the limit keeps its usage
    #[command(after_help = operate::usage::HELP)]
    Usage(operate::usage::UsageOptions),
    /// Activate an earlier config of a running gateway
    #[command(after_help = operate::rollback::HELP)]
    Rollback(operate::rollback::RollbackOptions),
    /// Show the state of a running gateway: config, store, servers, certificates
    Status(operate::status::StatusOptions),
    /// Report whether a running gateway is ready: exit code 0 if it is, else 1
    Healthcheck {
        #[command(flatten)]
        config: ConfigFile,
        /// Request this URL instead of the admin listener that the config names
        #[arg(long)]
        url: Option<String>,
    },
    /// Print a link to the dashboard of a running gateway, which logs in the browser that opens it
    Ui(ui::UiOptions),
    /// Print the CA of development certificates and how to trust it, or install it on Debian
    #[command(after_help = trust::HELP)]
    Trust(trust::TrustOptions),
    /// Describe an option of the config, such as limit.burst, or a section
    #[command(after_help = reference::HELP)]
    Help {
        /// Option, section or command; several words are joined
        #[arg(value_name = "KEY")]
        key: Vec<String>,
    },
    /// Print the JSON Schema of the config, for editors: sluicegate schema > sluicegate.schema.json
    Schema,
    /// Print shell completions: sluicegate completions bash > /etc/bash_completion.d/sluicegate
    Completions { shell: clap_complete::Shell },
    /// Print the man page in roff format: sluicegate man > sluicegate.1
    Man,
}

/// Environment variable with the config file.
const CONFIG_VARIABLE: &str = "SLUICEGATE_CONFIG";
const DEFAULT_CONFIG: &str = "sluicegate.toml";

#[derive(Args)]
struct ConfigFile {
    /// Config file
    #[arg(short, long, env = CONFIG_VARIABLE, default_value = DEFAULT_CONFIG, value_name = "FILE")]
    config: PathBuf,
}

/// A config file, with or without `-c`.
#[derive(Args)]
struct NamedConfig {
    #[command(flatten)]
    config: ConfigFile,
    /// Config file, like -c
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
    /// Server to forward requests to: a URL, or HOST:PORT. Its path is prepended to the path of each request
    #[arg(long, value_name = "URL")]
    to: String,
    /// Address to accept requests at
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR")]
    listen: String,
    /// Limit such as '10/s burst 100 by ip'; can be repeated
    #[arg(long, value_name = "LIMIT")]
    limit: Vec<String>,
    /// Serve HTTPS with this certificate: a PEM file with the chain; requires --key
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<String>,
    /// Private key of --cert, a PEM file
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<String>,
    /// Log each request as a JSON line on standard output
    #[arg(long)]
    access_log: bool,
    /// Address for metrics and probes
    #[arg(long, default_value = "127.0.0.1:9900", value_name = "ADDR")]
    admin: String,
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    run_command(std::env::args_os())
}

fn run_command(args: impl Iterator<Item = OsString>) -> ExitCode {
    let cli = match parse_arguments(args) {
        Ok(cli) => cli,
        // clap reports help and version in this way too, with exit code 0.
        Err(message) => {
            match message.use_stderr() && report::find_json_option() {
                true => report_error(message.to_string().trim_end()),
                false => drop(message.print()),
            }
            return ExitCode::from(u8::try_from(message.exit_code()).unwrap_or(BAD_CONFIG));
        }
    };
    let logs_json = cli.log.log_format == LogFormat::Json;
    report::set_json(logs_json);
    if let Err(error) = start_log(&cli.log) {
        report_error(format_args!("--log {}: {error}", cli.log.log));
        return ExitCode::from(BAD_CONFIG);
    }
    if logs_json {
        // A panic must be one line as well.
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    }
    match cli.command {
        Command::Run { config } => run_gateway(ConfigSource::File(config.path())),
        Command::Check { config, format, deny_warnings: denies_warnings, store: asks_store } => {
            check::check_config(&config.path(), check::CheckOptions { format, denies_warnings, asks_store })
        }
        Command::Diff(options) => diff::run_diff(&options),
        Command::Config(options) => effective::print_config(options),
        Command::Contract(options) => contract::print_contract(options),
        Command::Proxy(proxy) => match build_proxy_config(&proxy) {
            Ok(text) => run_gateway(ConfigSource::Text { name: "proxy".to_owned(), text }),
            Err(report) => report_bad_config(&report),
        },
        Command::Demo { dir } => demo::run_demo(dir),
        Command::Replay(replay) => replay::run_replay(&replay),
        Command::Explain(options) => explain::run_explain(&options),
        Command::Test(options) => test_cases::run_test(&options),
        Command::Import(options) => import::run_import(&options),
        Command::Ui(options) => ui::print_link(&options),
        Command::Trust(options) => trust::run_trust(&options),
        Command::Reload { config, dry_run } => reload::request_reload(&config.config, dry_run),
        Command::Help { key } => reference::print_help(Cli::command(), &key),
        Command::Schema => reference::print_schema(),
        Command::Tap(options) => live::tap::run_tap(&options),
        Command::Top(options) => live::top::run_top(&options),
        Command::Key(options) => operate::key::run_key(&options),
        Command::Customer(options) => operate::customer::run_customer(&options),
        Command::Usage(options) => operate::usage::run_usage(&options),
        Command::Rollback(options) => operate::rollback::run_rollback(&options),
        Command::Status(options) => operate::status::run_status(&options),
        Command::Completions { shell } => write_output(Ok(manual::render_completions(Cli::command(), shell))),
        Command::Man => write_output(manual::render_man(Cli::command())),
        Command::Healthcheck { config, url } => healthcheck::run_healthcheck(&config.config, url.as_deref()),
    }
}

fn parse_arguments(args: impl Iterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    let matches = command.try_get_matches_from_mut(args)?;
    // The environment variable may be set as well as either option.
    let is_given =
        |of: &ArgMatches, id| of.try_contains_id(id).is_ok() && of.value_source(id) == Some(ValueSource::CommandLine);
    if let Some((_, of)) = matches.subcommand()
        && is_given(of, "file")
        && is_given(of, "config")
    {
        return Err(command.error(ErrorKind::ArgumentConflict, "the config file is given twice: FILE and -c FILE"));
    }
    Cli::from_arg_matches(&matches)
}

fn write_output(text: io::Result<Vec<u8>>) -> ExitCode {
    match text.and_then(|text| io::stdout().write_all(&text)) {
        // The reader may have closed the pipe.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            report_error(&error);
            ExitCode::from(RUNTIME)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Runs the gateway until it stops.
fn run_gateway(source: ConfigSource) -> ExitCode {
    heap::disable_huge_pages();
    match control::run_gateway(source) {
        Ok(()) => ExitCode::SUCCESS,
        Err(control::Error::Config(report)) => report_bad_config(&report),
        Err(error) => {
            report_error(&error);
            ExitCode::from(RUNTIME)
        }
    }
}

fn build_proxy_config(proxy: &Proxy) -> Result<String, config::Report> {
    let mut text = config::proxy_text(&config::ProxyArguments {
        to: &proxy.to,
        listen: &proxy.listen,
        limits: &proxy.limit,
        certificate: proxy.cert.as_deref().zip(proxy.key.as_deref()),
        access_log: proxy.access_log,
    })?;
    // A JSON string is a valid TOML string.
    let admin = serde_json::Value::from(proxy.admin.as_str());
    text.push_str(&format!("\n[admin]\nlisten = {admin}\n"));
    Ok(text)
}

fn start_log(log: &LogOptions) -> Result<(), String> {
    // The library takes any other word for a module, and so would log nothing else.
    let sets_level = |part: &str| part.is_empty() || part.contains(['=', '[']) || part.parse::<LevelFilter>().is_ok();
    if let Some(word) = log.log.split(',').find(|part| !sets_level(part)) {
        return Err(format!(
            "`{word}` is not a level; expected off, error, warn, info, debug or trace, or MODULE=LEVEL for one module"
        ));
    }
    // Clients could trigger the warnings of the libraries at will, and the connections that these end are counted.
    let filter = match log.log.as_str() {
        "" | "off" => log.log.clone(),
        own => format!("h2=error,quinn_proto=error,{own}"),
    };
    let filter = EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| BoundedStderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    let result = match log.log_format {
        LogFormat::Text => builder.finish().with(SampleLibraries).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().with(SampleLibraries).try_init(),
    };
    result.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
