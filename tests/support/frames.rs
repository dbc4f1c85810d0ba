//! An HTTP/2 client that sends exactly the frames that a test gives it, valid or not.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::client::Client;
use super::http::read_some;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub const NO_ERROR: u32 = 0;
pub const PROTOCOL_ERROR: u32 = 1;
pub const INTERNAL_ERROR: u32 = 2;
pub const REFUSED_STREAM: u32 = 7;
pub const CANCEL: u32 = 8;
pub const ENHANCE_YOUR_CALM: u32 = 11;

#[derive(Clone, Debug)]
pub struct WireFrame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// How a stream, or the connection, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The response ended.
    Complete,
    Reset(u32),
    /// The connection ended, with the error code of GOAWAY if there was one.
    ConnectionClosed(Option<u32>),
}

/// The response on one stream.
#[derive(Debug)]
pub struct WireResponse {
    /// The header block as received, compressed.
    pub head: Vec<u8>,
    pub body: Vec<u8>,
    pub ended: StreamEnd,
}

pub struct Wire<S = TcpStream> {
    stream: S,
    received: Vec<u8>,
    /// True to acknowledge SETTINGS and PING automatically.
    pub acknowledges: bool,
}

impl Wire {
    /// Connects and sends nothing.
    pub fn silent(addr: SocketAddr) -> Wire {
        let stream = Client::connect(addr).into_stream();
        Wire { stream, received: Vec::new(), acknowledges: true }
    }

    /// Connects and sends these settings.
    pub fn connect(addr: SocketAddr, settings: &[(u16, u32)]) -> Wire {
        Wire::over(Client::connect(addr).into_stream(), settings)
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl<S: Read + Write> Wire<S> {
    /// Starts HTTP/2 on `stream` with these settings.
    pub fn over(stream: S, settings: &[(u16, u32)]) -> Wire<S> {
        let mut wire = Wire { stream, received: Vec::new(), acknowledges: true };
        let pairs = settings.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat());
        let settings = frame(SETTINGS, 0, 0, &pairs.collect::<Vec<u8>>());
        wire.send([PREFACE, &settings].concat());
        wire
    }

    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).unwrap();
    }

    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Sends a GET request without a body.
    #[track_caller]
    pub fn get(&mut self, stream: u32, path: &str) {
        self.send(headers(stream, END_STREAM | END_HEADERS, &request("GET", path)));
    }

    /// Reads the next frame. `None` at the end of the connection.
    pub fn next(&mut self) -> io::Result<Option<WireFrame>> {
        loop {
            if self.received.len() >= 9 {
                let length = u32::from_be_bytes([0, self.received[0], self.received[1], self.received[2]]) as usize;
                if self.received.len() >= 9 + length {
                    let rest = self.received.split_off(9 + length);
                    let bytes = std::mem::replace(&mut self.received, rest);
                    let stream = u32::from_be_bytes(bytes[5..9].try_into().unwrap());
                    let frame = WireFrame { kind: bytes[3], flags: bytes[4], stream, payload: bytes[9..].to_vec() };
                    self.acknowledge(&frame);
                    return Ok(Some(frame));
                }
            }
            let mut piece = [0; 64 * 1024];
            match read_some(&mut self.stream, &mut piece) {
                Ok(0) => return Ok(None),
                Ok(count) => self.received.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn acknowledge(&mut self, received: &WireFrame) {
        if self.acknowledges && matches!(received.kind, SETTINGS | PING) && received.flags & ACK == 0 {
            let payload: &[u8] = if received.kind == PING { &received.payload } else { &[] };
            let _ = self.try_send(frame(received.kind, ACK, 0, payload));
        }
    }

    /// Reads up to the next frame for which `matches` is true.
    #[track_caller]
    pub fn read_until(&mut self, what: &str, mut matches: impl FnMut(&WireFrame) -> bool) -> WireFrame {
        loop {
            match self.next() {
                Ok(Some(frame)) if matches(&frame) => return frame,
                Ok(Some(_)) => {}
                end => panic!("the connection ended before {what}: {end:?}"),
            }
        }
    }

    /// Reads to the end of `stream`, ignoring other streams.
    #[track_caller]
    pub fn read_response(&mut self, stream: u32) -> WireResponse {
        self.read_responses(&[stream]).remove(0)
    }

    /// Reads to the end of all of `streams`, ignoring others.
    #[track_caller]
    pub fn read_responses(&mut self, streams: &[u32]) -> Vec<WireResponse> {
        let unknown = || WireResponse { head: Vec::new(), body: Vec::new(), ended: StreamEnd::ConnectionClosed(None) };
        let mut answers: Vec<WireResponse> = streams.iter().map(|_| unknown()).collect();
        let mut goaway_code = None;
        while answers.iter().any(|answer| answer.ended == StreamEnd::ConnectionClosed(None)) {
            let frame = match self.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => panic!("no end of {streams:?}: {error}, {answers:?}"),
            };
            if frame.kind == GOAWAY {
                goaway_code = Some(code(&frame.payload[4..]));
            }
            let Some(index) = streams.iter().position(|stream| *stream == frame.stream) else { continue };
            let answer = &mut answers[index];
            match frame.kind {
                HEADERS => answer.head.extend(&frame.payload),
                DATA => answer.body.extend(&frame.payload),
                RST_STREAM => answer.ended = StreamEnd::Reset(code(&frame.payload)),
                _ => {}
            }
            if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0 {
                answer.ended = StreamEnd::Complete;
            }
        }
        for answer in answers.iter_mut().filter(|answer| answer.ended == StreamEnd::ConnectionClosed(None)) {
            answer.ended = StreamEnd::ConnectionClosed(goaway_code);
        }
        answers
    }

    /// Reads to the end of the connection. Returns the error code of GOAWAY, if any.
    #[track_caller]
    pub fn read_goaway(&mut self) -> Option<u32> {
        let mut goaway_code = None;
        loop {
            match self.next() {
                Ok(Some(frame)) if frame.kind == GOAWAY => goaway_code = Some(code(&frame.payload[4..])),
                Ok(Some(_)) => {}
                Ok(None) => return goaway_code,
                Err(error) => panic!("the connection did not end: {error}"),
            }
        }
    }

    /// Returns whether the gateway still responds to a PING.
    pub fn is_alive(&mut self) -> bool {
        if self.try_send(ping()).is_err() {
            return false;
        }
        loop {
            match self.next() {
                Ok(Some(frame)) if frame.kind == PING && frame.flags & ACK != 0 => return true,
                Ok(Some(_)) => {}
                _ => return false,
            }
        }
    }
}

impl WireResponse {
    /// The status of a response of the gateway itself, which repeats it in its body.
    #[track_caller]
    pub fn problem_status(&self) -> u64 {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("no problem document: {error}: {:?} {:?}", String::from_utf8_lossy(&self.body), self.ended)
        });
        problem["status"].as_u64().unwrap()
    }
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = payload.len().to_be_bytes()[5..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A HEADERS frame with literal headers: not compressed, not added to the table.
pub fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags, stream, &block(fields))
}

pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            length(&mut block, text.len());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// An integer with a prefix of 7 bits.
fn length(block: &mut Vec<u8>, length: usize) {
    if length < 127 {
        return block.extend(u8::try_from(length));
    }
    block.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        block.extend(u8::try_from(rest % 128 + 128));
        rest /= 128;
    }
    block.extend(u8::try_from(rest));
}

/// The pseudo-headers of a request to `a.test`.
pub fn request<'a>(method: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![(":method", method), (":scheme", "http"), (":authority", "a.test"), (":path", path)]
}

/// The pseudo-headers of an extended CONNECT.
pub fn connect(stream: u32, path: &str, protocol: &str) -> Vec<u8> {
    let fields = [
        (":method", "CONNECT"),
        (":protocol", protocol),
        (":scheme", "http"),
        (":authority", "a.test"),
        (":path", path),
        ("sec-websocket-version", "13"),
        ("origin", "http://a.test"),
    ];
    headers(stream, END_HEADERS, &fields)
}

pub fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// A PING, which the gateway acknowledges after it has processed the frames before.
pub fn ping() -> Vec<u8> {
    frame(PING, 0, 0, b"alive???")
}

pub fn window(stream: u32, bytes: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

fn code(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload[..4].try_into().unwrap())
}
