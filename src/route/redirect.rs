//! Redirects: the target of a `redirect`, computed from the canonical host and path of a request.
//!
//! The authority of a target comes from the config, or is the host that the route has matched. Nothing that a client
//! sends can become a part of it: see [`Redirect::locate`].

use std::collections::HashMap;
use std::sync::Arc;

use http::StatusCode;

use crate::canonical::find_segment;
use crate::template::TextTemplate;
use crate::text::push_percent_encoded;

/// A compiled `redirect`.
#[derive(Debug, PartialEq)]
pub struct Redirect {
    pub status: StatusCode,
    /// The target of requests that the map does not list. `None` refuses them with 404.
    pub to: Option<RedirectTarget>,
    /// Targets by canonical path.
    pub map: Option<Arc<RedirectMap>>,
    /// Targets without a query get the query of the request.
    pub keeps_query: bool,
}

/// Targets by canonical path, with a status if the file gives one.
pub type RedirectMap = HashMap<Box<str>, (Box<str>, Option<StatusCode>)>;

/// The target of a redirect: a URL, or an absolute path.
#[derive(Debug, PartialEq)]
pub struct RedirectTarget {
    pub template: TextTemplate<TargetPlaceholder>,
    /// The target has a query of its own, or a `{query}`.
    pub has_query: bool,
}

/// A placeholder in the target of a redirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetPlaceholder {
    Scheme,
    Host,
    Path(TargetPart),
    /// The query without `?`; empty if there is none.
    Query,
    /// The segment of the path with this index: a parameter of the route's template.
    Segment(usize, TargetPart),
}

/// The part of a URL in which a placeholder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetPart {
    Path,
    /// The query or the fragment.
    Query,
}

/// The parts of a request that a target may contain.
#[derive(Clone, Copy, Debug)]
pub struct RedirectInput<'r> {
    pub is_https: bool,
    /// The canonical host, which the route has matched.
    pub host: &'r str,
    /// The canonical path.
    pub path: &'r str,
    /// The canonical path in its spelling for servers.
    pub sent_path: &'r str,
    /// `sent_path` after the route's `rewrite`.
    pub rewritten_path: &'r str,
    pub query: Option<&'r str>,
}

impl Redirect {
    /// Returns the status and the `Location` for a request. `None` if the map has no entry for it and there is no other
    /// target.
    ///
    /// Values are percent-encoded, so that the result has visible ASCII only and no backslash. A target that is a path
    /// begins with exactly one slash: browsers would read `//host` and `/\host` as another host.
    pub fn locate(&self, input: RedirectInput) -> Option<(StatusCode, String)> {
        let target = self.map.as_ref().and_then(|map| map.get(input.path));
        let (mut location, status, has_query) = match (target, &self.to) {
            (Some((to, status)), _) => (to.to_string(), status.unwrap_or(self.status), to.contains('?')),
            (None, Some(to)) => (to.render(input), self.status, to.has_query),
            (None, None) => return None,
        };
        let slashes = location.bytes().take_while(|byte| *byte == b'/').count();
        location.drain(..slashes.saturating_sub(1));
        if let Some(query) = input.query.filter(|query| self.keeps_query && !has_query && !query.is_empty()) {
            let mut added = "?".to_owned();
            push_query(&mut added, query);
            let end = location.find('#').unwrap_or(location.len());
            location.insert_str(end, &added);
        }
        Some((status, location))
    }
}

impl RedirectTarget {
    fn render(&self, input: RedirectInput) -> String {
        self.template.render(|placeholder, out| match placeholder {
            TargetPlaceholder::Scheme => out.push_str(if input.is_https { "https" } else { "http" }),
            TargetPlaceholder::Host => out.push_str(input.host),
            TargetPlaceholder::Path(part) => {
                // The target of `OPTIONS *` has no path.
                let path = if input.rewritten_path.starts_with('/') { input.rewritten_path } else { "/" };
                push_value(out, path, *part);
            }
            TargetPlaceholder::Query => push_query(out, input.query.unwrap_or_default()),
            TargetPlaceholder::Segment(index, part) => {
                push_value(out, find_segment(input.sent_path, *index).unwrap_or_default(), *part);
            }
        })
    }
}

/// Appends a path or a segment of one. In a query, it must not add parameters.
fn push_value(out: &mut String, value: &str, part: TargetPart) {
    match part {
        TargetPart::Path => push_encoded(out, value, is_path_byte),
        TargetPart::Query => {
            push_encoded(out, value, |byte| is_path_byte(byte) && !matches!(byte, b'&' | b'+' | b'=' | b';' | b'\''));
        }
    }
}

/// Appends the query of a request.
fn push_query(out: &mut String, query: &str) {
    push_encoded(out, query, is_query_byte);
}

/// Returns the path of a request with a slash at its end, and its query, as the target of a redirect. It begins with
/// one slash: see [`Redirect::locate`].
pub fn add_slash(sent_path: &str, query: Option<&str>) -> String {
    let mut location = "/".to_owned();
    push_encoded(&mut location, sent_path.trim_start_matches('/'), is_path_byte);
    if !location.ends_with('/') {
        location.push('/');
    }
    if let Some(query) = query {
        location.push('?');
        push_query(&mut location, query);
    }
    location
}

/// Appends a value, in which bytes other than those of `is_allowed` are percent-encoded. `%` stays, because the value
/// is encoded already.
fn push_encoded(out: &mut String, value: &str, is_allowed: impl Fn(u8) -> bool) {
    for byte in value.bytes() {
        if byte == b'%' || is_allowed(byte) {
            out.push(char::from(byte));
        } else {
            push_percent_encoded(out, byte);
        }
    }
}

/// Returns whether a path may contain the byte (RFC 3986, section 3.3).
fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&byte)
}

fn is_query_byte(byte: u8) -> bool {
    is_path_byte(byte) || byte == b'?'
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn redirect(to: &str) -> Redirect {
        let Ok(template) = TextTemplate::parse(to, |name, at| {
            let part = if to[..at].contains(['?', '#']) { TargetPart::Query } else { TargetPart::Path };
            Ok::<_, Infallible>(Some(match name {
                "scheme" => TargetPlaceholder::Scheme,
                "host" => TargetPlaceholder::Host,
                "path" => TargetPlaceholder::Path(part),
                "query" => TargetPlaceholder::Query,
                _ => TargetPlaceholder::Segment(1, part),
            }))
        });
        let to = RedirectTarget { template, has_query: to.contains(['?']) || to.contains("{query}") };
        Redirect { status: StatusCode::PERMANENT_REDIRECT, to: Some(to), map: None, keeps_query: true }
    }

    fn locate(to: &str, path: &str, query: Option<&str>) -> String {
        let is_https = true;
        let input =
            RedirectInput { is_https, host: "www.example.com", path, sent_path: path, rewritten_path: path, query };
        redirect(to).locate(input).unwrap().1
    }

    #[test]
    fn targets_are_filled_in() {
        for (to, path, query, location) in [
            ("https://example.com{path}", "/a/b", None, "https://example.com/a/b"),
            ("https://example.com{path}", "/a", Some("b=c&d"), "https://example.com/a?b=c&d"),
            ("https://example.com{path}#top", "/a", Some("b"), "https://example.com/a?b#top"),
            ("https://example.com/new?x=1", "/a", Some("b"), "https://example.com/new?x=1"),
            ("https://example.com/?q={query}", "/a", Some("b=c"), "https://example.com/?q=b=c"),
            ("{scheme}://{host}/x", "/a", None, "https://www.example.com/x"),
            ("/u/{id}", "/users/7", None, "/u/7"),
            ("/u?id={id}", "/users/a&b=c+d%20e", None, "/u?id=a%26b%3Dc%2Bd%20e"),
            ("/?next={path}", "/a&b", None, "/?next=/a%26b"),
            ("https://example.com{path}", "*", None, "https://example.com/"),
        ] {
            assert_eq!(locate(to, path, query), location, "{to} {path} {query:?}");
        }
    }

    #[test]
    fn a_path_never_becomes_a_host() {
        for (to, path, query, location) in [
            ("{path}", "//evil.com", None, "/evil.com"),
            ("{path}", "///evil.com", None, "/evil.com"),
            ("{path}", "/\\evil.com", None, "/%5Cevil.com"),
            ("/{query}", "/", Some("/evil.com"), "/evil.com"),
            ("/{query}", "/", Some("\\evil.com"), "/%5Cevil.com"),
            ("/{id}", "/a//evil.com", None, "/evil.com"),
            ("https://example.com{path}", "/@evil.com", None, "https://example.com/@evil.com"),
            ("https://example.com{path}", ".evil.com", None, "https://example.com/"),
            ("https://example.com{path}", "/a\r\nset-cookie: x", None, "https://example.com/a%0D%0Aset-cookie:%20x"),
        ] {
            assert_eq!(locate(to, path, query), location, "{to} {path} {query:?}");
        }
    }

    proptest! {
        #[test]
        fn every_location_is_visible_ascii_on_the_same_host(path in "\\PC{0,40}", query in "\\PC{0,40}") {
            for to in ["https://example.com{path}", "{path}", "/{id}", "/{query}", "/{id}?{path}#{id}"] {
                let location = locate(to, &path, Some(&query));
                prop_assert!(location.bytes().all(|byte| (b'!'..=b'~').contains(&byte) && byte != b'\\'), "{location}");
                let rest = location.strip_prefix("https://example.com").unwrap_or(&location);
                prop_assert!(rest.starts_with('/'), "{location}");
                prop_assert!(location.starts_with("https") || !location.starts_with("//"), "{location}");
            }
        }
    }
}
