//! Pages about the config: each reads its request and calls `ConfigApi`. Listed in `admin::pages`.

use bytes::Bytes;
use http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::admin::config::to_problem;
use crate::admin::page_request::PageRequest;
use crate::admin::problem::{Problem, bad_query};
use crate::admin::response::{AdminResponse, json_response, typed_response};
use crate::config::admin_tokens::Role;
use crate::config::{EffectiveFormat, percent_decode, split_secrets};
use crate::reload::change::{ChangeFault, ChangeOutcome, ConfigChange, ConfigRollback, FileEdit};
use crate::reload::history::{entity_tag, hash_text};
use crate::reload::job::ReloadOutcome;

/// Maximum number of entity tags in a request.
const TAGS_MAX: usize = 16;
/// Maximum size of the text of a file, in bytes.
const TEXT_MAX: usize = 1024 * 1024;
/// Maximum size of the body of a rollback, in bytes.
const ROLLBACK_MAX: usize = 1024;

const FORMAT: EffectiveFormat =
    EffectiveFormat { has_origins: true, is_anonymous: false, has_defaults: true, is_for_readers: false };

/// `GET /-/config`: the effective config that is active, without secrets.
pub async fn show_config(request: PageRequest) -> Result<AdminResponse, Problem> {
    let snapshot = request.context.current.load();
    let (generation, config) = (snapshot.generation, &snapshot.config);
    // Editors can read the files, and everybody else gets what logs show. Each has a tag of its own.
    let is_for_readers = request.caller.role != Role::Edit;
    let cache = &request.context.cached;
    let (text, hash) = match is_for_readers {
        true => (&cache.config, hash_text(format!("{} for readers", config.hash).as_bytes())),
        false => (&cache.config_of_editors, config.hash.clone()),
    };
    let tag = format!("\"{generation}-{hash}\"");
    let client_tag = request.head.headers.get(IF_NONE_MATCH);
    let mut answer = if client_tag.is_some_and(|client_tag| client_tag.as_bytes() == tag.as_bytes()) {
        typed_response(StatusCode::NOT_MODIFIED, "application/json", Bytes::new())
    } else {
        json_response(text.get_or_make(generation, || {
            let values = config.effective_json(EffectiveFormat { is_for_readers, ..FORMAT });
            json!({ "generation": generation, "hash": config.hash, "config": values }).to_string()
        }))
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        answer.headers_mut().insert(ETAG, tag);
    }
    Ok(answer)
}

pub async fn list_files(request: PageRequest) -> Result<AdminResponse, Problem> {
    let _work = request.start_work()?;
    let snapshot = request.context.current.load_full();
    Ok(json_response(request.context.config.list_files(&snapshot).await?.to_string()))
}

/// Shows a file as text, or as JSON in pieces that tell secrets apart.
pub async fn show_file(request: PageRequest) -> Result<AdminResponse, Problem> {
    let name = decode_name(&request.name)?;
    let in_pieces = match request.query() {
        "" => false,
        "pieces=1" => true,
        _ => return Err(bad_query("the only parameter is `pieces=1`")),
    };
    let _work = request.start_work()?;
    let snapshot = request.context.current.load_full();
    let (bytes, tag) = request.context.config.show_file(&name, &snapshot).await?;
    let response = match in_pieces {
        true => json_response(json!({ "pieces": split_secrets(&String::from_utf8_lossy(&bytes)) }).to_string()),
        false => typed_response(StatusCode::OK, "application/toml", bytes),
    };
    Ok(with_tag(response, &tag))
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

/// Activates a config of the history, or reports what that would change.
pub async fn roll_back(mut request: PageRequest) -> Result<AdminResponse, Problem> {
    let dry_run = request.is_dry_run()?;
    let tags = read_tags(&request.head.headers, "GET /-/config/history")?;
    let body = request.read_body(ROLLBACK_MAX).await?;
    let generation = serde_json::from_slice::<Value>(&body).ok().and_then(|body| {
        let body = body.as_object().filter(|body| body.len() == 1)?;
        body.get("generation")?.as_u64()
    });
    let Some(generation) = generation else {
        let detail = "send the generation that shall be active again: {\"generation\": 41}";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    };
    let _work = request.start_work()?;
    let rollback = ConfigChange::Rollback(ConfigRollback { generation, expected: tags, dry_run });
    let outcome = request.context.config.change_config(rollback, request.caller.name.clone()).await?;
    let prefix = if dry_run { "dry run: " } else { "" };
    note_outcome(&request, &format!("{prefix}rollback to generation {generation}: "), &outcome);
    let mut body = describe_outcome(&outcome);
    body["dry_run"] = dry_run.into();
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

/// Returns the entity tags of `If-Match`.
///
/// # Errors
/// If there are none, or the client does not say what it has seen (`*`).
fn read_tags(headers: &HeaderMap, source: &str) -> Result<Vec<String>, Problem> {
    let lists = headers.get_all(IF_MATCH).iter().filter_map(|value| value.to_str().ok());
    let tags: Vec<String> = lists.flat_map(|list| list.split(',')).map(|tag| tag.trim().to_owned()).collect();
    let is_tag = |tag: &String| tag.len() > 2 && tag.starts_with('"') && tag.ends_with('"');
    if tags.is_empty() || tags.len() > TAGS_MAX || !tags.iter().all(is_tag) {
        let detail = format!("send `If-Match` with the ETag of {source}, so that you do not undo another change");
        return Err(Problem::new(StatusCode::PRECONDITION_REQUIRED, detail));
    }
    Ok(tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_must_send_if_match() {
        let tags = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IF_MATCH, HeaderValue::from_static(value));
            }
            read_tags(&headers, "the file").map_err(|problem| problem.status.as_u16())
        };
        assert_eq!(tags(&["\"1-ab\""]), Ok(vec!["\"1-ab\"".to_owned()]));
        assert_eq!(tags(&["\"1-ab\", \"2-cd\"", "\"3\""]).unwrap().len(), 3);
        for values in [&[][..], &["*"], &[""], &["1-ab"], &["W/\"1-ab\""], &["\"1-ab\", *"]] {
            assert_eq!(tags(values), Err(428), "{values:?}");
        }
    }
}
