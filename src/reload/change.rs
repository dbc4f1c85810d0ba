//! Changes of the config over HTTP: edits of a file and rollbacks, with their outcomes. The admin listener requests
//! them, and the control loop executes them one at a time, like reloads.

use std::io;

use tokio::sync::oneshot;

use crate::config::Report;
use crate::reload::job::{ReloadFailure, ReloadOutcome};
use crate::reload::loader::LoadTimeout;

/// A change whose requester waits for the outcome.
pub struct ChangeJob {
    pub change: ConfigChange,
    /// Name of the token that requests it; `None` if it needed none.
    pub token: Option<String>,
    pub reply: oneshot::Sender<Result<ChangeOutcome, ChangeFault>>,
}

#[derive(Debug)]
pub enum ConfigChange {
    Edit(FileEdit),
    Rollback(ConfigRollback),
}

/// Replaces the text of one config file.
#[derive(Debug)]
pub struct FileEdit {
    pub name: String,
    pub text: String,
    /// Accepted entity tags of the file (`If-Match`); the current one must be among them.
    pub expected: Vec<String>,
    pub dry_run: bool,
}

/// Activates a config of the history.
#[derive(Debug)]
pub struct ConfigRollback {
    pub generation: u64,
    /// Accepted entity tags of the active config (`If-Match`); the current one must be among them.
    pub expected: Vec<String>,
    pub dry_run: bool,
}

/// A change that was made, or need not be made.
#[derive(Debug)]
pub struct ChangeOutcome {
    pub reload: ReloadOutcome,
    /// Current entity tag of what was changed.
    pub tag: String,
    /// Names of the files that were written.
    pub written: Vec<String>,
    /// Time from the start of the change until every request uses the new config.
    pub applied_ms: u64,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeFault {
    #[error(
        "the gateway was started without a config file, so there is nothing to change here; start it with `-c FILE`"
    )]
    NotInFiles,
    #[error("the config files cannot be changed here: set `edit = true` in [admin]")]
    Disabled,
    #[error("there is no config file `{name}`; there are {}", known.join(", "))]
    UnknownFile { name: String, known: Vec<String> },
    #[error("generation {generation} is not in the history; it has {}", join_numbers(known))]
    UnknownGeneration { generation: u64, known: Vec<u64> },
    #[error("the texts of generation {0} are not kept: the history has 8 MiB for all texts")]
    TextsNotKept(u64),
    #[error("someone changed this meanwhile: get it again, with its new ETag, and repeat your change")]
    Stale {
        /// Current entity tag.
        tag: String,
        /// Unified diff from the text that the client knows to the current one, if the former is still known.
        text_diff: Option<String>,
    },
    #[error("{0}")]
    Invalid(Report),
    #[error("`{name}` is not a text: {error}")]
    Unreadable { name: String, error: io::Error },
    /// The files in the directories of the config differ from the files of the earlier config.
    #[error("generation {generation} has other files: {what}")]
    OtherFiles { generation: u64, what: String },
    #[error("`{name}` cannot be written: {}", describe_write_error(error))]
    Unwritable { name: String, error: io::Error },
    #[error("{failure}")]
    NotApplied { failure: ReloadFailure, restored: Result<(), io::Error> },
    #[error("{0}")]
    Hung(LoadTimeout),
}

fn join_numbers(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns the error with its remedy.
fn describe_write_error(error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            "; the directory is read-only, as of a ConfigMap: change the config where it comes from"
        }
        io::ErrorKind::PermissionDenied => {
            "; let the user of the gateway own the file and write to its directory, or change the file with an editor"
        }
        io::ErrorKind::ResourceBusy => "; the file is a mount of its own: mount its directory instead",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; free some space",
        _ => "",
    };
    format!("{error}{remedy}")
}
