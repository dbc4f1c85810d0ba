//! Pages about the process: probes, metrics, status and reload. Listed in `pages`.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use http::header::{CONTENT_ENCODING, VARY};
use http::{HeaderValue, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::admin::lifecycle::{Lifecycle, format_rfc3339};
use crate::admin::metrics_text::{MetricsFormat, accepts_gzip};
use crate::admin::page_request::PageRequest;
use crate::admin::problem::{Problem, ProblemKind};
use crate::admin::response::{
    AdminResponse, json_response, problem_response, text_response, typed_response, unavailable_response,
};
use crate::admin::streams::summary::list_current_problems;
use crate::admin::verdict::{count_rejected, list_key_status};
use crate::config::Config;
use crate::config::schema::json_schema::json_schema;
use crate::limiting::source::jwt::remote_keys::KeyStatus;
use crate::net::ListenAddr;
use crate::reload::job::{ReloadJob, ReloadOrder, ReloadOutcome, Trigger};
use crate::telemetry::metrics::{Metrics, ShownSeries};
use crate::tls::{ListedCertificate, ServerTls};

/// Maximum number of certificates in the status, and of names of each.
const CERTIFICATES_MAX: usize = 100;
const NAMES_MAX: usize = 20;
const DAY_S: i64 = 86_400;

pub async fn show_liveness(_: PageRequest) -> Result<AdminResponse, Problem> {
    Ok(text_response("ok\n"))
}

pub async fn show_readiness(request: PageRequest) -> Result<AdminResponse, Problem> {
    Ok(match request.context.shared.lifecycle() {
        Lifecycle::Ready => {
            // The gateway serves, so it is ready: other routes need no tokens.
            let current = request.context.current.load();
            let unusable = list_key_status(&current.config).filter(|(_, status)| status.is_unusable);
            let line_of = |(section, _): (&str, _)| format!("[{section}] has no keys: its tokens are refused\n");
            let lines: String = unusable.map(line_of).collect();
            text_response(format!("ready\n{lines}"))
        }
        other => unavailable_response(other.label()),
    })
}

pub async fn show_metrics(request: PageRequest) -> Result<AdminResponse, Problem> {
    let (context, headers) = (&request.context, &request.head.headers);
    let (format, is_gzip) = (MetricsFormat::negotiate(headers), accepts_gzip(headers));
    let which =
        if context.current.load().config.admin.shows_unused_series { ShownSeries::All } else { ShownSeries::Used };
    let text = context.cached.metrics.get_or_make((format, is_gzip), &context.metrics, which);
    let mut answer = match text {
        Ok(body) => typed_response(StatusCode::OK, format.label(), body),
        Err(error) => return Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    };
    let headers = answer.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("accept, accept-encoding"));
    if is_gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(answer)
}

pub async fn show_status(request: PageRequest) -> Result<AdminResponse, Problem> {
    let snapshot = request.context.current.load();
    let state = &request.context.shared;
    let status = json!({
        "host": request.context.limits.store_link().gateways().display_name(),
        "version": env!("CARGO_PKG_VERSION"),
        "lifecycle": state.lifecycle().label(),
        "uptime_seconds": state.uptime().as_secs(),
        "generation": snapshot.generation,
        "hash": snapshot.config.hash,
        "loaded_at": format_rfc3339(snapshot.loaded_at),
        "watch": state.watching().label(),
        "pinned": request.context.config.pinned_generation(),
        "last_reload": state.last_reload(),
        "unapplied": state.unapplied(),
        "certificates": list_certificates(&snapshot.config),
        "token_keys": describe_token_keys(&snapshot.config),
        "store": {
            "shared": snapshot.config.store.is_shared(),
            "up": request.context.metrics.store.up.get() == 1,
            "gateways": request.context.metrics.gateways.alive.get(),
        },
        "rejected_overrides": count_rejected_overrides(&snapshot.config, &request.context.metrics),
        "rejected_set_rows": count_rejected_set_rows(&snapshot.config),
        "problems": list_current_problems(&request.context),
    });
    Ok(json_response(status.to_string()))
}

/// Returns how many overrides are skipped because of an error, by limit, where there are any.
fn count_rejected_overrides(config: &Config, metrics: &Metrics) -> Value {
    let counts = config.limits.iter().map(|limit| (limit.name.clone(), count_rejected(limit, metrics)));
    counts.filter(|(_, count)| *count > 0).map(|(name, count)| (name, Value::from(count))).collect()
}

/// Returns how many rows of the files of sets are skipped because of an error, by set, where there are any.
fn count_rejected_set_rows(config: &Config) -> Value {
    let counts = config.set_files.iter().map(|file| (file.name.clone(), file.rejected.count));
    counts.filter(|(_, count)| *count > 0).map(|(name, count)| (name, Value::from(count))).collect()
}

fn describe_token_keys(config: &Config) -> Vec<Value> {
    let urls = config.token_keys.iter().map(|keys| keys.settings.location.url());
    let describe = |((section, status), url): ((&str, KeyStatus), &str)| {
        let KeyStatus { keys, fetched_s, is_unusable, fault } = status;
        let fetched = fetched_s.and_then(|fetched_s| Timestamp::from_second(fetched_s).ok());
        json!({
            "section": section,
            "url": url,
            "keys": keys,
            "usable": !is_unusable,
            "fetched_at": fetched.map(|time| time.to_string()),
            "fault": fault,
        })
    };
    list_key_status(config).zip(urls).map(describe).collect()
}

/// Shows the JSON Schema of the config.
pub async fn show_schema(_: PageRequest) -> Result<AdminResponse, Problem> {
    static SCHEMA: LazyLock<String> = LazyLock::new(|| json_schema().to_string());
    Ok(typed_response(StatusCode::OK, "application/schema+json", SCHEMA.as_str()))
}

/// Returns the certificates of all listeners, those that expire first at the start.
fn list_certificates(config: &Config) -> Vec<Value> {
    let listeners = config.listeners.iter().filter_map(|listener| Some((&listener.address, listener.tls.as_ref()?)));
    let of_listener = |(address, tls): (_, &ServerTls)| {
        tls.list_certificates().into_iter().map(move |certificate| (address, certificate))
    };
    let mut all: Vec<_> = listeners.flat_map(of_listener).collect();
    all.sort_by_key(|(_, certificate)| certificate.not_after_s);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let describe = |(address, certificate): (&ListenAddr, ListedCertificate)| {
        let not_after = Timestamp::from_second(certificate.not_after_s).map(|time| time.to_string());
        json!({
            "listener": address.to_string(),
            "names": certificate.names.iter().take(NAMES_MAX).collect::<Vec<_>>(),
            "not_after": not_after.ok(),
            "days_left": (certificate.not_after_s - now_s).div_euclid(DAY_S),
            "source": certificate.source.label(),
        })
    };
    all.into_iter().take(CERTIFICATES_MAX).map(describe).collect()
}

/// Reloads the config, or reports what would change.
pub async fn reload_config(request: PageRequest) -> Result<AdminResponse, Problem> {
    let _work = request.start_work()?;
    let dry_run = request.is_dry_run()?;
    let (token, peer) = (request.caller.name.as_deref(), request.peer.label());
    tracing::info!(token, peer, dry_run, "a reload was requested over the admin API");
    let (reply, outcome) = oneshot::channel();
    let mut order = ReloadOrder::requested_by(Trigger::Api, dry_run);
    order.token.clone_from(&request.caller.name);
    let job = ReloadJob { order, reply };
    let draining = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "draining: the config is not loaded any more");
    request.context.jobs.send(job).await.map_err(|_| draining())?;
    let (outcome, _) = outcome.await.map_err(|_| draining())?;
    let mut body = outcome.to_json();
    body["dry_run"] = dry_run.into();
    request.note_reload(&body, dry_run);
    body["pinned"] = request.context.config.pinned_generation().into();
    Ok(match outcome {
        ReloadOutcome::Failed { failure, .. } => {
            request.note_change("not loaded");
            body["type"] = ProblemKind::ConfigRejected.urn().into();
            problem_response(StatusCode::UNPROCESSABLE_ENTITY, &failure.to_string(), body)
        }
        _ => json_response(body.to_string()),
    })
}
