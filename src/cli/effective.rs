//! `sluicegate config`: prints the effective config, with all files merged and without secrets.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::cli::NamedConfig;
use crate::cli::report::report_bad_config;
use crate::config;
use crate::config::EffectiveFormat;

pub const HELP: &str = "\
Secrets are \"***\", and ${...} stays as it is written. Apart from secrets, the output loads and means the same.
--anonymize also replaces names, hosts, addresses and paths by hashes: read the output before you send it to anybody.";

#[derive(Args)]
pub struct EffectiveOptions {
    #[command(flatten)]
    config: NamedConfig,
    /// Add the file and line of each value
    #[arg(long)]
    origin: bool,
    /// List options that are not written too, with their defaults
    #[arg(long)]
    defaults: bool,
    /// Replace names, hosts, addresses and paths by hashes, for bug reports
    #[arg(long)]
    anonymize: bool,
    /// Format of the output
    #[arg(long, default_value = "toml")]
    format: ConfigFormat,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum ConfigFormat {
    Toml,
    Json,
}

pub fn print_config(options: EffectiveOptions) -> ExitCode {
    let config = match config::load_config(&options.config.path()) {
        Ok(config) => config,
        Err(report) => return report_bad_config(&report),
    };
    let format = EffectiveFormat {
        has_origins: options.origin,
        is_anonymous: options.anonymize,
        has_defaults: options.defaults,
        is_for_readers: false,
    };
    let text = match options.format {
        ConfigFormat::Toml => config.effective_toml(format),
        ConfigFormat::Json => format!("{:#}\n", config.effective_json(format)),
    };
    // The reader may have closed the pipe.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}
