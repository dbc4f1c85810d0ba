//! Errors and notes of the commands on standard error: for people, or with `--log-format json` as lines of the log. No
//! other place of `cli` writes there.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cli::BAD_CONFIG;
use crate::config;

/// True if every line on standard error is JSON.
static LOGS_JSON: AtomicBool = AtomicBool::new(false);

/// Sets the format of all further lines.
pub fn set_json(is_json: bool) {
    LOGS_JSON.store(is_json, Ordering::Relaxed);
}

/// Returns whether every line is JSON.
pub fn is_json() -> bool {
    LOGS_JSON.load(Ordering::Relaxed)
}

/// Finds out whether arguments that cannot be parsed ask for a log in JSON, and sets the format.
pub fn find_json_option() -> bool {
    let args: Vec<OsString> = std::env::args_os().collect();
    let names_json = |value: &OsString| value.eq_ignore_ascii_case("json");
    set_json(
        args.windows(2).any(|pair| pair[0] == "--log-format" && names_json(&pair[1]))
            || args.iter().any(|arg| arg == "--log-format=json")
            || std::env::var_os("SLUICEGATE_LOG_FORMAT").is_some_and(|value| names_json(&value)),
    );
    is_json()
}

/// Reports why a command fails.
pub fn report_error(error: impl Display) {
    write_line("ERROR", "error: ", error);
}

/// Reports what may be wrong, although the command succeeds.
pub fn report_warning(warning: impl Display) {
    write_line("WARN", "warning: ", warning);
}

/// Writes what is neither the output of a command nor wrong.
pub fn report_note(note: impl Display) {
    write_line("INFO", "", note);
}

/// Reports a failure in the words of the command alone.
pub fn report_failure(failure: impl Display) {
    write_line("ERROR", "", failure);
}

/// Asks the operator a question, without a new line after it.
pub fn ask(question: impl Display) {
    match is_json() {
        true => report_note(question),
        false => eprint!("{question}"),
    }
}

/// Reports the errors of a config.
pub fn report_bad_config(report: &config::Report) -> ExitCode {
    report_config(report, report.render(std::io::stderr().is_terminal()), "ERROR");
    ExitCode::from(BAD_CONFIG)
}

/// Reports the warnings of a config.
pub fn report_config_warnings(warnings: &config::Report) {
    report_config(warnings, warnings.render(std::io::stderr().is_terminal()), "WARN");
}

/// Reports the entries of a report, without their number.
pub fn report_entries(report: &config::Report) {
    let text = report.render_entries(std::io::stderr().is_terminal());
    report_config(report, text.trim_end(), "ERROR");
}

/// Writes a report: `text` for people, or a line for each entry.
fn report_config(report: &config::Report, text: impl Display, level: &str) {
    match is_json() {
        true => report.log_lines().for_each(|line| write_line(level, "", line)),
        false => eprintln!("{text}"),
    }
}

/// Writes a line with its level, after a `prefix` for people. Not by the log, whose filter may leave it out.
fn write_line(level: &str, prefix: &str, message: impl Display) {
    if !is_json() {
        eprintln!("{prefix}{message}");
        return;
    }
    let message = message.to_string();
    let line = serde_json::json!({
        "timestamp": jiff::Timestamp::now().to_string(), "level": level, "message": message.trim_end(),
    });
    eprintln!("{line}");
}
