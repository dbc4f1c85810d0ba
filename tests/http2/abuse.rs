//! HTTP/2 clients that cause disproportionate cost: each is disconnected, counted, and costs little until then;
//! well-behaved clients are not affected. The figures in docs/guarantees/threat-model.md are measured here.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::h2::H2Client;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const FIXED: &str = "[[route]]\npath = \"/\"\nrespond = { body = \"fixed\" }\n";
const MB: u64 = 1024 * 1024;

/// Sends the `frames` made for each number from 0 until the gateway ends the connection. Returns how many were sent.
#[track_caller]
fn flood(wire: &mut Wire, mut frames: impl FnMut(u32) -> Vec<u8>) -> u32 {
    const MOST: u32 = 200_000;
    for count in 0..MOST {
        if wire.try_send(frames(count)).is_err() {
            eprintln!("{count} sent");
            return count;
        }
    }
    panic!("the gateway accepted {MOST} of them");
}

/// Connections that were ended for what their clients sent, by their reasons.
fn ended(gateway: &Gateway) -> Vec<(&'static str, f64)> {
    let reasons = ["h2_frames", "h2_resets", "h2_abuse", "h2_protocol"];
    let count = |reason| gateway.metric("http_rejected_total", &[("reason", reason)]).map(|count| (reason, count));
    reasons.into_iter().filter_map(count).filter(|(_, count)| *count > 0.0).collect()
}

/// Runs `attack` and checks that its connection was ended by GOAWAY for one of `reasons`, at the price of little
/// memory, and that others are served.
#[track_caller]
fn assert_ended(reasons: &[&str], attack: impl FnOnce(&mut Wire)) {
    assert_ended_with(FIXED, reasons, attack);
}

/// Does the same with another config, whose route `/` responds.
#[track_caller]
fn assert_ended_with(config: &str, reasons: &[&str], attack: impl FnOnce(&mut Wire)) {
    let (_gateway, mut wire) = assert_counted(config, reasons, attack);
    assert_eq!(wire.read_goaway(), Some(ENHANCE_YOUR_CALM));
}

/// Does the same for attackers that write so fast that the reset of their connection may overtake the GOAWAY frame.
/// Returns the gateway and the attacker's connection.
#[track_caller]
fn assert_counted(config: &str, reasons: &[&str], attack: impl FnOnce(&mut Wire)) -> (Gateway, Wire) {
    let gateway = Gateway::start(config);
    let mut other = H2Client::connect(gateway.addr);
    assert_eq!(other.get("/").status(), 200);
    let memory = gateway.watch_memory();
    let mut wire = Wire::connect(gateway.addr, &[]);
    attack(&mut wire);
    wait_until("it is counted", || !ended(&gateway).is_empty());
    let counted = ended(&gateway);
    assert!(counted.len() == 1 && counted[0].1 == 1.0 && reasons.contains(&counted[0].0), "{counted:?}");
    let peak = memory.peak();
    eprintln!("{} KiB more for {counted:?}", peak / 1024);
    assert!(peak < 8 * MB, "{peak} bytes more");
    assert_eq!(other.get("/").status(), 200);
    (gateway, wire)
}

/// CVE-2023-44487.
#[test]
fn rapid_resets_end_the_connection() {
    let upstream = Upstream::silent();
    let gateway =
        Gateway::start(&format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()));
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.read_until("its settings", |frame| frame.kind == SETTINGS);
    flood(&mut wire, |count| {
        let stream = count * 2 + 1;
        [headers(stream, END_STREAM | END_HEADERS, &request("GET", "/")), reset(stream, CANCEL)].concat()
    });
    wait_until("it is counted", || !ended(&gateway).is_empty());
    assert_eq!(wire.read_goaway(), Some(ENHANCE_YOUR_CALM));
    let requests = gateway.metric("requests_total", &[("route", "app"), ("method", "GET"), ("code", "499")]);
    assert!(requests.unwrap_or(0.0) <= 250.0, "{requests:?}");
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
    assert!(!gateway.log().contains("WARN"), "{}", gateway.log());
}

/// A client that resets each request only after it is in progress.
#[test]
fn slow_rapid_resets_are_noticed_too() {
    // A client may cancel this many requests at once, and ten more each second.
    const FREE: u32 = 200;
    let upstream = Upstream::silent();
    let config = format!("{FIXED}[[route]]\npath = \"/up\"\nupstream = \"{}\"\n", upstream.url());
    let open = |count: u32| headers(count * 2 + 1, END_STREAM | END_HEADERS, &request("GET", "/up"));
    assert_ended_with(&config, &["h2_resets"], |wire| {
        for count in 0..FREE {
            wire.send(open(count));
            upstream.request();
            wire.send(reset(count * 2 + 1, CANCEL));
        }
        let more = flood(wire, |count| {
            std::thread::sleep(Duration::from_millis(2));
            [open(FREE + count), reset((FREE + count) * 2 + 1, CANCEL)].concat()
        });
        assert!(more < FREE, "{more}: the first {FREE} did not count");
    });
}

/// `MadeYouReset`, CVE-2025-8671: the client has the gateway reset its streams.
#[test]
fn mistakes_that_make_the_gateway_reset_end_the_connection() {
    let mistakes: [fn(u32) -> Vec<u8>; 4] = [
        |stream| window(stream, 0),
        |stream| [window(stream, 0x7fff_ffff), window(stream, 0x7fff_ffff)].concat(),
        |stream| frame(DATA, 0, stream, b"after the end"),
        |stream| headers(stream, END_STREAM | END_HEADERS, &[("x", "no pseudo")]),
    ];
    for mistake in mistakes {
        let upstream = Upstream::silent();
        let gateway = Gateway::start(&format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()));
        let mut wire = Wire::connect(gateway.addr, &[]);
        let sent = flood(&mut wire, |count| {
            let stream = count * 2 + 1;
            [headers(stream, END_STREAM | END_HEADERS, &request("GET", "/")), mistake(stream)].concat()
        });
        wait_until("it is counted", || !ended(&gateway).is_empty());
        assert!(sent < 20_000 && upstream.connections() <= 250, "{sent}, {}", upstream.connections());
    }
}

#[test]
fn a_head_in_endless_pieces_ends_the_connection() {
    assert_ended(&["h2_abuse"], |wire| {
        wire.send(headers(1, END_STREAM, &request("GET", "/")));
        let sent = flood(wire, |_| frame(CONTINUATION, 0, 1, &block(&[("x", "y")])));
        assert!(sent < 50_000, "{sent}");
    });
}

#[test]
fn frames_that_only_cost_end_the_connection() {
    let nothing: [(&str, Vec<u8>); 6] = [
        ("SETTINGS", frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100])),
        ("empty SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("PING", frame(PING, 0, 0, b"01234567")),
        ("WINDOW_UPDATE", window(0, 1)),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 15])),
        ("unknown", frame(0xfa, 0, 0, b"grease")),
    ];
    for (name, bytes) in nothing {
        assert_ended(&["h2_frames"], |wire| {
            wire.acknowledges = false;
            let sent = flood(wire, |_| bytes.repeat(10));
            assert!(sent < 100_000, "{name}: {sent}");
        });
        // The gateway reads many of them at once, and has responses to send when it ends the connection.
        assert_ended(&["h2_frames"], |wire| {
            wire.acknowledges = false;
            wire.send(bytes.repeat(2100));
        });
    }
}

#[test]
fn empty_data_ends_the_connection() {
    assert_ended(&["h2_frames"], |wire| {
        wire.send(headers(1, END_HEADERS, &request("POST", "/")));
        flood(wire, |_| frame(DATA, 0, 1, &[]).repeat(10));
    });
}

/// The library bounds the small frames that no server has read yet.
#[test]
fn uploads_in_small_frames_that_no_server_reads_end_the_connection() {
    // An HTTP/2 server that opens no window.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!("{FIXED}[[route]]\npath = \"/up\"\nupstream = \"h2c://{}\"\n", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
            std::thread::spawn(move || while matches!(stream.read(&mut [0; 65536]), Ok(1..)) {});
        }
    });
    for (size, unread) in [(100, 3360), (30, 2319), (1, 2056)] {
        assert_ended_with(&config, &["h2_abuse"], |wire| {
            wire.read_until("its settings", |frame| frame.kind == SETTINGS);
            // On two streams, because the window of one would be used up.
            for stream in [1, 3] {
                wire.send(headers(stream, END_HEADERS, &request("POST", "/up")));
                wire.send(frame(DATA, 0, stream, &vec![b'x'; size]).repeat(unread / 2));
            }
            assert!(wire.is_alive(), "fewer than {unread} frames of {size} bytes");
            flood(wire, |count| frame(DATA, 0, 1 + count % 2 * 2, &vec![b'x'; size]));
        });
    }
}

/// Refused streams have a cost, too.
#[test]
fn streams_above_the_cap_end_the_connection_in_the_end() {
    let upstream = Upstream::silent();
    let gateway =
        Gateway::with("max_streams = 10", &format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()));
    let mut wire = Wire::connect(gateway.addr, &[]);
    let sent = flood(&mut wire, |count| headers(count * 2 + 1, END_STREAM | END_HEADERS, &request("GET", "/")));
    wait_until("it is counted", || !ended(&gateway).is_empty());
    assert!(!gateway.log().contains("WARN"), "{}", gateway.log());
    assert!(sent < 20_000 && upstream.connections() <= 10, "{sent}");
}

/// Bytes that stand for 4 kB each: the gateway decodes no more than a head may hold.
#[test]
fn an_hpack_bomb_is_bounded() {
    let gateway = Gateway::start(FIXED);
    let bomb = |references: usize| {
        // Added to the table of the connection as its newest entry.
        let mut field = block(&[("x-bomb", &"x".repeat(4000))]);
        field[0] = 0x40;
        let mut wire = Wire::connect(gateway.addr, &[]);
        let kept = [block(&request("GET", "/")), field].concat();
        wire.send(frame(HEADERS, END_STREAM | END_HEADERS, 1, &kept));
        assert_eq!(wire.read_response(1).body, b"fixed");
        let bomb = [block(&request("GET", "/")), vec![0x80 | 62; references]].concat();
        wire.send(frame(HEADERS, END_STREAM | END_HEADERS, 3, &bomb));
        wire.read_response(3)
    };
    let memory = gateway.watch_memory();
    assert_eq!(bomb(7).ended, StreamEnd::Complete);
    // Too large for a head: 431, which says nothing more.
    let refused = bomb(9);
    assert_eq!((refused.ended, refused.body.len()), (StreamEnd::Complete, 0));
    for _ in 0..20 {
        assert!(matches!(bomb(12_000).ended, StreamEnd::ConnectionClosed(_) | StreamEnd::Reset(_)));
    }
    let peak = memory.peak();
    assert!(peak < 8 * MB, "{peak} bytes more");
    assert_eq!(H2Client::connect(gateway.addr).get("/").status(), 200);
}

/// The bound also holds after a path had to be percent-encoded, when the gateway rewrites all header blocks of the
/// connection.
#[test]
fn an_hpack_bomb_behind_an_encoded_path_is_bounded() {
    let gateway = Gateway::start(FIXED);
    let mut wire = Wire::connect(gateway.addr, &[]);
    let mut field = block(&[("x-bomb", &"x".repeat(4000))]);
    field[0] = 0x40;
    let mut first = [block(&request("GET", "/?<")), field].concat();
    first.resize(16_000, 0x80 | 62);
    let more = vec![0x80 | 62; 16_000];
    let memory = gateway.watch_memory();
    for stream in (1..20).step_by(2) {
        wire.send(frame(HEADERS, END_STREAM, stream, &first));
        for _ in 0..4 {
            wire.send(frame(CONTINUATION, 0, stream, &more));
        }
        wire.send(frame(CONTINUATION, END_HEADERS, stream, &more));
        // 431, which says nothing more.
        let refused = wire.read_response(stream);
        assert_eq!((refused.ended, refused.body.len()), (StreamEnd::Complete, 0));
    }
    let peak = memory.peak();
    assert!(peak < 8 * MB, "{peak} bytes more");
    wire.get(21, "/?<");
    assert_eq!(wire.read_response(21).body, b"fixed");
}

/// The maximum number of streams, each of which reads a part of a large response and then stops.
#[test]
fn readers_that_stop_hold_little_for_each_stream() {
    const CONNECTIONS: u64 = 5;
    let body = vec![b'x'; 2_000_000];
    let answer = [format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
    let upstream = Upstream::fixed(answer);
    let gateway = Gateway::start(&format!(
        "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n[[route]]\npath = \"/fixed\"\nrespond = {{ }}\n",
        upstream.url()
    ));
    assert_eq!(H2Client::connect(gateway.addr).get("/fixed").status(), 200);
    let memory = gateway.watch_memory();
    let mut wires = Vec::new();
    for _ in 0..CONNECTIONS {
        // The window fills the buffers up to the server, and no more.
        let mut wire = Wire::connect(gateway.addr, &[(4, 150_000)]);
        wire.send(window(0, 100 * 150_000));
        for stream in 0..100 {
            wire.get(stream * 2 + 1, "/");
        }
        let mut left = 100 * 150_000;
        while left > 0 {
            left -= wire.read_until("more", |frame| frame.kind == DATA).payload.len();
        }
        wires.push(wire);
    }
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 100.0 * CONNECTIONS as f64);
    let each = memory.grown() / CONNECTIONS;
    eprintln!("{} KiB for a connection with 100 stopped streams", each / 1024);
    assert!(each < 20 * MB, "{each} bytes each");
    assert_eq!(H2Client::connect(gateway.addr).get("/fixed").status(), 200);
}

/// Many frames in a short time, all of them useful.
#[test]
fn busy_clients_are_not_counted_as_floods() {
    let gateway = Gateway::start("[[route]]\npath = \"/\"\nupstream = \"echo:\"\n");
    let mut wire = Wire::connect(gateway.addr, &[]);
    for stream in (1..6000).step_by(2) {
        wire.get(stream, "/");
        // Two acknowledgements for each response, a PING, and a changed priority.
        assert_eq!(wire.read_response(stream).ended, StreamEnd::Complete, "{stream}");
        wire.send([window(0, 300), frame(PRIORITY, 0, stream, &[0, 0, 0, 0, 15])].concat());
        wire.send(frame(PING, 0, 0, b"01234567"));
    }
    // A page that the user leaves: all its requests are cancelled.
    for stream in (6001..6201).step_by(2) {
        wire.send(headers(stream, END_HEADERS, &request("POST", "/")));
    }
    for stream in (6001..6201).step_by(2) {
        wire.send(reset(stream, CANCEL));
    }
    // Small messages, one by one, each in a frame and a window of its own.
    wire.send(headers(20_001, END_HEADERS, &request("POST", "/")));
    for _ in 0..5000 {
        wire.send(frame(DATA, 0, 20_001, b"hello"));
        wire.read_until("its echo", |frame| frame.kind == DATA && frame.stream == 20_001);
        wire.send([window(0, 5), window(20_001, 5)].concat());
    }
    assert_eq!(ended(&gateway), []);
}

/// The library ignores DATA for a stream that it has reset.
#[test]
fn data_that_ends_a_stream_once_more_ends_the_connection() {
    for data in [&[][..], b"x", &[b'x'; 1024]] {
        assert_counted(FIXED, &["h2_frames", "h2_abuse", "h2_protocol"], |wire| {
            wire.get(1, "/");
            assert_eq!(wire.read_response(1).ended, StreamEnd::Complete);
            wire.acknowledges = false;
            let sent = flood(wire, |_| frame(DATA, END_STREAM, 1, data).repeat(10));
            assert!(sent < 50_000, "{sent}");
        });
    }
}

/// A client that was busy for a while acknowledges each frame of a burst twice, as grpc-dart does.
#[test]
fn acknowledgements_of_a_burst_are_no_flood() {
    const MESSAGES: usize = 20_000;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
                stream.read_exact(&mut [0; PREFACE.len()]).unwrap();
                let mut head = [0; 9];
                while head[3] != HEADERS {
                    stream.read_exact(&mut head).unwrap();
                    stream.read_exact(&mut vec![0; usize::from(head[1]) << 8 | usize::from(head[2])]).unwrap();
                }
                stream.write_all(&headers(1, END_HEADERS, &[(":status", "200")])).unwrap();
                for _ in 0..MESSAGES / 100 {
                    stream.write_all(&frame(DATA, 0, 1, b"x").repeat(100)).unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
                stream.write_all(&frame(DATA, END_STREAM, 1, b"x")).unwrap();
                let _ = stream.read_to_end(&mut Vec::new());
            });
        }
    });
    let gateway = Gateway::start(&format!("[[route]]\nupstream = \"h2c://{server}\"\n"));
    let mut wire = Wire::connect(gateway.addr, &[(4, 1 << 20)]);
    wire.get(1, "/");
    std::thread::sleep(Duration::from_millis(1500));
    let mut frames = 0;
    loop {
        let read = wire.read_until("the stream", |frame| frame.kind == DATA && frame.stream == 1);
        wire.send([window(0, 1), window(1, 1)].concat());
        frames += 1;
        if read.flags & END_STREAM != 0 {
            break;
        }
    }
    // On a busy machine the pieces are larger and fewer.
    assert!(frames > 100, "{frames}");
    assert!(wire.is_alive());
    assert_eq!(ended(&gateway), []);
}
