//! The request body: reads what limit keys need of it before the limits decide, and opens it for the route's action.
//! Nothing is read before `max_body` is checked, and every read is under the deadlines of request bodies.

use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use http::header::EXPECT;
use http_body::Body as _;

use crate::ends::End;
use crate::limiting::settlement::include_usage;
use crate::limiting::source::{BodyFacts, BodyKind, UnreadableBody};
use crate::proxy::account::request_context::{ClientBody, Received, RequestContext};
use crate::proxy::connection::body_memory::BodyPermit;
use crate::proxy::connection::upload::Upload;
use crate::proxy::head::headers;
use crate::proxy::render::call_ids::CallIds;
use crate::proxy::words::known_headers::KnownHeader;
use crate::proxy::words::refusal::Refusal;
use crate::route::{Action, Route};

/// The body as limit keys see it.
pub enum KeyBody {
    None,
    Whole(BodyKind, Bytes),
    UnreadableBody(UnreadableBody),
}

impl KeyBody {
    /// Reads the body if limits can parse its content type and it has at most `max` bytes. Keeps the frames, so that
    /// the upstream server gets the whole body. A client that sent `Expect: 100-continue` gets `100 Continue`.
    ///
    /// # Errors
    /// The body is larger than the route's `max_body`, or it did not arrive completely.
    pub async fn read(request: &mut RequestContext<'_>, route: &Route, max: usize) -> Result<KeyBody, Refusal> {
        let body = match &request.received.body {
            ClientBody::Unread(body) if !body.is_end_stream() => body,
            _ => return Ok(KeyBody::None),
        };
        let least = body.size_hint().lower();
        let kind = match find_readable_kind(&request.received.parts.headers, least, max) {
            Ok(kind) => kind,
            Err(why) => return Ok(KeyBody::UnreadableBody(why)),
        };
        check_announced_size(least, route)?;
        let Some(mut upload) = take_upload(request, route) else { return Ok(KeyBody::None) };
        let read = read_ahead(request, &mut upload, max).await?;
        request.received.body = ClientBody::ReadAhead(upload);
        // The client has its permission to send the body, so neither limits nor the server see `Expect`.
        request.received.parts.headers.remove(EXPECT);
        Ok(read.map_or(KeyBody::UnreadableBody(UnreadableBody::TooLong), |bytes| KeyBody::Whole(kind, bytes)))
    }

    /// Asks the server to report the usage of its stream, if this is a request for one.
    pub fn set_include_usage(&self, request: &mut RequestContext<'_>, path: &str) {
        let Received { parts, body, .. } = &mut *request.received;
        if let (KeyBody::Whole(BodyKind::Json, bytes), ClientBody::ReadAhead(upload)) = (self, body)
            && let Some(changed) = include_usage::set_include_usage(path, bytes)
        {
            upload.replace_data(changed.into());
            include_usage::remove_digests(&mut parts.headers);
        }
    }

    /// Returns the ids of the JSON-RPC calls in the body.
    pub fn call_ids(&self) -> CallIds {
        match self {
            KeyBody::Whole(BodyKind::Json, bytes) => CallIds::read(bytes),
            KeyBody::None | KeyBody::Whole(BodyKind::Form, _) | KeyBody::UnreadableBody(_) => CallIds::Unknown,
        }
    }

    pub fn facts(&self) -> BodyFacts<'_> {
        match self {
            KeyBody::None => BodyFacts::None,
            KeyBody::Whole(kind, bytes) => kind.check_body(bytes),
            KeyBody::UnreadableBody(why) => BodyFacts::UnreadableBody(*why),
        }
    }
}

/// Returns the format in which limits can parse a body of at least `least` bytes, if they read at most `max` bytes.
///
/// # Errors
/// Limits do not read bodies of this type, or the body is too long.
pub fn find_readable_kind(headers: &HeaderMap, least: u64, max: usize) -> Result<BodyKind, UnreadableBody> {
    let kind = BodyKind::from_headers(headers)?;
    if least > max as u64 { Err(UnreadableBody::TooLong) } else { Ok(kind) }
}

/// Opens the request body for the route's action. Returns `None` if there is no body or the action does not read it.
///
/// An upstream server gets the head only once an announced empty body has ended: it would otherwise take the head for
/// the complete request.
///
/// # Errors
/// The body is larger than the route's `max_body`, or an empty body did not end.
pub async fn open_upload(request: &mut RequestContext<'_>, route: &Route) -> Result<Option<Upload>, Refusal> {
    check_announced_size(request.received.body.least_length(), route)?;
    if matches!(route.action, Action::Respond(_) | Action::Redirect(_) | Action::Files(_)) {
        return Ok(None);
    }
    let Some(mut upload) = request.received.body.take_read_ahead().or_else(|| take_upload(request, route)) else {
        return Ok(None);
    };
    request.received.body = ClientBody::Opened(upload.share_progress());
    if upload.size_hint().exact() == Some(0) {
        read_ahead(request, &mut upload, 0).await?;
    }
    Ok(Some(upload))
}

/// Reads the body to its end under its deadlines. Returns `None` as soon as more than `max` bytes have arrived, or no
/// memory is left.
///
/// # Errors
/// The body is larger than the route's `max_body`, or it did not arrive completely.
async fn read_ahead(
    request: &mut RequestContext<'_>,
    upload: &mut Upload,
    max: usize,
) -> Result<Option<Bytes>, Refusal> {
    let (deadline, begun) = (request.account.deadline(), Instant::now());
    let permit = BodyPermit::new(&request.client.worker.process.body_memory, request.identity.ip);
    let read = deadline.run_within(upload.read_ahead(max, permit)).await;
    deadline.disarm();
    request.account.add_wait(begun);
    let end = match read {
        Ok(Ok(read)) => return Ok(read),
        Ok(Err(state)) => state.end(),
        Err(_) => End::BodyTimeout,
    };
    request.must_close = true;
    Err(end.into())
}

/// Refuses a body of at least `least` bytes, as announced, that exceeds the route's `max_body`, without reading it.
pub fn check_announced_size(least: u64, route: &Route) -> Result<(), Refusal> {
    if least > route.max_body { Err(End::AnnouncedTooLarge.into()) } else { Ok(()) }
}

/// Takes the request body, if there is one, and bounds it by the route's size limit and timeouts. Reads nothing yet.
fn take_upload(request: &mut RequestContext<'_>, route: &Route) -> Option<Upload> {
    let body = request.received.body.take_unread_if(|body| !body.is_end_stream())?;
    let on_stream = request.received.is_on_stream();
    let mut timeouts = (*route.timeouts).clone();
    timeouts.response = request.received.client_timeout(route).unwrap_or(timeouts.response);
    let (is_grpc, deadline) = (request.received.is_grpc(), request.account.deadline().clone());
    let mut upload = Upload::new(body, on_stream, is_grpc, deadline, timeouts, route.max_body);
    if request.received.header_set.has(KnownHeader::Trailer) {
        upload.allow_trailers(headers::announced_trailers(&request.received.parts.headers).collect());
    }
    request.account.record_upload(upload.share_progress());
    if let Some(entry) = request.account.log_entry() {
        entry.record_upload(&upload.share_progress());
    }
    Some(upload)
}
