//! The wire form of HTTP/1.1 towards an upstream, without I/O: the head of a request is written, the
//! head of an answer read, and how the answer's body ends is decided by RFC 9112 section 6.3 and nothing
//! else. What contradicts itself is a fault, after which the connection is of no use.

pub mod body;

use std::fmt;
use std::mem::MaybeUninit;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use httparse::ParserConfig;
use hyper::ext::ReasonPhrase;

use self::body::Decoder;

/// Fields of an answer's head, or of its trailers.
pub const FIELDS_MAX: usize = 100;
/// Bytes of an answer's head, interim heads each.
pub const HEAD_MAX: usize = 64 * 1024;
/// Interim answers (1xx) before the final one.
pub const INTERIM_MAX: usize = 16;
/// Fields that this gateway adds to an answer: room for them spares the map from growing.
const OWN_FIELDS: usize = 4;

/// How the end of a request body is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none. `announced`: the client said so itself, by a length of 0.
    None {
        announced: bool,
    },
    Length(u64),
    Chunked,
}

/// What an upstream did that ends the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not the head of an HTTP/1 answer.
    Head,
    HeadTooLarge,
    /// `Content-Length` is no single number.
    Length,
    /// `Transfer-Encoding` is anything but one `chunked`, or beside `Content-Length`, or in HTTP/1.0.
    Coding,
    /// 101 without having been asked to switch protocols.
    Switch,
    /// More interim answers than [`INTERIM_MAX`].
    Interim,
    /// Chunk sizes, line ends, extensions or trailers are not as they must be.
    Chunk,
    /// The connection ended before the answer did.
    Cut,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Head => "no head of an HTTP/1 answer",
            Fault::HeadTooLarge => "a head of too many bytes or fields",
            Fault::Length => "a Content-Length that is no single number",
            Fault::Coding => "a Transfer-Encoding that cannot be followed",
            Fault::Switch => "another protocol without being asked",
            Fault::Interim => "too many interim answers",
            Fault::Chunk => "broken chunks",
            Fault::Cut => "the end of the connection before that of the answer",
        })
    }
}

impl std::error::Error for Fault {}

/// Appends the head of a request. The length or coding of the body is written from `framing`, whatever
/// `headers` say; `host` stands in for a missing `Host`, or for the one there is if `replace`.
pub fn write_head(
    out: &mut Vec<u8>,
    method: &Method,
    target: &str,
    headers: &HeaderMap,
    host: &HeaderValue,
    replace: bool,
    framing: Framing,
) {
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let host = if replace { host } else { headers.get(HOST).unwrap_or(host) };
    write_field(out, &HOST, host);
    for (name, value) in headers {
        if *name != HOST && *name != CONTENT_LENGTH && *name != TRANSFER_ENCODING {
            write_field(out, name, value);
        }
    }
    match framing {
        Framing::None { announced: false } => {}
        Framing::None { announced: true } => out.extend_from_slice(b"content-length: 0\r\n"),
        Framing::Length(length) => {
            out.extend_from_slice(b"content-length: ");
            out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Framing::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
    out.extend_from_slice(b"\r\n");
}

pub fn write_field(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The head of a final answer.
#[derive(Debug)]
pub struct Head {
    /// Without what was said of the connection, where that is only whether it lives on.
    pub response: Response<()>,
    pub body: Decoder,
    /// The upstream keeps the connection after this answer.
    pub keep_alive: bool,
}

/// Reads the heads of one answer, the interim ones included.
#[derive(Debug, Default)]
pub struct HeadReader {
    interims: usize,
    /// Bytes in which no head ends.
    scanned: usize,
}

impl HeadReader {
    /// Takes the head of the final answer to a request of `method` from `received`; `None` while there
    /// is none yet.
    ///
    /// # Errors
    /// What no answer of HTTP/1 has; the connection is of no use then.
    pub fn read(&mut self, received: &mut BytesMut, method: &Method) -> Result<Option<Head>, Fault> {
        loop {
            // A head that comes in many pieces is parsed once more only when its end is there.
            if self.scanned > 0 && !self.ends(received) {
                return if received.len() > HEAD_MAX { Err(Fault::HeadTooLarge) } else { Ok(None) };
            }
            let Some((length, head)) = parse(received, method)? else {
                if received.len() > HEAD_MAX {
                    return Err(Fault::HeadTooLarge);
                }
                self.scanned = received.len();
                return Ok(None);
            };
            received.advance(length);
            self.scanned = 0;
            match head.response.status() {
                // No request of ours asks for it.
                StatusCode::SWITCHING_PROTOCOLS => return Err(Fault::Switch),
                status if status.is_informational() => {
                    self.interims += 1;
                    if self.interims > INTERIM_MAX {
                        return Err(Fault::Interim);
                    }
                }
                _ => return Ok(Some(head)),
            }
        }
    }

    /// Nothing of an answer has been taken yet.
    pub fn is_idle(&self) -> bool {
        self.interims == 0
    }

    /// Whether an empty line ends in what was not scanned yet.
    fn ends(&mut self, received: &[u8]) -> bool {
        let from = self.scanned.saturating_sub(3);
        self.scanned = received.len();
        memchr::memchr_iter(b'\n', &received[from..]).any(|place| {
            let before = &received[..from + place];
            before.ends_with(b"\n") || before.ends_with(b"\n\r")
        })
    }
}

/// The head that `received` begins with, and its length.
fn parse(received: &[u8], method: &Method) -> Result<Option<(usize, Head)>, Fault> {
    if received.is_empty() {
        return Ok(None);
    }
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut []);
    let outcome = ParserConfig::default().parse_response_with_uninit_headers(&mut parsed, received, &mut fields);
    let length = match outcome {
        Ok(httparse::Status::Complete(length)) if length <= HEAD_MAX => length,
        Ok(httparse::Status::Complete(_)) | Err(httparse::Error::TooManyHeaders) => return Err(Fault::HeadTooLarge),
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Fault::Head),
    };
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(Fault::Head)?;
    let old = parsed.version == Some(0);

    let mut response = Response::new(());
    *response.status_mut() = status;
    if let Some(reason) = parsed.reason.filter(|reason| Some(*reason) != status.canonical_reason()) {
        let reason = ReasonPhrase::try_from(reason.as_bytes()).map_err(|_| Fault::Head)?;
        response.extensions_mut().insert(reason);
    }
    // A copy: a slice of the buffer would keep all of it for as long as one field lives.
    let head = Bytes::copy_from_slice(&received[..length]);
    let headers = response.headers_mut();
    headers.reserve(parsed.headers.len() + OWN_FIELDS);
    let (mut said, mut body) = (Connection::default(), Length::default());
    for field in parsed.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| Fault::Head)?;
        if name == CONTENT_LENGTH {
            body.length(field.value)?;
        } else if name == TRANSFER_ENCODING {
            body.coding(field.value, old)?;
        } else if name == CONNECTION && said.takes(field.value) {
            continue;
        }
        let start = field.value.as_ptr() as usize - received.as_ptr() as usize;
        let value = HeaderValue::from_maybe_shared(head.slice(start..start + field.value.len()));
        headers.append(name, value.map_err(|_| Fault::Head)?);
    }
    let body = body.of_answer(status, method)?;
    let keep_alive = said.keeps(old) && !matches!(body, Decoder::Close);
    Ok(Some((length, Head { response, body, keep_alive })))
}

/// What the `Connection` fields say of whether it lives on.
#[derive(Default)]
struct Connection {
    close: bool,
    keep_alive: bool,
}

impl Connection {
    /// Notes what a line says; true when that is all it says.
    fn takes(&mut self, line: &[u8]) -> bool {
        let mut all = true;
        for token in line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if token.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if token.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else {
                all = false;
            }
        }
        all
    }

    fn keeps(&self, old: bool) -> bool {
        !self.close && (self.keep_alive || !old)
    }
}

/// What the framing fields say of the body.
#[derive(Default)]
struct Length {
    length: Option<u64>,
    chunked: bool,
}

impl Length {
    fn length(&mut self, value: &[u8]) -> Result<(), Fault> {
        let number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let length = str::from_utf8(value).ok().filter(|_| number).and_then(|digits| digits.parse().ok());
        // Even equal ones are two: who reads on may take the other.
        match (length, self.length) {
            (Some(length), None) => self.length = Some(length),
            _ => return Err(Fault::Length),
        }
        Ok(())
    }

    fn coding(&mut self, value: &[u8], old: bool) -> Result<(), Fault> {
        if self.chunked || old || !value.eq_ignore_ascii_case(b"chunked") {
            return Err(Fault::Coding);
        }
        self.chunked = true;
        Ok(())
    }

    fn of_answer(&self, status: StatusCode, method: &Method) -> Result<Decoder, Fault> {
        let none = method == Method::HEAD
            || status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(Fault::Coding),
            _ if none => Ok(Decoder::Length(0)),
            (true, None) => Ok(Decoder::chunked()),
            (false, Some(length)) => Ok(Decoder::Length(length)),
            (false, None) => Ok(Decoder::Close),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_has_one_host_and_one_framing_whatever_its_fields_say() {
        let headers: HeaderMap =
            [(CONTENT_LENGTH, "9"), (TRANSFER_ENCODING, "gzip"), (HOST, "a.test"), (HOST, "b.test")]
                .into_iter()
                .map(|(name, value)| (name, HeaderValue::from_static(value)))
                .collect();
        let server = HeaderValue::from_static("server:80");
        let head = |headers: &HeaderMap, replace, framing| {
            let mut out = Vec::new();
            write_head(&mut out, &Method::POST, "/x?y", headers, &server, replace, framing);
            String::from_utf8(out).unwrap()
        };
        let line = "POST /x?y HTTP/1.1\r\n";
        for (replace, framing, rest) in [
            (false, Framing::Length(5), "content-length: 5\r\n\r\n"),
            (true, Framing::Chunked, "transfer-encoding: chunked\r\n\r\n"),
            (false, Framing::None { announced: true }, "content-length: 0\r\n\r\n"),
            (true, Framing::None { announced: false }, "\r\n"),
        ] {
            let host = if replace { "server:80" } else { "a.test" };
            assert_eq!(head(&headers, replace, framing), format!("{line}host: {host}\r\n{rest}"));
            assert_eq!(head(&HeaderMap::new(), replace, framing), format!("{line}host: server:80\r\n{rest}"));
        }
    }
}
