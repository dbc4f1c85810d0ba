//! `sluicegate test`: runs the test cases of a config in virtual time, without a gateway.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::check::ReportFormat;
use crate::cli::report::{report_bad_config, report_entries, report_error};
use crate::cli::{BAD_CONFIG, ConfigFile, RUNTIME};
use crate::config;
use crate::config::cases::load_cases;
use crate::explain::cases::{CaseResult, Coverage, decision_names, describe_failures, run_cases};

pub const HELP: &str = "\
Example:
  [[case]]
  name = \"the burst passes\"
  request = \"GET https://api.example.com/v1/items\"
  from = \"192.0.2.7\"
  repeat = 20
  expect = { route = \"api\", decision = \"admit\" }

Exit code: 0 all cases passed, 1 a case failed or the coverage is too low, 2 invalid usage, config or cases.";

#[derive(Args)]
pub struct TestOptions {
    #[command(flatten)]
    config: ConfigFile,
    /// File with test cases
    #[arg(value_name = "CASES")]
    cases: PathBuf,
    /// Fail if the cases reach a smaller share of routes and limits
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    fail_under: u8,
    /// Format of the report
    #[arg(long, default_value = "text")]
    format: ReportFormat,
}

pub fn run_test(options: &TestOptions) -> ExitCode {
    let config = match config::load_config(&options.config.config) {
        Ok(config) => config,
        Err(report) => return report_bad_config(&report),
    };
    let file = match load_cases(&options.cases, &decision_names()) {
        Ok(file) => file,
        Err(report) => {
            report_entries(&report);
            return ExitCode::from(BAD_CONFIG);
        }
    };
    let (results, coverage) = match run_cases(&config, &file) {
        Ok(ran) => ran,
        Err(why) => {
            report_error(format_args!("{}, {why}", options.cases.display()));
            return ExitCode::from(BAD_CONFIG);
        }
    };
    let failures = results.iter().filter(|result| !result.has_passed()).count();
    let is_covered = coverage.percent() >= usize::from(options.fail_under);
    let answer = match options.format {
        ReportFormat::Json => format!("{}\n", to_json(&results, &coverage, failures == 0 && is_covered)),
        ReportFormat::Text => {
            if failures > 0 {
                report_entries(&file.report_failures(describe_failures(&results)));
            }
            let outcome = if failures == 0 { "ok" } else { "failed" };
            format!("{outcome}: {} cases passed, {failures} failed\n{}", results.len() - failures, coverage.to_text())
        }
    };
    // The reader may have closed the pipe.
    let _ = std::io::stdout().write_all(answer.as_bytes());
    if !is_covered {
        report_error(format_args!(
            "the coverage is {}%, below --fail-under {}",
            coverage.percent(),
            options.fail_under
        ));
    }
    if failures == 0 && is_covered { ExitCode::SUCCESS } else { ExitCode::from(RUNTIME) }
}

fn to_json(results: &[CaseResult], coverage: &Coverage, ok: bool) -> Value {
    let cases: Vec<Value> = results.iter().map(CaseResult::to_json).collect();
    json!({ "ok": ok, "cases": cases, "coverage": coverage.to_json() })
}
