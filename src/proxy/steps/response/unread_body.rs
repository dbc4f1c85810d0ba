//! Request bodies that were not read before the response: a small rest is discarded, a large one closes the connection.

use std::pin::Pin;

use http::header::{CONNECTION, EXPECT};
use http::{HeaderMap, HeaderValue, Response};
use http_body::Body as _;
use tokio::task::spawn_local;

use crate::proxy::account::body::ResponseBody;
use crate::proxy::connection::body::discard::{data_length, discard_within};
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::head::body::RequestBody;

/// Bodies up to this size are read and discarded after the response, which keeps the connection usable. For a larger
/// one, a new connection is cheaper.
const DISCARD_MAX: u64 = 64 * 1024;

/// Makes sure that the rest of `body` is not parsed as the next request.
pub fn discard_or_close(
    body: RequestBody,
    deadline: &RequestDeadline,
    headers: &HeaderMap,
    response: &mut Response<ResponseBody>,
) {
    if body.is_end_stream() {
        return;
    }
    // Reading would send `100 Continue` to a client that waits for it.
    let small = body.size_hint().exact().is_some_and(|size| size <= DISCARD_MAX);
    if small && !headers.contains_key(EXPECT) {
        spawn_local(discard_body(body, deadline.clone()));
    } else {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

async fn discard_body(mut body: RequestBody, deadline: RequestDeadline) {
    let mut body = Pin::new(&mut body);
    discard_within(|cx| body.as_mut().poll_frame(cx).map(|frame| frame?.ok().map(|frame| data_length(&frame)))).await;
    if body.is_end_stream() {
        deadline.mark_body_read();
    }
}
