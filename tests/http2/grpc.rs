//! gRPC frame by frame, over HTTP/2 from the client to the server: what the libraries in `tests/interop` do not show.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderValue, Request, Response};

use crate::support::POLL_INTERVAL;
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent, post};
use crate::support::h2_server::{Http2Server, IncomingRequest};

fn in_front_of(server: &Http2Server, more: &str) -> Gateway {
    Gateway::start(&format!(
        "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"app\"\n{more}\n\
         [upstream.app]\nservers = [\"h2c://{}\"]\n",
        server.addr
    ))
}

fn call(target: &str, fields: &[(&'static str, &'static str)]) -> Request<()> {
    let mut request = post(target);
    let fields = [&[("content-type", "application/grpc"), ("te", "trailers")], fields].concat();
    request.headers_mut().extend(
        fields.iter().map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value))),
    );
    request
}

fn grpc_head() -> Response<()> {
    Response::builder().header("content-type", "application/grpc").body(()).unwrap()
}

fn status(code: &'static str) -> HeaderMap {
    HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static(code))])
}

/// Reports to the test how the gateway has reset a stream.
fn tell_reset(incoming: &IncomingRequest, reason: Reason) {
    incoming.note(if reason == Reason::CANCEL { "/cancelled" } else { "/other" });
}

/// A response that is a single block of headers, which clients distinguish from one with a body.
#[test]
fn a_response_of_trailers_only_stays_one_block() {
    let server = Http2Server::start(|mut incoming| async move {
        // Immediately for a call that has only begun, or after its message.
        if incoming.request.uri().path() == "/after" {
            incoming.body().await?;
        }
        let mut head = grpc_head();
        head.headers_mut().extend(status("5"));
        head.headers_mut().insert("grpc-message", HeaderValue::from_static("none%20here"));
        incoming.head(head, true).map(drop)
    });
    let gateway = in_front_of(&server, "");
    let client = H2Client::connect(gateway.addr);
    for (target, whole) in [("/after", true), ("/early", false)] {
        let mut sender = client.sender();
        client.run(async {
            let (response, mut stream) = sender.send_request(call(target, &[]), false).unwrap();
            stream.send_data(Bytes::from_static(b"\0\0\0\0\0"), whole).unwrap();
            let response = response.await.unwrap();
            let field = |name: &str| response.headers()[name].to_str().unwrap();
            assert_eq!(
                (response.status().as_u16(), field("grpc-status"), field("grpc-message")),
                (200, "5", "none%20here")
            );
            assert!(response.body().is_end_stream(), "{target}: the block of fields does not end the stream");
        });
    }
    assert_eq!(server.connections(), 1);
}

#[test]
fn messages_and_responses_alternate_on_one_stream() {
    let server = Http2Server::start(|mut incoming| async move {
        let mut stream = incoming.head(grpc_head(), false)?;
        while let Some(message) = incoming.request.body_mut().data().await {
            let message = message?;
            incoming.request.body_mut().flow_control().release_capacity(message.len())?;
            stream.send_data(message, false)?;
        }
        stream.send_trailers(status("0"))
    });
    let gateway = in_front_of(&server, "");
    let client = H2Client::connect(gateway.addr);
    let mut sender = client.sender();
    client.run(async {
        let (response, mut stream) = sender.send_request(call("/chat", &[]), false).unwrap();
        // The head arrives before the first message was sent.
        let mut responses = response.await.unwrap().into_body();
        for number in 0..20_u8 {
            stream.send_data(Bytes::from(vec![number; 5 + usize::from(number)]), false).unwrap();
            let mut heard = Vec::new();
            while heard.len() < 5 + usize::from(number) {
                let piece = responses.data().await.unwrap().unwrap();
                responses.flow_control().release_capacity(piece.len()).unwrap();
                heard.extend_from_slice(&piece);
            }
            assert_eq!(heard, vec![number; 5 + usize::from(number)]);
        }
        stream.send_data(Bytes::new(), true).unwrap();
        assert!(responses.data().await.is_none());
        assert_eq!(responses.trailers().await.unwrap().unwrap()["grpc-status"], "0");
    });
}

#[test]
fn a_reset_of_the_client_is_a_cancel_at_the_server() {
    let server = Http2Server::start(|mut incoming| async move {
        let reason = match incoming.request.uri().path() {
            "/waiting" => poll_fn(|cx| incoming.respond.poll_reset(cx)).await?,
            _ => {
                let mut stream = incoming.head(grpc_head(), false)?;
                poll_fn(|cx| stream.poll_reset(cx)).await?
            }
        };
        tell_reset(&incoming, reason);
        Ok(())
    });
    let gateway = in_front_of(&server, "");
    let client = H2Client::connect(gateway.addr);
    for target in ["/waiting", "/headed"] {
        let mut sender = client.sender();
        client.run(async {
            let (response, mut stream) = sender.send_request(call(target, &[]), false).unwrap();
            stream.send_data(Bytes::from_static(b"\0\0\0\0\0"), false).unwrap();
            let mut request = server.try_request();
            while request.is_none() {
                tokio::time::sleep(POLL_INTERVAL).await;
                request = server.try_request();
            }
            assert_eq!(request.unwrap().uri.path(), target);
            if target == "/headed" {
                assert_eq!(response.await.unwrap().status(), 200);
            } else {
                drop(response);
            }
            stream.send_reset(Reason::CANCEL);
            // Sent by the connection, which runs while we wait.
            tokio::time::sleep(Duration::from_millis(50)).await;
        });
        assert_eq!(server.request().uri.path(), "/cancelled", "{target}");
    }
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_deadline_ends_the_call_on_both_sides() {
    let server = Http2Server::start(|mut incoming| async move {
        let reason = poll_fn(|cx| incoming.respond.poll_reset(cx)).await?;
        tell_reset(&incoming, reason);
        Ok(())
    });
    let gateway = in_front_of(&server, "");
    let mut client = H2Client::connect(gateway.addr);
    let sent = Sent { body: b"\0\0\0\0\0", trailers: None };
    let response = client.fetch(call("/", &[("grpc-timeout", "200m")]), sent);
    assert_eq!((response.status(), response.field("grpc-status"), response.body.len()), (200, Some("4"), 0));
    assert_eq!(response.field("content-type"), Some("application/grpc"));
    assert_eq!(server.request().headers["grpc-timeout"], "200m");
    assert_eq!(server.request().uri.path(), "/cancelled");
}

#[test]
fn a_server_that_breaks_off_is_no_success() {
    let server = Http2Server::start(|mut incoming| async move {
        incoming.body().await?;
        if incoming.request.uri().path() == "/at-once" {
            incoming.respond.send_reset(Reason::INTERNAL_ERROR);
            return Ok(());
        }
        let mut stream = incoming.head(grpc_head(), false)?;
        stream.send_data(Bytes::from_static(b"\0\0\0\0\x01x"), false)?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        stream.send_reset(Reason::INTERNAL_ERROR);
        Ok(())
    });
    let gateway = in_front_of(&server, "");
    let mut client = H2Client::connect(gateway.addr);
    let sent = || Sent { body: b"\0\0\0\0\0", trailers: None };
    let response = client.fetch(call("/at-once", &[]), sent());
    assert_eq!((response.status(), response.field("grpc-status")), (200, Some("14")));
    // A response that has begun cannot be replaced; its stream is reset, so that no client takes it for complete.
    let error = client.try_fetch(call("/later", &[]), sent()).unwrap_err();
    assert!(error.is_reset(), "{error}");
    assert_eq!(client.fetch(call("/at-once", &[]), sent()).status(), 200, "the connection stays usable");
}

/// Sends a call of two messages, with a pause before each.
fn call_with_pauses(gateway: &Gateway, pause: Duration) -> Result<(u16, Option<String>), h2::Error> {
    let client = H2Client::connect(gateway.addr);
    let mut sender = client.sender();
    client.run(async {
        let (response, mut stream) = sender.send_request(call("/stream", &[]), false)?;
        let messages = async {
            for last in [false, true] {
                tokio::time::sleep(pause).await;
                if stream.send_data(Bytes::from_static(b"\0\0\0\0\x01x"), last).is_err() {
                    return;
                }
            }
        };
        let (response, ()) = tokio::join!(response, messages);
        let response = response?;
        let status = response.headers().get("grpc-status").map(|status| status.to_str().unwrap().to_owned());
        Ok((response.status().as_u16(), status))
    })
}

/// Servers of client streams often respond only to the last message.
#[test]
fn messages_of_a_call_may_pause_for_the_stream_timeout() {
    let server = Http2Server::start(|mut incoming| async move {
        incoming.body().await?;
        incoming.head(grpc_head(), false)?.send_trailers(status("0"))
    });
    let short = "body_timeout = \"300ms\"\nmin_body_rate = 1000\n";
    let gateway = in_front_of(&server, &format!("{short}stream_timeout = \"1h\""));
    let pause = Duration::from_millis(900);
    assert_eq!(call_with_pauses(&gateway, pause).unwrap(), (200, None));
    // A call with a longer pause ends, and the client learns which setting ended it.
    let gateway = in_front_of(&server, &format!("{short}stream_timeout = \"500ms\""));
    let ended = call_with_pauses(&gateway, Duration::from_secs(3)).unwrap();
    assert_eq!(ended, (200, Some("4".to_owned())));
    gateway.assert_metric("http_rejected_total", &[("reason", "stream_timeout")], 1.0);
    gateway.assert_metric("http_rejected_total", &[("reason", "body_timeout")], 0.0);
}

/// No gRPC server uses HTTP/1.1, so a request that claims to be a call there is a slow body like any other.
#[test]
fn a_slow_body_that_claims_to_be_a_call_is_cut_before_a_server_of_http1() {
    let upstream = crate::support::upstream::Upstream::text("done");
    let gateway = Gateway::start(&format!(
        "[[route]]\nupstream = \"{}\"\nbody_timeout = \"300ms\"\nstream_timeout = \"1h\"\n",
        upstream.url()
    ));
    let ended = call_with_pauses(&gateway, Duration::from_millis(1500)).unwrap();
    assert_eq!(ended, (200, Some("4".to_owned())));
    gateway.assert_metric("http_rejected_total", &[("reason", "body_timeout")], 1.0);
}
