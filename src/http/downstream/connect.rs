//! Extended CONNECT (RFC 8441), by which a stream of HTTP/2 becomes a tunnel: read as the request to switch
//! that asks the same over HTTP/1.1, WebSocket's handshake included. Called by the workers before `gateway`,
//! and by `onward` for the answer.

use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use hyper::ext::Protocol;
use sha1_smol::Sha1;

/// What WebSocket's answer is made of (RFC 6455, 1.3).
const WEBSOCKET: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Makes it that request; false where it is another.
pub fn translate<B>(request: &mut Request<B>) -> bool {
    let Some(protocol) = request.extensions_mut().remove::<Protocol>() else { return false };
    let Ok(protocol) = HeaderValue::from_str(protocol.as_str()) else { return false };
    *request.method_mut() = Method::GET;
    let headers = request.headers_mut();
    if protocol.as_bytes().eq_ignore_ascii_case(b"websocket")
        && let Ok(key) = HeaderValue::try_from(base64(&rand::random::<[u8; 16]>()))
    {
        headers.insert(SEC_WEBSOCKET_KEY, key);
    }
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
    true
}

/// Whether the answer with this head is one to `asked`: it switches, as the key wants where there is one, or
/// it does not succeed. A success of another kind would be taken for a tunnel.
pub fn is_answered_by(asked: &Parts, status: StatusCode, answer: &HeaderMap) -> bool {
    if status != StatusCode::SWITCHING_PROTOCOLS {
        return !status.is_success();
    }
    let Some(key) = asked.headers.get(SEC_WEBSOCKET_KEY) else { return true };
    let accept = answer.get(SEC_WEBSOCKET_ACCEPT).map(|accept| accept.as_bytes());
    accept == Some(accept_of(key.as_bytes()).as_bytes())
}

fn accept_of(key: &[u8]) -> String {
    let mut hash = Sha1::from(key);
    hash.update(WEBSOCKET);
    base64(&hash.digest().bytes())
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = char::from(DIGITS[(bits >> (18 - 6 * place)) as usize & 63]);
            text.push(if place > group.len() { '=' } else { digit });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_as_the_key_wants_or_no_success() {
        // The example of RFC 6455, 1.3.
        let asked = Request::get("/").header(SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==").body(()).unwrap();
        let asked = asked.into_parts().0;
        let answer = |accept| HeaderMap::from_iter([(SEC_WEBSOCKET_ACCEPT, HeaderValue::from_static(accept))]);
        for (status, accept, good) in [
            (101, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", true),
            (101, "s3pPLMBiTxaQ9kYGzzhZRbK+xOO=", false),
            (200, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", false),
            (403, "", true),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(is_answered_by(&asked, status, &answer(accept)), good, "{status} {accept}");
        }
        assert_eq!([b"a".as_slice(), b"ab", b"abc"].map(base64), ["YQ==", "YWI=", "YWJj"]);
    }
}
