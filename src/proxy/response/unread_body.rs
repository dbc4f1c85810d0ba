//! Request bodies that were not read before the response: a small rest is discarded, a large one closes the connection.

use std::time::Duration;

use http::header::{CONNECTION, EXPECT};
use http::{HeaderMap, HeaderValue, Response};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::inbound::body::RequestBody;
use crate::proxy::response::body::ResponseBody;

/// Bodies up to this size are read and discarded after the response, which keeps the connection usable. For a larger
/// one, a new connection is cheaper.
const DISCARD_MAX: u64 = 64 * 1024;
const DISCARD_TIME: Duration = Duration::from_secs(5);

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
        spawn_local(timeout(DISCARD_TIME, discard_body(body, deadline.clone())));
    } else {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

async fn discard_body(mut body: RequestBody, deadline: RequestDeadline) {
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return;
        }
    }
    deadline.mark_body_read();
}
