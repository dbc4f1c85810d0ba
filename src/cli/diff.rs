//! `sluicegate diff`: what differs between two configs in effect, with a mark where protection gets weaker.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::cli::check::ReportFormat;
use crate::cli::report::{report_bad_config, report_config_warnings};
use crate::config;
use crate::config::Config;
use crate::reload::diff::Diff;
use crate::text::format_count;

/// Exit code of `--exit-code` if the configs differ.
const DIFFERENT: u8 = 3;

#[derive(Args)]
pub struct DiffOptions {
    /// Config file before the change
    old: PathBuf,
    /// Config file after the change
    new: PathBuf,
    /// Format of the differences
    #[arg(long, default_value = "text")]
    format: ReportFormat,
    /// Exit with 3 if the configs differ in effect
    #[arg(long)]
    exit_code: bool,
}

pub fn run_diff(options: &DiffOptions) -> ExitCode {
    let (old, new) = match (load_config(&options.old), load_config(&options.new)) {
        (Ok(old), Ok(new)) => (old, new),
        (old, new) => return old.err().or(new.err()).unwrap_or(ExitCode::FAILURE),
    };
    let diff = Diff::compare(&old, &new);
    let (total, weaker) = diff.counts();
    let answer = match options.format {
        ReportFormat::Json => json!({
            "differs": !diff.is_empty(),
            "changes_total": total,
            "changes_weaker": weaker,
            "changes": diff.lines_json(),
            "diff": diff.to_json(),
        })
        .to_string(),
        ReportFormat::Text if diff.is_empty() => "no difference in effect".to_owned(),
        ReportFormat::Text => {
            let differences = format_count(total as u64, "difference");
            let mut lines: Vec<String> = diff.lines().collect();
            lines.push(match weaker {
                0 => differences,
                1 => format!("{differences}; 1 weakens protection"),
                _ => format!("{differences}; {weaker} weaken protection"),
            });
            lines.join("\n")
        }
    };
    // The reader may have closed the pipe.
    let _ = writeln!(std::io::stdout(), "{answer}");
    if options.exit_code && !diff.is_empty() { ExitCode::from(DIFFERENT) } else { ExitCode::SUCCESS }
}

/// Loads a config, and reports its errors and warnings.
fn load_config(path: &Path) -> Result<Config, ExitCode> {
    let config = config::load_config(path).map_err(|report| report_bad_config(&report))?;
    if let Some(warnings) = config.warnings.as_ref().filter(|_| std::io::stderr().is_terminal()) {
        report_config_warnings(warnings);
    }
    Ok(config)
}
