//! HTTP/1.1 towards servers. `request` writes the head of a request, this file parses the head of a response, `body`
//! decodes the body, and `exchange` does the I/O.
//!
//! The end of a response body is decided by RFC 9112, section 6.3, and by nothing else. A response that contradicts
//! itself is a [`ProtocolFault`], after which the connection is closed.

pub mod body;
pub mod request;

use std::fmt;
use std::mem::MaybeUninit;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use httparse::ParserConfig;
use hyper::ext::ReasonPhrase;

use crate::ends::End;
use crate::proxy::head::upgrade::UpgradeOffer;
use crate::proxy::outbound::http1::body::BodyDecoder;
use crate::proxy::outbound::interim::InterimResponses;
use crate::proxy::words::refusal::Refusal;
use crate::proxy::words::spelling::SpelledNames;
use crate::upstream::HeadBounds;

/// Most trailers of a response, and most headers that are parsed without an allocation.
pub const TRAILER_COUNT_MAX: usize = 100;
/// Headers that the gateway adds to a response. The map is allocated with space for them.
const OWN_HEADERS: usize = 4;

/// A violation of HTTP by a server. It ends the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolFault {
    /// The bytes are not the head of an HTTP/1 response.
    Head,
    /// The head exceeds the server's [`HeadBounds`].
    HeadTooLarge,
    /// `Content-Length` is not a single number.
    ContentLength,
    /// `Transfer-Encoding` is not just `chunked`, or comes with `Content-Length` or HTTP/1.0.
    TransferEncoding,
    /// The server switches to a protocol that the request did not offer.
    Switch,
    /// Interim responses at a higher rate than [`InterimResponses`] permits.
    InterimFlood,
    /// Malformed chunk sizes, line ends, extensions or trailers.
    Chunk,
    /// The connection ended before the response.
    CutOff,
    /// The server reset the HTTP/2 stream.
    Reset,
    /// The server violated HTTP/2.
    Http2,
    /// The server sent too many useless HTTP/2 frames.
    FrameFlood,
}

impl ProtocolFault {
    /// Returns the text for the log.
    pub fn text(self) -> &'static str {
        match self {
            ProtocolFault::Head => "not an HTTP/1 response",
            ProtocolFault::HeadTooLarge => {
                "the response head exceeds `max_header_bytes` or `max_headers` of the upstream"
            }
            ProtocolFault::ContentLength => "Content-Length is not a single number",
            ProtocolFault::TransferEncoding => "unsupported or ambiguous Transfer-Encoding",
            ProtocolFault::Switch => "the server switched to a protocol that was not offered",
            ProtocolFault::InterimFlood => "the server sent too many interim responses (1xx)",
            ProtocolFault::Chunk => "malformed chunked encoding",
            ProtocolFault::Reset => "the server reset the HTTP/2 stream",
            ProtocolFault::Http2 => "the server violated HTTP/2",
            ProtocolFault::FrameFlood => "the server sent too many useless HTTP/2 frames",
            ProtocolFault::CutOff => "the connection ended before the response",
        }
    }
}

impl fmt::Display for ProtocolFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl From<ProtocolFault> for Refusal {
    fn from(fault: ProtocolFault) -> Refusal {
        let end = if fault == ProtocolFault::Switch { End::UpstreamSwitched } else { End::UpstreamBroken };
        Refusal::with_text(end, fault.text())
    }
}

impl std::error::Error for ProtocolFault {}

/// The head of a final response.
#[derive(Debug)]
pub struct ResponseHead {
    /// The response, without `Connection` headers that only say `close` or `keep-alive`.
    pub response: Response<()>,
    pub body: BodyDecoder,
    /// The server keeps the connection open after this response.
    pub keep_alive: bool,
}

/// Parses the head of one response, with the interim responses before it.
#[derive(Debug)]
pub struct ResponseHeadReader {
    pub interims: InterimResponses,
    bounds: HeadBounds,
    /// Number of bytes that were searched for the end of a head.
    scanned: usize,
}

impl ResponseHeadReader {
    pub fn new(bounds: HeadBounds) -> ResponseHeadReader {
        ResponseHeadReader { interims: InterimResponses::default(), bounds, scanned: 0 }
    }

    /// Takes the head of the final response to a request of `method` from `received`. Returns `None` while it is
    /// incomplete. A response that switches to the protocol of `offer` is final as well.
    ///
    /// # Errors
    /// The response is not valid HTTP/1; the connection must be closed.
    pub fn take_head(
        &mut self,
        received: &mut BytesMut,
        method: &Method,
        offer: Option<&UpgradeOffer>,
    ) -> Result<Option<ResponseHead>, ProtocolFault> {
        loop {
            // A head that arrives in many pieces is parsed again only when its end has arrived.
            if self.scanned > 0 && !self.has_empty_line(received) {
                return if received.len() > self.bounds.bytes { Err(ProtocolFault::HeadTooLarge) } else { Ok(None) };
            }
            let Some((length, head)) = parse_head(received, method, self.bounds)? else {
                if received.len() > self.bounds.bytes {
                    return Err(ProtocolFault::HeadTooLarge);
                }
                self.scanned = received.len();
                return Ok(None);
            };
            received.advance(length);
            self.scanned = 0;
            match head.response.status() {
                StatusCode::SWITCHING_PROTOCOLS => {
                    let is_accepted = offer.is_some_and(|offer| offer.is_accepted_by(head.response.headers()));
                    return if is_accepted { Ok(Some(head)) } else { Err(ProtocolFault::Switch) };
                }
                status if status.is_informational() => {
                    if !self.interims.add(status, head.response.into_parts().0.headers) {
                        return Err(ProtocolFault::InterimFlood);
                    }
                }
                _ => return Ok(Some(head)),
            }
        }
    }

    /// Returns whether no interim response was taken yet.
    pub fn is_idle(&self) -> bool {
        self.interims.is_empty()
    }

    /// Returns whether an empty line ends in the part that was not searched yet.
    fn has_empty_line(&mut self, received: &[u8]) -> bool {
        let from = self.scanned.saturating_sub(3);
        self.scanned = received.len();
        memchr::memchr_iter(b'\n', &received[from..]).any(|place| {
            let before = &received[..from + place];
            before.ends_with(b"\n") || before.ends_with(b"\n\r")
        })
    }
}

/// Parses the head at the start of `received`. Returns it with its length.
fn parse_head(
    received: &[u8],
    method: &Method,
    bounds: HeadBounds,
) -> Result<Option<(usize, ResponseHead)>, ProtocolFault> {
    if received.is_empty() {
        return Ok(None);
    }
    let mut few = [const { MaybeUninit::uninit() }; TRAILER_COUNT_MAX];
    let mut many = Vec::new();
    let mut parsed_head = httparse::Response::new(&mut []);
    let parser = ParserConfig::default();
    let mut outcome = parser.parse_response_with_uninit_headers(&mut parsed_head, received, &mut few);
    if outcome == Err(httparse::Error::TooManyHeaders) && bounds.headers > TRAILER_COUNT_MAX {
        many.resize_with(bounds.headers, MaybeUninit::uninit);
        parsed_head = httparse::Response::new(&mut []);
        outcome = parser.parse_response_with_uninit_headers(&mut parsed_head, received, &mut many);
    }
    let length = match outcome {
        Ok(httparse::Status::Complete(length))
            if length <= bounds.bytes && parsed_head.headers.len() <= bounds.headers =>
        {
            length
        }
        Ok(httparse::Status::Complete(_)) | Err(httparse::Error::TooManyHeaders) => {
            return Err(ProtocolFault::HeadTooLarge);
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(ProtocolFault::Head),
    };
    let status = parsed_head.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(ProtocolFault::Head)?;
    let old = parsed_head.version == Some(0);

    let mut response = Response::new(());
    *response.status_mut() = status;
    if let Some(reason) = parsed_head.reason.filter(|reason| Some(*reason) != status.canonical_reason()) {
        let reason = ReasonPhrase::try_from(reason.as_bytes()).map_err(|_| ProtocolFault::Head)?;
        response.extensions_mut().insert(reason);
    }
    // Copied: a slice of the buffer would keep all of it alive for as long as one header.
    let head = Bytes::copy_from_slice(&received[..length]);
    let headers = response.headers_mut();
    headers.reserve(parsed_head.headers.len() + OWN_HEADERS);
    let (mut said, mut body) = (ConnectionOptions::default(), BodyLength::default());
    let mut names = SpelledNames::default();
    for field in parsed_head.headers.iter() {
        if bounds.keeps_case {
            names.add(field.name.as_bytes());
        }
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| ProtocolFault::Head)?;
        if name == CONTENT_LENGTH {
            body.read_content_length(field.value)?;
        } else if name == TRANSFER_ENCODING {
            body.read_transfer_encoding(field.value, old)?;
        } else if name == CONNECTION && said.read_line(field.value) {
            continue;
        }
        let start = field.value.as_ptr() as usize - received.as_ptr() as usize;
        let value = HeaderValue::from_maybe_shared(head.slice(start..start + field.value.len()));
        headers.append(name, value.map_err(|_| ProtocolFault::Head)?);
    }
    if !names.is_empty() {
        response.extensions_mut().insert(names);
    }
    let body = body.decoder_for_response(status, method)?;
    let keep_alive = said.keeps_open(old) && !matches!(body, BodyDecoder::Close);
    Ok(Some((length, ResponseHead { response, body, keep_alive })))
}

/// The `Connection` headers of a response: they close the connection or keep it open.
#[derive(Default)]
struct ConnectionOptions {
    close: bool,
    keep_alive: bool,
}

impl ConnectionOptions {
    /// Reads one header line. Returns true if it has no other options.
    fn read_line(&mut self, line: &[u8]) -> bool {
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

    /// Returns whether the connection stays open. `old`: HTTP/1.0.
    fn keeps_open(&self, old: bool) -> bool {
        !self.close && (self.keep_alive || !old)
    }
}

/// Returns the length that the `Content-Length` headers state, if there are any.
///
/// # Errors
/// They are not a single number.
pub fn parse_content_length<'l>(
    mut lines: impl Iterator<Item = &'l HeaderValue>,
) -> Result<Option<u64>, ProtocolFault> {
    let mut body = BodyLength::default();
    lines.try_for_each(|line| body.read_content_length(line.as_bytes()))?;
    Ok(body.length)
}

/// Returns whether responses of this status have no body, whatever their headers say.
pub fn never_has_body(status: StatusCode) -> bool {
    status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Parses a number that consists of digits only, without a sign.
fn parse_digits(text: &[u8]) -> Option<u64> {
    let append = |number: u64, byte: &u8| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    };
    if text.is_empty() { None } else { text.iter().try_fold(0, append) }
}

/// The framing headers of a response.
#[derive(Default)]
struct BodyLength {
    length: Option<u64>,
    chunked: bool,
}

impl BodyLength {
    fn read_content_length(&mut self, value: &[u8]) -> Result<(), ProtocolFault> {
        // Even equal values are rejected: other parsers may read them differently.
        match (parse_digits(value), self.length) {
            (Some(length), None) => self.length = Some(length),
            _ => return Err(ProtocolFault::ContentLength),
        }
        Ok(())
    }

    fn read_transfer_encoding(&mut self, value: &[u8], old: bool) -> Result<(), ProtocolFault> {
        if self.chunked || old || !value.eq_ignore_ascii_case(b"chunked") {
            return Err(ProtocolFault::TransferEncoding);
        }
        self.chunked = true;
        Ok(())
    }

    /// Returns how the body of a response ends.
    fn decoder_for_response(&self, status: StatusCode, method: &Method) -> Result<BodyDecoder, ProtocolFault> {
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(ProtocolFault::TransferEncoding),
            _ if method == Method::HEAD || never_has_body(status) => Ok(BodyDecoder::Length(0)),
            (true, None) => Ok(BodyDecoder::new_chunked()),
            (false, Some(length)) => Ok(BodyDecoder::Length(length)),
            (false, None) => Ok(BodyDecoder::Close),
        }
    }
}
