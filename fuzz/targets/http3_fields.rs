//! Whatever a field section of HTTP/3 is: nothing panics, it stands for no more than it may, and a head or trailers that
//! are made of it have what was sent, which keeps the rules of the protocol.

use http::HeaderMap;
use sluicegate::fuzzing::{FieldFault, decode_section, encode_trailers, read_head, read_trailers};

const SIZE_MAX: usize = 2048;
const OVERHEAD: usize = 32;

type Field = (Vec<u8>, Vec<u8>);

/// Checks what is true of the headers of every message.
fn check_headers(sent: &[Field], headers: &HeaderMap) {
    let mut count = 0;
    for (name, value) in sent.iter().filter(|(name, _)| name[0] != b':') {
        count += 1;
        assert!(!name.iter().any(|byte| byte.is_ascii_uppercase() || *byte <= b' ' || *byte == b':'), "{name:?}");
        assert!(!value.iter().any(|byte| matches!(byte, 0..=8 | 10..=31 | 127)), "{value:?}");
        let of_connections = [&b"connection"[..], b"transfer-encoding", b"upgrade", b"keep-alive", b"proxy-connection"];
        assert!(!of_connections.contains(&&name[..]) && (name != b"te" || value == b"trailers"), "{name:?}");
        let same = sent.iter().filter(|(other, _)| other == name).map(|(_, value)| &value[..]);
        assert!(headers.get_all(str::from_utf8(name).unwrap()).iter().map(|value| value.as_bytes()).eq(same));
    }
    // The mark of a path with raw bytes has a name that no client can send.
    let own = headers.keys().filter(|name| name.as_str().starts_with('"')).count();
    assert_eq!(headers.len(), count + own);
    if own == 0 {
        let mut again = Vec::new();
        decode_section(&encode_trailers(headers), usize::MAX, |name, value| {
            again.push((name.to_vec(), value.to_vec()))
        })
        .unwrap();
        assert!(
            again
                .iter()
                .map(|(name, value)| (&name[..], &value[..]))
                .eq(headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())))
        );
    }
}

pub type Input<'a> = (bool, bool, &'a [u8]);

pub fn run(input: Input<'_>) {
    let (is_head, is_whole, section) = input;
    let mut sent: Vec<Field> = Vec::new();
    let decoded = decode_section(section, SIZE_MAX, |name, value| sent.push((name.to_vec(), value.to_vec())));
    let size: usize = sent.iter().map(|(name, value)| name.len() + value.len() + OVERHEAD).sum();
    assert!(size <= SIZE_MAX);
    let values = |name: &[u8]| sent.iter().filter(|(other, _)| other == name).map(|(_, value)| &value[..]).collect();
    let fault = match is_head {
        true => match read_head(section, SIZE_MAX, is_whole) {
            Ok(head) => {
                check_headers(&sent, head.headers());
                let single = |name: &[u8]| -> Vec<&[u8]> { values(name) };
                assert_eq!(single(b":method"), [head.method().as_str().as_bytes()]);
                for name in [&b":scheme"[..], b":path", b":authority", b":protocol"] {
                    assert!(single(name).len() <= 1, "{name:?}");
                }
                assert_eq!(single(b":protocol").len(), head.extensions().len());
                let regular = sent.iter().position(|(name, _)| name[0] != b':').unwrap_or(sent.len());
                assert!(sent[regular..].iter().all(|(name, _)| name[0] != b':'), "pseudo-headers come first");
                let lengths = single(b"content-length");
                let number = |text: &[u8]| str::from_utf8(text).unwrap().parse::<u64>().unwrap();
                assert!(lengths.iter().all(|length| number(length) == number(lengths[0])));
                assert!(!is_whole || lengths.iter().all(|length| number(length) == 0));
                None
            }
            Err(fault) => Some(fault),
        },
        false => match read_trailers(section, SIZE_MAX) {
            Ok(trailers) => {
                check_headers(&sent, &trailers);
                assert!(sent.iter().all(|(name, _)| name[0] != b':'));
                None
            }
            Err(fault) => Some(fault),
        },
    };
    let is_too_large = matches!(fault, Some(FieldFault::TooLarge));
    let is_invalid = matches!(fault, Some(FieldFault::Connection(_)));
    assert_eq!(decoded.is_err(), is_too_large || is_invalid, "{decoded:?} {fault:?}");
}
