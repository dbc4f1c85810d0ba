//! `sluicegate check`: loads a config as `run` does and starts nothing. With `--store`, it asks the limit store as
//! well. Warnings change the exit code only with `--deny-warnings`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::ValueEnum;
use serde_json::json;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::cli::BAD_CONFIG;
use crate::cli::report::{report_bad_config, report_config_warnings, report_error, report_warning};
use crate::config::{self, Config};
use crate::limiting::store::Stores;
use crate::limiting::store::memory::MemoryStore;
use crate::limiting::store::probe::probe_store;
use crate::telemetry::metrics::Metrics;
use crate::text::format_count;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum ReportFormat {
    Text,
    Json,
}

/// The checks that `check` makes in addition to those of the config.
#[derive(Clone, Copy)]
pub struct CheckOptions {
    pub format: ReportFormat,
    /// A config with warnings gets the exit code of a bad one.
    pub denies_warnings: bool,
    /// Checks that the limit store works.
    pub asks_store: bool,
}

pub fn check_config(path: &Path, options: CheckOptions) -> ExitCode {
    let CheckOptions { format, denies_warnings, asks_store } = options;
    let (answer, code) = match (config::load_config(path), format) {
        (Ok(config), format) => {
            let of_store = match if asks_store { ask_store(&config) } else { Ok(Vec::new()) } {
                Ok(warnings) => warnings,
                Err(error) => {
                    match format {
                        ReportFormat::Text => report_error(error),
                        ReportFormat::Json => {
                            drop(writeln!(std::io::stdout(), "{}", json!({ "ok": false, "store": error })))
                        }
                    }
                    return ExitCode::FAILURE;
                }
            };
            let (routes, limits) = (config.routes.len(), config.limits.len());
            let upstreams = config.upstreams.len();
            let answer = match format {
                ReportFormat::Text => {
                    if let Some(warnings) = &config.warnings {
                        report_config_warnings(warnings);
                    }
                    of_store.iter().for_each(report_warning);
                    format!(
                        "ok: {}, {}, {}",
                        format_count(routes as u64, "route"),
                        format_count(limits as u64, "limit"),
                        format_count(upstreams as u64, "upstream")
                    )
                }
                ReportFormat::Json => json!({
                    "ok": true, "routes": routes, "limits": limits, "upstreams": upstreams, "hash": config.hash,
                    "warnings": config.warnings.as_ref().map_or_else(|| json!([]), |warnings| warnings.to_json()),
                    "store_warnings": of_store,
                })
                .to_string(),
            };
            let is_denied = denies_warnings && (config.warnings.is_some() || !of_store.is_empty());
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

/// Asks the store of the config whether it works, with one of its limits. Returns warnings.
///
/// # Errors
/// Why it does not work.
fn ask_store(config: &Config) -> Result<Vec<String>, String> {
    let Some(limit) = config.limits.iter().next().filter(|_| config.store.is_shared()) else { return Ok(Vec::new()) };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let metrics = Metrics::new().map_err(|error| error.to_string())?;
    let stores = Stores::new(Arc::new(MemoryStore::new(config.store.max_keys)), &metrics);
    LocalSet::new().block_on(&runtime, async {
        let store = stores.open(&config.store);
        probe_store(&store, limit, &config.store, &metrics.store.health).await
    })
}
