//! HTTP/2 servers that flood the gateway with useless frames.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::frames::{DATA, HEADERS, PING, PREFACE, PRIORITY, SETTINGS, WINDOW_UPDATE};
use crate::support::gateway::Gateway;
use crate::support::h2_server::Http2Server;
use crate::support::wait_until;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Starts a server that sends `first` and then `flood` again and again on each connection, and counts the bytes that
/// the gateway reads. If `waits_for_request`, it begins with the first request, otherwise as soon as the connection is
/// open.
fn flooding(first: Vec<u8>, flood: &[u8], waits_for_request: bool) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, sent) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let (many, count) = (flood.repeat(1000), sent.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
            let (first, many, count) = (first.clone(), many.clone(), count.clone());
            std::thread::spawn(move || {
                let mut preface = vec![0; PREFACE.len()];
                stream.read_exact(&mut preface).unwrap();
                let mut head = [0; 9];
                while waits_for_request && head[3] != HEADERS {
                    stream.read_exact(&mut head).unwrap();
                    let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
                    stream.read_exact(&mut payload).unwrap();
                }
                let mut reader = stream.try_clone().unwrap();
                std::thread::spawn(move || while matches!(reader.read(&mut [0; 65536]), Ok(1..)) {});
                stream.write_all(&first).unwrap();
                while let Ok(bytes @ 1..) = stream.write(&many) {
                    count.fetch_add(bytes, Ordering::SeqCst);
                }
            });
        }
    });
    (addr, sent)
}

fn in_front_of(server: SocketAddr) -> Gateway {
    Gateway::start(&format!(
        "[[route]]\nupstream = \"app\"\nresponse_timeout = \"10s\"\n[upstream.app]\nservers = [\"h2c://{server}\"]\n"
    ))
}

#[test]
fn floods_of_frames_end_the_connection_and_are_the_fault_of_the_server() {
    // The head of a response with `:status: 200` alone.
    let head = frame(HEADERS, 4, 1, &[0x88]);
    let interim = frame(HEADERS, 4, 1, &[0x08, 3, b'1', b'0', b'2']);
    for (name, first, flood) in [
        ("priority", vec![], frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1])),
        ("unknown", vec![], frame(0x42, 0, 0, &[])),
        ("ping", vec![], frame(PING, 0, 0, &[1; 8])),
        ("settings", vec![], frame(SETTINGS, 0, 0, &[])),
        ("windows", vec![], frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("interims", vec![], interim),
        ("empty data", head.clone(), frame(DATA, 0, 1, &[])),
    ] {
        let (server, sent) = flooding(first.clone(), &flood, true);
        let gateway = in_front_of(server);
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        // Responses that have begun are aborted.
        match (first.is_empty(), client.try_read_response("GET")) {
            (true, Ok(response)) => assert_eq!(response.status(), 502, "{name}"),
            (false, Err(_)) => {}
            (_, outcome) => panic!("{name}: {:?}", outcome.map(|response| response.status())),
        }
        if first.is_empty() {
            gateway.assert_metric("upstream_requests_total", &[("upstream", "app"), ("outcome", "broken")], 1.0);
        }
        // The buffers of the kernel are included.
        let bytes = sent.load(Ordering::SeqCst);
        assert!(bytes < 20 << 20, "{name}: {bytes}");
    }
}

#[test]
fn a_flood_on_an_idle_connection_is_logged_once_and_ends_it() {
    let (server, sent) = flooding(vec![], &frame(0x42, 0, 0, &[]), false);
    let gateway = in_front_of(server);
    (0..5).for_each(|_| drop(gateway.get("/")));
    wait_until("the log says so", || gateway.log().contains("the server floods it with frames"));
    assert_eq!(gateway.log_lines(&["floods"]), 1);
    wait_until("nothing is read any more", || {
        let before = sent.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        sent.load(Ordering::SeqCst) == before
    });
}

#[test]
fn interim_responses_as_heartbeats_are_no_flood() {
    let server = Http2Server::start(|mut incoming| async move {
        for _ in 0..50 {
            incoming.respond.send_informational(http::Response::builder().status(102).body(()).unwrap())?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        incoming.send_response("fine").await
    });
    let app = format!("[[route]]\nupstream = \"h2c://{}\"\nresponse_timeout = \"250ms\"\n", server.addr);
    assert_eq!(Gateway::start(&app).get("/").text(), "fine");
}
