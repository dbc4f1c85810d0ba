//! A request body that the answer did not need. Called by the tail of `gateway`.

use std::time::Duration;

use http::header::{CONNECTION, EXPECT};
use http::{HeaderMap, HeaderValue, Response};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::http::answer::body::Body;
use crate::http::deadline::RequestDeadline;

/// Bodies up to this size are read and thrown away behind the answer, so the connection stays
/// usable; for a larger one a new connection is cheaper.
const DISCARD_MAX: u64 = 64 * 1024;
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// Makes sure that the rest of `body` cannot be taken for the next request.
pub fn finish(body: Incoming, deadline: &RequestDeadline, headers: &HeaderMap, response: &mut Response<Body>) {
    if body.is_end_stream() {
        return;
    }
    // A client that waits for `100 Continue` must not be told to go on.
    let small = body.size_hint().exact().is_some_and(|size| size <= DISCARD_MAX);
    if small && !headers.contains_key(EXPECT) {
        spawn_local(timeout(DISCARD_TIME, discard(body, deadline.clone())));
    } else {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

async fn discard(mut body: Incoming, deadline: RequestDeadline) {
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return;
        }
    }
    deadline.read_whole();
}
