//! The canonical form of paths; `authority` has that of hosts. Requests that a server could treat as equal have the
//! same canonical form, and routing, limits and logs read only that form. Values of overrides and of the admin API are
//! brought into the same form.
//!
//! Servers get the canonical host and path too, with one exception: a character that a path may have plain or encoded,
//! such as `@` and `%40`, stays in the client's spelling ([`CanonicalPath`]).

pub mod authority;

use std::convert::Infallible;

use crate::text::{hex_byte, push_percent_encoded};

/// A fault of a path: servers may read such a path in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFault {
    Control,
    Slash,
    Backslash,
    Percent,
    NonAscii,
    AboveRoot,
    DotParameter,
    SlashDots,
}

/// The canonical form of a path, in two spellings of the same segments. They differ only in characters that RFC 3986
/// allows in a segment but reserves, such as `@`, `:` and `;`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CanonicalPath {
    /// The spelling for servers, which keeps those characters as the client wrote them: signatures are computed over
    /// it, and to some servers `;` has a meaning that `%3B` lacks. `None` if the path was received so.
    sent: Option<String>,
    /// The spelling that everything in the gateway reads, with those characters decoded. `None` if `sent` is the same.
    read: Option<String>,
}

impl CanonicalPath {
    /// Returns the path that everything in the gateway reads.
    pub fn to_read<'p>(&'p self, received: &'p str) -> &'p str {
        self.read.as_deref().unwrap_or_else(|| self.to_send(received))
    }

    /// Returns the path for servers.
    pub fn to_send<'p>(&'p self, received: &'p str) -> &'p str {
        self.sent.as_deref().unwrap_or(received)
    }

    /// Returns true if servers get another path than the one received.
    pub fn is_sent_rewritten(&self) -> bool {
        self.sent.is_some()
    }
}

/// A host with an optional port, read from a `Host` header or a request target.
/// Returns the canonical form of an absolute path, whatever faults it has.
pub fn repair_path(raw: &str) -> CanonicalPath {
    let accept = |_| Ok::<(), Infallible>(());
    match canonicalize_path(raw, accept) {
        Ok(path) => path,
        Err(never) => match never {},
    }
}

/// Returns the canonical form of an absolute path.
///
/// Characters that a segment may contain are decoded, other encodings are in upper case, and characters that a path
/// must not contain are encoded. Repeated slashes are merged and dot segments resolved. A trailing slash stays. The
/// spelling for servers decodes unreserved characters only.
///
/// `report` decides about each fault: the fault is repaired, or the path is refused with an error.
///
/// # Errors
/// An error of `report`.
pub fn canonicalize_path<E>(raw: &str, report: impl FnMut(PathFault) -> Result<(), E>) -> Result<CanonicalPath, E> {
    if is_canonical(raw.as_bytes()) {
        return Ok(CanonicalPath::default());
    }
    rewrite_path(raw, RepeatedSlashes::Merge, report)
}

/// Returns the form of an absolute path that differs from the canonical one only in repeated slashes, which stay. With
/// these merged, it is the canonical path: a dot segment removes the segment before it, not an empty one.
pub fn keep_repeated_slashes(raw: &str) -> CanonicalPath {
    let accept = |_| Ok::<(), Infallible>(());
    match rewrite_path(raw, RepeatedSlashes::Keep, accept) {
        Ok(path) => path,
        Err(never) => match never {},
    }
}

/// The treatment of empty segments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RepeatedSlashes {
    Merge,
    Keep,
}

fn rewrite_path<E>(
    raw: &str,
    slashes: RepeatedSlashes,
    mut report: impl FnMut(PathFault) -> Result<(), E>,
) -> Result<CanonicalPath, E> {
    // The empty texts before the first slash and after the last are not segments.
    let last = raw.split('/').count() - 1;
    let mut out = String::with_capacity(raw.len() + 8);
    let mut depth_exceeded = false;
    let (mut dot_parameter, mut slash_dots) = (false, false);
    for (index, segment) in raw.split('/').enumerate() {
        let start = out.len();
        out.push('/');
        write_segment(segment.as_bytes(), &mut out, &mut report)?;
        match &out[start + 1..] {
            "" if slashes == RepeatedSlashes::Keep && index > 0 && index < last => {}
            "" | "." => out.truncate(start),
            ".." => {
                out.truncate(start);
                match out.trim_end_matches('/').rfind('/') {
                    Some(parent) => out.truncate(parent),
                    None => {
                        out.clear();
                        depth_exceeded = true;
                    }
                }
            }
            segment => {
                let literals = decode_literals(segment);
                let segment = literals.as_deref().unwrap_or(segment);
                dot_parameter |= segment.starts_with(".;") || segment.starts_with("..;");
                slash_dots |= segment.contains("%2F") && segment.split("%2F").any(is_dot_segment);
            }
        }
    }
    if depth_exceeded {
        report(PathFault::AboveRoot)?;
    }
    if dot_parameter {
        report(PathFault::DotParameter)?;
    }
    if slash_dots {
        report(PathFault::SlashDots)?;
    }
    if ends_with_slash(raw) || out.is_empty() {
        out.push('/');
    }
    let read = decode_literals(&out);
    Ok(CanonicalPath { sent: (out != raw).then_some(out), read })
}

/// Decodes the characters of a path that may be plain in a segment. In `path`, each `%` must begin an encoded byte.
/// Returns `None` if there are none.
fn decode_literals(path: &str) -> Option<String> {
    let mut output = String::new();
    let mut start = 0;
    for (at, _) in path.match_indices('%') {
        let digits = path.as_bytes()[at + 1..].first_chunk::<2>();
        if let Some(byte) = digits.and_then(|[high, low]| hex_byte(*high, *low)).filter(|byte| is_segment_byte(*byte)) {
            output.push_str(&path[start..at]);
            output.push(char::from(byte));
            start = at + 3;
        }
    }
    (start > 0).then(|| output + &path[start..])
}

/// Returns how a piece of the canonical path, from `start` to `end`, is spelled in the path for servers. Where they
/// differ, `sent` has an encoded character, or further slashes after one. Slashes between two pieces belong to the
/// first, and those at the end of the path to the last: with its slashes merged, each piece is the canonical one.
pub fn find_sent_piece<'p>(canonical: &str, sent: &'p str, start: usize, end: usize) -> &'p str {
    if canonical.len() == sent.len() {
        return sent.get(start..end).unwrap_or_default();
    }
    let bytes = sent.as_bytes();
    let (mut at, mut piece_start) = (0, 0);
    for (index, byte) in canonical.bytes().enumerate().take(end) {
        if index == start {
            piece_start = at;
        }
        at += if bytes.get(at) == Some(&byte) { 1 } else { "%XX".len() };
        while byte == b'/' && bytes.get(at) == Some(&b'/') {
            at += 1;
        }
    }
    if start < end { sent.get(piece_start..at).unwrap_or_default() } else { "" }
}

/// Returns segment `index` of a path, from 0. Empty segments do not count, because no route matches them.
pub fn find_segment(path: &str, index: usize) -> Option<&str> {
    path.split('/').filter(|segment| !segment.is_empty()).nth(index)
}

/// Returns whether a canonical path has the byte plain in its segments (`pchar` in RFC 3986). All other bytes are
/// encoded.
pub const fn is_segment_byte(byte: u8) -> bool {
    matches!(CLASS[byte as usize], PLAIN | DOT)
}

/// Returns true if a server that decodes slashes could read `piece` as a dot segment.
fn is_dot_segment(piece: &str) -> bool {
    matches!(piece.split(';').next(), Some("." | ".."))
}

/// Returns true if the last segment is empty or a dot segment, in any spelling.
fn ends_with_slash(raw: &str) -> bool {
    let last = raw.rsplit('/').next().unwrap_or_default();
    if last.len() > "%2e%2e".len() {
        return false;
    }
    matches!(last.to_ascii_lowercase().replace("%2e", ".").as_str(), "" | "." | "..")
}

/// Checks in one scan, without allocating, whether a path is certainly canonical. Never returns true for a path that is
/// not. May return false for one that is: `/.well-known` is recognized, `/a%20b` is not.
fn is_canonical(raw: &[u8]) -> bool {
    if raw.first() != Some(&b'/') {
        return false;
    }
    let mut at_start = false;
    for (i, byte) in raw.iter().enumerate() {
        match CLASS[usize::from(*byte)] {
            PLAIN => at_start = false,
            SLASH if at_start => return false,
            SLASH => at_start = true,
            DOT if at_start => {
                if matches!(raw.get(i + 1), None | Some(b'/' | b'.' | b';')) {
                    return false;
                }
                at_start = false;
            }
            DOT => {}
            _ => return false,
        }
    }
    true
}

const OTHER: u8 = 0;
const PLAIN: u8 = 1;
const SLASH: u8 = 2;
const DOT: u8 = 3;

const CLASS: [u8; 256] = {
    let mut class = [OTHER; 256];
    let plain = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_~!$&'()*+,;=:@";
    let mut i = 0;
    while i < plain.len() {
        class[plain[i] as usize] = PLAIN;
        i += 1;
    }
    class[b'/' as usize] = SLASH;
    class[b'.' as usize] = DOT;
    class
};

fn write_segment<E>(
    segment: &[u8],
    out: &mut String,
    report: &mut impl FnMut(PathFault) -> Result<(), E>,
) -> Result<(), E> {
    let mut i = 0;
    while let Some(byte) = segment.get(i) {
        i += 1;
        match *byte {
            b'%' => {
                let digits = segment[i..].first_chunk::<2>();
                let Some(decoded) = digits.and_then(|[high, low]| hex_byte(*high, *low)) else {
                    report(PathFault::Percent)?;
                    push_percent_encoded(out, b'%');
                    continue;
                };
                i += 2;
                write_decoded(decoded, out, report)?;
            }
            b'\\' => {
                report(PathFault::Backslash)?;
                push_percent_encoded(out, b'\\');
            }
            byte if byte < 0x20 || byte == 0x7f => {
                report(PathFault::Control)?;
                push_percent_encoded(out, byte);
            }
            byte if !byte.is_ascii() => {
                report(PathFault::NonAscii)?;
                push_percent_encoded(out, byte);
            }
            byte if CLASS[usize::from(byte)] == OTHER => push_percent_encoded(out, byte),
            byte => out.push(char::from(byte)),
        }
    }
    Ok(())
}

/// Writes a byte that was percent-encoded for servers: plain if it is unreserved, else encoded in upper case.
fn write_decoded<E>(byte: u8, out: &mut String, report: &mut impl FnMut(PathFault) -> Result<(), E>) -> Result<(), E> {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            out.push(char::from(byte));
            return Ok(());
        }
        b'/' => report(PathFault::Slash)?,
        b'\\' => report(PathFault::Backslash)?,
        0..0x20 | 0x7f => report(PathFault::Control)?,
        _ => {}
    }
    push_percent_encoded(out, byte);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn repeated_slashes_stay_on_request() {
        for (raw, kept) in [
            ("/300x200/https://cdn.test/a.png", "/300x200/https://cdn.test/a.png"),
            ("//", "//"),
            ("///a", "///a"),
            ("/a//", "/a//"),
            ("/a//../b", "/b"),
            ("/a/b//../c", "/a/c"),
            ("//../a", "/a"),
            ("/a//b/..", "/a//"),
            ("/.//a", "//a"),
            ("/a/./b", "/a/b"),
            ("/%61//%40", "/a//%40"),
            ("/a", "/a"),
            ("", "/"),
        ] {
            let path = keep_repeated_slashes(raw);
            assert_eq!(path.to_send(raw), kept, "{raw}");
            assert_eq!(path.is_sent_rewritten(), raw != kept, "{raw}");
        }
    }

    proptest! {
        #[test]
        fn kept_slashes_are_the_only_difference(raw in r"/([a-b]|/|//|\.\./|\./|%2[eEfF]|%40|;){0,16}", cut in any::<(u8, u8)>()) {
            let (kept, canonical) = (keep_repeated_slashes(&raw), repair_path(&raw));
            let (kept_read, kept_sent) = (kept.to_read(&raw), kept.to_send(&raw));
            let (read, sent) = (canonical.to_read(&raw), canonical.to_send(&raw));
            let again = repair_path(kept_sent);
            prop_assert_eq!((again.to_read(kept_sent), again.to_send(kept_sent)), (read, sent));
            let stable = keep_repeated_slashes(kept_sent);
            prop_assert_eq!((stable.to_read(kept_sent), stable.to_send(kept_sent)), (kept_read, kept_sent));
            // Pieces of the path are pieces of the canonical one.
            let mut cuts = [usize::from(cut.0) % (read.len() + 1), usize::from(cut.1) % (read.len() + 1)];
            cuts.sort_unstable();
            let [start, end] = cuts;
            let pieces = [(0, start), (start, end), (end, read.len())].map(|(from, to)| find_sent_piece(read, kept_sent, from, to));
            prop_assert_eq!(pieces.concat(), kept_sent);
            let plain = |text: &str| {
                let mut text = decode_literals(text).unwrap_or_else(|| text.to_owned());
                while text.contains("//") {
                    text = text.replace("//", "/");
                }
                text
            };
            prop_assert_eq!(plain(pieces[1]), &read[start..end]);
        }
    }
}
