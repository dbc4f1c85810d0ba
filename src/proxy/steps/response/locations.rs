//! `rewrite_location`: URLs and cookies of a server as those of the client, for routes that send another host or path.
//!
//! Input: the response of a server, its origin, and what the client has requested. Output: the same response with
//! `Location`, `Content-Location`, `Refresh` and `Set-Cookie` for the client. URLs of other origins stay.

use http::header::{CONTENT_LOCATION, LOCATION, REFRESH, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::canonical::keep_repeated_slashes;
use crate::route::path_map::PathMap;

/// A scheme, and a host with its port unless that is the scheme's own.
#[derive(Clone, Copy, Debug)]
pub struct UrlOrigin<'a> {
    pub is_https: bool,
    pub authority: &'a str,
}

/// Maps URLs of a server to URLs of the client.
pub struct LocationMap<'a> {
    /// The origin of the server's address.
    pub server: UrlOrigin<'a>,
    /// The `Host` that the server got. A server that knows the client's scheme writes that one before it, not its own.
    pub sent_host: &'a str,
    /// The origin of the client's request. An empty authority is unknown.
    pub client: UrlOrigin<'a>,
    pub paths: Option<PathMap<'a>>,
}

/// Returns whether a response has a header that [`LocationMap::map_response`] may change.
pub fn has_locations(headers: &HeaderMap) -> bool {
    [LOCATION, CONTENT_LOCATION, REFRESH, SET_COOKIE].iter().any(|name| headers.contains_key(name))
}

impl LocationMap<'_> {
    /// Changes the headers of a response.
    pub fn map_response(&self, headers: &mut HeaderMap) {
        for name in [LOCATION, CONTENT_LOCATION] {
            self.replace_value(headers, name, |value| self.map_url(value));
        }
        self.replace_value(headers, REFRESH, |value| self.map_refresh(value));
        let cookies = headers.get_all(SET_COOKIE);
        let cookie_lines: Vec<HeaderValue> =
            cookies.iter().map(|line| self.map_cookie(line).unwrap_or_else(|| line.clone())).collect();
        if cookie_lines.iter().ne(cookies.iter()) {
            headers.remove(SET_COOKIE);
            for line in cookie_lines {
                headers.append(SET_COOKIE, line);
            }
        }
    }

    fn replace_value(&self, headers: &mut HeaderMap, name: HeaderName, map: impl Fn(&str) -> Option<String>) {
        let mapped = headers.get(&name).and_then(|value| match str::from_utf8(value.as_bytes()) {
            Ok(text) => HeaderValue::try_from(map(text)?).ok(),
            // Each byte stays as it is.
            Err(_) => {
                let text: String = value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
                let bytes: Option<Vec<u8>> = map(&text)?.chars().map(|c| u8::try_from(c).ok()).collect();
                HeaderValue::try_from(bytes?).ok()
            }
        });
        if let Some(value) = mapped {
            headers.insert(name, value);
        }
    }

    /// Returns a URL for the client. `None` leaves the URL: it has another origin, or is relative to the client's path.
    fn map_url(&self, url: &str) -> Option<String> {
        // Browsers remove tabs, and spaces at the start, and take a `\` for a slash.
        if url.starts_with(' ') || url.bytes().any(|byte| byte.is_ascii_control() || byte == b'\\') {
            return None;
        }
        if url.starts_with('/') && !url.starts_with("//") {
            return self.map_path(url);
        }
        let (scheme, rest) = match url.strip_prefix("//") {
            Some(rest) => (None, rest),
            None => url.split_once("://").map(|(scheme, rest)| (Some(scheme), rest))?,
        };
        let is_https = match scheme {
            None => None,
            Some(scheme) if scheme.eq_ignore_ascii_case("http") => Some(false),
            Some(scheme) if scheme.eq_ignore_ascii_case("https") => Some(true),
            Some(_) => return None,
        };
        let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if !self.is_own(is_https, authority) {
            return None;
        }
        let path = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
        let path = self.map_path(&path).unwrap_or(path);
        let UrlOrigin { is_https, authority } = self.client;
        match (authority, scheme) {
            // A path alone must not begin with a second slash.
            ("", _) => Some(format!("/{}", path.trim_start_matches('/'))),
            (_, None) => Some(format!("//{authority}{path}")),
            (_, Some(_)) => Some(format!("{}://{authority}{path}", if is_https { "https" } else { "http" })),
        }
    }

    /// Returns whether a URL is one of the server's own. `is_https`: its scheme, if it has one.
    fn is_own(&self, is_https: Option<bool>, authority: &str) -> bool {
        let is_same =
            |origin: &UrlOrigin| is_https.is_none_or(|is_https| is_https == origin.is_https) && origin.has(authority);
        let is_https = is_https.unwrap_or(self.server.is_https);
        let sent = UrlOrigin { is_https, authority: self.sent_host };
        // The client's host with another scheme: a redirect to HTTPS, which must not become one to HTTP.
        if (UrlOrigin { is_https, ..self.client }).has(authority) {
            return is_same(&self.client);
        }
        is_same(&self.server) || sent.has(authority)
    }

    /// Maps a path with its query and fragment. Clients resolve dot segments before they send a path.
    fn map_path(&self, target: &str) -> Option<String> {
        let (path, rest) = target.split_at(target.find(['?', '#']).unwrap_or(target.len()));
        let resolved = path.split('/').any(is_dot_segment).then(|| keep_repeated_slashes(path));
        let path = resolved.as_ref().map_or(path, |resolved| resolved.to_send(path));
        Some(self.paths.as_ref()?.to_client(path)? + rest)
    }

    /// Maps the URL in a `Refresh`, such as `5; url='/next'`.
    fn map_refresh(&self, value: &str) -> Option<String> {
        let (before, url, after) = split_refresh(value)?;
        Some(format!("{before}{}{after}", self.map_url(url)?))
    }

    /// Maps `Path` and `Domain` of a cookie. `None` leaves the line.
    fn map_cookie(&self, line: &HeaderValue) -> Option<HeaderValue> {
        let text = str::from_utf8(line.as_bytes()).ok()?;
        let mut pieces = text.split(';');
        let mut cookie = pieces.next()?.to_owned();
        // Browsers accept such a cookie only with the path `/` and without a domain.
        let is_host_cookie = cookie.trim_start().get(..7).is_some_and(|name| name.eq_ignore_ascii_case("__host-"));
        for piece in pieces {
            let (name, value) = piece.split_once('=').unwrap_or((piece, ""));
            let (name, value) = (name.trim(), value.trim());
            let attribute = if name.eq_ignore_ascii_case("path") && value.starts_with('/') && !is_host_cookie {
                self.paths
                    .as_ref()
                    .and_then(|paths| paths.to_client_cookie(value))
                    .map(|path| format!(" {name}={path}"))
            } else if name.eq_ignore_ascii_case("domain") && self.is_server_domain(value) {
                // Without the attribute, the cookie is for the host that the client knows.
                Some(match self.client.host() {
                    "" => String::new(),
                    host => format!(" {name}={host}"),
                })
            } else {
                None
            };
            match attribute {
                Some(piece) if piece.is_empty() => {}
                Some(piece) => cookie.extend([";", piece.as_str()]),
                None => cookie.extend([";", piece]),
            }
        }
        if cookie == text { None } else { HeaderValue::try_from(cookie).ok() }
    }

    /// Returns whether a cookie for this domain is one for the server, and clients of the gateway would refuse it.
    fn is_server_domain(&self, domain: &str) -> bool {
        let domain = domain.trim_start_matches('.').to_ascii_lowercase();
        let is_within = |origin: &UrlOrigin| {
            let host = origin.host().to_ascii_lowercase();
            host == domain || host.strip_suffix(domain.as_str()).is_some_and(|labels| labels.ends_with('.'))
        };
        let sent = UrlOrigin { authority: self.sent_host, ..self.server };
        !domain.is_empty() && (is_within(&self.server) || is_within(&sent)) && !is_within(&self.client)
    }
}

/// Returns whether clients resolve a segment of a path: `.`, `..`, and these with encoded dots.
fn is_dot_segment(segment: &str) -> bool {
    segment.len() <= 6 && matches!(segment.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..")
}

/// Splits a `Refresh` around its URL, as browsers read it (HTML, "shared declarative refresh steps"). A closing quote
/// is in the last part. `None` if there is no URL.
pub fn split_refresh(value: &str) -> Option<(&str, &str, &str)> {
    let is_space = |c: char| c.is_ascii_whitespace();
    let after_time = value.trim_start_matches(is_space).trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    if !after_time.starts_with(|c: char| is_space(c) || matches!(c, ';' | ',')) {
        return None;
    }
    let rest = after_time.trim_start_matches(is_space);
    let rest = rest.strip_prefix([';', ',']).unwrap_or(rest).trim_start_matches(is_space);
    let after_word = rest.get(..3).filter(|word| word.eq_ignore_ascii_case("url")).map(|_| &rest[3..]);
    let assigned = after_word.and_then(|rest| rest.trim_start_matches(is_space).strip_prefix('='));
    let text = assigned.map_or(rest, |rest| rest.trim_start_matches(is_space));
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''));
    let url = match quote {
        Some(quote) => text[1..].split(quote).next()?,
        None => text.trim_end_matches(is_space),
    };
    let start = value.len() - text.len() + usize::from(quote.is_some());
    let (before, rest) = value.split_at(start);
    let (url, after) = rest.split_at(url.len());
    (!url.is_empty()).then_some((before, url, after))
}

impl<'a> UrlOrigin<'a> {
    /// Returns whether the authority of a URL with this scheme belongs to the origin.
    fn has(&self, authority: &str) -> bool {
        !authority.is_empty() && self.strip_port(authority).eq_ignore_ascii_case(self.strip_port(self.authority))
    }

    fn strip_port<'t>(&self, authority: &'t str) -> &'t str {
        authority.strip_suffix(if self.is_https { ":443" } else { ":80" }).unwrap_or(authority)
    }

    /// Returns the host without a port.
    fn host(&self) -> &'a str {
        match self.authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => host,
            _ => self.authority,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Rewrite;
    use crate::route::matcher::PathPattern;

    static PATTERN: PathPattern = PathPattern::Segments { segments: Vec::new(), exact: false };

    fn mapped(rewrite: &Rewrite, client: UrlOrigin, name: &'static str, value: &str) -> String {
        let map = LocationMap {
            server: UrlOrigin { is_https: false, authority: "10.0.0.7:3000" },
            sent_host: "app.internal.example",
            client,
            paths: PathMap::new(rewrite, &PATTERN, "/app/x", "/app/x"),
        };
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        map.map_response(&mut headers);
        str::from_utf8(headers.get(name).unwrap().as_bytes()).unwrap().to_owned()
    }

    #[test]
    fn urls_of_the_server_become_those_of_the_client() {
        let rewrite = Rewrite { strip_prefix: "/app".to_owned(), ..Rewrite::default() };
        let client = UrlOrigin { is_https: true, authority: "www.example.com" };
        for (url, expected) in [
            ("/login?next=/x#a", "/app/login?next=/x#a"),
            ("http://10.0.0.7:3000/login", "https://www.example.com/app/login"),
            ("HTTP://App.internal.example:80/login", "https://www.example.com/app/login"),
            ("http://app.internal.example", "https://www.example.com/app/"),
            ("http://app.internal.example?x", "https://www.example.com/app/?x"),
            ("//app.internal.example/x", "//www.example.com/app/x"),
            // The server puts the scheme of `X-Forwarded-Proto` before the host that it got.
            ("https://app.internal.example/x", "https://www.example.com/app/x"),
            ("https://app.internal.example:443/x", "https://www.example.com/app/x"),
            ("https://app.internal.example:80/x", "https://app.internal.example:80/x"),
            ("https://www.example.com/login", "https://www.example.com/app/login"),
            ("https://www.example.com/app/login", "https://www.example.com/app/login"),
            ("/app/login", "/app/login"),
            // Other origins, another scheme of the own one included.
            ("http://www.example.com/login", "http://www.example.com/login"),
            ("https://10.0.0.7:3000/login", "https://10.0.0.7:3000/login"),
            ("http://10.0.0.7/login", "http://10.0.0.7/login"),
            ("https://id.example.com/authorize", "https://id.example.com/authorize"),
            ("http://10.0.0.7:3000@evil.com/", "http://10.0.0.7:3000@evil.com/"),
            ("http://evil.com:80@10.0.0.7:3000/", "http://evil.com:80@10.0.0.7:3000/"),
            ("//evil.com/", "//evil.com/"),
            ("login", "login"),
            ("?page=2", "?page=2"),
            ("mailto:a@example.com", "mailto:a@example.com"),
            ("/\\evil.com", "/\\evil.com"),
            ("/a b", "/app/a b"),
            ("/../login", "/app/login"),
            ("/a/%2E%2e/../login?next=/../x", "/app/login?next=/../x"),
            ("http://10.0.0.7:3000/./login/.", "https://www.example.com/app/login/"),
            ("/a/../app/login", "/a/../app/login"),
            ("/..x/.y", "/app/..x/.y"),
            ("/café", "/app/café"),
            ("http://10.0.0.7:3000/café?q=ü", "https://www.example.com/app/café?q=ü"),
            ("http://10.0.0.7:3000é/", "http://10.0.0.7:3000é/"),
            ("/\tb", "/\tb"),
            (" /b", " /b"),
        ] {
            for name in ["location", "content-location"] {
                assert_eq!(mapped(&rewrite, client, name, url), expected, "{url}");
            }
            if !url.contains(' ') {
                for (before, after) in [
                    ("5; url=", ""),
                    ("0;URL='", "'"),
                    ("1; Url=\"", "\" more"),
                    (" 1.5 ,\turl = ", " "),
                    ("0;", ""),
                    ("5 ", ""),
                    (".;'", ""),
                ] {
                    let refresh = mapped(&rewrite, client, "refresh", &format!("{before}{url}{after}"));
                    assert_eq!(refresh, format!("{before}{expected}{after}"), "{url}");
                }
            }
        }
        // Neither a URL nor a parameter of one.
        for refresh in ["5", "5;", "5; url=", "/login", "5x; url=/login", "url=/login", "0; http://other.test/?url=/y"]
        {
            assert_eq!(mapped(&rewrite, client, "refresh", refresh), refresh);
        }
        assert_eq!(mapped(&rewrite, client, "refresh", "0;/go?url=/next"), "0;/app/go?url=/next");
        assert_eq!(mapped(&rewrite, client, "refresh", "0;url /next"), "0;url /next");
        // Bytes that are no UTF-8.
        let latin = |path: &[u8]| HeaderValue::from_bytes(path).unwrap();
        let mut headers = HeaderMap::from_iter([(LOCATION, latin(b"/caf\xe9"))]);
        LocationMap {
            server: UrlOrigin { is_https: false, authority: "10.0.0.7:3000" },
            sent_host: "10.0.0.7:3000",
            client,
            paths: PathMap::new(&rewrite, &PATTERN, "/app/x", "/app/x"),
        }
        .map_response(&mut headers);
        assert_eq!(headers.get(LOCATION), Some(&latin(b"/app/caf\xe9")));
        // A server that is reached with TLS gets the client's host, and redirects a client without TLS to HTTPS.
        for (authority, url) in [
            ("www.example.com", "https://www.example.com/app/login"),
            ("www.example.com", "https://www.example.com:443/app/login"),
            ("www.example.com:8080", "https://www.example.com:8080/app/login"),
        ] {
            let map = LocationMap {
                server: UrlOrigin { is_https: true, authority: "10.0.0.7:3000" },
                sent_host: authority,
                client: UrlOrigin { is_https: false, authority },
                paths: PathMap::new(&rewrite, &PATTERN, "/app/x", "/app/x"),
            };
            assert_eq!(map.map_url(url), None, "{url}");
            assert_eq!(
                map.map_url(&format!("http://{authority}/login")),
                Some(format!("http://{authority}/app/login"))
            );
        }
        let unknown = UrlOrigin { is_https: true, authority: "" };
        assert_eq!(mapped(&rewrite, unknown, "location", "http://10.0.0.7:3000/login"), "/app/login");
        let plain = Rewrite::default();
        assert_eq!(mapped(&plain, unknown, "location", "http://10.0.0.7:3000//evil.com"), "/evil.com");
    }

    #[test]
    fn cookies_of_the_server_become_those_of_the_client() {
        let rewrite = Rewrite { strip_prefix: "/app".to_owned(), ..Rewrite::default() };
        let client = UrlOrigin { is_https: true, authority: "www.example.com:8443" };
        for (cookie, expected) in [
            ("a=1", "a=1"),
            ("a=1; Path=/; HttpOnly", "a=1; Path=/app; HttpOnly"),
            ("a=1;path=/x;Secure", "a=1; path=/app/x;Secure"),
            ("a=1; Path=/app; Secure", "a=1; Path=/app; Secure"),
            ("a=Path=/; Path=", "a=Path=/; Path="),
            ("__Host-a=1; Path=/; Secure", "__Host-a=1; Path=/; Secure"),
            ("a=1; Domain=app.internal.example", "a=1; Domain=www.example.com"),
            ("a=1; Domain=.Internal.Example; Path=/", "a=1; Domain=www.example.com; Path=/app"),
            ("a=1; Domain=example.com", "a=1; Domain=example.com"),
            ("a=1; Domain=other.example", "a=1; Domain=other.example"),
            ("a=1; Domain=", "a=1; Domain="),
        ] {
            assert_eq!(mapped(&rewrite, client, "set-cookie", cookie), expected, "{cookie}");
        }
        let unknown = UrlOrigin { is_https: true, authority: "" };
        assert_eq!(mapped(&rewrite, unknown, "set-cookie", "a=1; Domain=10.0.0.7; Secure"), "a=1; Secure");
    }
}
