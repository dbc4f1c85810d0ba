//! The task of a request over HTTP/3: it runs the steps of the request, and sends the response as fast as the client
//! takes it. An expired timer ends this stream only.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Version};
use http_body::Body as _;
use quinn_proto::{StreamId, WriteError};
use tokio::task::spawn_local;

use crate::ends::End;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::log_entry;
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::connection::request_state::RequestWait;
use crate::proxy::context::ClientConnection;
use crate::proxy::doors::request;
use crate::proxy::head::body::RequestBody;
use crate::proxy::server::http2::head_check::MalformedHead;
use crate::proxy::server::http3::error::{Code, Fatal, INTERNAL_ERROR, MESSAGE_ERROR, NO_ERROR, REQUEST_CANCELLED};
use crate::proxy::server::http3::fields;
use crate::proxy::server::http3::fields::FieldFault;
use crate::proxy::server::http3::frame;
use crate::proxy::server::http3::qpack;
use crate::proxy::server::http3::request_body::Http3Body;
use crate::proxy::server::http3::shared::Http3Connection;

/// Bytes of a response that are handed to the library at once: a client that takes nothing is noticed by piece.
const PIECE: usize = 32 * 1024;
/// Headers of HTTP/1.1 connections, which have no place on a stream.
const OF_CONNECTIONS: [HeaderName; 5] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

thread_local! {
    /// The value of `Date`, and the second for which it was made.
    static CURRENT_DATE: RefCell<(u64, HeaderValue)> = const { RefCell::new((0, HeaderValue::from_static(""))) };
}

/// Why a response is not sent to its end.
enum Unsent {
    /// The client does not want it, or has gone.
    Unwanted,
    /// It has failed.
    Failed,
    /// A timer of the request has expired.
    Late(RequestWait),
}

impl From<WriteError> for Unsent {
    fn from(_: WriteError) -> Unsent {
        Unsent::Unwanted
    }
}

impl Http3Connection {
    /// Begins a request with the encoded head `section`. `is_whole`: it has no body.
    pub fn begin_request(&self, id: StreamId, section: &[u8], is_whole: bool) -> Result<(), Fatal> {
        let (Some(client), Some(me)) = (self.client.get(), self.me.upgrade()) else { return Ok(()) };
        let head = match fields::read_head(section, self.max_header_bytes(), is_whole) {
            Ok(head) => head,
            Err(FieldFault::Connection(code)) => return Err(code.into()),
            Err(FieldFault::TooLarge) => {
                self.refuse_large_head(id);
                return Ok(());
            }
            Err(FieldFault::Malformed(rule, line)) => {
                report_malformed(client, rule, &line);
                self.reset(id, MESSAGE_ERROR);
                self.end_stream(id, MESSAGE_ERROR);
                return self.budget.borrow_mut().take_reset().map_err(Fatal::flood);
            }
        };
        let deadline = self.state().start_request(is_whole);
        let body = match is_whole {
            true => RequestBody::empty(),
            false => RequestBody::new(Http3Body {
                connection: me.clone(),
                id,
                deadline: deadline.clone(),
                left: fields::content_length(head.headers()),
                trailers: None,
                is_over: false,
            }),
        };
        let request = head.map(|()| body);
        spawn_local(run_request(me, id, request, deadline, client.clone()));
        Ok(())
    }

    /// Ends a request without a response, because its client has violated the protocol in it.
    pub fn fail_request(&self, id: StreamId, code: Code) {
        self.reset(id, code);
        if let Some(stream) = self.streams.borrow_mut().requests.get_mut(&id) {
            stream.is_stopped = true;
            stream.task.iter().for_each(std::task::Waker::wake_by_ref);
        }
    }

    /// Answers a request whose head is larger than allowed.
    pub fn refuse_large_head(&self, id: StreamId) {
        if let Some(client) = self.client.get() {
            report_malformed(client, End::HeadTooLarge, &MalformedHead::default());
        }
        let section = qpack::encode_head(End::HeadTooLarge.status(), &HeaderMap::new());
        let mut bytes = headers_frame(&section);
        match self.poll_write(id, &mut bytes) {
            Poll::Ready(Ok(_)) if bytes.is_empty() => self.finish(id),
            _ => self.reset(id, NO_ERROR),
        }
        self.end_stream(id, NO_ERROR);
    }

    /// Returns whether the task of a request has nobody to work for. If not, the task of `cx` is woken when that changes,
    /// and when there is room for more of the response.
    fn poll_unwanted(&self, id: StreamId, cx: &mut Context<'_>) -> bool {
        let mut streams = self.streams.borrow_mut();
        let Some(stream) = streams.requests.get_mut(&id) else { return true };
        if !stream.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            stream.task = Some(cx.waker().clone());
        }
        stream.is_stopped || self.is_closed()
    }
}

/// Counts and logs a malformed or too large head. The log shows the status that an HTTP/1.1 client would have got.
fn report_malformed(client: &ClientConnection, rule: End, line: &MalformedHead) {
    client.worker.process.metrics.rejected_counter(rule).inc();
    let line = (&line.method[..], &line.authority[..], &line.path[..]);
    log_entry::log_malformed_stream_head(client, Version::HTTP_3, line, rule.status(), rule);
}

/// Runs a request to its end, and waits for the rest of a request body that lasts longer than the response.
async fn run_request(
    connection: Rc<Http3Connection>,
    id: StreamId,
    request: Request<RequestBody>,
    deadline: RequestDeadline,
    client: Rc<ClientConnection>,
) {
    let mut code = NO_ERROR;
    let answer = Box::pin(answer(connection.clone(), id, request, deadline.clone(), client.clone()));
    match run_answer(answer, &connection, id, &deadline).await {
        Ok(()) => {
            connection.finish(id);
            connection.budget.borrow_mut().record_response();
            if let Some(stream) = connection.streams.borrow_mut().requests.get_mut(&id) {
                stream.is_answered = true;
            }
            if let Err(awaited) = wait_for_end(&connection, id, &deadline).await {
                code = REQUEST_CANCELLED;
                count_late(awaited, &deadline, &client);
            }
        }
        Err(unsent) => {
            code = match unsent {
                Unsent::Failed => INTERNAL_ERROR,
                Unsent::Unwanted => REQUEST_CANCELLED,
                Unsent::Late(awaited) => {
                    count_late(awaited, &deadline, &client);
                    REQUEST_CANCELLED
                }
            };
            connection.reset(id, code);
        }
    }
    deadline.cut_stream();
    deadline.unregister_tasks();
    connection.end_stream(id, code);
}

fn count_late(awaited: RequestWait, deadline: &RequestDeadline, client: &ClientConnection) {
    deadline.cut_stream();
    if let Some(end) = awaited.end() {
        client.worker.process.metrics.rejected_counter(end).inc();
    }
}

/// Runs `answer` to its end, unless nobody wants it any more or its timer expires.
async fn run_answer(
    mut answer: Pin<Box<impl Future<Output = Result<(), Unsent>>>>,
    connection: &Http3Connection,
    id: StreamId,
    deadline: &RequestDeadline,
) -> Result<(), Unsent> {
    poll_fn(|cx| {
        deadline.register_task(cx.waker());
        if connection.poll_unwanted(id, cx) {
            return Poll::Ready(Err(Unsent::Unwanted));
        }
        if let Poll::Ready(result) = answer.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        match deadline.expired_wait() {
            Some(awaited) => Poll::Ready(Err(Unsent::Late(awaited))),
            None => Poll::Pending,
        }
    })
    .await
}

/// Waits for the end of the request.
///
/// # Errors
/// What it waited for when its timer expired.
async fn wait_for_end(
    connection: &Http3Connection,
    id: StreamId,
    deadline: &RequestDeadline,
) -> Result<(), RequestWait> {
    poll_fn(|cx| {
        deadline.register_task(cx.waker());
        let is_closed = connection.poll_unwanted(id, cx) && connection.is_closed();
        match deadline.expired_wait() {
            None if deadline.is_over() || is_closed => Poll::Ready(Ok(())),
            None => Poll::Pending,
            Some(awaited) => Poll::Ready(Err(awaited)),
        }
    })
    .await
}

/// Runs the steps of a request, and sends the response.
async fn answer(
    connection: Rc<Http3Connection>,
    id: StreamId,
    request: Request<RequestBody>,
    deadline: RequestDeadline,
    client: Rc<ClientConnection>,
) -> Result<(), Unsent> {
    let method = request.method().clone();
    let Ok(response) = request::serve(client, request, deadline.clone()).await;
    let (mut parts, mut body) = response.into_parts();
    let is_absent = complete_head(&mut parts.headers, parts.status, &method, &body);
    let section = qpack::encode_head(parts.status, &parts.headers);
    write_all(&connection, id, headers_frame(&section), None).await?;
    if is_absent {
        return Ok(());
    }
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|_| Unsent::Failed)?;
        match frame.into_data() {
            Ok(mut data) => {
                while !data.is_empty() {
                    let piece = data.split_to(data.len().min(PIECE));
                    write_all(&connection, id, frame_head(frame::DATA, piece.len()), None).await?;
                    deadline.send_piece(piece.len());
                    write_all(&connection, id, piece, Some(&deadline)).await?;
                }
            }
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                write_all(&connection, id, headers_frame(&qpack::encode_trailers(&trailers)), None).await?;
            }
        }
    }
    Ok(())
}

/// Adds what every response has, and removes what none may have. Returns whether no body follows.
fn complete_head(headers: &mut HeaderMap, status: StatusCode, method: &Method, body: &ResponseBody) -> bool {
    OF_CONNECTIONS.iter().for_each(|name| drop(headers.remove(name)));
    headers.entry(DATE).or_insert_with(current_date);
    let is_head = *method == Method::HEAD;
    let has_none = is_head || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let is_absent = has_none || body.is_end_stream();
    match body.size_hint().exact() {
        Some(length @ 1..) if is_head || !is_absent => {
            headers.entry(CONTENT_LENGTH).or_insert(HeaderValue::from(length));
        }
        _ => {}
    }
    is_absent
}

fn current_date() -> HeaderValue {
    let now = SystemTime::now();
    let second = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    CURRENT_DATE.with_borrow_mut(|(of, value)| {
        if *of != second {
            (*of, *value) = (second, HeaderValue::try_from(httpdate::fmt_http_date(now)).unwrap_or(value.clone()));
        }
        value.clone()
    })
}

/// Writes all of `bytes`. `deadline`: they are a piece of the body, whose progress it gets.
async fn write_all(
    connection: &Http3Connection,
    id: StreamId,
    mut bytes: Bytes,
    deadline: Option<&RequestDeadline>,
) -> Result<(), Unsent> {
    poll_fn(|_| {
        while !bytes.is_empty() {
            match connection.poll_write(id, &mut bytes) {
                Poll::Ready(Ok(count)) => deadline.iter().for_each(|deadline| deadline.record_written(count)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    })
    .await
}

fn frame_head(kind: u64, length: usize) -> Bytes {
    let mut head = Vec::new();
    frame::write_head(kind, length, &mut head);
    head.into()
}

fn headers_frame(section: &[u8]) -> Bytes {
    let mut bytes = Vec::with_capacity(section.len() + 4);
    frame::write_head(frame::HEADERS, section.len(), &mut bytes);
    bytes.extend_from_slice(section);
    bytes.into()
}
