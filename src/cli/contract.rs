//! `sluicegate contract`: the most that each limit of a config admits, in sentences.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use crate::cli::check::ReportFormat;
use crate::cli::report::{report_bad_config, report_error};
use crate::cli::{BAD_CONFIG, NamedConfig};
use crate::config;
use crate::contract::report::Contract;
use crate::limiting::store::settings::GATEWAYS_MAX;

pub const HELP: &str = "\
Every sentence with a number is tested by random runs that try to break it, on both stores. \"In 1 s\" means in any second.
An interval of T counts every unit of which the request arrived within T.";

#[derive(Args)]
pub struct ContractOptions {
    #[command(flatten)]
    config: NamedConfig,
    /// Format of the output
    #[arg(long, default_value = "text")]
    format: ReportFormat,
    /// Number of gateways that share the limits, for sentences about outages [default: that of the config]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=GATEWAYS_MAX))]
    gateways: Option<i64>,
    /// Only this limit; can be repeated
    #[arg(long, value_name = "NAME")]
    limit: Vec<String>,
}

pub fn print_contract(options: ContractOptions) -> ExitCode {
    let config = match config::load_config(&options.config.path()) {
        Ok(config) => config,
        Err(report) => return report_bad_config(&report),
    };
    if let Some(name) = options.limit.iter().find(|name| config.limits.find(name).is_none()) {
        report_error(format_args!("--limit {name}: the config has no such limit"));
        return ExitCode::from(BAD_CONFIG);
    }
    let is_wanted = |name: &String| options.limit.is_empty() || options.limit.contains(name);
    let contract = Contract::new(&config, options.gateways, |limit| is_wanted(&limit.name));
    let text = match options.format {
        ReportFormat::Text => contract.to_text(),
        ReportFormat::Json => format!("{:#}\n", contract.to_json()),
    };
    // The reader may have closed the pipe.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}
