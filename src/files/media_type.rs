//! The `Content-Type` of a file by its extension: the table of `mime_guess`, with a few entries that browsers expect
//! otherwise.

use std::path::Path;

use http::HeaderValue;

/// A file whose extension says nothing. Browsers store it.
const UNKNOWN: &str = "application/octet-stream";

/// Entries that the table lacks, or that are older there.
const OWN: [(&str, &str); 4] = [
    ("map", "application/json"),
    ("mjs", "text/javascript"),
    // Pieces of HTTP Live Streaming. Nobody serves TypeScript to browsers.
    ("ts", "video/mp2t"),
    // With a parameter, the declaration in the file would not count (RFC 7303, section 8.3).
    ("xml", "application/xml"),
];

/// Returns the type of a file. Text is UTF-8.
pub fn find_media_type(name: &Path) -> HeaderValue {
    let extension = name.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let own = OWN.iter().find(|(known, _)| extension.eq_ignore_ascii_case(known)).map(|(_, own)| *own);
    let media_type = own.or_else(|| mime_guess::from_ext(extension).first_raw()).unwrap_or(UNKNOWN);
    if media_type.starts_with("text/") {
        HeaderValue::try_from(format!("{media_type}; charset=utf-8")).unwrap_or(HeaderValue::from_static(UNKNOWN))
    } else {
        HeaderValue::from_static(media_type)
    }
}

/// Returns whether a type is the type of HTML pages.
pub fn is_html(media_type: &HeaderValue) -> bool {
    media_type.as_bytes().starts_with(b"text/html")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_those_that_browsers_expect() {
        for (name, media_type) in [
            ("index.html", "text/html; charset=utf-8"),
            ("A.HTML", "text/html; charset=utf-8"),
            ("app.3f2a.js", "text/javascript; charset=utf-8"),
            ("app.mjs", "text/javascript; charset=utf-8"),
            ("app.css", "text/css; charset=utf-8"),
            ("app.js.map", "application/json"),
            ("data.json", "application/json"),
            ("feed.xml", "application/xml"),
            ("logo.svg", "image/svg+xml"),
            ("a.wasm", "application/wasm"),
            ("a.woff2", "font/woff2"),
            ("a.avif", "image/avif"),
            ("site.webmanifest", "application/manifest+json"),
            ("favicon.ico", "image/x-icon"),
            ("video.mp4", "video/mp4"),
            ("robots.txt", "text/plain; charset=utf-8"),
            ("a.tar.gz", "application/gzip"),
            ("LICENSE", UNKNOWN),
            (".htaccess", UNKNOWN),
            ("a.unknown-type", UNKNOWN),
        ] {
            assert_eq!(find_media_type(Path::new(name)), media_type, "{name}");
        }
    }
}
