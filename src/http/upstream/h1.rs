//! The wire form of HTTP/1.1 towards an upstream, without I/O: `request` writes a head, here the head of
//! an answer is read, and how the answer's body ends is decided by RFC 9112 section 6.3 and nothing else. What
//! contradicts itself is a fault, after which the connection is of no use.

pub mod body;
pub mod request;

use std::fmt;
use std::mem::MaybeUninit;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use httparse::ParserConfig;
use hyper::ext::ReasonPhrase;

use self::body::Decoder;
use crate::http::downstream::offer::Offer;
use crate::http::upstream::interim::InterimHeads;

/// Fields of an answer's head, or of its trailers.
pub const FIELDS_MAX: usize = 100;
/// Bytes of an answer's head, interim heads each.
pub const HEAD_MAX: usize = 64 * 1024;
/// Fields that this gateway adds to an answer: room for them spares the map from growing.
const OWN_FIELDS: usize = 4;

/// What an upstream did that ends the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolFault {
    /// Not the head of an HTTP/1 answer.
    Head,
    HeadTooLarge,
    /// `Content-Length` is no single number.
    Length,
    /// `Transfer-Encoding` is anything but one `chunked`, or beside `Content-Length`, or in HTTP/1.0.
    Coding,
    /// 101 to a protocol that was not offered.
    Switch,
    /// Interim responses at a higher rate than [`InterimHeads`] permits.
    Interim,
    /// Chunk sizes, line ends, extensions or trailers are not as they must be.
    Chunk,
    /// The connection ended before the answer did.
    Cut,
    /// The stream of HTTP/2 was reset.
    Reset,
    /// What HTTP/2 does not allow.
    Http2,
    /// More HTTP/2 frames without use than a server may send.
    Flood,
}

impl fmt::Display for ProtocolFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProtocolFault::Head => "no head of an HTTP/1 answer",
            ProtocolFault::HeadTooLarge => "a head of too many bytes or fields",
            ProtocolFault::Length => "a Content-Length that is no single number",
            ProtocolFault::Coding => "a Transfer-Encoding that cannot be followed",
            ProtocolFault::Switch => "another protocol than was offered",
            ProtocolFault::Interim => "too many interim responses (1xx)",
            ProtocolFault::Chunk => "broken chunks",
            ProtocolFault::Reset => "a reset of the stream",
            ProtocolFault::Http2 => "broken HTTP/2",
            ProtocolFault::Flood => "a flood of HTTP/2 frames",
            ProtocolFault::Cut => "the end of the connection before that of the answer",
        })
    }
}

impl std::error::Error for ProtocolFault {}

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
    pub interims: InterimHeads,
    /// Bytes in which no head ends.
    scanned: usize,
}

impl HeadReader {
    /// Takes the head of the final answer to a request of `method` from `received`; `None` while there
    /// is none yet. One that switches protocols is final, too, if it takes the `offer`.
    ///
    /// # Errors
    /// What no answer of HTTP/1 has; the connection is of no use then.
    pub fn read(
        &mut self,
        received: &mut BytesMut,
        method: &Method,
        offer: Option<&Offer>,
    ) -> Result<Option<Head>, ProtocolFault> {
        loop {
            // A head that comes in many pieces is parsed once more only when its end is there.
            if self.scanned > 0 && !self.ends(received) {
                return if received.len() > HEAD_MAX { Err(ProtocolFault::HeadTooLarge) } else { Ok(None) };
            }
            let Some((length, head)) = parse(received, method)? else {
                if received.len() > HEAD_MAX {
                    return Err(ProtocolFault::HeadTooLarge);
                }
                self.scanned = received.len();
                return Ok(None);
            };
            received.advance(length);
            self.scanned = 0;
            match head.response.status() {
                StatusCode::SWITCHING_PROTOCOLS => {
                    let taken = offer.is_some_and(|offer| offer.is_taken_by(head.response.headers()));
                    return if taken { Ok(Some(head)) } else { Err(ProtocolFault::Switch) };
                }
                status if status.is_informational() => {
                    if !self.interims.add(status, head.response.into_parts().0.headers) {
                        return Err(ProtocolFault::Interim);
                    }
                }
                _ => return Ok(Some(head)),
            }
        }
    }

    /// Nothing of an answer has been taken yet.
    pub fn is_idle(&self) -> bool {
        self.interims.is_empty()
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
fn parse(received: &[u8], method: &Method) -> Result<Option<(usize, Head)>, ProtocolFault> {
    if received.is_empty() {
        return Ok(None);
    }
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut []);
    let outcome = ParserConfig::default().parse_response_with_uninit_headers(&mut parsed, received, &mut fields);
    let length = match outcome {
        Ok(httparse::Status::Complete(length)) if length <= HEAD_MAX => length,
        Ok(httparse::Status::Complete(_)) | Err(httparse::Error::TooManyHeaders) => {
            return Err(ProtocolFault::HeadTooLarge);
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(ProtocolFault::Head),
    };
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(ProtocolFault::Head)?;
    let old = parsed.version == Some(0);

    let mut response = Response::new(());
    *response.status_mut() = status;
    if let Some(reason) = parsed.reason.filter(|reason| Some(*reason) != status.canonical_reason()) {
        let reason = ReasonPhrase::try_from(reason.as_bytes()).map_err(|_| ProtocolFault::Head)?;
        response.extensions_mut().insert(reason);
    }
    // A copy: a slice of the buffer would keep all of it for as long as one field lives.
    let head = Bytes::copy_from_slice(&received[..length]);
    let headers = response.headers_mut();
    headers.reserve(parsed.headers.len() + OWN_FIELDS);
    let (mut said, mut body) = (ConnectionField::default(), Length::default());
    for field in parsed.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| ProtocolFault::Head)?;
        if name == CONTENT_LENGTH {
            body.length(field.value)?;
        } else if name == TRANSFER_ENCODING {
            body.coding(field.value, old)?;
        } else if name == CONNECTION && said.takes(field.value) {
            continue;
        }
        let start = field.value.as_ptr() as usize - received.as_ptr() as usize;
        let value = HeaderValue::from_maybe_shared(head.slice(start..start + field.value.len()));
        headers.append(name, value.map_err(|_| ProtocolFault::Head)?);
    }
    let body = body.of_answer(status, method)?;
    let keep_alive = said.keeps(old) && !matches!(body, Decoder::Close);
    Ok(Some((length, Head { response, body, keep_alive })))
}

/// What the `Connection` fields say of whether it lives on.
#[derive(Default)]
struct ConnectionField {
    close: bool,
    keep_alive: bool,
}

impl ConnectionField {
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

/// The length that these lines of `Content-Length` state, if there is one.
///
/// # Errors
/// They state no single number.
pub fn stated_length<'l>(mut lines: impl Iterator<Item = &'l HeaderValue>) -> Result<Option<u64>, ProtocolFault> {
    let mut body = Length::default();
    lines.try_for_each(|line| body.length(line.as_bytes()))?;
    Ok(body.length)
}

/// An answer of this status has no body, whatever it says.
pub fn is_bodiless(status: StatusCode) -> bool {
    status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// What the framing fields say of the body.
#[derive(Default)]
struct Length {
    length: Option<u64>,
    chunked: bool,
}

impl Length {
    fn length(&mut self, value: &[u8]) -> Result<(), ProtocolFault> {
        let number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let length = str::from_utf8(value).ok().filter(|_| number).and_then(|digits| digits.parse().ok());
        // Even equal ones are two: who reads on may take the other.
        match (length, self.length) {
            (Some(length), None) => self.length = Some(length),
            _ => return Err(ProtocolFault::Length),
        }
        Ok(())
    }

    fn coding(&mut self, value: &[u8], old: bool) -> Result<(), ProtocolFault> {
        if self.chunked || old || !value.eq_ignore_ascii_case(b"chunked") {
            return Err(ProtocolFault::Coding);
        }
        self.chunked = true;
        Ok(())
    }

    fn of_answer(&self, status: StatusCode, method: &Method) -> Result<Decoder, ProtocolFault> {
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(ProtocolFault::Coding),
            _ if method == Method::HEAD || is_bodiless(status) => Ok(Decoder::Length(0)),
            (true, None) => Ok(Decoder::chunked()),
            (false, Some(length)) => Ok(Decoder::Length(length)),
            (false, None) => Ok(Decoder::Close),
        }
    }
}
