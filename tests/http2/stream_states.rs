//! Frames that the state of their stream does not allow (RFC 9113, sections 5.1, 5.1.1, 6 and 8.1). A mistake in one
//! message resets its stream and no other; a client that has lost track of its streams loses its connection.

use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;

const STREAM_CLOSED: u32 = 5;
const PRIORITIZED: u8 = 0x20;

/// What the gateway does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// It resets the stream of the frame with this error code, and the connection continues.
    Reset(u32),
    /// It ends the connection with this error code.
    GoAway(u32),
    /// Nothing happens.
    Ignored,
}

/// Where the frames come: on streams of these states.
const OPEN: u32 = 5;
const HALF_CLOSED: u32 = 7;
const CLOSED: u32 = 9;
/// Reset by the client.
const RESET: u32 = 11;
/// Never opened, but one with a higher number was.
const SKIPPED: u32 = 3;
const IDLE: u32 = 21;
/// Of a request after the frames.
const PROBE: u32 = 31;

/// Brings one stream into each state.
fn prepare(gateway: &Gateway) -> Wire {
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.send(headers(OPEN, END_HEADERS, &request("POST", "/held")));
    wire.get(HALF_CLOSED, "/held");
    wire.get(CLOSED, "/fixed");
    assert_eq!(wire.read_response(CLOSED).body, b"fixed");
    wire.send(headers(RESET, END_HEADERS, &request("POST", "/held")));
    wire.send(reset(RESET, CANCEL));
    assert!(wire.is_alive());
    wire
}

/// Sends `frames`, which are on `stream`, and a request on another one.
fn observe(gateway: &Gateway, stream: u32, frames: &[u8]) -> Outcome {
    let mut wire = prepare(gateway);
    wire.send(frames);
    let _ = wire.try_send(headers(PROBE, END_STREAM | END_HEADERS, &request("GET", "/fixed")));
    let (mut outcome, mut pings) = (Outcome::Ignored, 0);
    let code = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap());
    // A reset may follow the answers to the frames after it.
    while pings < 2 {
        match wire.next().unwrap().expect("the connection ended without GOAWAY") {
            frame if frame.kind == RST_STREAM => {
                assert_eq!(frame.stream, stream, "another stream was reset");
                outcome = Outcome::Reset(code(&frame.payload));
            }
            frame if frame.kind == GOAWAY => return Outcome::GoAway(code(&frame.payload[4..])),
            frame if frame.kind == PING => {
                pings += 1;
                let _ = wire.try_send(ping());
            }
            frame if frame.stream == PROBE && frame.kind == DATA => {
                assert_eq!(frame.payload, b"fixed", "the connection does not continue");
                let _ = wire.try_send(ping());
            }
            _ => {}
        }
    }
    outcome
}

#[test]
fn frames_are_judged_by_the_state_of_their_stream() {
    let upstream = Upstream::silent();
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/fixed\"\nrespond = {{ body = \"fixed\" }}\n[[route]]\npath = \"/\"\nupstream = \"{}\"\n",
        upstream.url()
    ));
    let get = request("GET", "/fixed");
    let ended = END_STREAM | END_HEADERS;
    let head = |stream: u32| headers(stream, ended, &get);
    // A head that adds to the table of the decoder, and one that breaks a rule in any state.
    let kept = |stream: u32| frame(HEADERS, ended, stream, b"\x40\x03x-a\x011\x82\x86\x84\x41\x01a");
    let upper = |stream: u32| headers(stream, ended, &[&get[..], &[("X-Upper", "1")]].concat());
    let trailers = |stream: u32| headers(stream, ended, &[("x-t", "1")]);
    let data = |stream: u32| frame(DATA, 0, stream, b"x");
    let priority = |stream: u32, on: u32| frame(PRIORITY, 0, stream, &[&on.to_be_bytes()[..], &[15]].concat());
    let lost = Outcome::GoAway(PROTOCOL_ERROR);
    for (name, stream, frames, expected) in [
        // Section 8.1: a second head on an open stream is malformed trailers.
        ("a head on an open stream", OPEN, head(OPEN), Outcome::Reset(PROTOCOL_ERROR)),
        ("a head with entries on an open stream", OPEN, kept(OPEN), Outcome::Reset(PROTOCOL_ERROR)),
        ("a malformed head on an open stream", OPEN, upper(OPEN), Outcome::Reset(PROTOCOL_ERROR)),
        (
            "trailers without END_STREAM",
            OPEN,
            headers(OPEN, END_HEADERS, &[("x-t", "1")]),
            Outcome::Reset(PROTOCOL_ERROR),
        ),
        ("trailers", OPEN, trailers(OPEN), Outcome::Ignored),
        // Section 5.1: half-closed (remote), and closed by either side.
        ("a head on a half-closed stream", HALF_CLOSED, head(HALF_CLOSED), lost),
        ("a head with entries on a half-closed stream", HALF_CLOSED, kept(HALF_CLOSED), lost),
        ("a malformed head on a half-closed stream", HALF_CLOSED, upper(HALF_CLOSED), lost),
        ("trailers on a half-closed stream", HALF_CLOSED, trailers(HALF_CLOSED), lost),
        ("DATA on a half-closed stream", HALF_CLOSED, data(HALF_CLOSED), lost),
        ("a head on a closed stream", CLOSED, head(CLOSED), lost),
        ("a head with entries on a closed stream", CLOSED, kept(CLOSED), lost),
        ("trailers on a closed stream", CLOSED, trailers(CLOSED), lost),
        ("DATA on a closed stream", CLOSED, data(CLOSED), Outcome::Reset(STREAM_CLOSED)),
        ("a head on a stream that was reset", RESET, head(RESET), lost),
        ("trailers on a stream that was reset", RESET, trailers(RESET), lost),
        ("priority of a closed stream", CLOSED, priority(CLOSED, 0), Outcome::Ignored),
        ("a window of a closed stream", CLOSED, window(CLOSED, 1), Outcome::Ignored),
        ("a reset of a closed stream", CLOSED, reset(CLOSED, CANCEL), Outcome::Ignored),
        // Section 5.1: idle.
        ("DATA on an idle stream", IDLE, data(IDLE), lost),
        ("a reset of an idle stream", IDLE, reset(IDLE, CANCEL), lost),
        ("a window of an idle stream", IDLE, window(IDLE, 1), lost),
        ("priority of an idle stream", IDLE, priority(IDLE, 0), Outcome::Ignored),
        // Section 5.1.1: numbers of streams only grow, and are odd.
        ("a head on a stream that was skipped", SKIPPED, head(SKIPPED), lost),
        ("a malformed head on a stream that was skipped", SKIPPED, upper(SKIPPED), lost),
        ("a head on an even stream", 20, head(20), lost),
        ("a head on stream 0", 0, head(0), lost),
        // Section 5.3.1 of RFC 7540.
        (
            "a stream that depends on itself",
            IDLE,
            frame(HEADERS, ended | PRIORITIZED, IDLE, &[&[0, 0, 0, 21, 15][..], &block(&get)].concat()),
            Outcome::Reset(PROTOCOL_ERROR),
        ),
    ] {
        assert_eq!(observe(&gateway, stream, &frames), expected, "{name}");
    }
}
