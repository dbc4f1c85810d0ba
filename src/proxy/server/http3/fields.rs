//! Turns field sections into request heads and trailers. The rules for fields are those of HTTP/2
//! (`proxy::head::field_kind`), so that a request means the same over both.

use http::header::CONTENT_LENGTH;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version};
use hyper::ext::Protocol;

use crate::ends::End;
use crate::proxy::head::field_kind::{FieldKind, FieldRules};
use crate::proxy::head::http2_head::RAW_BYTES;
use crate::proxy::head::raw_target;
use crate::proxy::head::reject::find_raw_target_fault;
use crate::proxy::server::http2::head_check::MalformedHead;
use crate::proxy::server::http2::hpack::HeaderField;
use crate::proxy::server::http3::error::{Code, QPACK_DECOMPRESSION_FAILED};
use crate::proxy::server::http3::qpack;
use crate::proxy::server::http3::qpack::SectionError;

/// Why a field section makes no head or trailers.
#[derive(Debug)]
pub enum FieldFault {
    /// The connection must end.
    Connection(Code),
    TooLarge,
    /// The message breaks this rule. Its request line is for the log.
    Malformed(End, Box<MalformedHead>),
}

impl From<SectionError> for FieldFault {
    fn from(error: SectionError) -> FieldFault {
        match error {
            SectionError::Invalid => FieldFault::Connection(QPACK_DECOMPRESSION_FAILED),
            SectionError::TooLarge => FieldFault::TooLarge,
        }
    }
}

/// The fields of one section.
#[derive(Default)]
struct Fields {
    rules: FieldRules,
    line: Box<MalformedHead>,
    headers: HeaderMap,
    /// What is wrong with the bytes of a path that were encoded.
    raw_fault: Option<End>,
    /// There are more headers than a map can hold.
    overflows: bool,
}

impl Fields {
    fn read(section: &[u8], max_size: usize) -> Result<Fields, FieldFault> {
        let mut fields = Fields::default();
        qpack::decode(section, max_size, |name, value| fields.add(name, value))?;
        if fields.overflows { Err(FieldFault::TooLarge) } else { Ok(fields) }
    }

    fn add(&mut self, name: &[u8], value: &[u8]) {
        let kind = FieldKind::new(name, value);
        self.rules.add(kind);
        self.line.record(HeaderField { name, value, kind });
        match kind {
            FieldKind::RawPath => self.raw_fault = self.raw_fault.or(find_raw_target_fault(value)),
            FieldKind::Regular | FieldKind::ContentLength(_) => {
                if let (Ok(name), Ok(value)) = (HeaderName::from_lowercase(name), HeaderValue::from_bytes(value)) {
                    self.overflows |= self.headers.try_append(name, value).is_err();
                }
            }
            _ => {}
        }
    }
}

/// Makes a head of a field section with at most `max_size` bytes. `is_whole`: no body follows.
///
/// # Errors
/// See [`FieldFault`].
pub fn read_head(section: &[u8], max_size: usize, is_whole: bool) -> Result<Request<()>, FieldFault> {
    let fields = Fields::read(section, max_size)?;
    let malformed = |line, rule| FieldFault::Malformed(rule, line);
    if let Err(rule) = fields.rules.check_head(is_whole) {
        return Err(malformed(fields.line, rule));
    }
    let Some((method, uri)) = make_target(&fields.line) else {
        return Err(malformed(fields.line, End::H2PseudoField));
    };
    let mut request = Request::new(());
    if !fields.line.protocol.is_empty() {
        let Ok(protocol) = str::from_utf8(&fields.line.protocol) else {
            return Err(malformed(fields.line, End::H2PseudoField));
        };
        request.extensions_mut().insert(Protocol::from(protocol));
    }
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_3;
    *request.headers_mut() = fields.headers;
    if let Some(fault) = fields.raw_fault {
        request.headers_mut().insert(RAW_BYTES, HeaderValue::from_static(fault.label()));
    }
    Ok(request)
}

/// Makes the method and the target of well-formed pseudo-headers.
fn make_target(line: &MalformedHead) -> Option<(Method, Uri)> {
    let method = Method::from_bytes(&line.method).ok()?;
    let mut parts = http::uri::Parts::default();
    if !line.authority.is_empty() {
        parts.authority = Some(Authority::try_from(&line.authority[..]).ok()?);
    }
    if !line.scheme.is_empty() {
        // A scheme alone makes no URI.
        parts.scheme = parts.authority.as_ref().and(Some(Scheme::try_from(&line.scheme[..]).ok()?));
    }
    if !line.path.is_empty() {
        let encoded = raw_target::encode_target(&line.path);
        parts.path_and_query = Some(PathAndQuery::try_from(encoded.as_deref().unwrap_or(&line.path)).ok()?);
    }
    Some((method, Uri::from_parts(parts).ok()?))
}

/// Returns the length that a head announces.
pub fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Makes trailers of a field section with at most `max_size` bytes.
///
/// # Errors
/// See [`FieldFault`].
pub fn read_trailers(section: &[u8], max_size: usize) -> Result<HeaderMap, FieldFault> {
    let fields = Fields::read(section, max_size)?;
    match fields.rules.check_trailers(true) {
        Ok(()) => Ok(fields.headers),
        Err(rule) => Err(FieldFault::Malformed(rule, fields.line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes fields as literals.
    fn section(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut section = vec![0, 0];
        for (name, value) in fields {
            match u8::try_from(name.len()).unwrap() {
                short @ ..7 => section.push(0x20 | short),
                long => section.extend([0x27, long - 7]),
            }
            section.extend_from_slice(name);
            section.push(u8::try_from(value.len()).unwrap());
            section.extend_from_slice(value);
        }
        section
    }

    const GET: [(&[u8], &[u8]); 4] =
        [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a:81"), (b":path", b"/x?y")];

    fn rule_of(fields: &[(&[u8], &[u8])], is_whole: bool) -> Option<End> {
        match read_head(&section(fields), 4096, is_whole) {
            Ok(_) => None,
            Err(FieldFault::Malformed(rule, _)) => Some(rule),
            Err(fault) => panic!("{fault:?}"),
        }
    }

    #[test]
    fn a_head_has_the_target_and_the_headers_that_were_sent() {
        let fields = [&GET[..], &[(b"x-a", b"1"), (b"cookie", b"a=1"), (b"cookie", b"b=2")]].concat();
        let head = read_head(&section(&fields), 4096, true).unwrap();
        assert_eq!(
            (head.uri().to_string(), head.method(), head.version()),
            ("https://a:81/x?y".into(), &Method::GET, Version::HTTP_3)
        );
        assert_eq!(head.headers().get_all("cookie").iter().count(), 2);
        let options = [(&b":method"[..], &b"OPTIONS"[..]), GET[1], GET[2], (b":path", b"*")];
        assert_eq!(read_head(&section(&options), 4096, true).unwrap().uri().path(), "*");
        let raw = [GET[0], GET[1], GET[2], (b":path", b"/a\"\xff")];
        let raw = read_head(&section(&raw), 4096, true).unwrap();
        assert_eq!((raw.uri().path(), raw.headers().contains_key(RAW_BYTES)), ("/a\"%FF", true));
    }

    #[test]
    fn malformed_heads_break_the_rules_of_http2() {
        assert_eq!(rule_of(&GET, true), None);
        let with = |more: &[(&'static [u8], &'static [u8])]| rule_of(&[&GET[..], more].concat(), true);
        for (field, rule) in [
            ((&b"X-A"[..], &b"1"[..]), End::H2FieldName),
            ((b"", b"1"), End::H2FieldName),
            ((b"a b", b"1"), End::H2FieldName),
            ((b"x", b"a\r\nb"), End::H2FieldValue),
            ((b"x", b"a\0b"), End::H2FieldValue),
            ((b"connection", b"close"), End::H2ConnectionField),
            ((b"transfer-encoding", b"chunked"), End::H2ConnectionField),
            ((b"keep-alive", b"1"), End::H2ConnectionField),
            ((b"proxy-connection", b"1"), End::H2ConnectionField),
            ((b"upgrade", b"x"), End::H2ConnectionField),
            ((b"te", b"gzip"), End::H2ConnectionField),
            ((b":path", b"/"), End::H2PseudoField),
            ((b":status", b"200"), End::H2PseudoField),
            ((b":unknown", b"1"), End::H2PseudoField),
            ((b":protocol", b"websocket"), End::H2PseudoField),
            ((b"content-length", b"x"), End::H2ContentLength),
            ((b"content-length", b"5"), End::H2ContentLength),
        ] {
            assert_eq!(with(&[field]), Some(rule), "{:?}", String::from_utf8_lossy(field.0));
        }
        assert_eq!(with(&[(b"te", b"trailers")]), None);
        for missing in [0, 1, 3] {
            let mut fields = GET.to_vec();
            fields.remove(missing);
            assert_eq!(rule_of(&fields, true), Some(End::H2PseudoField), "{missing}");
        }
        let late = [GET[0], GET[1], GET[2], (b"x", b"1"), GET[3]];
        assert_eq!(rule_of(&late, true), Some(End::H2PseudoField));
        for (name, value) in
            [(&b":path"[..], &b""[..]), (b":method", b""), (b":scheme", b"h ttp"), (b":authority", b"u@/a")]
        {
            let mut fields = GET.to_vec();
            fields.iter_mut().filter(|field| field.0 == name).for_each(|field| field.1 = value);
            assert_eq!(rule_of(&fields, true), Some(End::H2PseudoField), "{name:?}");
        }
        for path in ["x", "x?/", "*?x", "#/x", "%2fx", "http://a/x", "a:80", "\"/x"] {
            let fields = [GET[0], GET[1], GET[2], (b":path", path.as_bytes())];
            assert_eq!(rule_of(&fields, true), Some(End::H2PseudoField), "{path}");
        }
        for path in ["//", "?x"] {
            assert_eq!(rule_of(&[GET[0], GET[1], GET[2], (b":path", path.as_bytes())], true), None, "{path}");
        }
        let lengths = [&GET[..], &[(b"content-length", b"5"), (b"content-length", b"6")]].concat();
        assert_eq!(rule_of(&lengths, false), Some(End::H2ContentLength));
        let websocket = [(&b":method"[..], &b"CONNECT"[..]), (b":protocol", b"websocket"), GET[1], GET[2], GET[3]];
        let head = read_head(&section(&websocket), 4096, false).unwrap();
        assert_eq!(head.extensions().get::<Protocol>().map(Protocol::as_str), Some("websocket"));
        for broken in [
            [websocket[0], websocket[1], websocket[2], websocket[3]].as_slice(),
            &[&websocket[..], &[(b":protocol", b"x")]].concat(),
            &[&websocket[..1], &[(&b":protocol"[..], &b""[..])], &websocket[2..]].concat(),
            &[&websocket[..1], &[(&b":protocol"[..], &b"a\0"[..])], &websocket[2..]].concat(),
        ] {
            assert_eq!(rule_of(broken, false), Some(End::H2PseudoField), "{broken:?}");
        }
    }

    #[test]
    fn sections_are_bounded_and_trailers_have_no_pseudo_headers() {
        assert!(matches!(read_head(&section(&GET), 100, true), Err(FieldFault::TooLarge)));
        assert!(matches!(read_head(b"\0\0\x80", 100, true), Err(FieldFault::Connection(QPACK_DECOMPRESSION_FAILED))));
        assert_eq!(read_trailers(&section(&[(b"x", b"1")]), 100).unwrap().len(), 1);
        for field in [(&b":path"[..], &b"/"[..]), (b":status", b"200"), (b"X", b"1")] {
            assert!(matches!(read_trailers(&section(&[field]), 100), Err(FieldFault::Malformed(..))), "{field:?}");
        }
    }
}
