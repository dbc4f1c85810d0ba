//! Pages about the config: each reads its request and calls `ConfigApi`. Listed in `admin::pages`.

use http::header::ETAG;
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::admin::config::conditions::read_tags;
use crate::admin::config::faults::to_problem;
use crate::admin::page_request::PageRequest;
use crate::admin::problem::Problem;
use crate::admin::response::{AdminResponse, json_response, typed_response};
use crate::config::percent_decode;
use crate::reload::change::{ChangeFault, ChangeOutcome, ConfigChange, ConfigRollback, FileEdit};
use crate::reload::history::entity_tag;
use crate::reload::job::ReloadOutcome;

/// Maximum size of the text of a file, in bytes.
const TEXT_MAX: usize = 1024 * 1024;
/// Maximum size of the body of a rollback, in bytes.
const ROLLBACK_MAX: usize = 1024;

pub async fn list_files(request: PageRequest) -> Result<AdminResponse, Problem> {
    let _work = request.start_work()?;
    let snapshot = request.context.current.load_full();
    Ok(json_response(request.context.config.list_files(&snapshot).await?.to_string()))
}

pub async fn show_file(request: PageRequest) -> Result<AdminResponse, Problem> {
    let name = decode_name(&request.name)?;
    let _work = request.start_work()?;
    let snapshot = request.context.current.load_full();
    let (bytes, tag) = request.context.config.show_file(&name, &snapshot).await?;
    Ok(with_tag(typed_response(StatusCode::OK, "application/toml", bytes), &tag))
}

/// Replaces the text of a file, or reports what that would change.
pub async fn edit_file(mut request: PageRequest) -> Result<AdminResponse, Problem> {
    let name = decode_name(&request.name)?;
    let dry_run = request.is_dry_run()?;
    if !request.context.current.load().config.admin.edit {
        return Err(to_problem(ChangeFault::Disabled));
    }
    let tags = read_tags(&request.head.headers, "GET /-/config/files/NAME")?;
    let body = request.read_typed_body(TEXT_MAX, "application/toml").await?;
    let text = String::from_utf8(body).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, format!("the body is not UTF-8 at byte {at}"))
    })?;
    let _work = request.start_work()?;
    let edit = ConfigChange::Edit(FileEdit { name, text, expected: tags, dry_run });
    let outcome = request.context.config.change_config(edit, request.caller.name.clone()).await?;
    note_outcome(&request, if dry_run { "dry run: " } else { "" }, &outcome);
    let mut body = describe_outcome(&outcome);
    body["dry_run"] = dry_run.into();
    Ok(with_tag(json_response(body.to_string()), &outcome.tag))
}

pub async fn show_history(request: PageRequest) -> Result<AdminResponse, Problem> {
    let snapshot = request.context.current.load();
    let tag = entity_tag(snapshot.generation, &snapshot.config.hash);
    Ok(with_tag(json_response(request.context.config.show_history()), &tag))
}

/// Puts a config of the history in force.
pub async fn roll_back(mut request: PageRequest) -> Result<AdminResponse, Problem> {
    let tags = read_tags(&request.head.headers, "GET /-/config/history")?;
    let body = request.read_body(ROLLBACK_MAX).await?;
    let generation = serde_json::from_slice::<Value>(&body).ok().and_then(|body| {
        let body = body.as_object().filter(|body| body.len() == 1)?;
        body.get("generation")?.as_u64()
    });
    let Some(generation) = generation else {
        let detail = "send the generation that shall be in force again: {\"generation\": 41}";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    };
    let _work = request.start_work()?;
    let rollback = ConfigChange::Rollback(ConfigRollback { generation, expected: tags });
    let outcome = request.context.config.change_config(rollback, request.caller.name.clone()).await?;
    note_outcome(&request, &format!("rollback to generation {generation}: "), &outcome);
    let mut body = describe_outcome(&outcome);
    body["pinned"] = request.context.config.pinned_generation().into();
    Ok(with_tag(json_response(body.to_string()), &outcome.tag))
}

pub async fn list_routes(request: PageRequest) -> Result<AdminResponse, Problem> {
    let snapshot = request.context.current.load();
    Ok(json_response(request.context.config.list_routes(&snapshot)))
}

/// Reports for the audit log what was changed, in one line.
fn note_outcome(request: &PageRequest, prefix: &str, outcome: &ChangeOutcome) {
    let summary = match &outcome.reload {
        ReloadOutcome::Applied(applied) | ReloadOutcome::Valid(applied) => applied.diff.to_string(),
        ReloadOutcome::Unchanged { .. } | ReloadOutcome::Failed { .. } => "unchanged".to_owned(),
    };
    request.note_change(format!("{prefix}{summary}"));
}

fn describe_outcome(outcome: &ChangeOutcome) -> Value {
    let mut body = outcome.reload.to_json();
    body["etag"] = outcome.tag.as_str().into();
    body["files"] = json!(outcome.written);
    body["applied_ms"] = outcome.applied_ms.into();
    body
}

fn with_tag(mut answer: AdminResponse, tag: &str) -> AdminResponse {
    if let Ok(tag) = HeaderValue::try_from(tag) {
        answer.headers_mut().insert(ETAG, tag);
    }
    answer
}

fn decode_name(name: &str) -> Result<String, Problem> {
    let text = percent_decode(name).and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or_else(|| Problem::new(StatusCode::BAD_REQUEST, "the name of the file is not percent-encoded UTF-8"))
}
