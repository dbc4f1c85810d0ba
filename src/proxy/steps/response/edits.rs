//! The changes that a route makes to the headers of responses.

use http::header::{LOCATION, REFRESH};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::proxy::head::headers::apply_edits;
use crate::proxy::steps::response::locations::split_refresh;
use crate::route::ResponseEdit;

/// Applies the edits of a route to the headers of a response with this status.
pub fn apply_response_edits(headers: &mut HeaderMap, status: StatusCode, edit: &ResponseEdit) {
    apply_edits(headers, &edit.edit);
    for (name, value) in &edit.default {
        if !headers.contains_key(name) {
            headers.insert(name, value.clone());
        }
    }
    let on_success = edit.add_on_success.iter().filter(|_| ResponseEdit::is_success(status));
    for (name, value) in edit.add.iter().chain(on_success) {
        headers.append(name, value.clone());
    }
}

/// Replaces the start of `Location`, and of the URL in `Refresh`, with the value in the table of the route. The longest
/// matching start counts.
pub fn rewrite_locations(headers: &mut HeaderMap, locations: &[(String, String)]) {
    if locations.is_empty() {
        return;
    }
    for name in [LOCATION, REFRESH] {
        let Some(value) = headers.get(&name).and_then(|value| value.to_str().ok()) else { continue };
        let parts = if name == LOCATION { Some(("", value, "")) } else { split_refresh(value) };
        let Some((before, url, after)) = parts else { continue };
        let candidates = locations.iter().filter(|(from, _)| url.starts_with(from.as_str()));
        let Some((from, to)) = candidates.max_by_key(|(from, _)| from.len()) else { continue };
        let rewritten = format!("{to}{}", &url[from.len()..]);
        let dot = if names_host(&rewritten) && !names_host(to) { "/." } else { "" };
        if let Ok(rewritten) = HeaderValue::from_str(&format!("{before}{dot}{rewritten}{after}")) {
            headers.insert(name, rewritten);
        }
    }
}

/// Returns whether browsers read the start of a relative URL as a host, as in `//example.com`. A URL of the server that
/// has two slashes after its host would become such a one.
fn names_host(url: &str) -> bool {
    let mut letters = url.chars().filter(|letter| *letter != '\t');
    [letters.next(), letters.next()].iter().all(|letter| matches!(letter, Some('/' | '\\')))
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;
    use crate::route::HeaderEdit;

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn added_lines_stand_beside_those_of_the_response() {
        let x = HeaderName::from_static;
        let line = |name, value| (x(name), HeaderValue::from_static(value));
        let change = ResponseEdit {
            edit: HeaderEdit { remove: vec![x("x-gone")], set: vec![line("x-set", "new")], stated: Vec::new() },
            default: vec![line("x-default", "d"), line("x-own", "d")],
            add: vec![line("vary", "Origin"), line("vary", "Cookie")],
            add_on_success: vec![line("x-ok", "1")],
            on_refusals: false,
        };
        let app = [("x-gone", "1"), ("x-set", "old"), ("x-own", "app"), ("vary", "Accept")];
        let kept = [("x-set", "new"), ("x-own", "app"), ("vary", "Accept"), ("vary", "Origin"), ("vary", "Cookie")];
        for status in 200..600 {
            let mut headers = map(&app);
            apply_response_edits(&mut headers, StatusCode::from_u16(status).unwrap(), &change);
            let mut expected = map(&kept);
            expected.insert("x-default", HeaderValue::from_static("d"));
            if [200, 201, 204, 206, 301, 302, 303, 304, 307, 308].contains(&status) {
                expected.insert("x-ok", HeaderValue::from_static("1"));
            }
            assert_eq!(headers, expected, "{status}");
        }
    }

    #[test]
    fn the_longest_start_of_a_location_is_replaced() {
        let text = |text: &str| text.to_owned();
        let locations = [(text("http://app/"), text("/")), (text("http://app/v1/"), text("/api/"))];
        for (name, from, to) in [
            ("location", "http://app/x?y", "/x?y"),
            ("location", "http://app/v1/x", "/api/x"),
            ("location", "https://app/x", "https://app/x"),
            ("location", "/x", "/x"),
            ("location", "http://app//evil.test/", "/.//evil.test/"),
            ("location", "http://app/\\evil.test/", "/./\\evil.test/"),
            ("location", "http://app/\t/evil.test/", "/./\t/evil.test/"),
            ("location", "http://app/x//y", "/x//y"),
            ("refresh", "5; url=http://app//evil.test/", "5; url=/.//evil.test/"),
            ("refresh", "0; URL=http://app/x", "0; URL=/x"),
            ("refresh", "0;url = 'http://app/x'", "0;url = '/x'"),
            ("refresh", "0; http://app/x", "0; /x"),
            ("refresh", "0; /go?url=http://app/x", "0; /go?url=http://app/x"),
            ("refresh", "5", "5"),
            ("x-location", "http://app/x", "http://app/x"),
        ] {
            let mut headers = map(&[(name, from)]);
            rewrite_locations(&mut headers, &locations);
            assert_eq!(headers, map(&[(name, to)]), "{name}: {from}");
        }
    }
}
