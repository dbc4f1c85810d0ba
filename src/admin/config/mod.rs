//! The config over HTTP: its files, edits of them, the history, rollbacks, and the routes. Called by `admin::pages`.
//!
//! Input: requests. Changes go to the control loop as jobs, and files are read on the loader's thread. Output: JSON,
//! the texts of files, the routes in matching order (`routes`), and problems.
//!
//! To add a page, add an async function of a request to `admin::pages::config`, and its row to `admin::pages`.

mod routes;

use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::admin::config::routes::RouteListing;
use crate::admin::lifecycle::{SharedState, format_rfc3339};
use crate::admin::problem::{Problem, ProblemKind};
use crate::reload::change::{ChangeFault, ChangeJob, ChangeOutcome, ConfigChange};
use crate::reload::files::{find_file, list_files, name_file, read_file};
use crate::reload::history::{HistoryEntry, entity_tag, hash_text};
use crate::reload::loader::Loader;
use crate::snapshot::Snapshot;

pub struct ConfigApi {
    changes: mpsc::Sender<ChangeJob>,
    shared: Arc<SharedState>,
    loader: Rc<Loader>,
    /// One read of files at a time, so that a reload waits for one at most.
    turn: Semaphore,
    routes: RouteListing,
}

impl ConfigApi {
    pub fn new(changes: mpsc::Sender<ChangeJob>, shared: Arc<SharedState>, loader: Rc<Loader>) -> ConfigApi {
        ConfigApi { changes, shared, loader, turn: Semaphore::new(1), routes: RouteListing::default() }
    }

    /// Returns the generation of the history that is active instead of the files.
    pub fn pinned_generation(&self) -> Option<u64> {
        self.shared.history.pin().map(|pin| pin.generation)
    }

    pub async fn list_files(&self, snapshot: &Snapshot) -> Result<Value, Problem> {
        let (paths, generation, editable) =
            (self.shared.history.current_paths(), snapshot.generation, snapshot.config.admin.edit);
        let files = self.read(move || list_files(&paths, generation, editable)).await?;
        Ok(json!({ "files": files, "editable": editable }))
    }

    /// Returns a file as it is on disk, and its entity tag.
    pub async fn show_file(&self, name: &str, snapshot: &Snapshot) -> Result<(Vec<u8>, String), Problem> {
        let paths = self.shared.history.current_paths();
        let Some(path) = find_file(&paths, name).cloned() else {
            let names = paths.first().map(|main| paths.iter().map(|path| name_file(main, path)).collect());
            let fault = ChangeFault::UnknownFile { name: name.to_owned(), known: names.unwrap_or_default() };
            return Err(to_problem(fault));
        };
        let generation = snapshot.generation;
        let bytes = self.read(move || read_file(&path)).await?;
        let bytes = bytes.map_err(|error| to_problem(ChangeFault::Unreadable { name: name.to_owned(), error }))?;
        let tag = entity_tag(generation, &hash_text(&bytes));
        Ok((bytes, tag))
    }

    async fn read<T: Send + 'static>(&self, read: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
        let _turn = self.turn.acquire().await;
        self.loader.run_task(read).await.map_err(|hung| to_problem(ChangeFault::Hung(hung)))
    }

    /// Has the control loop make a change that the token with this name requests. It continues even if the client
    /// leaves.
    pub async fn change_config(&self, change: ConfigChange, token: Option<String>) -> Result<ChangeOutcome, Problem> {
        let draining = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "draining: the config is not changed any more");
        let (reply, outcome) = oneshot::channel();
        self.changes.send(ChangeJob { change, token, reply }).await.map_err(|_| draining())?;
        outcome.await.map_err(|_| draining())?.map_err(to_problem)
    }

    pub fn show_history(&self) -> String {
        let entries = self.shared.history.entries();
        let entries: Vec<Value> = entries.iter().map(describe_entry).collect();
        json!({ "generations": entries, "pinned": self.pinned_generation() }).to_string()
    }

    pub fn list_routes(&self, snapshot: &Snapshot) -> Bytes {
        self.routes.list_all(snapshot)
    }
}

fn describe_entry(entry: &HistoryEntry) -> Value {
    json!({
        "generation": entry.generation,
        "hash": entry.hash,
        "loaded_at": format_rfc3339(entry.loaded_at),
        "trigger": entry.trigger,
        "token": entry.token,
        "summary": entry.summary,
        "diff": entry.diff,
        "restorable": entry.files.is_some(),
    })
}

/// Returns the problem document of a change that was not made. Each kind has its own `type`, so that programs need not
/// read the text.
pub fn to_problem(fault: ChangeFault) -> Problem {
    let detail = fault.to_string();
    let (status, kind, more) = match fault {
        ChangeFault::NotInFiles => (StatusCode::CONFLICT, ProblemKind::NotInFiles, json!({})),
        ChangeFault::Disabled => (StatusCode::FORBIDDEN, ProblemKind::EditDisabled, json!({})),
        ChangeFault::UnknownFile { .. } => (StatusCode::NOT_FOUND, ProblemKind::UnknownFile, json!({})),
        ChangeFault::UnknownGeneration { .. } => (StatusCode::NOT_FOUND, ProblemKind::UnknownGeneration, json!({})),
        ChangeFault::TextsNotKept(_) => (StatusCode::NOT_FOUND, ProblemKind::TextsNotKept, json!({})),
        ChangeFault::Stale { tag, text_diff } => {
            let more = json!({ "etag": tag, "text_diff": text_diff });
            (StatusCode::PRECONDITION_FAILED, ProblemKind::StaleGeneration, more)
        }
        ChangeFault::Invalid(report) => {
            (StatusCode::UNPROCESSABLE_ENTITY, ProblemKind::ConfigRejected, json!({ "diagnostics": report.to_json() }))
        }
        ChangeFault::Unreadable { .. } => (StatusCode::CONFLICT, ProblemKind::UnreadableFile, json!({})),
        ChangeFault::OtherFiles { .. } => (StatusCode::CONFLICT, ProblemKind::OtherFiles, json!({})),
        ChangeFault::Unwritable { error, .. } => {
            let status = match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
                _ => StatusCode::CONFLICT,
            };
            (status, ProblemKind::UnwritableFile, json!({}))
        }
        ChangeFault::NotApplied { failure, restored } => {
            let mut more: Value = json!({ "diagnostics": failure.diagnostics(), "restored": restored.is_ok() });
            if let Err(error) = &restored {
                more["restore_error"] = error.to_string().into();
            }
            (StatusCode::UNPROCESSABLE_ENTITY, ProblemKind::NotApplied, more)
        }
        ChangeFault::Hung(_) => (StatusCode::SERVICE_UNAVAILABLE, ProblemKind::FilesUnavailable, json!({})),
    };
    Problem { status, kind, detail, more }
}
