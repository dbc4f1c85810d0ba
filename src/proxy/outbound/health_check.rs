//! One health check of a server, on its own connection. The caller bounds the time; the bytes are bounded here. Called
//! by the control thread.

use std::future::poll_fn;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use tokio::io::AsyncWriteExt;

use crate::proxy::outbound::dial::{DialQueue, UpstreamConnection};
use crate::proxy::outbound::http1::ResponseHeadReader;
use crate::proxy::outbound::http1::body::{BodyDecoder, BodyPiece};
use crate::proxy::outbound::http2::frame_guard::{FrameBudget, GuardedConnection};
use crate::upstream::Origin;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::health::{CheckFault, CheckKind, HealthRule};
use crate::upstream::proxy_header::ProxyVersion;

/// Bytes of a body that are searched.
const BODY_MAX: usize = 64 * 1024;
/// Bytes of a gRPC response; a valid one has seven.
const GRPC_RESPONSE_MAX: usize = 1024;

/// Checks a server once. `proxy`: the version of the PROXY header that its connections begin with.
///
/// # Errors
/// Why the check failed.
pub async fn check_server(
    endpoint: &Endpoint,
    rule: &HealthRule,
    proxy: Option<ProxyVersion>,
) -> Result<(), CheckFault> {
    let origin = &endpoint.origin;
    let proxy_header = proxy.map(ProxyVersion::local_header).unwrap_or_default();
    let connection =
        UpstreamConnection::open(endpoint, &proxy_header, &DialQueue::default()).await.map_err(|error| {
            if error.end.row().outcome.is_none() { CheckFault::NoResources } else { CheckFault::Connection }
        })?;
    match rule.kind {
        CheckKind::Tcp => Ok(()),
        CheckKind::Http if connection.http2 => check_http2(connection, origin, rule).await,
        CheckKind::Http => check_http1(connection, origin, rule).await,
        CheckKind::Grpc => check_grpc(connection, origin, rule).await,
    }
}

/// Checks a server over HTTP/1.1. Redirects are not followed: their status counts.
async fn check_http1(mut connection: UpstreamConnection, origin: &Origin, rule: &HealthRule) -> Result<(), CheckFault> {
    let mut head = format!("GET {} HTTP/1.1\r\nhost: ", rule.path).into_bytes();
    head.extend_from_slice(sent_host(origin, rule).as_bytes());
    for (name, value) in &http_headers(rule) {
        head.extend_from_slice(&[b"\r\n", name.as_str().as_bytes(), b": ", value.as_bytes()].concat());
    }
    head.extend_from_slice(b"\r\nconnection: close\r\n\r\n");
    connection.write_all(&head).await.map_err(|_| CheckFault::Broken)?;
    let mut reader = ResponseHeadReader::new(origin.head_bounds);
    let head = loop {
        match reader.take_head(&mut connection.received, &Method::GET, None) {
            Ok(Some(head)) => break head,
            Ok(None) => receive_more(&mut connection).await?,
            Err(_) => return Err(CheckFault::Broken),
        }
    };
    let status = head.response.status().as_u16();
    if !rule.is_success(status) {
        return Err(CheckFault::Status);
    }
    match &rule.body {
        None => Ok(()),
        Some(text) => find_in_body(&mut connection, head.body, text.as_bytes()).await,
    }
}

/// Reads the body until it contains `text`.
async fn find_in_body(
    connection: &mut UpstreamConnection,
    mut body: BodyDecoder,
    text: &[u8],
) -> Result<(), CheckFault> {
    let (mut seen, mut ended) = (BytesMut::new(), false);
    while seen.len() < BODY_MAX {
        match body.next_piece(&mut connection.received, ended).map_err(|_| CheckFault::Broken)? {
            BodyPiece::Data(data) => {
                seen.extend_from_slice(&data);
                if memchr::memmem::find(&seen, text).is_some() {
                    return Ok(());
                }
                if body.is_end() {
                    break;
                }
            }
            BodyPiece::More => match poll_fn(|cx| connection.poll_receive(cx)).await {
                Ok(0) => ended = true,
                Ok(_) => {}
                Err(_) => return Err(CheckFault::Broken),
            },
            BodyPiece::End | BodyPiece::Trailers(_) => break,
        }
    }
    Err(CheckFault::Body)
}

/// Receives more of the response.
async fn receive_more(connection: &mut UpstreamConnection) -> Result<(), CheckFault> {
    match poll_fn(|cx| connection.poll_receive(cx)).await {
        Ok(1..) => Ok(()),
        _ => Err(CheckFault::Broken),
    }
}

/// Checks a server over HTTP/2.
async fn check_http2(connection: UpstreamConnection, origin: &Origin, rule: &HealthRule) -> Result<(), CheckFault> {
    let connection = GuardedConnection::new(connection, FrameBudget::new(usize::MAX));
    let (sender, driver) = h2::client::handshake(connection).await.map_err(|_| CheckFault::Broken)?;
    let exchange = async {
        let mut sender = sender.ready().await.map_err(|_| CheckFault::Broken)?;
        let mut request =
            Request::get(request_url(origin, rule, &rule.path)).body(()).map_err(|_| CheckFault::Broken)?;
        *request.headers_mut() = http_headers(rule);
        let (response, _) = sender.send_request(request, true).map_err(|_| CheckFault::Broken)?;
        let response = response.await.map_err(|_| CheckFault::Broken)?;
        let status = response.status().as_u16();
        if !rule.is_success(status) {
            return Err(CheckFault::Status);
        }
        match &rule.body {
            None => Ok(()),
            Some(text) => find_in_stream(response.into_body(), text.as_bytes()).await,
        }
    };
    tokio::select! {
        result = exchange => result,
        _ = driver => Err(CheckFault::Broken),
    }
}

fn request_url(origin: &Origin, rule: &HealthRule, path: &str) -> String {
    let scheme = if origin.is_secure() { "https" } else { "http" };
    format!("{scheme}://{}{path}", sent_host(origin, rule))
}

/// Returns the `Host` of a check.
fn sent_host<'a>(origin: &'a Origin, rule: &'a HealthRule) -> &'a str {
    rule.host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_else(|| origin.default_host())
}

/// Returns the headers of an HTTP check.
fn http_headers(rule: &HealthRule) -> HeaderMap {
    let user_agent = HeaderValue::from_static(concat!("sluicegate-health/", env!("CARGO_PKG_VERSION")));
    let own = [(USER_AGENT, user_agent), (ACCEPT, HeaderValue::from_static("*/*"))];
    let mut headers = HeaderMap::from_iter(own);
    set_headers(&mut headers, rule);
    headers
}

/// Sets the headers of the rule, instead of those that a check has by itself.
fn set_headers(headers: &mut HeaderMap, rule: &HealthRule) {
    for (name, value) in &rule.headers {
        headers.insert(name, value.clone());
    }
}

/// Reads the body of an HTTP/2 stream until it contains `text`.
async fn find_in_stream(mut body: h2::RecvStream, text: &[u8]) -> Result<(), CheckFault> {
    let mut read = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data.map_err(|_| CheckFault::Broken)?;
        let _ = body.flow_control().release_capacity(data.len());
        read.extend_from_slice(&data);
        if memchr::memmem::find(&read, text).is_some() {
            return Ok(());
        }
        if read.len() > BODY_MAX {
            break;
        }
    }
    Err(CheckFault::Body)
}

/// Calls `grpc.health.v1.Health/Check` over HTTP/2 with prior knowledge.
async fn check_grpc(connection: UpstreamConnection, origin: &Origin, rule: &HealthRule) -> Result<(), CheckFault> {
    let connection = GuardedConnection::new(connection, FrameBudget::new(usize::MAX));
    let (sender, driver) = h2::client::handshake(connection).await.map_err(|_| CheckFault::Broken)?;
    let exchange = async {
        let mut sender = sender.ready().await.map_err(|_| CheckFault::Broken)?;
        let mut request = Request::post(request_url(origin, rule, "/grpc.health.v1.Health/Check"))
            .header("content-type", HeaderValue::from_static("application/grpc"))
            .header("te", HeaderValue::from_static("trailers"))
            .body(())
            .map_err(|_| CheckFault::Broken)?;
        set_headers(request.headers_mut(), rule);
        let (response, mut body) = sender.send_request(request, false).map_err(|_| CheckFault::Broken)?;
        // An empty, uncompressed message: it names no service, and so means the server as a whole.
        body.send_data(Bytes::from_static(&[0; 5]), true).map_err(|_| CheckFault::Broken)?;
        check_serving(response.await.map_err(|_| CheckFault::Broken)?).await
    };
    // The driver runs the connection until the response has arrived.
    tokio::select! {
        result = exchange => result,
        _ = driver => Err(CheckFault::Broken),
    }
}

/// Reads whether the gRPC response says `SERVING`.
async fn check_serving(response: Response<h2::RecvStream>) -> Result<(), CheckFault> {
    if response.status() != StatusCode::OK {
        return Err(CheckFault::Status);
    }
    let (mut body, mut message) = (response.into_body(), BytesMut::new());
    while let Some(data) = body.data().await {
        let data = data.map_err(|_| CheckFault::Broken)?;
        let _ = body.flow_control().release_capacity(data.len());
        message.extend_from_slice(&data);
        if message.len() > GRPC_RESPONSE_MAX {
            return Err(CheckFault::Broken);
        }
    }
    // An uncompressed message of two bytes: field 1, a number, is 1, which means SERVING.
    if message.as_ref() == [0, 0, 0, 0, 2, 8, 1] { Ok(()) } else { Err(CheckFault::NotServing) }
}
