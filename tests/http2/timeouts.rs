//! The end of HTTP/2 connections and streams: each stream by its own timeout, the connection after its last stream, and
//! all of them gracefully at shutdown.

use std::time::{Duration, Instant};

use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent, get, post};
use crate::support::machine::Stopwatch;
use crate::support::upstream::{Upstream, ok};
use crate::support::{WAIT_MAX, wait_until};

const FIXED: &str = "[[route]]\npath = \"/\"\nrespond = { body = \"fixed\" }\n";

#[test]
fn a_client_that_does_not_begin_is_closed_in_time() {
    let gateway = Gateway::with("header_timeout = \"400ms\"\nkeepalive_timeout = \"20s\"", FIXED);
    for start in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM"] {
        let watch = Stopwatch::start();
        let mut wire = Wire::silent(gateway.addr);
        wire.send(start);
        assert!(wire.next().unwrap().is_none());
        watch.assert_ms(380..5000);
    }
    // A head that does not end, alone and while another request is in progress.
    for half in [
        headers(1, END_STREAM, &request("GET", "/")),
        headers(1, END_STREAM | END_HEADERS, &request("GET", "/"))[..20].to_vec(),
        vec![0],
    ] {
        let mut wire = Wire::connect(gateway.addr, &[]);
        wire.read_until("its settings", |frame| frame.kind == SETTINGS);
        wire.send(half);
        assert_eq!(wire.read_goaway(), None);
    }
    gateway.assert_metric("http_rejected_total", &[("reason", "header_timeout")], 6.0);
}

/// Further bytes of a slow head do not extend its timeout.
#[test]
fn a_dripping_head_is_closed_in_time() {
    let gateway = Gateway::with("header_timeout = \"500ms\"\nkeepalive_timeout = \"20s\"", FIXED);
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.read_until("its settings", |frame| frame.kind == SETTINGS);
    let mut drops = frame(HEADERS, END_STREAM, 1, &[0; 5000]).into_iter();
    wire.stream().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let watch = Stopwatch::start();
    wait_until("it is closed", || {
        let _ = wire.try_send([drops.next().unwrap()]);
        matches!(wire.next(), Ok(None))
    });
    watch.assert_ms(480..8000);
    gateway.assert_metric("http_rejected_total", &[("reason", "header_timeout")], 1.0);
}

/// The HTTP/2 library keeps memory for each stream of the busiest time of a connection.
#[test]
fn idle_connections_that_were_busy_are_closed_when_there_are_many() {
    const BUSY: usize = 100;
    const KEPT: usize = 8192 / 100;
    let gateway = Gateway::with("keepalive_timeout = \"60s\"", FIXED);
    let mut quiet = Wire::connect(gateway.addr, &[]);
    quiet.get(1, "/");
    assert_eq!(quiet.read_response(1).body, b"fixed");
    let mut busy: Vec<Wire> = Vec::new();
    for _ in 0..BUSY {
        let mut wire = Wire::connect(gateway.addr, &[]);
        let streams: Vec<u32> = (1..200).step_by(2).collect();
        let get = |stream| headers(stream, END_STREAM | END_HEADERS, &request("GET", "/"));
        wire.send(streams.iter().flat_map(|stream| get(*stream)).collect::<Vec<u8>>());
        assert!(wire.read_responses(&streams).iter().all(|answer| answer.ended == StreamEnd::Complete));
        busy.push(wire);
    }
    let open = || gateway.metric("connections", &[("listener", "127.0.0.1:0"), ("protocol", "h2")]);
    let mut closed = 0;
    for wire in &mut busy[..BUSY - KEPT] {
        assert_eq!(wire.read_goaway(), Some(NO_ERROR));
        closed += 1;
    }
    wait_until("no other one is closed", || open() == Some((BUSY - closed + 1) as f64));
    assert!(quiet.is_alive(), "the connection was never busy");
    assert!(busy[BUSY - KEPT..].iter_mut().all(Wire::is_alive), "one of the last was closed");
}

#[test]
fn an_idle_connection_gets_goaway_before_it_is_closed() {
    let gateway = Gateway::with("keepalive_timeout = \"1s\"\nheader_timeout = \"300ms\"", FIXED);
    // Longer than a head may take: the connection has begun, and is idle.
    let watch = Stopwatch::start();
    let mut wire = Wire::connect(gateway.addr, &[]);
    assert_eq!(wire.read_goaway(), Some(NO_ERROR));
    watch.assert_ms(980..8000);

    let mut wire = Wire::connect(gateway.addr, &[]);
    // Longer than the timeout in total, which counts from the last request.
    let watches = [1, 3, 5, 7].map(|stream| {
        let watch = Stopwatch::start();
        wire.get(stream, "/");
        assert_eq!(wire.read_response(stream).ended, StreamEnd::Complete);
        std::thread::sleep(Duration::from_millis(400));
        watch
    });
    // PING and similar frames do not count as use.
    wire.stream().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    wait_until("it is closed", || {
        let _ = wire.try_send(frame(PING, 0, 0, b"01234567"));
        matches!(wire.next(), Ok(None))
    });
    watches[3].assert_ms(980..8000);
    gateway.assert_metric("http_rejected_total", &[("reason", "header_timeout")], 0.0);
}

/// A client that does not acknowledge the PING of a graceful shutdown.
#[test]
fn a_client_that_does_not_hear_is_closed_all_the_same() {
    let gateway = Gateway::with("keepalive_timeout = \"300ms\"", FIXED);
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.acknowledges = false;
    assert_eq!(wire.read_goaway(), Some(NO_ERROR));
}

/// An open request keeps its connection, however long it takes.
#[test]
fn a_connection_with_a_request_is_not_idle() {
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            std::thread::sleep(Duration::from_millis(1200));
            peer.send(ok("slow"))?;
        }
        Ok(())
    });
    let gateway = Gateway::with(
        "keepalive_timeout = \"300ms\"\nheader_timeout = \"300ms\"",
        &format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()),
    );
    assert_eq!(H2Client::connect(gateway.addr).get("/").text(), "slow");
}

#[test]
fn each_stream_has_deadlines_of_its_own() {
    let upstream = Upstream::start(|peer| {
        while let Some(head) = peer.head()? {
            match head.target() {
                "/silent" | "/upload" => return peer.wait_for_end(),
                "/stalls" => {
                    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart")?;
                    return peer.wait_for_end();
                }
                _ => peer.send(ok("up"))?,
            }
        }
        Ok(())
    });
    let timeouts = "response_timeout = \"600ms\"\nstream_timeout = \"600ms\"\nbody_timeout = \"600ms\"\n";
    let app = format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n{timeouts}", upstream.url());
    let gateway = Gateway::start(&app);
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.get(1, "/silent");
    wire.get(3, "/stalls");
    wire.send(headers(5, END_HEADERS, &request("POST", "/upload")));
    wire.send(frame(DATA, 0, 5, b"part"));
    let (mut silent, mut stalls, mut upload) = (Vec::new(), None, Vec::new());
    while silent.is_empty() || upload.is_empty() || stalls.is_none() {
        let frame = wire.next().unwrap().expect("the connection stays usable");
        match (frame.stream, frame.kind) {
            (1, DATA) => silent = frame.payload,
            (5, DATA) => upload = frame.payload,
            (3, RST_STREAM) => stalls = Some(frame.payload),
            _ => {}
        }
    }
    let status = |body: &[u8]| serde_json::from_slice::<serde_json::Value>(body).unwrap()["status"].as_u64();
    assert_eq!((status(&silent), status(&upload)), (Some(504), Some(408)));
    wire.get(7, "/");
    assert_eq!(wire.read_response(7).body, b"up");
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
    gateway.assert_metric("http_rejected_total", &[("reason", "stream_timeout")], 1.0);
}

/// Never a pause of 600 ms, but too slow in total; beside it an upload that is fast enough for longer.
#[test]
fn an_upload_that_drips_is_ended_alone() {
    let upstream = Upstream::text("up");
    let gateway = Gateway::start(&format!(
        "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\nbody_timeout = \"600ms\"\nmin_body_rate = 1000\n",
        upstream.url()
    ));
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.stream().set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let since = Instant::now();
    for stream in [1, 3] {
        wire.send(headers(stream, END_HEADERS, &request("POST", "/")));
    }
    let (mut refusal, mut reset, mut sent) = (Vec::new(), false, 0);
    wait_until("the slow upload is ended", || {
        if !reset && refusal.is_empty() {
            wire.send(frame(DATA, 0, 1, b"x"));
        }
        wire.send(frame(DATA, 0, 3, &[b'x'; 400]));
        sent += 400;
        while let Ok(Some(frame)) = wire.next() {
            assert!(frame.stream != 3 || frame.kind == WINDOW_UPDATE, "{frame:?}");
            match (frame.stream, frame.kind) {
                (1, DATA) => refusal.extend(frame.payload),
                (1, RST_STREAM) => reset = true,
                _ => {}
            }
        }
        reset && since.elapsed() > Duration::from_millis(1500)
    });
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&refusal).unwrap()["status"], 408);
    wire.stream().set_read_timeout(Some(WAIT_MAX)).unwrap();
    wire.send(frame(DATA, END_STREAM, 3, b""));
    assert_eq!(wire.read_response(3).body, b"up");
    assert_eq!(upstream.request().body.len(), sent);
    gateway.assert_metric("requests_total", &[("route", "app"), ("method", "POST"), ("code", "408")], 1.0);
}

/// A reader that opens no window blocks its own stream only, until its timeout.
#[test]
fn a_reader_that_stalls_is_reset_alone() {
    let body = vec![b'x'; 300_000];
    let answer = [format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
    let upstream = Upstream::fixed(answer);
    let app = format!(
        "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\nstream_timeout = \"700ms\"\n\
         [[route]]\npath = \"/fixed\"\nrespond = {{ body = \"fixed\" }}\n",
        upstream.url()
    );
    let gateway = Gateway::start(&app);
    for size in [0, 1, 1000] {
        let mut wire = Wire::connect(gateway.addr, &[(4, size)]);
        wire.get(1, "/");
        // The test opens the window of this stream.
        wire.send(headers(3, END_STREAM | END_HEADERS, &request("GET", "/fixed")));
        wire.send(window(3, 1000));
        assert_eq!(wire.read_response(3).body, b"fixed", "{size}");
        let stalled = wire.read_response(1);
        assert!(matches!(stalled.ended, StreamEnd::Reset(CANCEL)), "{size}: {:?}", stalled.ended);
        assert!(wire.is_alive());
    }
    gateway.assert_metric("http_rejected_total", &[("reason", "stream_timeout")], 3.0);
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
}

/// After its response an upload gets further time.
#[test]
fn an_upload_that_outlasts_its_answer_ends_in_time() {
    let upstream = Upstream::start(|peer| {
        peer.head()?;
        peer.send(ok("early"))?;
        peer.wait_for_end()
    });
    let gateway = Gateway::with(
        "keepalive_timeout = \"600ms\"",
        &format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\nbody_timeout = \"600ms\"\n", upstream.url()),
    );
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.send(headers(1, END_HEADERS, &request("POST", "/")));
    wire.send(frame(DATA, 0, 1, b"part"));
    assert_eq!(wire.read_response(1).body, b"early");
    let reset = wire.read_until("a reset", |frame| frame.kind == RST_STREAM);
    assert_eq!((reset.stream, reset.payload), (1, NO_ERROR.to_be_bytes().to_vec()));
    // Then the connection is idle, and is closed after the idle timeout.
    assert_eq!(wire.read_goaway(), Some(NO_ERROR));
}

#[test]
fn a_shutdown_finishes_open_streams_and_accepts_no_more() {
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")?;
            std::thread::sleep(Duration::from_millis(1000));
            peer.send("6\r\nsecond\r\n0\r\n\r\n")?;
        }
        Ok(())
    });
    let mut gateway = Gateway::start(&format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()));
    let (mut busy, mut idle) = (Wire::connect(gateway.addr, &[]), Wire::connect(gateway.addr, &[]));
    busy.get(1, "/");
    busy.read_until("the start of the response", |frame| frame.kind == DATA);
    idle.read_until("its settings", |frame| frame.kind == SETTINGS);
    gateway.signal("TERM");
    let first = busy.read_until("the first GOAWAY", |frame| frame.kind == GOAWAY);
    assert_eq!(first.payload[..4], 0x7fff_ffffu32.to_be_bytes());
    let second = busy.read_until("the second GOAWAY", |frame| frame.kind == GOAWAY);
    assert_eq!(second.payload[..4], 1u32.to_be_bytes());
    let rest = busy.read_response(1);
    assert_eq!((rest.body.as_slice(), rest.ended), (&b"second"[..], StreamEnd::Complete));
    assert_eq!(busy.read_goaway(), None);
    assert_eq!(idle.read_goaway(), Some(NO_ERROR));
    assert!(gateway.exit().success());
}

/// A gateway that shuts down still responds to the requests that it has received, on every connection.
#[test]
fn a_stop_under_load_loses_no_request() {
    let mut gateway = Gateway::start(FIXED);
    let addr = gateway.addr;
    let clients: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                let mut h2 = H2Client::connect(addr);
                let mut answered = 0;
                loop {
                    match h2.try_fetch(get("/"), Sent::default()) {
                        Ok(answer) => assert_eq!(answer.status(), 200),
                        // The gateway ended the connection, or it did not process this request.
                        Err(error) if error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR) => break,
                        Err(error) if error.reason() == Some(h2::Reason::REFUSED_STREAM) => break,
                        Err(error) => panic!("after {answered}: {error:?}"),
                    }
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    gateway.signal("TERM");
    for client in clients {
        assert!(client.join().unwrap() > 0);
    }
    assert!(gateway.exit().success());
}

#[test]
fn a_reload_leaves_open_streams_alone() {
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")?;
            std::thread::sleep(Duration::from_millis(800));
            peer.send("6\r\nsecond\r\n0\r\n\r\n")?;
        }
        Ok(())
    });
    let gateway =
        Gateway::with("max_streams = 100", &format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()));
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.get(1, "/");
    wire.read_until("the start of the response", |frame| frame.kind == DATA);
    gateway.reload_with("max_streams = 100", "max_streams = 2");
    let rest = wire.read_response(1);
    assert_eq!((rest.body.as_slice(), rest.ended), (&b"second"[..], StreamEnd::Complete));
    let mut new = Wire::connect(gateway.addr, &[]);
    let settings = new.read_until("its settings", |frame| frame.kind == SETTINGS && frame.flags & ACK == 0);
    let most = settings.payload.chunks(6).find(|pair| pair[..2] == [0, 3]).map(|pair| pair[2..].to_vec());
    assert_eq!(most, Some(2u32.to_be_bytes().to_vec()));
}

#[test]
fn an_unwanted_body_is_not_waited_for() {
    let gateway = Gateway::start(FIXED);
    let mut h2 = H2Client::connect(gateway.addr);
    let answer = h2.fetch(post("/"), Sent { body: &[b'x'; 2_000_000], trailers: None });
    assert_eq!((answer.status(), answer.text().as_str()), (200, "fixed"));
    assert_eq!(h2.get("/").status(), 200);
}
