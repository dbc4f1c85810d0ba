//! Problem documents of changes that were not made. Called by `mod.rs`.

use http::StatusCode;
use serde_json::{Value, json};

use crate::admin::problem::Problem;
use crate::reload::change::ChangeFault;

/// Each kind has its own `type`, so that programs need not read the text.
pub fn to_problem(fault: ChangeFault) -> Problem {
    let detail = fault.to_string();
    let (status, kind, mut more) = match fault {
        ChangeFault::NotInFiles => (StatusCode::CONFLICT, "not-in-files", json!({})),
        ChangeFault::Disabled => (StatusCode::FORBIDDEN, "edit-disabled", json!({})),
        ChangeFault::UnknownFile { .. } => (StatusCode::NOT_FOUND, "unknown-file", json!({})),
        ChangeFault::UnknownGeneration { .. } => (StatusCode::NOT_FOUND, "unknown-generation", json!({})),
        ChangeFault::TextsNotKept(_) => (StatusCode::NOT_FOUND, "texts-not-kept", json!({})),
        ChangeFault::Stale { tag, text_diff } => {
            let more = json!({ "etag": tag, "text_diff": text_diff });
            (StatusCode::PRECONDITION_FAILED, "stale-generation", more)
        }
        ChangeFault::Invalid(report) => {
            (StatusCode::UNPROCESSABLE_ENTITY, "invalid-config", json!({ "diagnostics": report.to_json() }))
        }
        ChangeFault::Unreadable { .. } => (StatusCode::CONFLICT, "unreadable-file", json!({})),
        ChangeFault::OtherFiles { .. } => (StatusCode::CONFLICT, "other-files", json!({})),
        ChangeFault::Unwritable { error, .. } => (write_status(&error), "unwritable-file", json!({})),
        ChangeFault::NotApplied { failure, restored } => {
            let mut more: Value = json!({ "diagnostics": failure.diagnostics(), "restored": restored.is_ok() });
            if let Err(error) = &restored {
                more["restore_error"] = error.to_string().into();
            }
            (StatusCode::UNPROCESSABLE_ENTITY, "not-applied", more)
        }
        ChangeFault::Hung(_) => (StatusCode::SERVICE_UNAVAILABLE, "files-unavailable", json!({})),
    };
    more["type"] = format!("urn:sluicegate:problem:{kind}").into();
    Problem { status, detail, more }
}

fn write_status(error: &std::io::Error) -> StatusCode {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::CONFLICT,
    }
}
