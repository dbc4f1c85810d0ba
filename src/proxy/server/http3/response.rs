//! The task of a request over HTTP/3: it runs the steps of the request, and sends the response as fast as the client
//! takes it. An expired timer ends this stream only.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, DATE, STRICT_TRANSPORT_SECURITY, TRANSFER_ENCODING, UPGRADE,
};
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Version};
use http_body::Body as _;
use quinn_proto::{StreamId, WriteError};
use tokio::task::spawn_local;

use crate::ends::End;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::log_entry;
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::connection::request_state::RequestWait;
use crate::proxy::connection::upgrade::Upgrade;
use crate::proxy::context::ClientConnection;
use crate::proxy::doors::request;
use crate::proxy::head::body::RequestBody;
use crate::proxy::head::extended_connect;
use crate::proxy::server::http2::head_check::MalformedHead;
use crate::proxy::server::http3::error::{Code, Fatal, INTERNAL_ERROR, MESSAGE_ERROR, NO_ERROR, REQUEST_CANCELLED};
use crate::proxy::server::http3::fields;
use crate::proxy::server::http3::fields::FieldFault;
use crate::proxy::server::http3::frame;
use crate::proxy::server::http3::priority;
use crate::proxy::server::http3::qpack;
use crate::proxy::server::http3::request_body::Http3Body;
use crate::proxy::server::http3::shared::Http3Connection;
use crate::proxy::server::http3::tunnel_stream::Http3Tunnel;

/// Bytes of a response that are handed to the library at once: a client that takes nothing is noticed by piece.
const PIECE: usize = 64 * 1024;
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

/// The task of one request.
struct RequestTask {
    connection: Rc<Http3Connection>,
    id: StreamId,
    deadline: RequestDeadline,
    client: Rc<ClientConnection>,
    /// The request is an extended CONNECT.
    offers_switch: bool,
    /// The tunnel that the stream becomes once the head of the response is written.
    tunnel: Cell<Option<Box<dyn Upgrade>>>,
}

/// Resets a response whose task has panicked.
impl Drop for RequestTask {
    fn drop(&mut self) {
        let is_served = self.connection.streams.borrow().requests.get(&self.id).is_none_or(|stream| stream.is_served);
        if !is_served {
            self.connection.reset(self.id, INTERNAL_ERROR);
            self.end(INTERNAL_ERROR);
        }
    }
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
        let mut head = match fields::read_head(section, self.max_header_bytes(), is_whole) {
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
        self.set_urgency(id, priority::urgency_of(head.headers()));
        // A tunnel has no body: what follows its head belongs to the protocol that it opens.
        let offers_switch = extended_connect::translate_to_upgrade(&mut head);
        let is_whole = is_whole || offers_switch;
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
        let client = client.clone();
        let task = RequestTask { connection: me, id, deadline, client, offers_switch, tunnel: Cell::default() };
        spawn_local(task.run_in_turns(request));
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

    /// Answers a request whose head is larger than allowed. The response has no body, because that to HEAD must have none,
    /// and the method is unknown.
    pub fn refuse_large_head(&self, id: StreamId) {
        let mut headers = HeaderMap::new();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(client) = self.client.get() {
            report_malformed(client, End::HeadTooLarge, &MalformedHead::default());
            headers.extend(client.listener.hsts.clone().map(|hsts| (STRICT_TRANSPORT_SECURITY, hsts)));
        }
        complete_head(&mut headers);
        let section = qpack::encode_head(End::HeadTooLarge.status(), &headers);
        let mut chunks = headers_frame(section);
        match self.poll_write(id, &mut chunks) {
            Poll::Ready(Ok(_)) if chunks.iter().all(Bytes::is_empty) => self.finish(id),
            _ => self.reset(id, NO_ERROR),
        }
        self.discard_request(id, None);
        if !self.end_with_rest(id) {
            self.end_stream(id, NO_ERROR);
        }
    }

    /// Returns whether the client no longer wants this response. While it does, the task of `cx` is woken when that
    /// changes, and when there is room for more of the response.
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

impl RequestTask {
    /// Runs the request to its end. Whenever it waits, the turn to write passes on.
    async fn run_in_turns(self, request: Request<RequestBody>) {
        let (connection, id) = (self.connection.clone(), self.id);
        let mut run = pin!(self.run(request));
        poll_fn(|cx| {
            let result = run.as_mut().poll(cx);
            connection.end_turn(id);
            result
        })
        .await;
    }

    /// Runs the request to its end, and waits for the rest of a request body that lasts longer than the response.
    async fn run(self, request: Request<RequestBody>) {
        let (connection, id) = (&self.connection, self.id);
        let result = self.run_answer(Box::pin(self.answer(request))).await;
        let code = match (result, self.tunnel.take()) {
            (Ok(()), tunnel) => {
                connection.budget.borrow_mut().record_response();
                if let Some(stream) = connection.streams.borrow_mut().requests.get_mut(&id) {
                    stream.is_answered = true;
                }
                match tunnel {
                    Some(tunnel) => self.run_tunnel(tunnel).await,
                    None => {
                        connection.finish(id);
                        self.wait_for_end().await.map_or_else(|awaited| self.cut_off(awaited), |()| NO_ERROR)
                    }
                }
            }
            (Err(unsent), tunnel) => {
                if let Some(tunnel) = tunnel {
                    tunnel.abandon();
                }
                let code = match unsent {
                    Unsent::Failed => INTERNAL_ERROR,
                    Unsent::Unwanted => REQUEST_CANCELLED,
                    Unsent::Late(awaited) => self.cut_off(awaited),
                };
                connection.reset(id, code);
                code
            }
        };
        self.end(code);
    }

    /// Forgets the request, and asks the client with `code` to send no more of it. If its rest is being discarded and there
    /// is not an error, that happens afterwards.
    fn end(&self, code: Code) {
        if code != NO_ERROR || !self.connection.end_with_rest(self.id) {
            self.deadline.cut_stream();
            self.connection.end_stream(self.id, code);
        }
        self.deadline.unregister_tasks();
    }

    /// Cuts the request off, because the timer for `awaited` has expired. Returns the code for the client.
    fn cut_off(&self, awaited: RequestWait) -> Code {
        self.deadline.cut_stream();
        if let Some(end) = awaited.end() {
            self.client.worker.process.metrics.rejected_counter(end).inc();
        }
        REQUEST_CANCELLED
    }

    /// Runs `answer` to its end, unless nobody wants it any more or its timer expires.
    async fn run_answer(&self, mut answer: Pin<Box<impl Future<Output = Result<(), Unsent>>>>) -> Result<(), Unsent> {
        poll_fn(|cx| {
            self.deadline.register_task(cx.waker());
            if self.connection.poll_unwanted(self.id, cx) {
                return Poll::Ready(Err(Unsent::Unwanted));
            }
            if let Poll::Ready(result) = answer.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            match self.deadline.expired_wait() {
                Some(awaited) => Poll::Ready(Err(Unsent::Late(awaited))),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Carries the tunnel that the stream has become. Returns the code with which the client's side ends, if it is open.
    async fn run_tunnel(&self, tunnel: Box<dyn Upgrade>) -> Code {
        let expired = Cell::new(None);
        let is_over = |cx: &mut Context<'_>| {
            self.deadline.register_task(cx.waker());
            expired.set(self.deadline.expired_wait());
            self.connection.poll_unwanted(self.id, cx) || expired.get().is_some()
        };
        let stream = Http3Tunnel::new(self.connection.clone(), self.id);
        tunnel.run(Box::new(stream), Vec::new(), Box::new(is_over)).await;
        expired.get().map_or(NO_ERROR, |awaited| self.cut_off(awaited))
    }

    /// Waits for the end of the request.
    ///
    /// # Errors
    /// What it waited for when its timer expired.
    async fn wait_for_end(&self) -> Result<(), RequestWait> {
        poll_fn(|cx| {
            self.deadline.register_task(cx.waker());
            let is_closed = self.connection.poll_unwanted(self.id, cx) && self.connection.is_closed();
            match self.deadline.expired_wait() {
                None if self.deadline.is_over() || is_closed => Poll::Ready(Ok(())),
                None => Poll::Pending,
                Some(awaited) => Poll::Ready(Err(awaited)),
            }
        })
        .await
    }

    /// Runs the steps of the request, and sends the response. If the response opens a tunnel, stores it in `tunnel`.
    async fn answer(&self, request: Request<RequestBody>) -> Result<(), Unsent> {
        let (connection, id, deadline) = (&self.connection, self.id, &self.deadline);
        let method = request.method().clone();
        let Ok(mut response) = request::serve(self.client.clone(), request, deadline.clone()).await;
        if self.offers_switch && response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // The tunnel belongs to this response: no other request has run since it was set.
            self.tunnel.set(self.client.tunnel.take());
            extended_connect::translate_to_success(&mut response);
            complete_head(response.headers_mut());
            let section = qpack::encode_head(response.status(), response.headers());
            return write_all(connection, id, headers_frame(section), None).await;
        }
        let (mut parts, mut body) = response.into_parts();
        complete_head(&mut parts.headers);
        let is_absent = state_length(&mut parts, &method, &body);
        let section = qpack::encode_head(parts.status, &parts.headers);
        write_all(connection, id, headers_frame(section), None).await?;
        if is_absent {
            return Ok(());
        }
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let frame = frame.map_err(|_| Unsent::Failed)?;
            match frame.into_data() {
                Ok(mut data) => {
                    while !data.is_empty() {
                        let piece = data.split_to(data.len().min(PIECE));
                        let head = frame::encode_head(frame::DATA, piece.len());
                        deadline.send_piece(head.len() + piece.len());
                        write_all(connection, id, [head, piece], Some(deadline)).await?;
                    }
                }
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    write_all(connection, id, headers_frame(qpack::encode_trailers(&trailers)), None).await?;
                }
            }
        }
        Ok(())
    }
}

/// Adds what every response has, and removes what none may have.
fn complete_head(headers: &mut HeaderMap) {
    OF_CONNECTIONS.iter().for_each(|name| drop(headers.remove(name)));
    headers.entry(DATE).or_insert_with(current_date);
}

/// States the length of a body that is known. Returns whether no body follows.
fn state_length(parts: &mut Parts, method: &Method, body: &ResponseBody) -> bool {
    let is_head = *method == Method::HEAD;
    let has_none = is_head || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let is_absent = has_none || body.is_end_stream();
    match body.size_hint().exact() {
        Some(length @ 1..) if is_head || !is_absent => {
            parts.headers.entry(CONTENT_LENGTH).or_insert(HeaderValue::from(length));
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

/// Writes a frame. `deadline`: it is a piece of the body, whose progress the deadline gets.
async fn write_all(
    connection: &Http3Connection,
    id: StreamId,
    mut chunks: [Bytes; 2],
    deadline: Option<&RequestDeadline>,
) -> Result<(), Unsent> {
    poll_fn(|_| {
        while chunks.iter().any(|chunk| !chunk.is_empty()) {
            match connection.poll_write(id, &mut chunks) {
                Poll::Ready(Ok(count)) => deadline.iter().for_each(|deadline| deadline.record_written(count)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    })
    .await
}

fn headers_frame(section: Vec<u8>) -> [Bytes; 2] {
    [frame::encode_head(frame::HEADERS, section.len()), section.into()]
}
