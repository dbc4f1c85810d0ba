//! HTTP/2 servers that send many small or empty frames: floods of useless ones end the connection, and those of a
//! response affect no other, whether its client reads or not.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::ETAG;
use http::{HeaderMap, HeaderValue, Response};
use tokio::sync::Notify;

use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::h2_server::{Http2Server, send_all};
use crate::support::{WAIT_MAX, wait_until};

/// Starts a server that sends `first` and then `flood` again and again on each connection from its first request on, and
/// counts the bytes that the gateway reads.
fn flooding(first: Vec<u8>, flood: &[u8]) -> (SocketAddr, Arc<AtomicUsize>) {
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
                while head[3] != HEADERS {
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

/// Starts a server that calls `respond` with its socket and each frame that begins a request or resets one. Returns the
/// number of its connections, too.
fn responding(respond: impl Fn(&mut TcpStream, u8, u32) + Send + Sync + 'static) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, connections) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let (respond, count) = (Arc::new(respond), connections.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, respond) = (stream.unwrap(), respond.clone());
            count.fetch_add(1, Ordering::SeqCst);
            stream.set_nodelay(true).unwrap();
            stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
            std::thread::spawn(move || {
                stream.read_exact(&mut [0; PREFACE.len()]).unwrap();
                let mut head = [0; 9];
                while stream.read_exact(&mut head).is_ok() {
                    let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
                    stream.read_exact(&mut payload).unwrap();
                    if matches!(head[3], HEADERS | RST_STREAM) {
                        respond(&mut stream, head[3], u32::from_be_bytes(head[5..].try_into().unwrap()));
                    }
                }
            });
        }
    });
    (addr, connections)
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
        let (server, sent) = flooding(first.clone(), &flood);
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
    let (begin, begins) = channel::<()>();
    let (ended, ends) = channel();
    let begins = Mutex::new(begins);
    let (server, _) = responding(move |stream, _, id| {
        stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, id, &[0x88])).unwrap();
        // A flood during the exchange would be the fault of its request.
        begins.lock().unwrap().recv().unwrap();
        let flood = frame(0x42, 0, 0, &[]).repeat(1000);
        while stream.write_all(&flood).is_ok() {}
        ended.send(()).unwrap();
    });
    let gateway = in_front_of(server);
    for _ in 0..5 {
        assert_eq!(gateway.get("/").status(), 200);
        begin.send(()).unwrap();
        ends.recv_timeout(WAIT_MAX).expect("the connection ends");
    }
    wait_until("the log says so", || gateway.log().contains("the server floods it with frames"));
    assert_eq!(gateway.log_lines(&["floods"]), 1);
}

/// The library ignores DATA for a stream that the gateway has reset.
#[test]
fn ends_of_a_stream_that_was_reset_are_a_flood() {
    let (server, _) = responding(|stream, kind, id| {
        if kind == HEADERS {
            return stream.write_all(&frame(HEADERS, END_HEADERS, id, &[0x88])).unwrap();
        }
        let ends = frame(DATA, END_STREAM, id, &[]).repeat(1000);
        while stream.write_all(&ends).is_ok() {}
    });
    let gateway = in_front_of(server);
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.try_read_head().unwrap();
    drop(client);
    wait_until("the log says so", || gateway.log().contains("the server floods it with frames"));
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

/// The library accepts only 100 in the life of a connection.
#[test]
fn empty_data_of_responses_costs_no_connection() {
    let (server, connections) = responding(|socket, _, stream| {
        let empty = frame(DATA, 0, stream, &[]);
        let data = |flags: u8, bytes: &[u8]| frame(DATA, flags, stream, bytes);
        let head = frame(HEADERS, END_HEADERS, stream, &[0x88]);
        let response = [&head, &empty, &data(0, b"ab"), &empty, &empty, &data(0, b"c"), &empty, &data(END_STREAM, b"")];
        let response: Vec<u8> = response.into_iter().flatten().copied().collect();
        let (start, rest) = response.split_at(stream as usize / 2 % response.len());
        socket.write_all(start).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        socket.write_all(rest).unwrap();
    });
    let gateway = in_front_of(server);
    let mut client = gateway.client();
    for count in 0..150 {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(client.read_response("GET").text(), "abc", "{count}");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

/// The server may send until it learns of the reset.
#[test]
fn small_data_for_clients_that_have_left_affects_no_other_request() {
    let (server, connections) = responding(|socket, kind, stream| {
        let data = frame(DATA, 0, stream, b"x");
        let head = frame(HEADERS, END_HEADERS, stream, &[0x88]);
        let response = match (kind, stream) {
            (RST_STREAM, _) => data.repeat(30_000),
            (_, 1) => [head, data].concat(),
            _ => [head, frame(DATA, END_STREAM, stream, b"whole")].concat(),
        };
        let _ = socket.write_all(&response);
    });
    let gateway = in_front_of(server);
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.get(1, "/");
    wire.read_until("data", |frame| frame.kind == DATA);
    wire.send(reset(1, CANCEL));
    for stream in [3, 5, 7] {
        std::thread::sleep(Duration::from_millis(50));
        wire.get(stream, "/");
        assert_eq!(wire.read_response(stream).body, b"whole");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

/// A client that does not read a response in small frames, as of a language model, on a connection with others.
#[test]
fn unread_small_data_affects_no_other_response() {
    const FRAMES: usize = 30_000;
    let small = |index: usize| vec![(index % 251) as u8; 1 + index % 4];
    let large = vec![b'L'; 300_000];
    let body: Vec<u8> = (0..FRAMES).flat_map(small).chain(large.clone()).collect();
    let (finish, released) = (Arc::<Notify>::default(), large);
    let server = Http2Server::start(move |mut incoming| {
        let (finish, large) = (finish.clone(), released.clone());
        async move {
            match incoming.request.uri().path() {
                "/stalled" => {
                    let mut stream = incoming.head(Response::new(()), false)?;
                    for index in 0..FRAMES {
                        stream.send_data(small(index).into(), false)?;
                    }
                    incoming.note("/queued");
                    send_all(&mut stream, large.into()).await?;
                    stream.send_trailers(HeaderMap::from_iter([(ETAG, HeaderValue::from_static("end"))]))
                }
                "/other" => {
                    let mut stream = incoming.head(Response::new(()), false)?;
                    stream.send_data("begun, ".into(), false)?;
                    finish.notified().await;
                    stream.send_data("and ended".into(), true)
                }
                _ => {
                    finish.notify_one();
                    incoming.send_response("done").await
                }
            }
        }
    });
    let gateway = in_front_of(server.addr);
    // No stream of the client has a window at first.
    let mut wire = Wire::connect(gateway.addr, &[(4, 0)]);
    wire.send(window(0, 1 << 30));
    wire.get(1, "/other");
    wire.send(window(1, 1 << 20));
    wire.get(3, "/stalled");
    while server.request().uri.path() != "/queued" {}
    // The gateway receives what the windows of its streams allow.
    std::thread::sleep(Duration::from_millis(300));
    wire.get(5, "/finish");
    wire.send(window(5, 1 << 20));
    let responses = wire.read_responses(&[1, 5]);
    assert_eq!(responses.iter().map(|response| response.ended).collect::<Vec<_>>(), [StreamEnd::Complete; 2]);
    assert_eq!((&responses[0].body[..], &responses[1].body[..]), (&b"begun, and ended"[..], &b"done"[..]));
    wire.send(window(3, 1 << 20));
    let response = wire.read_response(3);
    assert_eq!((response.body == body, response.ended), (true, StreamEnd::Complete), "{} bytes", response.body.len());
    assert_eq!(server.connections(), 1);
}
