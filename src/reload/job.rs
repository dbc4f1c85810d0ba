//! Reload requests and their outcomes, exchanged between the requesters (watcher, signals, admin listener) and the
//! control loop.

use std::path::PathBuf;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::config::Report;
use crate::labels::labels;
use crate::local_ca::LocalCaError;
use crate::reload::diff::Diff;
use crate::reload::loader::LoadTimeout;
use crate::worker::BindError;

/// A reload whose requester waits for the outcome.
pub struct ReloadJob {
    pub order: ReloadOrder,
    pub reply: oneshot::Sender<(ReloadOutcome, ContentDigest)>,
}

/// A reload request.
#[derive(Debug)]
pub struct ReloadOrder {
    pub trigger: Trigger,
    pub dry_run: bool,
    /// A check that no edit was missed; not reported if none was.
    pub verify: bool,
    /// Files that must be stable while they are loaded; empty if nobody is writing.
    pub files: Vec<PathBuf>,
    /// Name of the token that requests it over the admin API.
    pub token: Option<String>,
}

labels! {
    /// Requester; the `trigger` label of `config_reloads_total`.
    Trigger:
    File = "file",
    Signal = "signal",
    Api = "api",
    /// A config file was written over HTTP.
    Edit = "edit",
    Rollback = "rollback",
}

labels! {
    /// Result; the `result` label of `config_reloads_total`.
    ReloadResult:
    Success = "success",
    Failure = "failure",
    Unchanged = "unchanged",
}

#[derive(Debug)]
pub enum ReloadOutcome {
    /// A new config is active.
    Applied(AppliedReload),
    /// The files contain the config that is already active.
    Unchanged { generation: u64, warnings: Value },
    /// A dry run of a config that could be applied.
    Valid(AppliedReload),
    /// The old config stays active.
    Failed { generation: u64, failure: ReloadFailure },
}

#[derive(Debug)]
pub struct AppliedReload {
    /// Generation of the active config, which a dry run does not change.
    pub generation: u64,
    pub diff: Diff,
    /// Keys whose change takes effect after a restart.
    pub restart: Vec<&'static str>,
    /// Warnings of the config, as diagnostics.
    pub warnings: Value,
    /// Listeners that are not as the active config says.
    pub failures: Vec<BindError>,
}

#[derive(Debug, thiserror::Error)]
pub enum ReloadFailure {
    #[error("{0}")]
    Config(Report),
    #[error("error: {0}")]
    Bind(BindError),
    #[error("error: {0}")]
    LocalCa(LocalCaError),
    #[error("error: {0}")]
    Hung(LoadTimeout),
    #[error(
        "error: {path} is being written: {writer} has it open, so its end may be missing\n  = help: close the file, or write \
         a new file and rename it; it is loaded once it is closed",
        path = path.display()
    )]
    BeingWritten { path: PathBuf, writer: String },
}

/// SHA-256 digest of files.
pub type ContentDigest = [u8; 32];

impl ReloadOrder {
    /// Creates a request of a user, as opposed to the watcher.
    pub fn requested_by(trigger: Trigger, dry_run: bool) -> ReloadOrder {
        ReloadOrder { trigger, dry_run, verify: false, files: Vec::new(), token: None }
    }
}

impl ReloadOutcome {
    pub fn result(&self) -> ReloadResult {
        match self {
            ReloadOutcome::Applied(_) | ReloadOutcome::Valid(_) => ReloadResult::Success,
            ReloadOutcome::Unchanged { .. } => ReloadResult::Unchanged,
            ReloadOutcome::Failed { .. } => ReloadResult::Failure,
        }
    }

    /// Returns the members of the API response and of `last_reload` in the status.
    pub fn to_json(&self) -> Value {
        match self {
            ReloadOutcome::Applied(applied) | ReloadOutcome::Valid(applied) => json!({
                "diagnostics": applied.failures.iter().map(describe_bind_error).collect::<Value>(),
                "result": self.result().label(),
                "generation": applied.generation,
                "changed": true,
                "summary": applied.diff.to_string(),
                "diff": applied.diff.to_json(),
                "changes": applied.diff.lines_json(),
                "changes_total": applied.diff.counts().0,
                "changes_weaker": applied.diff.counts().1,
                "restart_needed_for": applied.restart,
                "warnings": applied.warnings,
            }),
            ReloadOutcome::Unchanged { generation, warnings } => json!({
                "result": self.result().label(),
                "generation": generation,
                "changed": false,
                "warnings": warnings,
            }),
            ReloadOutcome::Failed { generation, failure } => json!({
                "result": self.result().label(),
                "generation": generation,
                "changed": false,
                "diagnostics": failure.diagnostics(),
            }),
        }
    }
}

impl ReloadFailure {
    pub fn diagnostics(&self) -> Value {
        match self {
            ReloadFailure::Config(report) => report.to_json(),
            ReloadFailure::Bind(error) => json!([describe_bind_error(error)]),
            ReloadFailure::LocalCa(error) => json!([{ "message": error.to_string() }]),
            ReloadFailure::Hung(error) => json!([{ "message": error.to_string() }]),
            ReloadFailure::BeingWritten { path, writer } => json!([{
                "message": format!("{} is being written: {writer} has it open", path.display()),
                "help": "close the file, or write a new file and rename it",
            }]),
        }
    }
}

fn describe_bind_error(error: &BindError) -> Value {
    json!({ "message": error.to_string() })
}
