//! Pages of the admin listener, in one table. Access is checked before a body is read. Called by `serve` for every
//! request.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::admin::cached::CachedText;
use crate::admin::guard::Access;
use crate::admin::lifecycle::{Lifecycle, SharedState, format_rfc3339};
use crate::admin::limits::{LimitsApi, Problem};
use crate::admin::room::{AdminSlot, WorkGuard};
use crate::admin::{guard, upstreams};
use crate::proxy::inbound::reject::Reject;
use crate::reload::job::{Job, ReloadOrder, ReloadOutcome, Trigger};
use crate::snapshot::{CurrentSnapshot, Fleet};
use crate::telemetry::metrics::Metrics;

pub struct AdminContext {
    pub current: CurrentSnapshot,
    pub metrics: Metrics,
    pub shared: Arc<SharedState>,
    pub jobs: mpsc::Sender<Job>,
    pub limits: LimitsApi,
    pub cached: CachedPages,
    pub fleet: Fleet,
}

/// Pages whose text is expensive to build.
#[derive(Default)]
pub struct CachedPages {
    metrics: CachedText,
    upstreams: CachedText,
}

type AdminResponse = Response<Full<Bytes>>;

struct Page {
    methods: &'static str,
    /// `NAME` represents the name of a limit.
    path: &'static str,
    access: Access,
    kind: PageKind,
}

#[derive(Clone, Copy)]
enum PageKind {
    Live,
    Ready,
    Metrics,
    Status,
    Reload,
    Limits,
    Limit,
    State,
    Reset,
    Refund,
    Decide,
    Top,
    Upstreams,
}

const PAGES: [Page; 13] = [
    define_page("GET, HEAD", "/livez", Access::Open, PageKind::Live),
    define_page("GET, HEAD", "/readyz", Access::Open, PageKind::Ready),
    define_page("GET, HEAD", "/metrics", Access::Metrics, PageKind::Metrics),
    define_page("GET, HEAD", "/-/status", Access::Read, PageKind::Status),
    define_page("POST", "/-/reload", Access::Manage, PageKind::Reload),
    define_page("GET, HEAD", "/-/limits", Access::Read, PageKind::Limits),
    define_page("GET, HEAD", "/-/limits/NAME", Access::Read, PageKind::Limit),
    define_page("GET, HEAD", "/-/limits/NAME/state", Access::Manage, PageKind::State),
    define_page("DELETE", "/-/limits/NAME/state", Access::Manage, PageKind::Reset),
    define_page("POST", "/-/limits/NAME/refund", Access::Manage, PageKind::Refund),
    define_page("POST", "/-/decide", Access::Manage, PageKind::Decide),
    define_page("GET, HEAD", "/-/top", Access::Manage, PageKind::Top),
    define_page("GET, HEAD", "/-/upstreams", Access::Read, PageKind::Upstreams),
];

/// Time limit from the head to the last byte of a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(3);
const BODY_MAX: usize = 64 * 1024;
/// Maximum size of a body with many decisions, in bytes.
const DECISIONS_MAX: usize = 1024 * 1024;

const fn define_page(methods: &'static str, path: &'static str, access: Access, what: PageKind) -> Page {
    Page { methods, path, access, kind: what }
}

impl Page {
    /// Returns the name in `path`, empty if the page has none; `None` if `path` belongs to another page.
    fn name_in<'p>(&self, path: &'p str) -> Option<&'p str> {
        let (mut ours, mut theirs, mut name) = (self.path.split('/'), path.split('/'), "");
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return Some(name),
                (Some("NAME"), Some(given)) => name = given,
                (Some(our), Some(their)) if our == their => {}
                _ => return None,
            }
        }
    }

    fn accepts_method(&self, method: &str) -> bool {
        self.methods.split(", ").any(|known| known == method)
    }
}

/// Responds to a request. Every refusal is a problem document (RFC 9457).
pub async fn respond(
    context: &Rc<AdminContext>,
    request: Request<Incoming>,
    fault: Option<Reject>,
    local: bool,
    ticket: &AdminSlot,
) -> AdminResponse {
    let (head, body) = request.into_parts();
    let clear = match fault {
        Some(fault) => Err((fault.status(), fault.explanation())),
        None => guard::check_host(&head),
    };
    let found = match clear {
        Ok(()) => find_page(&head, local, context),
        Err((status, detail)) => Err(Box::new(refusal_response(Problem::new(status, detail)))),
    };
    let answer = found.map(|(page, name)| show_page(page.kind, name, context, &head, body, ticket));
    let answer = match answer {
        Ok(shown) => shown.await.unwrap_or_else(refusal_response),
        Err(answer) => *answer,
    };
    // The response counts as held memory until it is sent. It is sent even if it exceeds the total.
    ticket.hold_bytes(answer.body().size_hint().lower().try_into().unwrap_or(usize::MAX / 2));
    answer
}

/// Returns the requested page and the name in its path, if access is allowed.
fn find_page<'h>(
    head: &'h Parts,
    local: bool,
    context: &AdminContext,
) -> Result<(&'static Page, &'h str), Box<AdminResponse>> {
    let path = head.uri.path();
    let there = || PAGES.iter().filter_map(|page| Some((page, page.name_in(path)?)));
    let Some(found) = there().find(|(page, _)| page.accepts_method(head.method.as_str())) else {
        let methods: Vec<&str> = there().map(|(page, _)| page.methods).collect();
        return Err(Box::new(match methods.as_slice() {
            [] => {
                let pages = PAGES.iter().map(|page| format!("{} {}", page.methods.replace(", HEAD", ""), page.path));
                let detail = format!("there are {}", pages.collect::<Vec<_>>().join(", "));
                problem_response(StatusCode::NOT_FOUND, &detail, json!({}))
            }
            methods => method_not_allowed(&methods.join(", ")),
        }));
    };
    match guard::check_access(found.0.access, &head.headers, &context.current.load().config.admin, local) {
        Ok(()) => Ok(found),
        Err((status, detail)) => Err(Box::new(refusal_response(Problem::new(status, detail)))),
    }
}

async fn show_page(
    what: PageKind,
    name: &str,
    context: &Rc<AdminContext>,
    head: &Parts,
    body: Incoming,
    ticket: &AdminSlot,
) -> Result<AdminResponse, Problem> {
    let (limits, query) = (&context.limits, head.uri.query().unwrap_or_default());
    let found = match what {
        PageKind::Live => return Ok(text_response("ok\n")),
        PageKind::Ready => return Ok(ready_page(context)),
        PageKind::Metrics => return Ok(metrics_page(context)),
        PageKind::Status => status_page(context),
        PageKind::Reload => {
            let _work = start_work(ticket)?;
            return reload_page(context, query).await;
        }
        PageKind::Limits => return Ok(json_response(limits.list_limits())),
        PageKind::Limit => return Ok(json_response(limits.show_limit(name)?)),
        PageKind::Upstreams => return Ok(upstreams_page(context)),
        PageKind::Top => {
            let _work = start_work(ticket)?;
            limits.list_top(query).await?
        }
        PageKind::State => {
            let _work = start_work(ticket)?;
            limits.show_state(name, query).await?
        }
        PageKind::Reset => {
            let _work = start_work(ticket)?;
            limits.reset_key(name, query).await?
        }
        PageKind::Refund => {
            let (context, name, body) = (context.clone(), name.to_owned(), read_body(body, BODY_MAX, ticket).await?);
            let _work = start_work(ticket)?;
            // The refund continues without the client: a receipt that is marked as used must have been refunded.
            let refund = spawn_local(async move { context.limits.refund_charge(&name, &body).await });
            let broken = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the refund broke off");
            refund.await.map_err(broken)??
        }
        PageKind::Decide => {
            let body = read_body(body, DECISIONS_MAX, ticket).await?;
            let _turn = limits.wait_for_turn(body.len()).await?;
            let _work = start_work(ticket)?;
            return Ok(json_response(limits.decide_all(&body).await?.to_string()));
        }
    };
    Ok(json_response(found.to_string()))
}

fn start_work(ticket: &AdminSlot) -> Result<WorkGuard<'_>, Problem> {
    ticket
        .start_work()
        .ok_or_else(|| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once; try again"))
}

async fn read_body(mut body: Incoming, most: usize, ticket: &AdminSlot) -> Result<Vec<u8>, Problem> {
    let large = || Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a body here has at most {most} bytes"));
    // Checked before the client gets `100 Continue`.
    if body.size_hint().lower() > most as u64 {
        return Err(large());
    }
    let whole = async {
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Problem::new(StatusCode::BAD_REQUEST, "the body broke off"))?;
            let Ok(piece) = frame.into_data() else { continue };
            let length = bytes.len() + piece.len();
            if length > most {
                return Err(large());
            }
            if !ticket.hold_bytes(length) {
                return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many bodies at once; try again"));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    };
    let late = |_| Problem::new(StatusCode::REQUEST_TIMEOUT, format!("the body was not there within {BODY_TIMEOUT:?}"));
    timeout(BODY_TIMEOUT, whole).await.map_err(late)?
}

fn metrics_page(context: &AdminContext) -> AdminResponse {
    match context.cached.metrics.get_or_make(|| context.metrics.render()) {
        Ok(body) => typed_response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body),
        Err(error) => problem_response(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), json!({})),
    }
}

fn upstreams_page(context: &AdminContext) -> AdminResponse {
    let Ok(text) = context
        .cached
        .upstreams
        .get_or_make(|| Ok::<_, Infallible>(upstreams::list_upstreams(&context.fleet).to_string()));
    json_response(text)
}

fn ready_page(context: &AdminContext) -> AdminResponse {
    match context.shared.lifecycle() {
        Lifecycle::Ready => text_response("ready\n"),
        other => problem_response(StatusCode::SERVICE_UNAVAILABLE, other.label(), json!({})),
    }
}

fn status_page(context: &AdminContext) -> Value {
    let snapshot = context.current.load();
    let shared = &context.shared;
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "lifecycle": shared.lifecycle().label(),
        "uptime_seconds": shared.uptime().as_secs(),
        "generation": snapshot.generation,
        "hash": snapshot.config.hash,
        "loaded_at": format_rfc3339(snapshot.loaded_at),
        "watch": shared.watching().label(),
        "last_reload": shared.last_reload(),
    })
}

async fn reload_page(context: &AdminContext, query: &str) -> Result<AdminResponse, Problem> {
    let dry_run = match query {
        "" => false,
        "dry_run=1" | "dry_run=true" => true,
        "dry_run=0" | "dry_run=false" => false,
        _ => return Err(Problem::new(StatusCode::BAD_REQUEST, "the only parameter is dry_run, 0 or 1")),
    };
    let (reply, outcome) = oneshot::channel();
    let job = Job { order: ReloadOrder::requested_by(Trigger::Api, dry_run), reply };
    let draining = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "draining: the config is not loaded any more");
    context.jobs.send(job).await.map_err(|_| draining())?;
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

fn refusal_response(Problem { status, detail, more }: Problem) -> AdminResponse {
    let mut answer = problem_response(status, &detail, more);
    let headers = answer.headers_mut();
    match status {
        StatusCode::UNAUTHORIZED => drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        StatusCode::SERVICE_UNAVAILABLE => drop(headers.insert(RETRY_AFTER, HeaderValue::from_static("1"))),
        _ => {}
    }
    answer
}

fn method_not_allowed(methods: &str) -> AdminResponse {
    let mut answer = problem_response(StatusCode::METHOD_NOT_ALLOWED, &format!("use {methods}"), json!({}));
    if let Ok(methods) = methods.try_into() {
        answer.headers_mut().insert(ALLOW, methods);
    }
    answer
}

fn problem_response(status: StatusCode, detail: &str, mut body: Value) -> AdminResponse {
    body["title"] = status.canonical_reason().unwrap_or_default().into();
    body["status"] = status.as_u16().into();
    body["detail"] = detail.into();
    typed_response(status, "application/problem+json", body.to_string())
}

fn json_response(body: impl Into<Bytes>) -> AdminResponse {
    typed_response(StatusCode::OK, "application/json", body)
}

fn text_response(body: &'static str) -> AdminResponse {
    typed_response(StatusCode::OK, "text/plain; charset=utf-8", body)
}

fn typed_response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> AdminResponse {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_page_for_each_method() {
        for (i, page) in PAGES.iter().enumerate() {
            let path = page.path.replace("NAME", "daily");
            let others = PAGES.iter().enumerate().filter(|(j, other)| *j != i && other.name_in(&path).is_some());
            for (_, other) in others {
                assert!(page.methods.split(", ").all(|method| !other.accepts_method(method)), "{}", page.path);
            }
        }
        let name = |path: &'static str| PAGES.iter().find_map(|page| page.name_in(path));
        assert_eq!(name("/-/limits/a-b/state"), Some("a-b"));
        assert_eq!(name("/livez"), Some(""));
        for path in ["", "/", "/livez/", "//livez", "/-/limits/a/states", "/-/limits/a/state/b", "/-"] {
            assert_eq!(name(path), None, "{path}");
        }
    }
}
