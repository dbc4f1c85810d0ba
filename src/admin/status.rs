//! Pages about the process: probes, metrics, status and reload. Listed in `pages`.

use std::sync::LazyLock;

use http::StatusCode;
use serde_json::json;
use tokio::sync::oneshot;

use crate::admin::lifecycle::{Lifecycle, format_rfc3339};
use crate::admin::page_request::PageRequest;
use crate::admin::problem::Problem;
use crate::admin::response::{
    AdminResponse, json_response, problem_response, text_response, typed_response, unavailable_response,
};
use crate::config::schema::json_schema::json_schema;
use crate::reload::job::{Job, ReloadOrder, ReloadOutcome, Trigger};

pub async fn show_liveness(_: PageRequest) -> Result<AdminResponse, Problem> {
    Ok(text_response("ok\n"))
}

pub async fn show_readiness(request: PageRequest) -> Result<AdminResponse, Problem> {
    Ok(match request.context.shared.lifecycle() {
        Lifecycle::Ready => text_response("ready\n"),
        other => unavailable_response(other.label()),
    })
}

pub async fn show_metrics(request: PageRequest) -> Result<AdminResponse, Problem> {
    let context = &request.context;
    Ok(match context.cached.metrics.get_or_make(|| context.metrics.render()) {
        Ok(body) => typed_response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body),
        Err(error) => problem_response(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), json!({})),
    })
}

pub async fn show_status(request: PageRequest) -> Result<AdminResponse, Problem> {
    let snapshot = request.context.current.load();
    let shared = &request.context.shared;
    let status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "lifecycle": shared.lifecycle().label(),
        "uptime_seconds": shared.uptime().as_secs(),
        "generation": snapshot.generation,
        "hash": snapshot.config.hash,
        "loaded_at": format_rfc3339(snapshot.loaded_at),
        "watch": shared.watching().label(),
        "pinned": request.context.config.pinned_generation(),
        "last_reload": shared.last_reload(),
    });
    Ok(json_response(status.to_string()))
}

/// Shows the JSON Schema of the config.
pub async fn show_schema(_: PageRequest) -> Result<AdminResponse, Problem> {
    static SCHEMA: LazyLock<String> = LazyLock::new(|| json_schema().to_string());
    Ok(typed_response(StatusCode::OK, "application/schema+json", SCHEMA.as_str()))
}

/// Reloads the config, or reports what would change.
pub async fn reload_config(request: PageRequest) -> Result<AdminResponse, Problem> {
    let _work = request.start_work()?;
    let dry_run = request.is_dry_run()?;
    let (reply, outcome) = oneshot::channel();
    let job = Job { order: ReloadOrder::requested_by(Trigger::Api, dry_run), reply };
    let draining = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "draining: the config is not loaded any more");
    request.context.jobs.send(job).await.map_err(|_| draining())?;
    let (outcome, _) = outcome.await.map_err(|_| draining())?;
    let mut body = outcome.to_json();
    body["dry_run"] = dry_run.into();
    Ok(match outcome {
        ReloadOutcome::Failed { failure, .. } => {
            problem_response(StatusCode::UNPROCESSABLE_ENTITY, &failure.to_string(), body)
        }
        _ => json_response(body.to_string()),
    })
}
