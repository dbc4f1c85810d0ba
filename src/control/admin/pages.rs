//! The pages of the admin listener, in one table: who may see each is decided before a body is read.
//! Called by `serve` with every request.

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

use super::cached::CachedText;
use super::guard::{self, Access};
use super::limits::{Limits, Problem};
use super::room::{AdminTicket, Work};
use super::upstreams;
use crate::control::job::{Job, ReloadOrder, ReloadOutcome, Trigger};
use crate::control::shared::{Lifecycle, SharedState, rfc3339};
use crate::http::downstream::reject::Reject;
use crate::metrics::Metrics;
use crate::snapshot::{Current, Fleet};

pub struct AdminContext {
    pub current: Current,
    pub metrics: Metrics,
    pub shared: Arc<SharedState>,
    pub jobs: mpsc::Sender<Job>,
    pub limits: Limits,
    pub cached: CachedPages,
    pub fleet: Fleet,
}

/// Those whose text takes time.
#[derive(Default)]
pub struct CachedPages {
    metrics: CachedText,
    upstreams: CachedText,
}

type Answer = Response<Full<Bytes>>;

struct Page {
    methods: &'static str,
    /// `NAME` stands for a limit.
    path: &'static str,
    access: Access,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
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
    Upstreams,
}

const PAGES: [Page; 12] = [
    page("GET, HEAD", "/livez", Access::Open, What::Live),
    page("GET, HEAD", "/readyz", Access::Open, What::Ready),
    page("GET, HEAD", "/metrics", Access::Metrics, What::Metrics),
    page("GET, HEAD", "/-/status", Access::Look, What::Status),
    page("POST", "/-/reload", Access::Manage, What::Reload),
    page("GET, HEAD", "/-/limits", Access::Look, What::Limits),
    page("GET, HEAD", "/-/limits/NAME", Access::Look, What::Limit),
    page("GET, HEAD", "/-/limits/NAME/state", Access::Manage, What::State),
    page("DELETE", "/-/limits/NAME/state", Access::Manage, What::Reset),
    page("POST", "/-/limits/NAME/refund", Access::Manage, What::Refund),
    page("POST", "/-/decide", Access::Manage, What::Decide),
    page("GET, HEAD", "/-/upstreams", Access::Look, What::Upstreams),
];

/// From the head to the last byte of a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(3);
const BODY_MAX: usize = 64 * 1024;
/// Of many decisions at once.
const DECISIONS_MAX: usize = 1024 * 1024;

const fn page(methods: &'static str, path: &'static str, access: Access, what: What) -> Page {
    Page { methods, path, access, what }
}

impl Page {
    /// The name in `path`, empty where the page has none; `None` when it is another page's.
    fn name<'p>(&self, path: &'p str) -> Option<&'p str> {
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

    fn takes(&self, method: &str) -> bool {
        self.methods.split(", ").any(|known| known == method)
    }
}

/// Refusals of any kind become problems (RFC 9457).
pub async fn answer(
    context: &Rc<AdminContext>,
    request: Request<Incoming>,
    fault: Option<Reject>,
    local: bool,
    ticket: &AdminTicket,
) -> Answer {
    let (head, body) = request.into_parts();
    let clear = match fault {
        Some(fault) => Err((fault.status(), fault.explanation())),
        None => guard::has_one_host(&head),
    };
    let found = match clear {
        Ok(()) => find(&head, local, context),
        Err((status, detail)) => Err(Box::new(refusal(Problem::new(status, detail)))),
    };
    let answer = found.map(|(page, name)| shown(page.what, name, context, &head, body, ticket));
    let answer = match answer {
        Ok(shown) => shown.await.unwrap_or_else(refusal),
        Err(answer) => *answer,
    };
    // Held until it has gone; too much for all places together, it is still this one's turn.
    ticket.hold(answer.body().size_hint().lower().try_into().unwrap_or(usize::MAX / 2));
    answer
}

/// The page asked for and the name in its path, if it may be seen.
fn find<'h>(head: &'h Parts, local: bool, context: &AdminContext) -> Result<(&'static Page, &'h str), Box<Answer>> {
    let path = head.uri.path();
    let there = || PAGES.iter().filter_map(|page| Some((page, page.name(path)?)));
    let Some(found) = there().find(|(page, _)| page.takes(head.method.as_str())) else {
        let methods: Vec<&str> = there().map(|(page, _)| page.methods).collect();
        return Err(Box::new(match methods.as_slice() {
            [] => {
                let pages = PAGES.iter().map(|page| format!("{} {}", page.methods.replace(", HEAD", ""), page.path));
                let detail = format!("there are {}", pages.collect::<Vec<_>>().join(", "));
                problem(StatusCode::NOT_FOUND, &detail, json!({}))
            }
            methods => not_allowed(&methods.join(", ")),
        }));
    };
    match guard::may(found.0.access, &head.headers, &context.current.load().config.admin, local) {
        Ok(()) => Ok(found),
        Err((status, detail)) => Err(Box::new(refusal(Problem::new(status, detail)))),
    }
}

async fn shown(
    what: What,
    name: &str,
    context: &Rc<AdminContext>,
    head: &Parts,
    body: Incoming,
    ticket: &AdminTicket,
) -> Result<Answer, Problem> {
    let (limits, query) = (&context.limits, head.uri.query().unwrap_or_default());
    let found = match what {
        What::Live => return Ok(text("ok\n")),
        What::Ready => return Ok(ready(context)),
        What::Metrics => return Ok(metrics(context)),
        What::Status => status(context),
        What::Reload => {
            let _work = work(ticket)?;
            return reload(context, query).await;
        }
        What::Limits => return Ok(json_text(limits.list())),
        What::Limit => return Ok(json_text(limits.show(name)?)),
        What::Upstreams => return Ok(upstreams(context)),
        What::State => {
            let _work = work(ticket)?;
            limits.state(name, query).await?
        }
        What::Reset => {
            let _work = work(ticket)?;
            limits.reset(name, query).await?
        }
        What::Refund => {
            let (context, name, body) = (context.clone(), name.to_owned(), read(body, BODY_MAX, ticket).await?);
            let _work = work(ticket)?;
            // It goes on without the client: a receipt that counts as used has given back.
            let refund = spawn_local(async move { context.limits.refund(&name, &body).await });
            let broken = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the refund broke off");
            refund.await.map_err(broken)??
        }
        What::Decide => {
            let body = read(body, DECISIONS_MAX, ticket).await?;
            let _turn = limits.turn(body.len()).await?;
            let _work = work(ticket)?;
            return Ok(json_text(limits.decide(&body).await?.to_string()));
        }
    };
    Ok(json_text(found.to_string()))
}

fn work(ticket: &AdminTicket) -> Result<Work<'_>, Problem> {
    ticket.work().ok_or_else(|| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once; try again"))
}

async fn read(mut body: Incoming, most: usize, ticket: &AdminTicket) -> Result<Vec<u8>, Problem> {
    let large = || Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a body here has at most {most} bytes"));
    // Before the client is told to go on and send it.
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
            if !ticket.hold(length) {
                return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many bodies at once; try again"));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    };
    let late = |_| Problem::new(StatusCode::REQUEST_TIMEOUT, format!("the body was not there within {BODY_TIMEOUT:?}"));
    timeout(BODY_TIMEOUT, whole).await.map_err(late)?
}

fn metrics(context: &AdminContext) -> Answer {
    match context.cached.metrics.get(|| context.metrics.render()) {
        Ok(body) => typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), json!({})),
    }
}

fn upstreams(context: &AdminContext) -> Answer {
    let Ok(text) = context.cached.upstreams.get(|| Ok::<_, Infallible>(upstreams::list(&context.fleet).to_string()));
    json_text(text)
}

fn ready(context: &AdminContext) -> Answer {
    match context.shared.lifecycle() {
        Lifecycle::Ready => text("ready\n"),
        other => problem(StatusCode::SERVICE_UNAVAILABLE, other.label(), json!({})),
    }
}

fn status(context: &AdminContext) -> Value {
    let snapshot = context.current.load();
    let shared = &context.shared;
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "lifecycle": shared.lifecycle().label(),
        "uptime_seconds": shared.uptime().as_secs(),
        "generation": snapshot.generation,
        "hash": snapshot.config.hash,
        "loaded_at": rfc3339(snapshot.loaded_at),
        "watch": shared.watching().label(),
        "last_reload": shared.last_reload(),
    })
}

async fn reload(context: &AdminContext, query: &str) -> Result<Answer, Problem> {
    let dry_run = match query {
        "" => false,
        "dry_run=1" | "dry_run=true" => true,
        "dry_run=0" | "dry_run=false" => false,
        _ => return Err(Problem::new(StatusCode::BAD_REQUEST, "the only parameter is dry_run, 0 or 1")),
    };
    let (reply, outcome) = oneshot::channel();
    let job = Job { order: ReloadOrder::from(Trigger::Api, dry_run), reply };
    let draining = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "draining: the config is not loaded any more");
    context.jobs.send(job).await.map_err(|_| draining())?;
    let (outcome, _) = outcome.await.map_err(|_| draining())?;
    let mut body = outcome.json();
    body["dry_run"] = dry_run.into();
    Ok(match outcome {
        ReloadOutcome::Failed { failure, .. } => problem(StatusCode::UNPROCESSABLE_ENTITY, &failure.to_string(), body),
        _ => json_text(body.to_string()),
    })
}

fn refusal(Problem { status, detail, more }: Problem) -> Answer {
    let mut answer = problem(status, &detail, more);
    let headers = answer.headers_mut();
    match status {
        StatusCode::UNAUTHORIZED => drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        StatusCode::SERVICE_UNAVAILABLE => drop(headers.insert(RETRY_AFTER, HeaderValue::from_static("1"))),
        _ => {}
    }
    answer
}

fn not_allowed(methods: &str) -> Answer {
    let mut answer = problem(StatusCode::METHOD_NOT_ALLOWED, &format!("use {methods}"), json!({}));
    if let Ok(methods) = methods.try_into() {
        answer.headers_mut().insert(ALLOW, methods);
    }
    answer
}

fn problem(status: StatusCode, detail: &str, mut body: Value) -> Answer {
    body["title"] = status.canonical_reason().unwrap_or_default().into();
    body["status"] = status.as_u16().into();
    body["detail"] = detail.into();
    typed(status, "application/problem+json", body.to_string())
}

fn json_text(body: impl Into<Bytes>) -> Answer {
    typed(StatusCode::OK, "application/json", body)
}

fn text(body: &'static str) -> Answer {
    typed(StatusCode::OK, "text/plain; charset=utf-8", body)
}

fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
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
            let others = PAGES.iter().enumerate().filter(|(j, other)| *j != i && other.name(&path).is_some());
            for (_, other) in others {
                assert!(page.methods.split(", ").all(|method| !other.takes(method)), "{}", page.path);
            }
        }
        let name = |path: &'static str| PAGES.iter().find_map(|page| page.name(path));
        assert_eq!(name("/-/limits/a-b/state"), Some("a-b"));
        assert_eq!(name("/livez"), Some(""));
        for path in ["", "/", "/livez/", "//livez", "/-/limits/a/states", "/-/limits/a/state/b", "/-"] {
            assert_eq!(name(path), None, "{path}");
        }
    }
}
