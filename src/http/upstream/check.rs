//! One check of a server, on a connection of its own: bounded in time by the caller, and in bytes. Called by
//! the control thread.

use std::future::poll_fn;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use tokio::io::AsyncWriteExt;

use super::connect::{DialQueue, UpstreamConnection};
use super::h1::HeadReader;
use super::h1::body::{Decoder, Piece};
use super::http2::frame_guard::{FrameBudget, GuardedConnection};
use crate::upstream::Origin;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::health::{CheckFault, CheckKind, HealthRule};
use crate::upstream::introduction::ProxyVersion;

/// Bytes of a body that are looked at.
const BODY_MAX: usize = 64 * 1024;
/// Of a gRPC answer, which is a handful.
const GRPC_MAX: usize = 1024;

/// Of a server whose connections begin with a PROXY header, if it takes one.
///
/// # Errors
/// Why the server is not well.
pub async fn check(endpoint: &Endpoint, rule: &HealthRule, proxy: Option<ProxyVersion>) -> Result<(), CheckFault> {
    let origin = &endpoint.origin;
    let introduction = proxy.map(ProxyVersion::own).unwrap_or_default();
    let connection = UpstreamConnection::open(endpoint, &introduction, &DialQueue::default())
        .await
        .map_err(|error| if error.fault.is_shortage() { CheckFault::NotAsked } else { CheckFault::Connection })?;
    match rule.kind {
        CheckKind::Tcp => Ok(()),
        CheckKind::Http if connection.http2 => ask_http2(connection, origin, rule).await,
        CheckKind::Http => ask(connection, origin, rule).await,
        CheckKind::Grpc => ask_grpc(connection, origin).await,
    }
}

/// What follows a redirection is not asked: its status is what counts.
async fn ask(mut connection: UpstreamConnection, origin: &Origin, rule: &HealthRule) -> Result<(), CheckFault> {
    let head = format!(
        "GET {} HTTP/1.1\r\nhost: {}\r\nuser-agent: sluicegate-health/{}\r\naccept: */*\r\nconnection: close\r\n\r\n",
        rule.path,
        origin.host(),
        env!("CARGO_PKG_VERSION")
    );
    connection.write_all(head.as_bytes()).await.map_err(|_| CheckFault::Broken)?;
    let mut reader = HeadReader::default();
    let head = loop {
        match reader.read(&mut connection.received, &Method::GET, None) {
            Ok(Some(head)) => break head,
            Ok(None) => receive(&mut connection).await?,
            Err(_) => return Err(CheckFault::Broken),
        }
    };
    let status = head.response.status().as_u16();
    if !rule.takes(status) {
        return Err(CheckFault::Status);
    }
    match &rule.body {
        None => Ok(()),
        Some(text) => find(&mut connection, head.body, text.as_bytes()).await,
    }
}

/// Reads until `text` was there.
async fn find(connection: &mut UpstreamConnection, mut body: Decoder, text: &[u8]) -> Result<(), CheckFault> {
    let (mut seen, mut ended) = (BytesMut::new(), false);
    while seen.len() < BODY_MAX {
        match body.next(&mut connection.received, ended).map_err(|_| CheckFault::Broken)? {
            Piece::Data(data) => {
                seen.extend_from_slice(&data);
                if memchr::memmem::find(&seen, text).is_some() {
                    return Ok(());
                }
                if body.is_end() {
                    break;
                }
            }
            Piece::More => match poll_fn(|cx| connection.poll_receive(cx)).await {
                Ok(0) => ended = true,
                Ok(_) => {}
                Err(_) => return Err(CheckFault::Broken),
            },
            Piece::End | Piece::Trailers(_) => break,
        }
    }
    Err(CheckFault::Body)
}

async fn receive(connection: &mut UpstreamConnection) -> Result<(), CheckFault> {
    match poll_fn(|cx| connection.poll_receive(cx)).await {
        Ok(1..) => Ok(()),
        _ => Err(CheckFault::Broken),
    }
}

/// The same over HTTP/2.
async fn ask_http2(connection: UpstreamConnection, origin: &Origin, rule: &HealthRule) -> Result<(), CheckFault> {
    let connection = GuardedConnection::new(connection, FrameBudget::new());
    let (sender, driver) = h2::client::handshake(connection).await.map_err(|_| CheckFault::Broken)?;
    let asked = async {
        let mut sender = sender.ready().await.map_err(|_| CheckFault::Broken)?;
        let request = Request::get(url(origin, &rule.path))
            .header("user-agent", concat!("sluicegate-health/", env!("CARGO_PKG_VERSION")))
            .header("accept", HeaderValue::from_static("*/*"))
            .body(())
            .map_err(|_| CheckFault::Broken)?;
        let (response, _) = sender.send_request(request, true).map_err(|_| CheckFault::Broken)?;
        let response = response.await.map_err(|_| CheckFault::Broken)?;
        let status = response.status().as_u16();
        if !rule.takes(status) {
            return Err(CheckFault::Status);
        }
        match &rule.body {
            None => Ok(()),
            Some(text) => find_in_stream(response.into_body(), text.as_bytes()).await,
        }
    };
    tokio::select! {
        result = asked => result,
        _ = driver => Err(CheckFault::Broken),
    }
}

fn url(origin: &Origin, path: &str) -> String {
    let scheme = if origin.is_secure() { "https" } else { "http" };
    format!("{scheme}://{}{path}", origin.host())
}

/// Reads until `text` was there.
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

/// HTTP/2 by prior knowledge.
async fn ask_grpc(connection: UpstreamConnection, origin: &Origin) -> Result<(), CheckFault> {
    let connection = GuardedConnection::new(connection, FrameBudget::new());
    let (sender, driver) = h2::client::handshake(connection).await.map_err(|_| CheckFault::Broken)?;
    let asked = async {
        let mut sender = sender.ready().await.map_err(|_| CheckFault::Broken)?;
        let request = Request::post(url(origin, "/grpc.health.v1.Health/Check"))
            .header("content-type", HeaderValue::from_static("application/grpc"))
            .header("te", HeaderValue::from_static("trailers"))
            .body(())
            .map_err(|_| CheckFault::Broken)?;
        let (response, mut body) = sender.send_request(request, false).map_err(|_| CheckFault::Broken)?;
        // A message that is not compressed, of no bytes: no service is named.
        body.send_data(Bytes::from_static(&[0; 5]), true).map_err(|_| CheckFault::Broken)?;
        serving(response.await.map_err(|_| CheckFault::Broken)?).await
    };
    // The connection is moved by its own future, for as long as the answer takes.
    tokio::select! {
        result = asked => result,
        _ = driver => Err(CheckFault::Broken),
    }
}

async fn serving(response: Response<h2::RecvStream>) -> Result<(), CheckFault> {
    if response.status() != StatusCode::OK {
        return Err(CheckFault::Status);
    }
    let (mut body, mut message) = (response.into_body(), BytesMut::new());
    while let Some(data) = body.data().await {
        let data = data.map_err(|_| CheckFault::Broken)?;
        let _ = body.flow_control().release_capacity(data.len());
        message.extend_from_slice(&data);
        if message.len() > GRPC_MAX {
            return Err(CheckFault::Broken);
        }
    }
    // Not compressed, of two bytes: field 1, a number, is 1: SERVING.
    if message.as_ref() == [0, 0, 0, 0, 2, 8, 1] { Ok(()) } else { Err(CheckFault::NotServing) }
}
