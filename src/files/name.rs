//! Makes the name of a file from the path of a request.
//!
//! The path is canonical: it has no dot segments, and each `%` begins an encoded byte. It is decoded once, here. A
//! segment that a file system or another program could read differently is not a name: encoded slashes and backslashes,
//! control characters, and segments that begin with a dot, such as `.git` and `.env`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The only segment with a dot that is served, at the start of a path (RFC 8615).
const WELL_KNOWN: &[u8] = b".well-known";

/// A name within the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Relative to the folder, without a slash at its end. The folder itself is `.`.
    pub name: PathBuf,
    /// The path ends with a slash, so that only a folder fits.
    pub is_folder: bool,
    /// The name contains the path of the request.
    pub is_requested: bool,
}

impl Candidate {
    /// Parses an encoded path that begins with a slash. `is_requested`: it is made of the path of the request. `None`
    /// if no file may have such a name.
    pub fn parse(path: &str, is_requested: bool) -> Option<Candidate> {
        let path = path.strip_prefix('/')?;
        let (segments, is_folder) = match path.strip_suffix('/') {
            Some(segments) => (segments, true),
            None => (path, path.is_empty()),
        };
        if path.is_empty() {
            return Some(Candidate { name: PathBuf::from("."), is_folder, is_requested });
        }
        let mut name = Vec::with_capacity(segments.len());
        for (index, segment) in segments.split('/').enumerate() {
            let decoded: Vec<u8> = percent_encoding::percent_decode_str(segment).collect();
            let is_hidden = decoded.starts_with(b".") && (index > 0 || decoded != WELL_KNOWN);
            let is_plain = |byte: &u8| !byte.is_ascii_control() && !matches!(byte, b'/' | b'\\');
            if decoded.is_empty() || is_hidden || !decoded.iter().all(is_plain) {
                return None;
            }
            if index > 0 {
                name.push(b'/');
            }
            name.extend_from_slice(&decoded);
        }
        Some(Candidate { name: PathBuf::from(OsString::from_vec(name)), is_folder, is_requested })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::path::Component;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_is_decoded_once() {
        for (path, name, is_folder) in [
            ("/", ".", true),
            ("/a", "a", false),
            ("/a/b.js", "a/b.js", false),
            ("/a/b/", "a/b", true),
            ("/a%20b%3F", "a b?", false),
            ("/a%2541", "a%41", false),
            ("/%C3%A9", "é", false),
            ("/...", "", false),
            ("/a.b..c", "a.b..c", false),
            ("/.well-known/security.txt", ".well-known/security.txt", false),
            ("/%2Ewell-known/x", ".well-known/x", false),
        ] {
            let expected =
                (!name.is_empty()).then(|| Candidate { name: PathBuf::from(name), is_folder, is_requested: true });
            assert_eq!(Candidate::parse(path, true), expected, "{path}");
        }
    }

    #[test]
    fn no_other_name_is_served() {
        for path in [
            "",
            "a",
            "//",
            "//a",
            "/a//b",
            "/a//",
            "/.env",
            "/.git/config",
            "/a/.git",
            "/%2Eenv",
            "/a/%2e%2e/b",
            "/..",
            "/../etc/passwd",
            "/a/..",
            "/a/.well-known/x",
            "/..;/a",
            "/a%2Fb",
            "/a%2F..%2Fb",
            "/%2F",
            "/a%5Cb",
            "/..%5C..%5Cx",
            "/a%00",
            "/a%00.html",
            "/a%0A",
            "/a%7F",
            "/about/.html",
            "/.well-known/.x",
            "/.",
        ] {
            assert_eq!(Candidate::parse(path, true), None, "{path}");
        }
        assert_eq!(Candidate::parse("/%252E%252E/a", true).map(|found| found.name), Some(PathBuf::from("%2E%2E/a")));
    }

    proptest! {
        #[test]
        fn a_name_stays_beneath_the_folder(path in "(/|\\.|%2[eEfF]|%5[cC]|%00|%25|a|\\\\|~|;){0,24}") {
            let Some(Candidate { name, .. }) = Candidate::parse(&path, true) else { return Ok(()) };
            let is_normal = |part: Component| matches!(part, Component::Normal(_) | Component::CurDir);
            prop_assert!(name.components().all(is_normal), "{path}: {name:?}");
            prop_assert!(!name.as_os_str().as_bytes().contains(&0), "{path}");
        }
    }
}
