//! Validation of request heads: refuses what another server on the path could read differently, and computes the
//! canonical host, path and method that everything after it uses.

use std::borrow::Cow;

use http::header::{CONTENT_LENGTH, EXPECT, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Version};

use crate::canonical::{self, CanonicalPath};
use crate::config::Strictness;
use crate::ends::End;
use crate::proxy::head::canonical::{LastHost, canonicalize_host, canonicalize_path};
use crate::proxy::head::method;
use crate::proxy::head::reject::{FaultPolicy, RequestFaults};
use crate::proxy::words::known_headers::{HeaderSet, KnownHeader};
use crate::route::ParsingRules;
use crate::route::rewrite::RewrittenTarget;

/// A validated head in canonical form. It has its own references into the received head, so the parts may be changed
/// and moved afterwards. Text is copied only if it had to be rewritten.
#[derive(Clone, Debug)]
pub struct ValidatedHead {
    authority: HeaderValue,
    host_len: usize,
    /// The canonical method, see [`method::canonicalize_method`].
    method: Method,
    /// The target as received, with `/` instead of an empty path.
    target: PathAndQuery,
    /// The canonical form of the received path.
    path: CanonicalPath,
    /// The same with repeated slashes, for a route that keeps them and a path that has some.
    slashed_path: Option<Box<CanonicalPath>>,
    /// The received `Host` header differs from `authority` and must be replaced before forwarding.
    host_changed: bool,
    /// Repaired faults, which the route judges.
    faults: RequestFaults,
    /// The target that the `rewrite` of the route makes of this one. `None` if the server gets this one.
    rewritten: Option<Box<RewrittenTarget>>,
}

impl ValidatedHead {
    /// Returns the canonical host: lower case, no port, no trailing dot, IPv6 in brackets. Empty if the request has no
    /// usable host.
    pub fn read_host(&self) -> &str {
        self.authority.as_bytes().get(..self.host_len).and_then(|host| str::from_utf8(host).ok()).unwrap_or_default()
    }

    /// Returns the `Host` header to forward. Empty if there is none.
    pub fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    /// Returns true if `authority` must replace the received `Host` header.
    pub fn is_host_rewritten(&self) -> bool {
        self.host_changed
    }

    /// Returns the method in upper case, for routes and limits. The upstream server gets the method as received.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Returns the canonical path, see [`canonicalize_path`]. `*` for `OPTIONS *`. A route that keeps repeated slashes
    /// has them here, too.
    pub fn path(&self) -> &str {
        self.forwarded_path().to_read(self.target.path())
    }

    /// Returns the canonical path with merged slashes, which selects the route.
    pub fn matched_path(&self) -> &str {
        self.path.to_read(self.target.path())
    }

    /// Returns the path for servers: `path`, with reserved characters in the client's spelling.
    pub fn sent_path(&self) -> &str {
        self.forwarded_path().to_send(self.target.path())
    }

    /// Returns true if the path for servers differs from the received one.
    fn is_path_rewritten(&self) -> bool {
        self.forwarded_path().is_sent_rewritten()
    }

    fn forwarded_path(&self) -> &CanonicalPath {
        self.slashed_path.as_deref().unwrap_or(&self.path)
    }

    /// Keeps the repeated slashes of the path, because its route does.
    pub fn keep_repeated_slashes(&mut self) {
        if self.target.path().contains("//") {
            self.slashed_path = Some(Box::new(canonical::keep_repeated_slashes(self.target.path())));
        }
    }

    /// Returns the query as received.
    pub fn query(&self) -> Option<&str> {
        self.target.query()
    }

    /// Returns the faults of the head. The request must not be forwarded before its route has judged them.
    pub fn faults(&self) -> RequestFaults {
        self.faults
    }

    /// Sets the target that the route makes of this one.
    pub fn set_rewritten(&mut self, target: RewrittenTarget) {
        self.rewritten = Some(Box::new(target));
    }

    /// Returns the target that the server gets.
    pub fn server_target(&self) -> Cow<'_, str> {
        let (path, query) = match &self.rewritten {
            Some(target) => (&*target.path, target.query.as_deref()),
            None if self.is_path_rewritten() => (self.sent_path(), self.query()),
            None => return Cow::Borrowed(self.target.as_str()),
        };
        match query {
            Some(query) => format!("{path}?{query}").into(),
            None => Cow::Borrowed(path),
        }
    }

    /// Returns the canonical path that the server gets, with merged slashes. It says what the server does with the
    /// request, whatever path the client sent.
    pub fn server_path(&self) -> &str {
        self.rewritten.as_ref().map_or_else(|| self.matched_path(), |target| target.read_path())
    }

    /// Returns the query that the server gets.
    pub fn server_query(&self) -> Option<&str> {
        self.rewritten.as_ref().map_or_else(|| self.query(), |target| target.query.as_deref())
    }

    /// Has `check` report further faults of the head, for the route to judge.
    ///
    /// # Errors
    /// A fault that is refused in any case.
    pub fn report_faults(
        &mut self,
        check: impl FnOnce(&ValidatedHead, &mut FaultPolicy) -> Result<(), End>,
    ) -> Result<(), End> {
        let mut policy = FaultPolicy { faults: self.faults, ..FaultPolicy::new(Strictness::Monitor) };
        check(self, &mut policy)?;
        self.faults = policy.faults;
        Ok(())
    }
}

/// Validates the head of a request. `fields`: the headers that are present.
///
/// The parser has already checked the number and size of headers and the syntax below a whole head: line ends, header
/// names and chunks.
pub fn validate_head(parts: &Parts, fields: HeaderSet, last: &LastHost) -> Result<ValidatedHead, End> {
    let mut policy = FaultPolicy::new(Strictness::Monitor);
    if !matches!(parts.version, Version::HTTP_10 | Version::HTTP_11 | Version::HTTP_2 | Version::HTTP_3) {
        return Err(End::Version);
    }
    let method = method::canonicalize_method(&parts.method, &mut policy)?;
    if fields.has_any(&[KnownHeader::ContentLength, KnownHeader::TransferEncoding]) {
        check_framing(parts)?;
    }
    let expects = fields.has(KnownHeader::Expect);
    if expects
        && parts.headers.get_all(EXPECT).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
    {
        policy.report(End::Expect)?;
    }
    let target = target(parts, &method, &mut policy)?;
    let path = match target.path() {
        "*" => CanonicalPath::default(),
        path => canonicalize_path(path, &mut policy)?,
    };
    if target.query().is_some_and(|query| !query.is_ascii()) {
        policy.report(End::QueryNonAscii)?;
    }
    let host = canonicalize_host(parts, last, &mut policy)?;
    Ok(ValidatedHead {
        authority: host.text,
        host_len: host.len,
        method,
        target,
        path,
        slashed_path: None,
        host_changed: host.changed,
        faults: policy.faults,
        rewritten: None,
    })
}

/// Judges the faults of a request under the rules of its route. `parser_fault`: what the parser repaired, which
/// validation cannot see. Returns the fault that only `Monitor` lets pass, if there is one.
///
/// # Errors
/// The fault for which the request is refused.
pub fn judge_faults(
    admitted: &ValidatedHead,
    parser_fault: Option<End>,
    reading: ParsingRules,
) -> Result<Option<End>, End> {
    match parser_fault {
        Some(reject) if reading.strictness == Strictness::Strict || reject == End::Framing => Err(reject),
        _ => admitted.faults().check(reading),
    }
}

/// Refuses ambiguous framing. If servers disagreed on the end of a request, they would also disagree on where the next
/// one on the connection starts.
fn check_framing(parts: &Parts) -> Result<(), End> {
    let mut lengths = parts.headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next();
    if let Some(value) = length {
        let digits = value.as_bytes();
        if lengths.next().is_some() || digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Err(End::ContentLength);
        }
    }
    let mut codings = parts.headers.get_all(TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return Ok(()) };
    if parts.version == Version::HTTP_10 {
        return Err(End::TransferEncodingVersion);
    }
    if codings.next().is_some() {
        return Err(End::TransferEncodingRepeated);
    }
    if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
        let all_chunked =
            coding.as_bytes().split(|b| *b == b',').all(|c| c.trim_ascii().eq_ignore_ascii_case(b"chunked"));
        return Err(if all_chunked { End::TransferEncodingRepeated } else { End::TransferEncodingUnknown });
    }
    if length.is_some() { Err(End::TransferEncodingWithLength) } else { Ok(()) }
}

fn target(parts: &Parts, method: &Method, policy: &mut FaultPolicy) -> Result<PathAndQuery, End> {
    let uri = &parts.uri;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        Some(_) => policy.report(End::TargetScheme)?,
        None if uri.authority().is_some() => return Err(End::TargetForm),
        None => {}
    }
    let Some(target) = uri.path_and_query() else { return Err(End::TargetForm) };
    if target.as_str().starts_with('?') && uri.scheme().is_some() {
        // `http://a?x`. Servers accept only paths that begin with a slash.
        return PathAndQuery::try_from(format!("/{target}")).map_err(|_| End::TargetForm);
    }
    let asterisk = target.path() == "*" && target.query().is_none();
    if target.path().starts_with('/') || (asterisk && *method == Method::OPTIONS) {
        Ok(target.clone())
    } else {
        Err(End::TargetForm)
    }
}

#[cfg(test)]
mod tests {
    use http::header::HOST;
    use http::{HeaderName, Request, Uri};
    use proptest::prelude::*;

    use super::*;

    /// A second time on the same connection makes no difference.
    fn admit(parts: &Parts, strictness: Strictness) -> Result<ValidatedHead, End> {
        let (fields, last) = (HeaderSet::from_headers(&parts.headers), LastHost::default());
        let [first, again] = [(), ()].map(|()| super::validate_head(parts, fields, &last));
        assert_eq!(format!("{first:?}"), format!("{again:?}"));
        first.and_then(|admitted| admitted.faults().check(ParsingRules::new(strictness, None)).map(|_| admitted))
    }

    fn would_reject(admitted: &ValidatedHead) -> Option<End> {
        admitted.faults().check(ParsingRules::new(Strictness::Monitor, None)).unwrap()
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
            ("/", &[][..], End::HostMissing),
            ("/", &[A, A], End::HostRepeated),
            ("/", &[("host", "")], End::HostInvalid),
            ("/", &[("host", "a/b?c")], End::HostInvalid),
            ("/", &[("host", "u@a")], End::HostInvalid),
            ("http://b/", &[A], End::HostMismatch),
            ("http://a:81/", &[A], End::HostMismatch),
            ("http://u@a/", &[A], End::HostInvalid),
            ("ftp://a/", &[A], End::TargetScheme),
            ("admin", &[A], End::TargetForm),
            ("a:80", &[A], End::TargetForm),
            ("*", &[A], End::TargetForm),
            ("/é", &[A], End::PathNonAscii),
            ("/?é", &[A], End::QueryNonAscii),
            ("/\\", &[A], End::PathBackslash),
            ("/", &[A, ("transfer-encoding", "gzip, chunked")], End::TransferEncodingUnknown),
            ("/", &[A, ("transfer-encoding", "")], End::TransferEncodingUnknown),
            ("/", &[A, ("transfer-encoding", "chunked, chunked")], End::TransferEncodingRepeated),
            (
                "/",
                &[A, ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
                End::TransferEncodingRepeated,
            ),
            ("/", &[A, ("transfer-encoding", "chunked"), ("content-length", "5")], End::TransferEncodingWithLength),
            ("/", &[A, ("content-length", "5"), ("content-length", "5")], End::ContentLength),
            ("/", &[A, ("content-length", "5, 5")], End::ContentLength),
            ("/", &[A, ("content-length", "+5")], End::ContentLength),
            ("/", &[A, ("expect", "202-accepted")], End::Expect),
        ] {
            let refused = admit(&get(target, fields), Strictness::Strict).unwrap_err();
            assert_eq!(refused, reject, "{target} {fields:?}");
        }
        let chunked = [A, ("transfer-encoding", "chunked")];
        let old = admit(&parts("GET", b"/", Version::HTTP_10, &chunked), Strictness::Strict);
        assert_eq!(old.unwrap_err(), End::TransferEncodingVersion);
        let connect = admit(&parts("CONNECT", b"a:443", Version::HTTP_11, &[A]), Strictness::Strict);
        assert_eq!(connect.unwrap_err().status(), 501);
        let lower = admit(&parts("get", b"/", Version::HTTP_11, &[A]), Strictness::Strict);
        assert_eq!(lower.unwrap_err(), End::MethodCase);
        let older = admit(&parts("GET", b"/", Version::HTTP_09, &[A]), Strictness::Strict);
        assert_eq!(older.unwrap_err().status(), 505);
    }

    #[test]
    fn a_plain_request_is_admitted_as_it_is() {
        let head =
            get("/a/b?q=%zz#x", &[("host", "example.com:8080"), ("content-length", "5"), ("expect", "100-Continue")]);
        let admitted = admit(&head, Strictness::Strict).unwrap();
        assert_eq!((admitted.read_host(), admitted.authority().as_bytes()), ("example.com", &b"example.com:8080"[..]));
        assert_eq!((admitted.path(), admitted.query()), ("/a/b", Some("q=%zz")));
        assert!(!admitted.is_path_rewritten() && !admitted.is_host_rewritten());
        assert!(admit(&get("/", &[A, ("transfer-encoding", "Chunked")]), Strictness::Strict).is_ok());
    }

    #[test]
    fn the_canonical_form_is_forwarded() {
        let head = get("/x/%2e%2e/%61?b", &[("host", "EXAMPLE.com.:80")]);
        let admitted = admit(&head, Strictness::Strict).unwrap();
        assert_eq!((admitted.read_host(), admitted.path(), admitted.query()), ("example.com", "/a", Some("b")));
        assert_eq!(admitted.authority(), "example.com:80");
        assert!(admitted.is_path_rewritten() && admitted.is_host_rewritten());
        let reserved = admit(&get("/%40a%3Bb/%2E%2e/%3a", &[A]), Strictness::Strict).unwrap();
        assert_eq!((reserved.path(), reserved.sent_path()), ("/:", "/%3A"));
    }

    #[test]
    fn absolute_targets_agree_with_the_host_header() {
        for (target, host) in
            [("http://A/x", "a"), ("http://a:80/x", "a"), ("https://a/x", "A:443"), ("http://a?x", "a")]
        {
            let admitted = admit(&get(target, &[("host", host)]), Strictness::Strict).unwrap();
            assert_eq!(admitted.read_host(), "a", "{target}");
        }
        let old = admit(&parts("GET", b"http://a/x", Version::HTTP_10, &[]), Strictness::Strict).unwrap();
        assert_eq!((old.read_host(), old.is_host_rewritten(), old.path()), ("a", true, "/x"));
        let none = admit(&parts("GET", b"/x", Version::HTTP_10, &[]), Strictness::Strict).unwrap();
        assert_eq!((none.read_host(), none.is_host_rewritten()), ("", false));
        let options = admit(&parts("OPTIONS", b"*", Version::HTTP_11, &[A]), Strictness::Strict).unwrap();
        assert_eq!(options.path(), "*");
    }

    #[test]
    fn a_route_keeps_encoded_slashes_or_refuses_them_whatever_its_strictness() {
        let head = |target: &str| {
            super::validate_head(&get(target, &[A]), HeaderSet::default(), &LastHost::default()).unwrap()
        };
        let slash = head("/@scope%2fname");
        assert_eq!(slash.path(), "/@scope%2Fname");
        for strictness in [Strictness::Strict, Strictness::Defensive, Strictness::Monitor] {
            assert_eq!(slash.faults().check(ParsingRules::new(strictness, Some(true))), Ok(None));
            assert_eq!(slash.faults().check(ParsingRules::new(strictness, Some(false))), Err(End::PathSlash));
        }
        let kept = ParsingRules::new(Strictness::Strict, Some(true));
        for target in ["/a%2F..%2Fb", "/a%2f.", "/..%2Fb", "/a%2F%2e%2e;x", "/a%2F..%3bx", "/%2E%2e%2f"] {
            assert_eq!(head(target).faults().check(kept), Err(End::PathSlashDots), "{target}");
        }
        for target in ["/a%2F...", "/a%2F%2Fb", "/a%2F.b", "/a%252F..", "/%2F"] {
            assert_eq!(head(target).faults().check(kept), Ok(None), "{target}");
        }
        assert_eq!(head("/a%2Fb%5C").faults().check(kept), Err(End::PathBackslash));
    }

    #[test]
    fn defensive_repairs_and_monitor_reports() {
        let mismatch = get("http://b/", &[A]);
        for strictness in [Strictness::Defensive, Strictness::Monitor] {
            let admitted = admit(&mismatch, strictness).unwrap();
            assert_eq!(
                (admitted.read_host(), admitted.is_host_rewritten(), would_reject(&admitted)),
                ("b", true, None)
            );
            assert_eq!(admit(&get("/", &[]), strictness).unwrap().read_host(), "");
        }
        let twice = get("/", &[A, ("host", "b")]);
        assert_eq!(admit(&twice, Strictness::Defensive).unwrap_err(), End::HostRepeated);
        let admitted = admit(&twice, Strictness::Monitor).unwrap();
        assert_eq!((admitted.read_host(), admitted.is_host_rewritten()), ("a", true));
        assert_eq!(would_reject(&admitted), Some(End::HostRepeated));
        let odd = admit(&get("/", &[("host", "u@a")]), Strictness::Monitor).unwrap();
        assert_eq!((odd.read_host(), would_reject(&odd)), ("", Some(End::HostInvalid)));
        let both = get("/", &[A, ("transfer-encoding", "chunked"), ("content-length", "5")]);
        assert_eq!(admit(&both, Strictness::Monitor).unwrap_err(), End::TransferEncodingWithLength);
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
                    prop_assert_eq!((strict.read_host(), strict.path()), (other.read_host(), other.path()));
                    prop_assert_eq!(would_reject(other), None);
                }
            }
            prop_assert!(all[1].is_ok() || all[0].is_err());
            prop_assert!(all[2].is_ok() || all[1].is_err());
        }
    }
}
