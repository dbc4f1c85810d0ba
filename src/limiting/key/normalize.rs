//! Normalization of the values of a key part: the option `normalize`. It makes the spellings that an application treats
//! as one account one value.
//!
//! The steps run in config order, and then again until a round changes nothing. So a normalized value is unchanged when
//! it is normalized again, as happens with a value that an operator copies from a page. One round is not enough in an
//! order like `lowercase`, `nfkc`, because NFKC makes capital letters of mathematical ones.
//!
//! A value may be any bytes. Valid UTF-8 in it is normalized, and other bytes stay as they are, so they neither make a
//! new spelling of the rest nor disappear; only the white space of Latin-1 is trimmed. A step that would make a value
//! longer than both itself and [`GROWN_MAX`] cuts it there.

use std::borrow::Cow;

use memchr::memrchr;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfkc_quick};

use crate::labels::labels;
use crate::limiting::source::inputs::{LATIN_1_SPACES, is_trimmed_by_some};

labels! {
    /// One step of a normalization.
    Normalization:
    /// Letters in lower case, as Unicode maps single characters; a final sigma is a sigma.
    Lowercase = "lowercase",
    /// Removes white space, control characters and invisible spaces at both ends.
    Trim = "trim",
    /// Unicode normalization form KC: full-width and other presentation forms are the plain characters.
    Nfkc = "nfkc",
    /// The mailbox of an address.
    Email = "email",
}

/// Length in bytes that a value may grow to. NFKC makes up to 18 characters of one.
const GROWN_MAX: usize = 4096;
/// Rounds after which a value is taken as it is. A test shows that no character needs more.
const ROUNDS_MAX: usize = 4;
/// Longest domain that is converted to its ASCII form.
const DOMAIN_MAX: usize = 253;

/// Applies the steps until they change nothing.
pub fn normalize<'v>(value: Cow<'v, [u8]>, steps: &[Normalization]) -> Cow<'v, [u8]> {
    let mut value = value;
    for _ in 0..ROUNDS_MAX {
        let mut is_changed = false;
        for step in steps {
            if let Some(changed) = step.apply(&value) {
                value = changed.into();
                is_changed = true;
            }
        }
        if !is_changed {
            break;
        }
    }
    value
}

impl Normalization {
    /// Applies the step. Returns `None` if it changes nothing.
    fn apply(self, value: &[u8]) -> Option<Vec<u8>> {
        let changed = match self {
            Normalization::Lowercase => lowercase(value)?,
            Normalization::Trim => trim(value).to_vec(),
            Normalization::Nfkc => compose(value)?,
            Normalization::Email => fold_email(value)?,
        };
        (changed != value).then_some(changed)
    }
}

/// Maps the text in `value`. `map` passes on the characters of a piece until its callback returns false. Cuts the
/// result if it grows too long.
fn map_text(value: &[u8], map: impl Fn(&str, &mut dyn FnMut(char) -> bool) -> bool) -> Vec<u8> {
    let most = value.len().max(GROWN_MAX);
    let mut output = Vec::with_capacity(value.len());
    let mut push = |bytes: &[u8]| {
        let fits = output.len() + bytes.len() <= most;
        if fits {
            output.extend_from_slice(bytes);
        }
        fits
    };
    for chunk in value.utf8_chunks() {
        let is_whole = map(chunk.valid(), &mut |character| push(character.encode_utf8(&mut [0; 4]).as_bytes()));
        if !is_whole || !push(chunk.invalid()) {
            break;
        }
    }
    output
}

fn lowercase(value: &[u8]) -> Option<Vec<u8>> {
    if value.is_ascii() {
        return value.iter().any(u8::is_ascii_uppercase).then(|| value.to_ascii_lowercase());
    }
    let lower = |character: char| character.to_lowercase().map(|lower| if lower == 'ς' { 'σ' } else { lower });
    Some(map_text(value, |text, push| text.chars().flat_map(lower).all(push)))
}

fn compose(value: &[u8]) -> Option<Vec<u8>> {
    let is_composed = |text: &str| text.is_ascii() || is_nfkc_quick(text.chars()) == IsNormalized::Yes;
    if value.utf8_chunks().all(|chunk| is_composed(chunk.valid())) {
        return None;
    }
    Some(map_text(value, |text, push| text.nfkc().all(push)))
}

/// Removes what some program trims. A single pass, as a client may send nothing else.
fn trim(value: &[u8]) -> &[u8] {
    let (mut start, mut end, mut at) = (None, 0, 0);
    for chunk in value.utf8_chunks() {
        let (text, other) = (chunk.valid(), chunk.invalid());
        let rest = text.trim_start_matches(is_trimmed_by_some);
        if !rest.is_empty() {
            start.get_or_insert(at + text.len() - rest.len());
            end = at + text.trim_end_matches(is_trimmed_by_some).len();
        }
        at += text.len();
        let is_space = matches!(other, [byte] if LATIN_1_SPACES.contains(byte));
        if !other.is_empty() && !is_space {
            start.get_or_insert(at);
            end = at + other.len();
        }
        at += other.len();
    }
    &value[start.unwrap_or(end)..end]
}

/// Returns the mailbox of an address: everything in lower case, the domain in its ASCII form and without a dot at the
/// end, the local part without `+` and what follows. For `gmail.com` and `googlemail.com`, which are one, the dots of
/// the local part are left out too. A step that would leave nothing of the local part is left out, and so are all for
/// one in quotes. `None`: the value is not an address, because it has no `@` with text on both sides.
fn fold_email(value: &[u8]) -> Option<Vec<u8>> {
    let at = memrchr(b'@', value).filter(|at| *at > 0 && at + 1 < value.len())?;
    let lower = |part: &[u8]| lowercase(part).unwrap_or_else(|| part.to_vec());
    let (mut local, mut domain) = (lower(&value[..at]), lower(&value[at + 1..]));
    if domain.len() <= DOMAIN_MAX
        && let Some(ascii) = str::from_utf8(&domain).ok().and_then(|domain| idna::domain_to_ascii(domain).ok())
        && !ascii.is_empty()
    {
        domain = ascii.into_bytes();
    }
    if let [rest @ .., b'.'] = &*domain
        && !rest.is_empty()
    {
        domain.pop();
    }
    if !local.starts_with(b"\"") {
        if let Some(plus) = local.iter().position(|byte| *byte == b'+').filter(|plus| *plus > 0) {
            local.truncate(plus);
        }
        let is_google = matches!(&*domain, b"gmail.com" | b"googlemail.com");
        if is_google {
            domain = b"gmail.com".to_vec();
        }
        if is_google && local.iter().any(|byte| *byte != b'.') {
            local.retain(|byte| *byte != b'.');
        }
    }
    local.push(b'@');
    local.extend_from_slice(&domain);
    Some(local)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Normalization::{Email, Lowercase, Nfkc, Trim};
    use super::*;

    fn apply(value: &[u8], steps: &[Normalization]) -> Vec<u8> {
        normalize(value.into(), steps).into_owned()
    }

    fn text(value: &str, steps: &[Normalization]) -> String {
        String::from_utf8(apply(value.as_bytes(), steps)).unwrap()
    }

    #[test]
    fn each_step_makes_its_spellings_one() {
        for (steps, written, normal) in [
            (&[Lowercase][..], "ANNA@Example.COM", "anna@example.com"),
            (&[Lowercase], "ÄNNA ÉTÉ", "änna été"),
            (&[Lowercase], "ΟΔΥΣΣΕΥΣ", "οδυσσευσ"),
            (&[Lowercase], "οδυσσευς", "οδυσσευσ"),
            (&[Lowercase], " Anna", " anna"),
            (&[Lowercase], "\u{212a}", "k"),
            (&[Trim], "\u{feff}\u{3000} Anna b\t\r\n\0\u{200b}", "Anna b"),
            (&[Trim], " \u{a0} ", ""),
            (&[Nfkc], "ａｎｎａ＠example．com", "anna@example.com"),
            (&[Nfkc], "A\u{308}nna ﬁ", "Änna fi"),
            (&[Lowercase, Trim, Nfkc], "𝐀ＮＮＡ\u{2003}", "anna"),
            (&[Email], "Anna.Smith+news@Example.com.", "anna.smith@example.com"),
            (&[Email], "A.n.n.a+x+y@GoogleMail.com", "anna@gmail.com"),
            (&[Email], "anna@Bücher.example", "anna@xn--bcher-kva.example"),
            (&[Email], "anna@xn--bcher-kva.example", "anna@xn--bcher-kva.example"),
            (&[Email], "+news@example.com", "+news@example.com"),
            (&[Email], "..+x@gmail.com", "..@gmail.com"),
            (&[Email], "\"A+b\"@gmail.com", "\"a+b\"@gmail.com"),
            (&[Email], "a@b+c@example.com", "a@b@example.com"),
            (&[Email], "Anna+x", "Anna+x"),
            (&[Email], "Anna@", "Anna@"),
            (&[Email], "@Example.com", "@Example.com"),
            (&[Lowercase, Trim, Nfkc, Email], " Ａnna+x＠GMAIL。com", "anna@gmail.com"),
            (&[Lowercase], "", ""),
        ] {
            assert_eq!(text(written, steps), normal, "{written:?} {steps:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_stay_and_the_rest_is_normalized() {
        let all = [Lowercase, Trim, Nfkc, Email];
        assert_eq!(apply(b" \xffANNA\xfe+x@Example.com ", &all), b"\xffanna\xfe@example.com");
        assert_eq!(apply(b"\xff \xff", &[Trim]), b"\xff \xff");
        for value in [&b"\xa0k1"[..], b"\x85 \xa0k1", b"k1\xa0\xa0", b"k1 \x85\t", b"\xa0k1\xc2\xa0\xa0"] {
            assert_eq!(apply(value, &[Trim]), b"k1", "{value:?}");
        }
        assert_eq!(apply(b"\xa0\x85", &[Trim]), b"");
        assert_eq!(apply(b" \xffa\xa0b \xe2\x85 ", &[Trim]), b"\xffa\xa0b \xe2\x85");
        assert_eq!(apply(b" A\xc3", &[Trim, Lowercase]), b"a\xc3");
    }

    /// A round for each step that another one enables, and one that finds nothing to do.
    #[test]
    fn no_character_needs_more_rounds() {
        let orders = [[Lowercase, Trim, Nfkc, Email], [Email, Nfkc, Trim, Lowercase], [Nfkc, Lowercase, Email, Trim]];
        for character in '\0'..=char::MAX {
            for steps in &orders {
                let once = text(&format!("x{character}@a"), steps);
                assert_eq!(text(&once, steps), once, "{character:?} {steps:?}");
            }
        }
    }

    #[test]
    fn growth_is_bounded() {
        let value = "\u{fdfa}".repeat(20_000);
        let grown = apply(value.as_bytes(), &[Nfkc, Lowercase]);
        assert!(grown.len() <= value.len() && str::from_utf8(&grown).is_ok());
        assert!(apply("\u{fdfa}".repeat(1000).as_bytes(), &[Nfkc]).len() <= GROWN_MAX);
    }

    proptest! {
        #[test]
        fn normalized_values_stay(
            value in prop_oneof![".{0,12}", "[ a-zA-ZÀ-ÿ\u{300}-\u{345}ﬀ-ﬆＡ-ｚ@+.\"]{0,16}"],
            steps in prop::sample::subsequence(vec![Lowercase, Trim, Nfkc, Email], 1..=4).prop_shuffle(),
        ) {
            let once = apply(value.as_bytes(), &steps);
            prop_assert_eq!(apply(&once, &steps), once);
        }

        #[test]
        fn no_bytes_panic(value in prop::collection::vec(any::<u8>(), 0..64)) {
            let once = apply(&value, Normalization::ALL);
            prop_assert!(once.len() <= GROWN_MAX);
        }

        /// Spellings that differ only in case and in the width of their letters are one.
        #[test]
        fn spellings_are_one(name in "[a-z0-9]{1,8}", mask in any::<u64>()) {
            let spelled: String = name.chars().enumerate().map(|(i, c)| match mask >> (i * 2) & 3 {
                0 => c,
                1 => c.to_ascii_uppercase(),
                2 => char::from_u32(u32::from(c) + 0xfee0).unwrap(),
                _ => char::from_u32(u32::from(c.to_ascii_uppercase()) + 0xfee0).unwrap(),
            }).collect();
            prop_assert_eq!(text(&spelled, &[Lowercase, Nfkc]), name);
        }
    }
}
