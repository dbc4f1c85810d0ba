//! Problem documents of changes that were not made. Called by `mod.rs`.

use std::io::ErrorKind;

use http::StatusCode;
use serde_json::{Value, json};

use crate::admin::problem::{Problem, ProblemKind};
use crate::reload::change::ChangeFault;

/// Each kind has its own `type`, so that programs need not read the text.
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
