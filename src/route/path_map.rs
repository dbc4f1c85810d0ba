//! Paths of the server as paths of the client: the opposite of a route's `rewrite`, for the URLs in responses.
//!
//! Input: the rewrite and the path of one request. Output: two prefixes, one of which replaces the other. A rewrite has
//! no opposite if the path that it makes does not end as the client's path ends.

use crate::canonical::{find_segment, find_sent_piece, repair_path};
use crate::route::Rewrite;
use crate::route::matcher::PathPattern;
use crate::route::rewrite::{Capture, MatchedPath, TargetRewrite};
use crate::template::Piece;

/// Turns paths of the server into those of the client. Prefixes have no trailing slash.
pub struct PathMap<'r> {
    server: String,
    client: String,
    /// The rewrite that must make the server's path of the client's. `None` if each path below the prefixes is mapped.
    checked_by: Option<(&'r PathPattern, &'r TargetRewrite)>,
}

impl<'r> PathMap<'r> {
    /// Finds the prefixes for a request. `read` and `sent`: the spellings of its path. `None` if paths of the server
    /// stay.
    pub fn new(rewrite: &'r Rewrite, pattern: &'r PathPattern, read: &str, sent: &str) -> Option<PathMap<'r>> {
        let target = rewrite.target.as_ref().filter(|target| target.path.is_some());
        let (server, client) = match target {
            Some(target) => find_prefixes(target, pattern, read, sent)?,
            None => {
                let is_stripped = rest_below(read, &rewrite.strip_prefix).is_some();
                (rewrite.add_prefix.clone(), if is_stripped { rewrite.strip_prefix.clone() } else { String::new() })
            }
        };
        let checked_by = target.map(|target| (pattern, target));
        (server != client).then_some(PathMap { server, client, checked_by })
    }

    /// Returns the path of the client for a path of the server. `None` leaves the path: it is not below the prefix, or
    /// an application that knows the client's prefix has written it.
    pub fn to_client(&self, path: &str) -> Option<String> {
        let client = self.replace_prefix(path)?;
        // Browsers would read the start as a host.
        if client.starts_with("//") {
            return None;
        }
        match self.checked_by {
            Some((pattern, target)) if !makes_path(pattern, target, &client, path) => None,
            _ => Some(client),
        }
    }

    /// Returns the path of a cookie for the client. `None` leaves the path.
    pub fn to_client_cookie(&self, path: &str) -> Option<String> {
        self.replace_prefix(if path == "/" { "" } else { path })
    }

    fn replace_prefix(&self, path: &str) -> Option<String> {
        if self.server.is_empty() && rest_below(path, &self.client).is_some() {
            return None;
        }
        let rest = rest_below(path, &self.server)?;
        let client = format!("{}{rest}", self.client);
        Some(if client.is_empty() { "/".to_owned() } else { client })
    }
}

/// Returns what follows a prefix of whole segments.
fn rest_below<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    path.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns what precedes the last capture in the path for the server, and in the client's path, which must end with it.
fn find_prefixes(target: &TargetRewrite, pattern: &PathPattern, read: &str, sent: &str) -> Option<(String, String)> {
    let template = target.path.as_ref()?;
    let Piece::Placeholder(last) = template.pieces().last()? else { return None };
    let matched_path = MatchedPath::new(pattern, read, sent, target).ok()?;
    let start = match *last {
        Capture::Segment(index) => {
            let segment = find_segment(read, index)?;
            read.len()
                .checked_sub(segment.len())
                .filter(|at| at.checked_sub(1) == read.rfind('/') && read.ends_with(segment))
        }
        Capture::Group(number) => {
            matched_path.find_group(number).filter(|range| range.end == read.len()).map(|range| range.start)
        }
    }?;
    let new_path = matched_path.render_path(template);
    let server = new_path.strip_suffix(find_sent_piece(read, sent, start, read.len()))?;
    let client = find_sent_piece(read, sent, 0, start);
    let ends = |prefix: &str| prefix.ends_with('/');
    match (ends(server), ends(client), read[start..].starts_with('/')) {
        (true, true, _) => Some((server.trim_end_matches('/').to_owned(), client.trim_end_matches('/').to_owned())),
        (false, false, true) => Some((server.to_owned(), client.to_owned())),
        _ => None,
    }
}

/// Returns whether a route with `pattern` would send `server` for the path `client`.
fn makes_path(pattern: &PathPattern, target: &TargetRewrite, client: &str, server: &str) -> bool {
    let canonical = repair_path(client);
    let (read, sent) = (canonical.to_read(client), canonical.to_send(client));
    let make = || {
        let matched_path = MatchedPath::new(pattern, read, sent, target).ok()?;
        Some(matched_path.render_path(target.path.as_ref()?))
    };
    let is_same = |made: String| repair_path(&made).to_read(&made) == repair_path(server).to_read(server);
    pattern.matches(read) && make().is_some_and(is_same)
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;
    use crate::template::TextTemplate;

    fn prefixes(strip: &str, add: &str) -> Rewrite {
        Rewrite { strip_prefix: strip.to_owned(), add_prefix: add.to_owned(), ..Rewrite::default() }
    }

    fn to_client(rewrite: &Rewrite, pattern: &str, request: &str, path: &str) -> Option<String> {
        let pattern = PathPattern::Regex(Regex::new(pattern).unwrap());
        PathMap::new(rewrite, &pattern, request, request)?.to_client(path)
    }

    #[test]
    fn prefixes_are_exchanged() {
        for (strip, add, request, path, client) in [
            ("/app", "", "/app/x", "/login", Some("/app/login")),
            ("/app", "", "/app/x", "/", Some("/app/")),
            ("/app", "", "/app/x", "/app/login", None),
            ("/app", "", "/app/x", "/apple", Some("/app/apple")),
            ("/app", "", "/other", "/login", None),
            ("/app", "/v2", "/app/x", "/v2/login", Some("/app/login")),
            ("/app", "/v2", "/app/x", "/v2", Some("/app")),
            ("/app", "/v2", "/app/x", "/login", None),
            ("", "/site", "/x", "/site/login", Some("/login")),
            ("", "/site", "/x", "/site", Some("/")),
            ("", "/site", "/x", "/site//evil.com", None),
            ("/app", "/app", "/app/x", "/app/login", None),
        ] {
            let mapped = to_client(&prefixes(strip, add), "^", request, path);
            assert_eq!(mapped.as_deref(), client, "{strip} {add} {request} {path}");
        }
    }

    #[test]
    fn a_path_of_captures_is_mapped_if_the_route_would_make_it() {
        for (pattern, to, request, path, client) in [
            ("^/blog/(.*)$", "/v1/blog/{1}", "/blog/a", "/v1/blog/b/c", Some("/blog/b/c")),
            ("^/([a-z]{2})/blog/(.*)$", "/v1/{1}/{2}", "/de/blog/a", "/v1/de/b", Some("/de/blog/b")),
            ("^/([a-z]{2})/blog/(.*)$", "/v1/{1}/{2}", "/de/blog/a", "/v1/en/b", None),
            ("^/n/([0-9]+)$", "/v1/{1}", "/n/7", "/v1/8", Some("/n/8")),
            ("^/n/([0-9]+)$", "/v1/{1}", "/n/7", "/v1/login", None),
            ("^/foo(/|$)(.*)$", "/{2}", "/foo/a", "/b", Some("/foo/b")),
            ("^/foo(/.*)?$", "/bar{1}", "/foo/a", "/bar/b", Some("/foo/b")),
            ("^/foo(.*)$", "/bar{1}", "/foo1", "/bar2", None),
            ("^/a/(.*)/end$", "/v1/{1}", "/a/b/end", "/v1/c", None),
            ("^/a/(.*)$", "/v1/{1}/end", "/a/b", "/v1/c/end", None),
        ] {
            let parse = |name: &str, _: usize| Ok::<_, std::num::ParseIntError>(Some(Capture::Group(name.parse()?)));
            let path_template = Some(TextTemplate::parse(to, parse).unwrap());
            let target = Some(TargetRewrite { path: path_template, ..TargetRewrite::default() });
            let rewrite = Rewrite { target, ..Rewrite::default() };
            assert_eq!(to_client(&rewrite, pattern, request, path).as_deref(), client, "{pattern} {to} {path}");
        }
    }
}
