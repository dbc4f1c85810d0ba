//! What is asked of a reload and what comes of it: the words between the watcher, the signals and
//! the admin listener, who ask, and the control loop, which has it done.

use std::path::PathBuf;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::diff::Diff;
use super::loader::Hung;
use crate::config::Report;
use crate::labels::labels;
use crate::worker::BindError;

/// A reload somebody waits for.
pub struct Job {
    pub order: ReloadOrder,
    pub reply: oneshot::Sender<(ReloadOutcome, Contents)>,
}

/// What is asked of a reload.
#[derive(Debug)]
pub struct ReloadOrder {
    pub trigger: Trigger,
    pub dry_run: bool,
    /// Only makes sure that no edit slipped by, so it is no event if none did.
    pub verify: bool,
    /// Must rest while they are loaded; empty: nobody is writing.
    pub files: Vec<PathBuf>,
}

labels! {
    /// Who asked; the `trigger` label of `config_reloads_total`.
    Trigger:
    File = "file",
    Signal = "signal",
    Api = "api",
}

labels! {
    /// What an outcome counts as; the `result` label of `config_reloads_total`.
    ReloadResult:
    Success = "success",
    Failure = "failure",
    Unchanged = "unchanged",
}

#[derive(Debug)]
pub enum ReloadOutcome {
    /// A new config is in force.
    Applied(Applied),
    /// The files hold what is in force already.
    Unchanged { generation: u64, warnings: Value },
    /// A dry run of a config that could be applied.
    Valid(Applied),
    /// The old config stays in force.
    Failed { generation: u64, failure: ReloadFailure },
}

#[derive(Debug)]
pub struct Applied {
    /// Of the config in force, which a dry run does not change.
    pub generation: u64,
    pub diff: Diff,
    /// Keys whose change waits for a restart.
    pub restart: Vec<&'static str>,
    /// What the config says and probably does not mean, in the form of diagnostics.
    pub warnings: Value,
}

#[derive(Debug, thiserror::Error)]
pub enum ReloadFailure {
    #[error("{0}")]
    Config(Report),
    #[error("error: {0}")]
    Bind(BindError),
    #[error("error: {0}")]
    Hung(Hung),
}

/// A digest of files.
pub type Contents = [u8; 32];

impl ReloadOrder {
    /// For somebody who asks, not for the watcher.
    pub fn from(trigger: Trigger, dry_run: bool) -> ReloadOrder {
        ReloadOrder { trigger, dry_run, verify: false, files: Vec::new() }
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

    /// Members of the API answer and of `last_reload` in the status.
    pub fn json(&self) -> Value {
        match self {
            ReloadOutcome::Applied(applied) | ReloadOutcome::Valid(applied) => json!({
                "result": self.result().label(),
                "generation": applied.generation,
                "changed": true,
                "summary": applied.diff.to_string(),
                "diff": applied.diff.json(),
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
    fn diagnostics(&self) -> Value {
        match self {
            ReloadFailure::Config(report) => report.json(),
            ReloadFailure::Bind(error) => json!([{ "message": error.to_string() }]),
            ReloadFailure::Hung(error) => json!([{ "message": error.to_string() }]),
        }
    }
}
