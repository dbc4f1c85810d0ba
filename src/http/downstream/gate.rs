//! The gate: refuses what another server on the path could read differently, and fixes the one
//! form of host and path that the rest of the request uses. Called first for every request.

use std::cell::RefCell;

use http::header::{CONTENT_LENGTH, EXPECT, HOST, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Version};

use crate::config::Strictness;
use crate::http::downstream::canonical::{self, Authority};
use crate::http::downstream::method;
use crate::http::downstream::reject::{Judge, Reject, RequestFaults};
use crate::http::fields::{Fields, KnownField};
use crate::route::Reading;

/// What the gate found out. Holds its own references into the head, so the parts may be changed
/// and moved afterwards; no text is copied unless it had to be rewritten.
#[derive(Clone, Debug)]
pub struct Admitted {
    authority: HeaderValue,
    host_len: usize,
    /// Canonical, see [`method::canonical`].
    method: Method,
    target: PathAndQuery,
    path: Option<String>,
    /// The Host field received is not `authority` and must be replaced before forwarding.
    host_changed: bool,
    /// What was repaired, for the route to judge.
    faults: RequestFaults,
}

impl Admitted {
    /// Canonical: lower case, no port, no trailing dot, IPv6 in brackets. Empty when the request
    /// names no usable host.
    pub fn host(&self) -> &str {
        self.authority.as_bytes().get(..self.host_len).and_then(|host| str::from_utf8(host).ok()).unwrap_or_default()
    }

    /// The Host field to forward; empty when there is none.
    pub fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    pub fn host_changed(&self) -> bool {
        self.host_changed
    }

    /// In upper case, whatever the client sent: for routes and limits, not for the upstream.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Canonical, see [`canonical::path`]; `*` for `OPTIONS *`.
    pub fn path(&self) -> &str {
        self.path.as_deref().unwrap_or_else(|| self.target.path())
    }

    pub fn path_changed(&self) -> bool {
        self.path.is_some()
    }

    /// As received.
    pub fn query(&self) -> Option<&str> {
        self.target.query()
    }

    /// As received; may be forwarded as it is when `path_changed` is false.
    pub fn target(&self) -> &PathAndQuery {
        &self.target
    }

    /// What was unclear. The request must not go on before it is judged as its route says.
    pub fn faults(&self) -> RequestFaults {
        self.faults
    }
}

/// The host that the last request of a connection named: most say the same again and again.
#[derive(Default)]
pub struct LastHost(RefCell<Option<Host>>);

/// Checks the head of a request, which has `fields`. The number and size of fields, and everything below a whole head
/// (line ends, field names, chunks), are checked by the parser.
pub fn admit(parts: &Parts, fields: Fields, last: &LastHost) -> Result<Admitted, Reject> {
    let mut judge = Judge::new(Strictness::Monitor);
    if !matches!(parts.version, Version::HTTP_10 | Version::HTTP_11 | Version::HTTP_2) {
        return Err(Reject::Version);
    }
    let method = method::canonical(&parts.method, &mut judge)?;
    if fields.has_any(&[KnownField::ContentLength, KnownField::TransferEncoding]) {
        framing(parts)?;
    }
    let expects = fields.has(KnownField::Expect);
    if expects
        && parts.headers.get_all(EXPECT).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
    {
        judge.fault(Reject::Expect)?;
    }
    let target = target(parts, &method, &mut judge)?;
    let path = if target.path() == "*" { None } else { canonical::path(target.path(), &mut judge)? };
    if target.query().is_some_and(|query| !query.is_ascii()) {
        judge.fault(Reject::QueryNonAscii)?;
    }
    let host = host(parts, last, &mut judge)?;
    Ok(Admitted {
        authority: host.text,
        host_len: host.len,
        method,
        target,
        path,
        host_changed: host.changed,
        faults: judge.faults,
    })
}

/// Judges what was unclear of a request as its route reads; `unseen` is what the parser repaired before the
/// gate could see it. Returns what only `Monitor` lets pass.
pub fn judge(admitted: &Admitted, unseen: Option<Reject>, reading: Reading) -> Result<Option<Reject>, Reject> {
    match unseen {
        Some(reject) if reading.strictness == Strictness::Strict || reject == Reject::Framing => Err(reject),
        _ => admitted.faults().judged(reading),
    }
}

/// Where a request ends must have one reading, else the next one on the connection is in doubt.
fn framing(parts: &Parts) -> Result<(), Reject> {
    let mut lengths = parts.headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next();
    if let Some(value) = length {
        let digits = value.as_bytes();
        if lengths.next().is_some() || digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Err(Reject::ContentLength);
        }
    }
    let mut codings = parts.headers.get_all(TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return Ok(()) };
    if parts.version == Version::HTTP_10 {
        return Err(Reject::TransferEncodingVersion);
    }
    if codings.next().is_some() {
        return Err(Reject::TransferEncodingRepeated);
    }
    if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
        let all_chunked =
            coding.as_bytes().split(|b| *b == b',').all(|c| c.trim_ascii().eq_ignore_ascii_case(b"chunked"));
        return Err(if all_chunked { Reject::TransferEncodingRepeated } else { Reject::TransferEncodingUnknown });
    }
    if length.is_some() { Err(Reject::TransferEncodingWithLength) } else { Ok(()) }
}

fn target(parts: &Parts, method: &Method, judge: &mut Judge) -> Result<PathAndQuery, Reject> {
    let uri = &parts.uri;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        Some(_) => judge.fault(Reject::TargetScheme)?,
        None if uri.authority().is_some() => return Err(Reject::TargetForm),
        None => {}
    }
    let Some(target) = uri.path_and_query() else { return Err(Reject::TargetForm) };
    let asterisk = target.path() == "*" && target.query().is_none();
    if target.path().starts_with('/') || (asterisk && *method == Method::OPTIONS) {
        Ok(target.clone())
    } else {
        Err(Reject::TargetForm)
    }
}

#[derive(Clone, Debug)]
struct Host {
    text: HeaderValue,
    len: usize,
    port: Option<u16>,
    changed: bool,
}

fn host(parts: &Parts, last: &LastHost, judge: &mut Judge) -> Result<Host, Reject> {
    let named = parts.uri.authority();
    if let (Version::HTTP_2, Some(named), false) = (parts.version, named, parts.headers.contains_key(HOST))
        && let Some(host) = last.same(named.as_str().as_bytes())
    {
        return Ok(Host { changed: true, ..host });
    }
    let field = host_field(parts, last, judge)?;
    let Some(named) = named else { return Ok(field) };
    // The target outranks the field wherever a difference is let through (RFC 9112, 3.2.2).
    let Some(read) = canonical::authority(named.as_str().as_bytes()) else {
        judge.fault(Reject::HostInvalid)?;
        return Ok(field);
    };
    let default = if parts.uri.scheme_str() == Some("https") { 443 } else { 80 };
    let port = read.port;
    let Some(mut host) = HeaderValue::from_str(named.as_str()).ok().and_then(|value| build(&value, read)) else {
        return Err(Reject::HostInvalid);
    };
    let same_host = host.text.as_bytes().get(..host.len) == field.text.as_bytes().get(..field.len);
    if same_host && port.unwrap_or(default) == field.port.unwrap_or(default) {
        return Ok(field);
    }
    if parts.version == Version::HTTP_11 || parts.headers.contains_key(HOST) {
        judge.fault(Reject::HostMismatch)?;
    } else {
        last.keep(&host);
    }
    host.changed = true;
    Ok(host)
}

fn host_field(parts: &Parts, last: &LastHost, judge: &mut Judge) -> Result<Host, Reject> {
    let mut lines = parts.headers.get_all(HOST).iter();
    let Some(value) = lines.next() else {
        // HTTP/2 has it in its target.
        if parts.version == Version::HTTP_11 || (parts.version == Version::HTTP_2 && parts.uri.authority().is_none()) {
            judge.fault(Reject::HostMissing)?;
        }
        return Ok(Host { text: HeaderValue::from_static(""), len: 0, port: None, changed: false });
    };
    let repeated = lines.next().is_some();
    if repeated {
        judge.fault(Reject::HostRepeated)?;
    }
    let mut host = match last.read(value) {
        Some(host) => host,
        None => {
            judge.fault(Reject::HostInvalid)?;
            Host { text: value.clone(), len: 0, port: None, changed: false }
        }
    };
    host.changed |= repeated;
    Ok(host)
}

impl LastHost {
    fn read(&self, value: &HeaderValue) -> Option<Host> {
        if let Some(same) = self.0.borrow().as_ref().filter(|last| last.text.as_bytes() == value.as_bytes()) {
            return Some(Host { text: value.clone(), ..*same });
        }
        let host = canonical::authority(value.as_bytes()).and_then(|read| build(value, read))?;
        self.keep(&host);
        Some(host)
    }

    fn same(&self, text: &[u8]) -> Option<Host> {
        self.0.borrow().as_ref().filter(|last| last.text.as_bytes() == text).cloned()
    }

    fn keep(&self, host: &Host) {
        if !host.changed {
            // A copy: what was received would be kept with its buffer.
            let text = HeaderValue::from_bytes(host.text.as_bytes());
            *self.0.borrow_mut() = text.ok().map(|text| Host { text, ..*host });
        }
    }
}

/// `None` is unreachable for text that `canonical::authority` has read.
fn build(value: &HeaderValue, read: Authority) -> Option<Host> {
    let changed = read.rewritten.is_some();
    let text = match read.rewritten {
        Some(text) => HeaderValue::try_from(text).ok()?,
        None => value.clone(),
    };
    Some(Host { text, len: read.host_len, port: read.port, changed })
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, Request, Uri};
    use proptest::prelude::*;

    use super::*;

    /// A second time on the same connection makes no difference.
    fn admit(parts: &Parts, strictness: Strictness) -> Result<Admitted, Reject> {
        let (fields, last) = (Fields::of(&parts.headers), LastHost::default());
        let [first, again] = [(), ()].map(|()| super::admit(parts, fields, &last));
        assert_eq!(format!("{first:?}"), format!("{again:?}"));
        first.and_then(|admitted| admitted.faults().judged(Reading::new(strictness, None)).map(|_| admitted))
    }

    fn would_reject(admitted: &Admitted) -> Option<Reject> {
        admitted.faults().judged(Reading::new(Strictness::Monitor, None)).unwrap()
    }

    fn parts(method: &str, target: &[u8], version: Version, fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::new(());
        *request.method_mut() = method.parse().unwrap();
        *request.uri_mut() = Uri::try_from(target).unwrap();
        *request.version_mut() = version;
        for (name, value) in fields {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            request.headers_mut().append(name.parse::<HeaderName>().unwrap(), value);
        }
        request.into_parts().0
    }

    fn get(target: &str, fields: &[(&str, &str)]) -> Parts {
        parts("GET", target.as_bytes(), Version::HTTP_11, fields)
    }

    const A: (&str, &str) = ("host", "a");

    #[test]
    fn strict_refuses_each_unclear_head() {
        for (target, fields, reject) in [
            ("/", &[][..], Reject::HostMissing),
            ("/", &[A, A], Reject::HostRepeated),
            ("/", &[("host", "")], Reject::HostInvalid),
            ("/", &[("host", "a/b?c")], Reject::HostInvalid),
            ("/", &[("host", "u@a")], Reject::HostInvalid),
            ("http://b/", &[A], Reject::HostMismatch),
            ("http://a:81/", &[A], Reject::HostMismatch),
            ("http://u@a/", &[A], Reject::HostInvalid),
            ("ftp://a/", &[A], Reject::TargetScheme),
            ("admin", &[A], Reject::TargetForm),
            ("a:80", &[A], Reject::TargetForm),
            ("*", &[A], Reject::TargetForm),
            ("/é", &[A], Reject::PathNonAscii),
            ("/?é", &[A], Reject::QueryNonAscii),
            ("/\\", &[A], Reject::PathBackslash),
            ("/", &[A, ("transfer-encoding", "gzip, chunked")], Reject::TransferEncodingUnknown),
            ("/", &[A, ("transfer-encoding", "")], Reject::TransferEncodingUnknown),
            ("/", &[A, ("transfer-encoding", "chunked, chunked")], Reject::TransferEncodingRepeated),
            (
                "/",
                &[A, ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
                Reject::TransferEncodingRepeated,
            ),
            ("/", &[A, ("transfer-encoding", "chunked"), ("content-length", "5")], Reject::TransferEncodingWithLength),
            ("/", &[A, ("content-length", "5"), ("content-length", "5")], Reject::ContentLength),
            ("/", &[A, ("content-length", "5, 5")], Reject::ContentLength),
            ("/", &[A, ("content-length", "+5")], Reject::ContentLength),
            ("/", &[A, ("expect", "202-accepted")], Reject::Expect),
        ] {
            let refused = admit(&get(target, fields), Strictness::Strict).unwrap_err();
            assert_eq!(refused, reject, "{target} {fields:?}");
        }
        let chunked = [A, ("transfer-encoding", "chunked")];
        let old = admit(&parts("GET", b"/", Version::HTTP_10, &chunked), Strictness::Strict);
        assert_eq!(old.unwrap_err(), Reject::TransferEncodingVersion);
        let connect = admit(&parts("CONNECT", b"a:443", Version::HTTP_11, &[A]), Strictness::Strict);
        assert_eq!(connect.unwrap_err().status(), 501);
        let lower = admit(&parts("get", b"/", Version::HTTP_11, &[A]), Strictness::Strict);
        assert_eq!(lower.unwrap_err(), Reject::MethodCase);
        let newer = admit(&parts("GET", b"/", Version::HTTP_3, &[A]), Strictness::Strict);
        assert_eq!(newer.unwrap_err().status(), 505);
    }

    #[test]
    fn a_plain_request_is_admitted_as_it_is() {
        let head =
            get("/a/b?q=%zz#x", &[("host", "example.com:8080"), ("content-length", "5"), ("expect", "100-Continue")]);
        let admitted = admit(&head, Strictness::Strict).unwrap();
        assert_eq!((admitted.host(), admitted.authority().as_bytes()), ("example.com", &b"example.com:8080"[..]));
        assert_eq!((admitted.path(), admitted.query()), ("/a/b", Some("q=%zz")));
        assert!(!admitted.path_changed() && !admitted.host_changed());
        assert!(admit(&get("/", &[A, ("transfer-encoding", "Chunked")]), Strictness::Strict).is_ok());
    }

    #[test]
    fn the_canonical_form_is_what_goes_on() {
        let head = get("/x/%2e%2e/%61?b", &[("host", "EXAMPLE.com.:80")]);
        let admitted = admit(&head, Strictness::Strict).unwrap();
        assert_eq!((admitted.host(), admitted.path(), admitted.query()), ("example.com", "/a", Some("b")));
        assert_eq!(admitted.authority(), "example.com:80");
        assert!(admitted.path_changed() && admitted.host_changed());
    }

    #[test]
    fn absolute_targets_agree_with_the_host_field() {
        for (target, host) in
            [("http://A/x", "a"), ("http://a:80/x", "a"), ("https://a/x", "A:443"), ("http://a?x", "a")]
        {
            let admitted = admit(&get(target, &[("host", host)]), Strictness::Strict).unwrap();
            assert_eq!(admitted.host(), "a", "{target}");
        }
        let old = admit(&parts("GET", b"http://a/x", Version::HTTP_10, &[]), Strictness::Strict).unwrap();
        assert_eq!((old.host(), old.host_changed(), old.path()), ("a", true, "/x"));
        let none = admit(&parts("GET", b"/x", Version::HTTP_10, &[]), Strictness::Strict).unwrap();
        assert_eq!((none.host(), none.host_changed()), ("", false));
        let options = admit(&parts("OPTIONS", b"*", Version::HTTP_11, &[A]), Strictness::Strict).unwrap();
        assert_eq!(options.path(), "*");
    }

    #[test]
    fn a_route_keeps_encoded_slashes_or_refuses_them_whatever_its_strictness() {
        let head = |target: &str| super::admit(&get(target, &[A]), Fields::default(), &LastHost::default()).unwrap();
        let slash = head("/@scope%2fname");
        assert_eq!(slash.path(), "/@scope%2Fname");
        for strictness in [Strictness::Strict, Strictness::Defensive, Strictness::Monitor] {
            assert_eq!(slash.faults().judged(Reading::new(strictness, Some(true))), Ok(None));
            assert_eq!(slash.faults().judged(Reading::new(strictness, Some(false))), Err(Reject::PathSlash));
        }
        let kept = Reading::new(Strictness::Strict, Some(true));
        for target in ["/a%2F..%2Fb", "/a%2f.", "/..%2Fb", "/a%2F%2e%2e;x", "/%2E%2e%2f"] {
            assert_eq!(head(target).faults().judged(kept), Err(Reject::PathSlashDots), "{target}");
        }
        for target in ["/a%2F...", "/a%2F%2Fb", "/a%2F.b", "/a%252F..", "/%2F"] {
            assert_eq!(head(target).faults().judged(kept), Ok(None), "{target}");
        }
        assert_eq!(head("/a%2Fb%5C").faults().judged(kept), Err(Reject::PathBackslash));
    }

    #[test]
    fn defensive_repairs_and_monitor_reports() {
        let mismatch = get("http://b/", &[A]);
        for strictness in [Strictness::Defensive, Strictness::Monitor] {
            let admitted = admit(&mismatch, strictness).unwrap();
            assert_eq!((admitted.host(), admitted.host_changed(), would_reject(&admitted)), ("b", true, None));
            assert_eq!(admit(&get("/", &[]), strictness).unwrap().host(), "");
        }
        let twice = get("/", &[A, ("host", "b")]);
        assert_eq!(admit(&twice, Strictness::Defensive).unwrap_err(), Reject::HostRepeated);
        let admitted = admit(&twice, Strictness::Monitor).unwrap();
        assert_eq!((admitted.host(), admitted.host_changed()), ("a", true));
        assert_eq!(would_reject(&admitted), Some(Reject::HostRepeated));
        let odd = admit(&get("/", &[("host", "u@a")]), Strictness::Monitor).unwrap();
        assert_eq!((odd.host(), would_reject(&odd)), ("", Some(Reject::HostInvalid)));
        let both = get("/", &[A, ("transfer-encoding", "chunked"), ("content-length", "5")]);
        assert_eq!(admit(&both, Strictness::Monitor).unwrap_err(), Reject::TransferEncodingWithLength);
    }

    proptest! {
        #[test]
        fn no_head_panics_and_what_strict_admits_all_read_alike(
            target in prop_oneof![
                proptest::collection::vec(any::<u8>(), 1..40),
                r"(https?://([a-bA-B.:@\[\]0-9]{1,9}))?/[a%2e/.\\]{0,12}".prop_map(String::into_bytes),
            ],
            host in proptest::option::of(prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..20), r"[a-bA-B.:0-9]{1,9}".prop_map(String::into_bytes),
            ]),
        ) {
            let Ok(uri) = Uri::try_from(target.as_slice()) else { return Ok(()) };
            let mut head = get("/", &[]);
            head.uri = uri;
            if let Some(value) = host.and_then(|bytes| HeaderValue::from_bytes(&bytes).ok()) {
                head.headers.insert(HOST, value);
            }
            let all = [Strictness::Strict, Strictness::Defensive, Strictness::Monitor].map(|level| admit(&head, level));
            if let Ok(strict) = &all[0] {
                for other in &all {
                    let other = other.as_ref().unwrap();
                    prop_assert_eq!((strict.host(), strict.path()), (other.host(), other.path()));
                    prop_assert_eq!(would_reject(other), None);
                }
            }
            prop_assert!(all[1].is_ok() || all[0].is_err());
            prop_assert!(all[2].is_ok() || all[1].is_err());
        }
    }
}
