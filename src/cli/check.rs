//! `sluicegate check`: loads a config as `run` does and starts nothing. Warnings change the exit code only with
//! `--deny-warnings`.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::json;

use crate::cli::{BAD_CONFIG, report_bad_config};
use crate::config;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum ReportFormat {
    Text,
    Json,
}

/// `denies_warnings`: a config with warnings gets the exit code of a bad one.
pub fn check_config(path: &Path, format: ReportFormat, denies_warnings: bool) -> ExitCode {
    let (answer, code) = match (config::load_config(path), format) {
        (Ok(config), format) => {
            let (routes, limits) = (config.routes.len(), config.limits.len());
            let upstreams = config.upstreams.len();
            let answer = match format {
                ReportFormat::Text => {
                    if let Some(warnings) = &config.warnings {
                        eprintln!("{}", warnings.render(std::io::stderr().is_terminal()));
                    }
                    format!(
                        "ok: {}, {}, {}",
                        count_of(routes, "route"),
                        count_of(limits, "limit"),
                        count_of(upstreams, "upstream")
                    )
                }
                ReportFormat::Json => json!({
                    "ok": true, "routes": routes, "limits": limits, "upstreams": upstreams, "hash": config.hash,
                    "warnings": config.warnings.as_ref().map_or_else(|| json!([]), |warnings| warnings.to_json()),
                })
                .to_string(),
            };
            let is_denied = denies_warnings && config.warnings.is_some();
            (answer, if is_denied { ExitCode::from(BAD_CONFIG) } else { ExitCode::SUCCESS })
        }
        (Err(report), ReportFormat::Text) => return report_bad_config(&report),
        (Err(report), ReportFormat::Json) => {
            (json!({ "ok": false, "diagnostics": report.to_json() }).to_string(), ExitCode::from(BAD_CONFIG))
        }
    };
    // The reader may have closed the pipe.
    let _ = writeln!(std::io::stdout(), "{answer}");
    code
}

/// Formats a count with its noun: `1 route`, `2 routes`.
fn count_of(count: usize, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}
