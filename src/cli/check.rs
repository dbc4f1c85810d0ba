//! `sluicegate check`: loads a config as `run` does and starts nothing. Warnings change neither the answer
//! nor the exit code. Called by the command line.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::json;

use super::{BAD_CONFIG, bad_config};
use crate::config;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum ReportFormat {
    Text,
    Json,
}

pub fn check(path: &Path, format: ReportFormat) -> ExitCode {
    let (answer, code) = match (config::load(path), format) {
        (Ok(config), format) => {
            let (routes, limits) = (config.routes.len(), config.limits.len());
            let upstreams = config.upstreams.len();
            let answer = match format {
                ReportFormat::Text => {
                    if let Some(warnings) = &config.warnings {
                        eprintln!("{}", warnings.render(std::io::stderr().is_terminal()));
                    }
                    format!("ok: {routes} routes, {limits} limits, {upstreams} upstreams")
                }
                ReportFormat::Json => json!({
                    "ok": true, "routes": routes, "limits": limits, "upstreams": upstreams, "hash": config.hash,
                    "warnings": config.warnings.as_ref().map_or_else(|| json!([]), |warnings| warnings.json()),
                })
                .to_string(),
            };
            (answer, ExitCode::SUCCESS)
        }
        (Err(report), ReportFormat::Text) => return bad_config(&report),
        (Err(report), ReportFormat::Json) => {
            (json!({ "ok": false, "diagnostics": report.json() }).to_string(), ExitCode::from(BAD_CONFIG))
        }
    };
    // Whoever reads may have seen enough and gone.
    let _ = writeln!(std::io::stdout(), "{answer}");
    code
}
