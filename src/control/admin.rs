//! The admin listener: metrics, probes, status, reload and limits, served on the control
//! thread so that it answers however busy the workers are. Bounded in connections, time and bytes.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_local};

use super::guard::{self, Refused};
use super::job::{Job, Order, Outcome, Trigger};
use super::limits::{Limits, Problem};

use super::shared::{Lifecycle, Shared, rfc3339};
use crate::metrics::Metrics;
use crate::net::ListenAddr;
use crate::snapshot::Current;
use crate::worker::{Listener, remove_socket_file};

/// The listener and what its pages show.
pub struct Server {
    context: Rc<Context>,
    connections: Arc<Semaphore>,
    open: Option<(ListenAddr, JoinHandle<()>)>,
}

pub struct Context {
    pub current: Current,
    pub metrics: Metrics,
    pub shared: Arc<Shared>,
    pub jobs: mpsc::Sender<Job>,
    pub limits: Limits,
}

type Answer = Response<Full<Bytes>>;

const MAX_CONNECTIONS: usize = 64;
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// One request and its answer; a connection carries no second one.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_BODY: usize = 64 * 1024;
/// Of many decisions at once.
const MAX_DECISIONS_BODY: usize = 1024 * 1024;
/// Pause after an accept failed for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

impl Server {
    pub fn new(context: Context) -> Server {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        Server { context: Rc::new(context), connections, open: None }
    }

    /// Accepts from `listener` and no longer from the one before it.
    pub fn listen(&mut self, addr: ListenAddr, listener: Listener) -> io::Result<()> {
        let (context, connections) = (self.context.clone(), self.connections.clone());
        let task = match listener {
            Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                spawn_local(accept_tcp(TcpListener::from_std(listener)?, context, connections))
            }
            Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                spawn_local(accept_unix(UnixListener::from_std(listener)?, context, connections))
            }
        };
        if let Some((_, before)) = self.open.replace((addr, task)) {
            before.abort();
        }
        Ok(())
    }

    pub fn addr(&self) -> Option<&ListenAddr> {
        self.open.as_ref().map(|(addr, _)| addr)
    }

    /// Stops accepting; the address is free when this returns.
    pub async fn close(&mut self) {
        if let Some((_, task)) = self.open.take() {
            task.abort();
            // Cancelled, as asked.
            let _ = task.await;
        }
    }

    /// The end of the process.
    pub fn end(self) {
        if let Some((addr, task)) = self.open {
            task.abort();
            remove_socket_file(&addr);
        }
    }
}

async fn accept_tcp(listener: TcpListener, context: Rc<Context>, connections: Arc<Semaphore>) {
    while let Ok(permit) = connections.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let local = peer.ip().to_canonical().is_loopback();
                spawn_local(serve(stream, local, context.clone(), permit));
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn accept_unix(listener: UnixListener, context: Rc<Context>, connections: Arc<Semaphore>) {
    while let Ok(permit) = connections.clone().acquire_owned().await {
        match listener.accept().await {
            // The file's permissions say who may come.
            Ok((stream, _)) => drop(spawn_local(serve(stream, true, context.clone(), permit))),
            Err(error) => pause(&error).await,
        }
    }
}

async fn pause(error: &io::Error) {
    tracing::warn!(%error, "the admin listener cannot accept a connection, pausing");
    tokio::time::sleep(PAUSE).await;
}

async fn serve<S>(stream: S, local: bool, context: Rc<Context>, permit: OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let service = service_fn(move |request| {
        let context = context.clone();
        async move { Ok::<_, std::convert::Infallible>(answer(&context, request, local).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A client that goes away or stalls has had its chance.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
    drop(permit);
}

/// The pages. Refusals of any kind become problems (RFC 9457).
async fn answer(context: &Rc<Context>, request: Request<Incoming>, local: bool) -> Answer {
    let get = matches!(*request.method(), Method::GET | Method::HEAD);
    let post = request.method() == Method::POST;
    match request.uri().path() {
        "/metrics" if get => metrics(context),
        "/livez" if get => text("ok\n"),
        "/readyz" if get => ready(context),
        "/-/status" if get => status(context, &request).unwrap_or_else(refusal),
        "/-/reload" if post => reload(context, request, local).await.unwrap_or_else(refusal),
        "/metrics" | "/livez" | "/readyz" | "/-/status" => not_allowed("GET, HEAD"),
        "/-/reload" => not_allowed("POST"),
        path => match Page::of(path).map(|page| (page, page.methods())) {
            Some((_, methods)) if !methods.split(", ").any(|method| method == request.method()) => not_allowed(methods),
            Some(_) => about_limits(context, request, local).await.unwrap_or_else(refusal_in_full),
            None => problem(
                StatusCode::NOT_FOUND,
                "there are /metrics, /livez, /readyz, GET /-/status, POST /-/reload, POST /-/decide, GET /-/limits, \
                 GET /-/limits/NAME, GET and DELETE /-/limits/NAME/state and POST /-/limits/NAME/refund",
                json!({}),
            ),
        },
    }
}

/// The pages about limits.
#[derive(Clone, Copy)]
enum Page<'a> {
    Decide,
    Limits,
    Limit(&'a str),
    State(&'a str),
    Refund(&'a str),
}

impl<'a> Page<'a> {
    fn of(path: &'a str) -> Option<Page<'a>> {
        match path.strip_prefix("/-/")?.split('/').collect::<Vec<_>>()[..] {
            ["decide"] => Some(Page::Decide),
            ["limits"] => Some(Page::Limits),
            ["limits", name] => Some(Page::Limit(name)),
            ["limits", name, "state"] => Some(Page::State(name)),
            ["limits", name, "refund"] => Some(Page::Refund(name)),
            _ => None,
        }
    }

    fn methods(self) -> &'static str {
        match self {
            Page::Decide | Page::Refund(_) => "POST",
            Page::Limits | Page::Limit(_) => "GET, HEAD",
            Page::State(_) => "GET, HEAD, DELETE",
        }
    }
}

async fn about_limits(context: &Rc<Context>, request: Request<Incoming>, local: bool) -> Result<Answer, Problem> {
    let token = context.current.load().config.admin.token.clone();
    let (head, body) = request.into_parts();
    let may_look = || guard::may_look(&head.headers, token.as_deref()).map_err(Problem::from);
    let may_change = || guard::may_change(&head.headers, token.as_deref(), local).map_err(Problem::from);
    let (limits, query) = (&context.limits, head.uri.query().unwrap_or_default());
    let Some(page) = Page::of(head.uri.path()) else {
        return Err(Problem::new(StatusCode::NOT_FOUND, "no such page"));
    };
    let changes = head.method == Method::DELETE || matches!(page, Page::Refund(_));
    if changes {
        may_change()?
    } else {
        may_look()?
    }
    let found = match page {
        Page::Limits => limits.list(),
        Page::Limit(name) => limits.show(name)?,
        Page::State(name) if head.method == Method::DELETE => limits.reset(name, query).await?,
        Page::State(name) => limits.state(name, query).await?,
        Page::Refund(name) => {
            let (context, name, body) = (context.clone(), name.to_owned(), read(body, MAX_BODY).await?);
            // It goes on without the client: a receipt that counts as used has given back.
            let refund = spawn_local(async move { context.limits.refund(&name, &body).await });
            let broken = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the refund broke off");
            refund.await.map_err(broken)??
        }
        Page::Decide => limits.decide(&read(body, MAX_DECISIONS_BODY).await?, may_change).await?,
    };
    Ok(typed(StatusCode::OK, "application/json", found.to_string()))
}

async fn read(body: Incoming, most: usize) -> Result<Bytes, Problem> {
    match Limited::new(body, most).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a body here has at most {most} bytes")))
        }
        Err(_) => Err(Problem::new(StatusCode::BAD_REQUEST, "the body broke off")),
    }
}

impl From<Refused> for Problem {
    fn from((status, detail): Refused) -> Problem {
        Problem::new(status, detail)
    }
}

fn metrics(context: &Context) -> Answer {
    match context.metrics.render() {
        Ok(body) => typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), json!({})),
    }
}

fn ready(context: &Context) -> Answer {
    match context.shared.lifecycle() {
        Lifecycle::Ready => text("ready\n"),
        other => problem(StatusCode::SERVICE_UNAVAILABLE, other.label(), json!({})),
    }
}

fn status(context: &Context, request: &Request<Incoming>) -> Result<Answer, Refused> {
    let snapshot = context.current.load();
    guard::may_look(request.headers(), snapshot.config.admin.token.as_deref())?;
    let shared = &context.shared;
    let body = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "lifecycle": shared.lifecycle().label(),
        "uptime_seconds": shared.uptime().as_secs(),
        "generation": snapshot.generation,
        "hash": snapshot.config.hash,
        "loaded_at": rfc3339(snapshot.loaded_at),
        "watch": shared.watch(),
        "last_reload": shared.last_reload(),
    });
    Ok(typed(StatusCode::OK, "application/json", body.to_string()))
}

async fn reload(context: &Context, request: Request<Incoming>, local: bool) -> Result<Answer, Refused> {
    let token = context.current.load().config.admin.token.clone();
    guard::may_change(request.headers(), token.as_deref(), local)?;
    let dry_run = match request.uri().query().unwrap_or_default() {
        "" => false,
        "dry_run=1" | "dry_run=true" => true,
        "dry_run=0" | "dry_run=false" => false,
        _ => return Err((StatusCode::BAD_REQUEST, "the only parameter is dry_run, 0 or 1")),
    };
    // Nothing is expected in it, but an unread body would cut the answer off.
    if Limited::new(request.into_body(), MAX_BODY).collect().await.is_err() {
        return Err((StatusCode::PAYLOAD_TOO_LARGE, "a reload needs no body"));
    }
    let (reply, outcome) = oneshot::channel();
    let job = Job { order: Order::from(Trigger::Api, dry_run), reply };
    let draining = (StatusCode::SERVICE_UNAVAILABLE, "draining: the config is not loaded any more");
    context.jobs.send(job).await.map_err(|_| draining)?;
    let (outcome, _) = outcome.await.map_err(|_| draining)?;
    let mut body = outcome.json();
    body["dry_run"] = dry_run.into();
    Ok(match outcome {
        Outcome::Failed { failure, .. } => problem(StatusCode::UNPROCESSABLE_ENTITY, &failure.to_string(), body),
        _ => typed(StatusCode::OK, "application/json", body.to_string()),
    })
}

fn refusal(refused: Refused) -> Answer {
    refusal_in_full(refused.into())
}

fn refusal_in_full(Problem { status, detail, more }: Problem) -> Answer {
    let mut answer = problem(status, &detail, more);
    if status == StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

fn not_allowed(methods: &'static str) -> Answer {
    let mut answer = problem(StatusCode::METHOD_NOT_ALLOWED, &format!("use {methods}"), json!({}));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    answer
}

fn problem(status: StatusCode, detail: &str, mut body: Value) -> Answer {
    body["title"] = status.canonical_reason().unwrap_or_default().into();
    body["status"] = status.as_u16().into();
    body["detail"] = detail.into();
    typed(status, "application/problem+json", body.to_string())
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
