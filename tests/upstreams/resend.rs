//! Requests that are sent again on another connection or with another protocol: unchanged, and as often as allowed.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use h2::Reason;

use super::http2::{in_front_of, route};
use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::h2_server::Http2Server;
use crate::support::upstream::ok;

#[test]
fn a_request_without_a_response_is_sent_at_most_twice() {
    let one_each = |builder: &mut h2::server::Builder| {
        builder.max_concurrent_streams(1);
    };
    let server = Http2Server::with(None, one_each, |mut incoming| async move {
        if incoming.request.uri().path() == "/crash" {
            incoming.crash.set(true);
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        incoming.send_response("slow").await
    });
    let gateway = in_front_of(&server, "");
    std::thread::scope(|scope| {
        (0..6).for_each(|_| drop(scope.spawn(|| assert_eq!(gateway.get("/").text(), "slow"))));
    });
    assert!(server.connections() >= 4, "{}", server.connections());
    assert_eq!(server.count(), 6);
    let before = server.connections();
    assert_eq!(gateway.get("/crash").status(), 502);
    assert_eq!((server.count(), server.connections() - before), (2, 1), "the second time on a new connection");
    gateway.assert_metric("upstream_retries_total", &[("upstream", "app"), ("reason", "stale_connection")], 1.0);
}

#[test]
fn the_rest_of_a_large_body_that_is_refused_is_read() {
    let server = Http2Server::start(|mut incoming| async move {
        let (body, mut read) = (incoming.request.body_mut(), 0);
        while read < 200_000 {
            let Some(data) = body.data().await else { break };
            let count = data?.len();
            body.flow_control().release_capacity(count)?;
            read += count;
        }
        incoming.respond.send_reset(Reason::REFUSED_STREAM);
        Ok(())
    });
    let gateway = in_front_of(&server, "");
    let mut client = gateway.client();
    let body = vec![b'x'; 8 << 20];
    assert_eq!(client.fetch(&post("/", body.len() as u64, ""), &body).status(), 502);
    client.assert_closed();
    assert_eq!(server.count(), 1);
}

/// A server on a Unix socket. Its first connection reads nothing after the first response, and ends on request.
/// Requests on the second connection are passed to the test.
struct StalledServer {
    is_deaf: std::sync::mpsc::Receiver<()>,
    end: std::sync::mpsc::Sender<()>,
    second: std::sync::mpsc::Receiver<String>,
}

impl StalledServer {
    fn at(path: &std::path::Path) -> StalledServer {
        let listener = UnixListener::bind(path).unwrap();
        let ((tell, is_deaf), (end, ended), (hand, second)) = (channel(), channel(), channel());
        std::thread::spawn(move || -> io::Result<()> {
            let (mut first, _) = listener.accept()?;
            until_it_ends_with(&mut first, "\r\n\r\n")?;
            first.write_all(ok("first").as_bytes())?;
            first.shutdown(Shutdown::Read)?;
            let _ = tell.send(());
            let _ = ended.recv();
            drop(first);
            let (mut second, _) = listener.accept()?;
            let request = until_it_ends_with(&mut second, "sum: 42\r\n\r\n")?;
            let _ = hand.send(request);
            second.write_all(ok("second").as_bytes())
        });
        StalledServer { is_deaf, end, second }
    }
}

fn until_it_ends_with(stream: &mut UnixStream, end: &str) -> io::Result<String> {
    let (mut received, mut byte) = (Vec::new(), [0]);
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    while !received.ends_with(end.as_bytes()) && stream.read(&mut byte).is_ok_and(|count| count > 0) {
        received.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&received).into_owned())
}

#[test]
fn a_chunked_body_stays_one_on_its_way_through_http2() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deaf");
    let deaf = StalledServer::at(&path);
    let refusing = Http2Server::start(|mut incoming| async move {
        match incoming.request.method().as_str() {
            "GET" => incoming.send_response("other").await,
            _ => {
                incoming.body().await?;
                incoming.respond.send_reset(Reason::REFUSED_STREAM);
                Ok(())
            }
        }
    });
    let url = format!("unix:{}\", \"h2c://{}", path.display(), refusing.addr);
    // The gateway reads the body before it sends the request, so it has the whole body.
    let limit = "[limit.user]\nkey = \"json:/user\"\nrate = \"10/s\"\nmissing = \"skip\"\n";
    let app = route(&url, "limits = [\"user\"]\nrequest_trailers = true") + "balance = \"round_robin\"\n";
    let gateway = Gateway::start(&(app + limit));
    let mut client = gateway.client();
    let texts = [(); 2].map(|()| client.fetch(&get("/", ""), "").text());
    assert_eq!(texts, ["first", "other"]);
    deaf.is_deaf.recv().unwrap();
    client.send(
        "POST / HTTP/1.1\r\nhost: a.test\r\nte: trailers\r\nconnection: te\r\ntrailer: sum\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
         a\r\n{\"user\":1}\r\n0\r\nsum: 42\r\n\r\n",
    );
    std::thread::sleep(Duration::from_millis(200));
    deaf.end.send(()).unwrap();
    let request = deaf.second.recv().unwrap();
    assert!(request.contains("transfer-encoding: chunked\r\n"), "{request}");
    assert!(request.ends_with("\r\n\r\na\r\n{\"user\":1}\r\n0\r\nsum: 42\r\n\r\n"), "{request}");
    assert_eq!(client.read_response("POST").text(), "second");
}
