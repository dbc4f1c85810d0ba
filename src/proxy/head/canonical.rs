//! Reports what is wrong with a path as reasons to refuse the request. `crate::canonical` has the canonical forms.

use crate::canonical::{self, PathFault};
use crate::ends::End;
use crate::proxy::head::reject::FaultPolicy;

/// Returns the canonical form of an absolute path, or `None` if the path is canonical already.
///
/// # Errors
/// A fault that the strictness of `policy` refuses.
pub fn canonicalize_path(raw: &str, policy: &mut FaultPolicy) -> Result<Option<String>, End> {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Strictness;

    fn at(strictness: Strictness, raw: &str) -> Result<String, End> {
        let canonical = canonicalize_path(raw, &mut FaultPolicy::new(strictness))?;
        assert_ne!(canonical.as_deref(), Some(raw), "a changed path differs");
        Ok(canonical.unwrap_or_else(|| raw.to_owned()))
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
            ("/a%3Bb", "/a%3Bb"),
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
            assert!(!(byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)), "{canonical}");
        }
    }

    proptest! {
        #[test]
        fn canonical_paths_are_stable(
            raw in prop_oneof![r"/([a-b]|/|\.|%2[eEfF]|%[0-9a-fA-F]{2}|%|\\|;|é|\{){0,24}", r"/\PC*"],
        ) {
            for strictness in [Strictness::Strict, Strictness::Defensive, Strictness::Monitor] {
                let Ok(canonical) = at(strictness, &raw) else { continue };
                checked(&canonical);
                let again = canonicalize_path(&canonical, &mut FaultPolicy::new(strictness));
                prop_assert_eq!(again, Ok(None), "{} of {}", canonical, raw);
                if let Ok(strict) = at(Strictness::Strict, &raw) {
                    prop_assert_eq!(canonical, strict, "what strict admits, all read alike");
                }
            }
        }

        #[test]
        fn spellings_of_a_path_meet_in_one_form(
            segments in proptest::collection::vec("[a-zA-Z0-9_~-]{1,4}", 0..5),
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
    }
}
