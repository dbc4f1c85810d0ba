//! Brings the host and the path of a request into canonical form, and reports what is wrong with them as reasons to
//! refuse the request. `crate::canonical` has the canonical forms.

use std::cell::RefCell;

use http::Version;
use http::header::{HOST, HeaderValue};
use http::request::Parts;

use crate::canonical::authority::{Authority, parse_authority};
use crate::canonical::{self, CanonicalPath, PathFault};
use crate::ends::End;
use crate::proxy::head::reject::FaultPolicy;

/// Returns the canonical form of an absolute path.
///
/// # Errors
/// A fault that the strictness of `policy` refuses.
pub fn canonicalize_path(raw: &str, policy: &mut FaultPolicy) -> Result<CanonicalPath, End> {
    canonical::canonicalize_path(raw, |fault| {
        policy.report(match fault {
            PathFault::Control => End::PathControl,
            PathFault::Slash => End::PathSlash,
            PathFault::Backslash => End::PathBackslash,
            PathFault::Percent => End::PathPercent,
            PathFault::NonAscii => End::PathNonAscii,
            PathFault::AboveRoot => End::PathAboveRoot,
            PathFault::DotParameter => End::PathDotParameter,
            PathFault::SlashDots => End::PathSlashDots,
        })
    })
}

/// Caches the host of the last request on a connection, because most requests repeat it.
#[derive(Default)]
pub struct LastHost(RefCell<Option<CanonicalHost>>);

/// A host in canonical form. `len` is the length of the host in `text`, which may end with a port.
#[derive(Clone, Debug)]
pub struct CanonicalHost {
    pub text: HeaderValue,
    pub len: usize,
    pub port: Option<u16>,
    pub changed: bool,
}

/// Returns the canonical host of a request.
///
/// # Errors
/// A fault that the strictness of `policy` refuses.
pub fn canonicalize_host(parts: &Parts, last: &LastHost, policy: &mut FaultPolicy) -> Result<CanonicalHost, End> {
    let authority = parts.uri.authority();
    if let (Version::HTTP_2 | Version::HTTP_3, Some(authority)) = (parts.version, authority)
        && !parts.headers.contains_key(HOST)
        && let Some(host) = last.find(authority.as_str().as_bytes())
    {
        return Ok(CanonicalHost { changed: true, ..host });
    }
    let field = read_host_header(parts, last, policy)?;
    let Some(authority) = authority else { return Ok(field) };
    // If a difference passes, the target takes precedence over the header (RFC 9112, section 3.2.2).
    let Some(read) = parse_authority(authority.as_str().as_bytes()) else {
        policy.report(End::HostInvalid)?;
        let text = HeaderValue::from_str(authority.as_str()).ok().filter(|_| !parts.headers.contains_key(HOST));
        // If it passes, the server gets it as it would over HTTP/1.1, and not the name of its own address.
        return Ok(text.map_or(field, |text| CanonicalHost { text, len: 0, port: None, changed: true }));
    };
    let default = if parts.uri.scheme_str() == Some("https") { 443 } else { 80 };
    let port = read.port;
    let Some(mut host) = HeaderValue::from_str(authority.as_str()).ok().and_then(|value| build_host(&value, read))
    else {
        return Err(End::HostInvalid);
    };
    let same_host = host.text.as_bytes().get(..host.len) == field.text.as_bytes().get(..field.len);
    if same_host && port.unwrap_or(default) == field.port.unwrap_or(default) {
        return Ok(field);
    }
    if parts.version == Version::HTTP_11 || parts.headers.contains_key(HOST) {
        policy.report(End::HostMismatch)?;
    } else {
        last.store(&host);
    }
    host.changed = true;
    Ok(host)
}

fn read_host_header(parts: &Parts, last: &LastHost, policy: &mut FaultPolicy) -> Result<CanonicalHost, End> {
    let mut lines = parts.headers.get_all(HOST).iter();
    let Some(value) = lines.next() else {
        // Over HTTP/2 and HTTP/3, the host is in the target.
        let is_on_stream = matches!(parts.version, Version::HTTP_2 | Version::HTTP_3);
        if parts.version == Version::HTTP_11 || (is_on_stream && parts.uri.authority().is_none()) {
            policy.report(End::HostMissing)?;
        }
        return Ok(CanonicalHost { text: HeaderValue::from_static(""), len: 0, port: None, changed: false });
    };
    let is_repeated = lines.next().is_some();
    if is_repeated {
        policy.report(End::HostRepeated)?;
    }
    let mut host = match last.parse_cached(value) {
        Some(host) => host,
        None => {
            policy.report(End::HostInvalid)?;
            CanonicalHost { text: value.clone(), len: 0, port: None, changed: false }
        }
    };
    host.changed |= is_repeated;
    Ok(host)
}

impl LastHost {
    fn parse_cached(&self, value: &HeaderValue) -> Option<CanonicalHost> {
        if let Some(same) = self.0.borrow().as_ref().filter(|last| last.text.as_bytes() == value.as_bytes()) {
            return Some(CanonicalHost { text: value.clone(), ..*same });
        }
        let host = parse_authority(value.as_bytes()).and_then(|read| build_host(value, read))?;
        self.store(&host);
        Some(host)
    }

    fn find(&self, text: &[u8]) -> Option<CanonicalHost> {
        self.0.borrow().as_ref().filter(|last| last.text.as_bytes() == text).cloned()
    }

    fn store(&self, host: &CanonicalHost) {
        if !host.changed {
            // Copied, because a reference would keep the whole receive buffer in memory.
            let text = HeaderValue::from_bytes(host.text.as_bytes());
            *self.0.borrow_mut() = text.ok().map(|text| CanonicalHost { text, ..*host });
        }
    }
}

/// Combines a header value with what `parse_authority` read in it. Never returns `None` for such a value.
fn build_host(value: &HeaderValue, read: Authority) -> Option<CanonicalHost> {
    let changed = read.rewritten.is_some();
    let text = match read.rewritten {
        Some(text) => HeaderValue::try_from(text).ok()?,
        None => value.clone(),
    };
    Some(CanonicalHost { text, len: read.host_len, port: read.port, changed })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Strictness;

    fn at(strictness: Strictness, raw: &str) -> Result<String, End> {
        Ok(canonicalize_path(raw, &mut FaultPolicy::new(strictness))?.to_read(raw).to_owned())
    }

    /// Decodes a path like a server behind the gateway.
    fn decode(path: &str) -> Vec<u8> {
        percent_encoding::percent_decode_str(path).collect()
    }

    #[test]
    fn paths_have_one_spelling() {
        for (raw, canonical) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/", "/a/"),
            ("//admin", "/admin"),
            ("/a//b///", "/a/b/"),
            ("/a/../admin", "/admin"),
            ("/a/%2e%2E/admin", "/admin"),
            ("/a/.%2e/admin", "/admin"),
            ("/a/./b/.", "/a/b/"),
            ("/a/b/..", "/a/"),
            ("/a/b/%2e.", "/a/"),
            ("/a/..", "/"),
            ("/a//../b", "/b"),
            ("/%6cogin", "/login"),
            ("/%7Euser/%2d", "/~user/-"),
            ("/a%c3%a9%20b", "/a%C3%A9%20b"),
            ("/{x}|\"^<", "/%7Bx%7D%7C%22%5E%3C"),
            ("/.well-known/x", "/.well-known/x"),
            ("/...", "/..."),
            ("/a;v=1/b:c@d", "/a;v=1/b:c@d"),
            ("/a%3Bb", "/a;b"),
            ("/%40admin/", "/@admin/"),
            ("/v1/g%3apredict", "/v1/g:predict"),
            ("/%21%24%26%27%28%29%2A%2B%2C%3B%3D%3A%40", "/!$&'()*+,;=:@"),
            ("/%2540admin/%25%34%30", "/%2540admin/%2540"),
            ("/a%3fb%23%5b%5D%20", "/a%3Fb%23%5B%5D%20"),
        ] {
            for strictness in [Strictness::Strict, Strictness::Defensive, Strictness::Monitor] {
                assert_eq!(at(strictness, raw).as_deref(), Ok(canonical), "{raw}");
            }
        }
    }

    #[test]
    fn unclear_paths_are_refused_by_strictness() {
        for (raw, reject, defensive) in [
            ("/a%00", End::PathControl, None),
            ("/a%0Ab", End::PathControl, None),
            ("/a%0d", End::PathControl, None),
            ("/a%7f", End::PathControl, None),
            ("/a%2fb", End::PathSlash, Some("/a%2Fb")),
            ("/a%2f..%2fb", End::PathSlash, Some("/a%2F..%2Fb")),
            ("/a\\b", End::PathBackslash, Some("/a%5Cb")),
            ("/a%5cb", End::PathBackslash, Some("/a%5Cb")),
            ("/a%", End::PathPercent, Some("/a%25")),
            ("/a%4", End::PathPercent, Some("/a%254")),
            ("/a%zz", End::PathPercent, Some("/a%25zz")),
            ("/é", End::PathNonAscii, Some("/%C3%A9")),
            ("/..", End::PathAboveRoot, Some("/")),
            ("/a/../../b", End::PathAboveRoot, Some("/b")),
            ("/a/.;x", End::PathDotParameter, Some("/a/.;x")),
            ("/a/%2e%2e;x/b", End::PathDotParameter, Some("/a/..;x/b")),
            ("/a/..%3bx/b", End::PathDotParameter, Some("/a/..;x/b")),
            ("/..%3B/../b", End::PathDotParameter, Some("/b")),
        ] {
            assert_eq!(at(Strictness::Strict, raw), Err(reject), "{raw}");
            let expected = defensive.map(str::to_owned).ok_or(reject);
            assert_eq!(at(Strictness::Defensive, raw), expected, "{raw}");
            assert!(at(Strictness::Monitor, raw).is_ok(), "{raw}");
        }
    }

    fn checked(canonical: &str) {
        assert!(canonical.starts_with('/') && canonical.is_ascii());
        assert!(!canonical.contains("//"), "{canonical}");
        assert!(!canonical.split('/').any(|segment| segment == "." || segment == ".."), "{canonical}");
        for (i, _) in canonical.match_indices('%') {
            let digits = canonical.get(i + 1..i + 3).unwrap();
            assert!(!digits.contains(|c: char| c.is_ascii_lowercase()), "{canonical}");
            let byte = u8::from_str_radix(digits, 16).unwrap();
            assert!(!canonical::is_segment_byte(byte), "{canonical}");
        }
    }

    proptest! {
        #[test]
        fn canonical_paths_are_stable(
            raw in prop_oneof![r"/([a-b]|/|\.|%2[eEfF]|%40|%3[aAbBdD]|%[0-9a-fA-F]{2}|%|\\|;|é|\{){0,24}", r"/\PC*"],
        ) {
            for strictness in [Strictness::Strict, Strictness::Defensive, Strictness::Monitor] {
                let Ok(canonical) = at(strictness, &raw) else { continue };
                checked(&canonical);
                let again = canonicalize_path(&canonical, &mut FaultPolicy::new(strictness));
                prop_assert_eq!(again, Ok(CanonicalPath::default()), "{} of {}", canonical, raw);
                let both = canonicalize_path(&raw, &mut FaultPolicy::new(strictness)).unwrap();
                let sent = both.to_send(&raw);
                prop_assert_eq!(decode(sent), decode(&canonical), "a server reads what the gateway has read");
                prop_assert_eq!(sent.split('/').count(), canonical.split('/').count());
                prop_assert_eq!(at(strictness, sent), Ok(canonical.clone()), "{} of {}", sent, raw);
                prop_assert!(!canonicalize_path(sent, &mut FaultPolicy::new(strictness)).unwrap().is_sent_rewritten());
                if let Ok(strict) = at(Strictness::Strict, &raw) {
                    prop_assert_eq!(canonical, strict, "what strict admits, all read alike");
                }
            }
        }

        #[test]
        fn spellings_of_a_path_meet_in_one_form(
            segments in proptest::collection::vec("[a-zA-Z0-9_~!$&'()*+,;=:@-]{1,4}", 0..5),
            choices in proptest::collection::vec(0u8..6, 64),
        ) {
            let plain = format!("/{}", segments.join("/"));
            let mut choices = choices.into_iter().cycle();
            let mut spelt = String::new();
            for segment in &segments {
                spelt.push_str(["/", "//", "/./", "/x/../", "/%2E/", "/%78/%2e./"][usize::from(choices.next().unwrap())]);
                for c in segment.chars() {
                    match choices.next() {
                        Some(0) => spelt.push_str(&format!("%{:02x}", c as u32)),
                        Some(1) => spelt.push_str(&format!("%{:02X}", c as u32)),
                        _ => spelt.push(c),
                    }
                }
            }
            if spelt.is_empty() {
                spelt.push('/');
            }
            prop_assert_eq!(at(Strictness::Strict, &spelt), Ok(plain));
        }

        /// Signatures are computed over the spelling of reserved characters.
        #[test]
        fn servers_get_reserved_characters_as_the_client_wrote_them(path in r"(/([a-b@:;+]|%40|%3[ABD]|%2[ABC6]){1,6}){1,4}") {
            let both = canonicalize_path(&path, &mut FaultPolicy::new(Strictness::Strict)).unwrap();
            prop_assert_eq!(both.to_send(&path), &path);
        }
    }
}
