//! Extended CONNECT (RFC 8441, RFC 9220), which turns a stream of HTTP/2 or HTTP/3 into a tunnel. The gateway translates
//! it into the equivalent HTTP/1.1 upgrade request, including the WebSocket handshake, so that the rest of the code knows
//! one kind of upgrade. For a server over HTTP/2, it translates an upgrade request into an extended CONNECT, and the response
//! back.

use http::header::{CONNECTION, CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::ext::Protocol;
use sha1_smol::Sha1;

/// The GUID from which `Sec-WebSocket-Accept` is computed (RFC 6455, section 1.3).
const WEBSOCKET: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Translates an extended CONNECT into an upgrade request. Returns false, and changes nothing else, for other requests.
pub fn translate_to_upgrade<B>(request: &mut Request<B>) -> bool {
    let Some(protocol) = request.extensions_mut().remove::<Protocol>() else { return false };
    let Ok(protocol) = HeaderValue::from_str(protocol.as_str()) else { return false };
    *request.method_mut() = Method::GET;
    let headers = request.headers_mut();
    if protocol.as_bytes().eq_ignore_ascii_case(b"websocket")
        && let Ok(key) = HeaderValue::try_from(encode_base64(&rand::random::<[u8; 16]>()))
    {
        headers.insert(SEC_WEBSOCKET_KEY, key);
    }
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
    true
}

/// Returns true if a response can be passed to the client that sent `request`. It must switch protocols, with the right
/// `Sec-WebSocket-Accept` if there was a key, or it must be an error. The client would take any other success for an
/// open tunnel.
pub fn is_valid_response(request: &Parts, status: StatusCode, headers: &HeaderMap) -> bool {
    if status != StatusCode::SWITCHING_PROTOCOLS {
        return !status.is_success();
    }
    let Some(key) = request.headers.get(SEC_WEBSOCKET_KEY) else { return true };
    let accept = headers.get(SEC_WEBSOCKET_ACCEPT).map(|accept| accept.as_bytes());
    accept == Some(websocket_accept(key.as_bytes()).as_bytes())
}

/// Turns the 101 response to a translated extended CONNECT into the 200 response that the client expects.
pub fn translate_to_success<B>(response: &mut Response<B>) {
    *response.status_mut() = StatusCode::OK;
    for of_handshake in [CONNECTION, UPGRADE, SEC_WEBSOCKET_ACCEPT] {
        response.headers_mut().remove(of_handshake);
    }
}

/// Turns the response to an extended CONNECT into one that switches to `protocol`. `key`: the `Sec-WebSocket-Key` of
/// the client, which needs the proof that its handshake was understood.
pub fn translate_to_switch(response: &mut Response<()>, protocol: &HeaderValue, key: Option<&HeaderValue>) {
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.insert(UPGRADE, protocol.clone());
    headers.remove(SEC_WEBSOCKET_ACCEPT);
    if let Some(accept) = key.and_then(|key| HeaderValue::try_from(websocket_accept(key.as_bytes())).ok()) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
}

fn websocket_accept(key: &[u8]) -> String {
    let mut hash = Sha1::from(key);
    hash.update(WEBSOCKET);
    encode_base64(&hash.digest().bytes())
}

fn encode_base64(bytes: &[u8]) -> String {
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
    fn a_websocket_answer_must_match_the_key() {
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
            assert_eq!(is_valid_response(&asked, status, &answer(accept)), good, "{status} {accept}");
        }
        assert_eq!([b"a".as_slice(), b"ab", b"abc"].map(encode_base64), ["YQ==", "YWI=", "YWJj"]);
    }
}
