//! Frames at the wrong place, streams that must not end, and instructions for a table that has no room: each ends its
//! connection with the right error. Case names follow those of other implementations' test suites.

use super::Http3Gateway;
use crate::support::h3::{DATA, GOAWAY, H3Client, H3Options, HEADERS, SETTINGS, frame, get, head, section, varint};

const STREAM_CREATION_ERROR: u64 = 0x103;
const CLOSED_CRITICAL_STREAM: u64 = 0x104;
const FRAME_UNEXPECTED: u64 = 0x105;
const FRAME_ERROR: u64 = 0x106;
const EXCESSIVE_LOAD: u64 = 0x107;
const ID_ERROR: u64 = 0x108;
const SETTINGS_ERROR: u64 = 0x109;
const MISSING_SETTINGS: u64 = 0x10a;
const REQUEST_INCOMPLETE: u64 = 0x10d;
const DECOMPRESSION_FAILED: u64 = 0x200;
const ENCODER_STREAM_ERROR: u64 = 0x201;
const DECODER_STREAM_ERROR: u64 = 0x202;

#[test]
fn frames_on_a_request_stream() {
    let gateway = Http3Gateway::echo("");
    let post = [(":method", "POST"), (":scheme", "https"), (":authority", "a.test"), (":path", "/echo")];
    let head = head(&post);
    let trailers = frame(HEADERS, &section(&[("x", "1")]));
    for (name, bytes, code) in [
        ("data first", frame(DATA, b"x"), FRAME_UNEXPECTED),
        ("settings", frame(SETTINGS, b""), FRAME_UNEXPECTED),
        ("goaway", frame(GOAWAY, b"\0"), FRAME_UNEXPECTED),
        ("max push id", frame(0xd, b"\0"), FRAME_UNEXPECTED),
        ("cancel push", frame(0x3, b"\0"), FRAME_UNEXPECTED),
        ("push promise", [&head[..], &frame(0x5, b"\0\0\0")].concat(), FRAME_UNEXPECTED),
        ("ping of http/2", [&head[..], &frame(0x6, b"12345678")].concat(), FRAME_UNEXPECTED),
        ("continuation of http/2", [&head[..], &frame(0x9, b"x")].concat(), FRAME_UNEXPECTED),
        ("data after trailers", [&head[..], &trailers, &frame(DATA, b"x")].concat(), FRAME_UNEXPECTED),
        ("trailers twice", [&head[..], &trailers, &trailers].concat(), FRAME_UNEXPECTED),
        ("an empty head", frame(HEADERS, b""), FRAME_ERROR),
        ("a dynamic reference", frame(HEADERS, b"\0\0\x80"), DECOMPRESSION_FAILED),
        ("an insert count", frame(HEADERS, b"\x02\0\x80"), DECOMPRESSION_FAILED),
        ("a static index of 99", frame(HEADERS, b"\0\0\xff\x24"), DECOMPRESSION_FAILED),
        ("bad huffman padding", frame(HEADERS, b"\0\0\x51\x81\x00"), DECOMPRESSION_FAILED),
        ("a dynamic reference in trailers", [&head[..], &frame(HEADERS, b"\0\0\x80")].concat(), DECOMPRESSION_FAILED),
    ] {
        let client = gateway.connect();
        let mut exchange = client.open(&bytes);
        exchange.finish();
        assert_eq!(client.close_code(), code, "{name}");
    }
    for (name, cut) in [("inside a frame", head.len() - 1), ("inside a length", 1)] {
        let client = gateway.connect();
        let mut exchange = client.open(&head[..cut]);
        exchange.finish();
        assert_eq!(client.close_code(), FRAME_ERROR, "{name}");
    }
    let client = gateway.connect();
    let mut exchange = client.open(&[&head[..], &frame(DATA, b"abc")[..4]].concat());
    exchange.finish();
    assert_eq!(client.close_code(), FRAME_ERROR, "the end inside of DATA");
    let client = gateway.connect();
    let mut exchange = client.open(b"");
    exchange.finish();
    assert_eq!(exchange.reset_code(), REQUEST_INCOMPLETE);
    assert_eq!(client.get("/").status(), 200, "the connection goes on");
}

#[test]
fn frames_on_the_control_stream() {
    let gateway = Http3Gateway::echo("");
    let settings = [&[0][..], &frame(SETTINGS, &[0x06, 0x40, 0x80, 0x21, 0])].concat();
    let then = |frame: Vec<u8>| [&settings[..], &frame].concat();
    for (name, bytes, code) in [
        ("no settings", [&[0][..], &frame(GOAWAY, b"\0")].concat(), MISSING_SETTINGS),
        ("settings twice", then(frame(SETTINGS, b"")), FRAME_UNEXPECTED),
        ("data", then(frame(DATA, b"x")), FRAME_UNEXPECTED),
        ("headers", then(frame(HEADERS, b"x")), FRAME_UNEXPECTED),
        ("a setting twice", [&[0][..], &frame(SETTINGS, &[6, 1, 6, 1])].concat(), SETTINGS_ERROR),
        ("a setting of http/2", [&[0][..], &frame(SETTINGS, &[2, 0])].concat(), SETTINGS_ERROR),
        ("settings that break off", [&[0][..], &frame(SETTINGS, &[6])].concat(), FRAME_ERROR),
        ("settings of a megabyte", [&[0, 4][..], &varint(1 << 20)].concat(), EXCESSIVE_LOAD),
        ("a long goaway", then(frame(GOAWAY, &[0; 9])), FRAME_ERROR),
        ("a goaway that grows", then([frame(GOAWAY, b"\x01"), frame(GOAWAY, b"\x05")].concat()), ID_ERROR),
        ("a short max push id", then(frame(0xd, b"\x40")), FRAME_ERROR),
        ("a lower max push id", then([frame(0xd, b"\x05"), frame(0xd, b"\x04")].concat()), ID_ERROR),
        ("a priority of a push", then(frame(0xf0701, b"\0u=1")), ID_ERROR),
        ("a priority of a control stream", then(frame(0xf0700, b"\x02u=1")), ID_ERROR),
        ("a priority beyond all streams", then(frame(0xf0700, &[&varint(4 * 100)[..], b"u=1"].concat())), ID_ERROR),
        ("a push stream", vec![1, 0], STREAM_CREATION_ERROR),
        ("a capacity", vec![2, 0x3f, 0xbd, 0x01], ENCODER_STREAM_ERROR),
        ("an insertion", vec![2, 0xc1, 1, b'x'], ENCODER_STREAM_ERROR),
        ("an increment", vec![3, 0x01], DECODER_STREAM_ERROR),
        ("an acknowledgement", vec![3, 0x80], DECODER_STREAM_ERROR),
    ] {
        let client = H3Client::raw(gateway.addr(), &H3Options::trusting(&gateway.ca)).unwrap();
        let _stream = client.open_uni(&bytes);
        assert_eq!(client.close_code(), code, "{name}");
    }
}

#[test]
fn critical_streams_exist_once_and_do_not_end() {
    let gateway = Http3Gateway::echo("");
    for kind in [0, 2, 3] {
        let client = H3Client::raw(gateway.addr(), &H3Options::trusting(&gateway.ca)).unwrap();
        let (_one, _other) = (client.open_uni(&[kind]), client.open_uni(&[kind]));
        assert_eq!(client.close_code(), STREAM_CREATION_ERROR, "two of {kind}");
        for resets in [false, true] {
            let client = H3Client::raw(gateway.addr(), &H3Options::trusting(&gateway.ca)).unwrap();
            let mut stream = client.open_uni(&[kind]);
            client.wait(std::time::Duration::from_millis(100));
            let _ = if resets { stream.reset(quinn::VarInt::from_u32(0)) } else { stream.finish() };
            assert_eq!(client.close_code(), CLOSED_CRITICAL_STREAM, "{kind} {resets}");
        }
    }
    let client = gateway.connect();
    let unknown = client.open_uni(&[0x21, 1, 2, 3]);
    let code = client.runtime.block_on(async { unknown.stopped().await.unwrap().unwrap().into_inner() });
    assert_eq!(code, STREAM_CREATION_ERROR);
    assert_eq!(client.get("/").status(), 200, "unknown streams are ignored");
}

#[test]
fn unknown_frames_of_any_length_are_skipped_and_not_kept() {
    let gateway = Http3Gateway::echo("");
    let client = gateway.connect();
    let before = gateway.gateway.memory("VmRSS");
    let mut streams: Vec<_> = (0..20).map(|_| client.open(&[varint(0x21), varint((1 << 62) - 1)].concat())).collect();
    let megabyte = vec![7; 1 << 20];
    for _ in 0..3 {
        streams.iter_mut().for_each(|stream| stream.write(&megabyte));
    }
    let grown = gateway.gateway.memory("VmRSS").saturating_sub(before);
    assert!(grown < 16 << 20, "60 MiB were skipped, and {grown} bytes are kept");
    assert_eq!(client.get("/").status(), 200);
}

#[test]
fn a_field_section_is_refused_by_its_length() {
    let gateway = Http3Gateway::echo("max_header_bytes = \"8KiB\"\n");
    let client = gateway.connect();
    // Only the head of the frame is sent.
    let mut exchange = client.open(&[varint(HEADERS), varint(1 << 40)].concat());
    let response = exchange.response().unwrap();
    assert_eq!((response.status(), response.get("cache-control"), response.body.len()), (431, Some("no-store"), 0));
    assert!(response.get("date").is_some());
    // Afterwards, the client may send for a while.
    exchange.write(&[0; 100_000]);
    assert_eq!(exchange.stop_code(), 0x100);
    let long = "x".repeat(7000);
    let fields = [&get("/")[..], &[("x-a", &long), ("x-b", "1")]].concat();
    assert_eq!(client.fetch(&fields, b"").status(), 200);
    let bomb = frame(HEADERS, &[&section(&get("/"))[..], &[0xd1; 4000]].concat());
    let mut exchange = client.open(&bomb);
    exchange.finish();
    assert_eq!(exchange.response().unwrap().status(), 431, "references count as what they stand for");
    gateway.gateway.assert_metric("http_rejected_total", &[("reason", "head_too_large")], 2.0);
}

#[test]
fn frames_may_arrive_byte_by_byte() {
    let gateway = Http3Gateway::echo("");
    let client = gateway.connect();
    let post = [(":method", "POST"), (":scheme", "https"), (":authority", "a.test"), (":path", "/echo")];
    let bytes = [head(&post), frame(0x4021, b"ab"), frame(DATA, b"abc"), frame(DATA, b"")].concat();
    let mut exchange = client.open(b"");
    for byte in bytes {
        exchange.write(&[byte]);
        client.wait(std::time::Duration::from_millis(2));
    }
    exchange.finish();
    assert_eq!(exchange.response().unwrap().text(), "abc");
}
