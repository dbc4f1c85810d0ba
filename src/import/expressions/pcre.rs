//! Reads regular expressions as nginx does: PCRE without UTF mode, which compares bytes, repeats the last byte of a
//! character, and ignores the case of ASCII letters only. It reads what is known to mean the same as in the tree that it
//! returns, and refuses everything else.

use regex_syntax::hir::{Class, ClassBytes, ClassBytesRange, Hir, Look, Repetition};

/// The deepest nesting of groups.
const NEST_MAX: u32 = 50;
/// The largest number of a repetition in PCRE.
const REPEAT_MAX: u32 = 65_535;

/// How to read look-around, back-references, word boundaries and groups without backtracking, which no tree contains.
#[derive(Clone, Copy, PartialEq)]
pub enum Reading {
    /// They are refused.
    Exact,
    /// They are left out, so that the tree matches at least all that the pattern matches.
    Wider,
}

/// A set of bytes.
pub type ByteSet = [bool; 256];

type ByteTest = fn(&u8) -> bool;

/// Reads a pattern. The tree is without captures. No subject has line ends, so `$` is the end. The error says what is
/// not available.
pub fn read_pattern(pattern: &str, ignore_case: bool, reading: Reading) -> Result<Hir, String> {
    let (rest, ignore_case) = pattern.strip_prefix("(?i)").map_or((pattern, ignore_case), |rest| (rest, true));
    let mut reader = PatternReader { rest: rest.as_bytes(), ignore_case, reading, depth: 0 };
    let tree = reader.read_alternatives()?;
    match reader.rest {
        [] => Ok(tree),
        _ => Err("`)` without `(`".to_owned()),
    }
}

/// Makes the tree of a class.
fn make_class(set: &ByteSet) -> Hir {
    let bytes = (0..=u8::MAX).filter(|byte| set[usize::from(*byte)]);
    Hir::class(Class::Bytes(ClassBytes::new(bytes.map(|byte| ClassBytesRange::new(byte, byte)))))
}

/// An item of a pattern, and whether PCRE can repeat it.
struct Item {
    tree: Hir,
    repeats: bool,
}

struct PatternReader<'p> {
    rest: &'p [u8],
    ignore_case: bool,
    reading: Reading,
    depth: u32,
}

impl PatternReader<'_> {
    fn take(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// Takes a text if it is next.
    fn skip(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text.as_bytes());
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn read_alternatives(&mut self) -> Result<Hir, String> {
        let mut branches = vec![self.read_branch()?];
        while self.skip("|") {
            branches.push(self.read_branch()?);
        }
        Ok(Hir::alternation(branches))
    }

    fn read_branch(&mut self) -> Result<Hir, String> {
        let mut parts = Vec::new();
        while !matches!(self.rest.first(), None | Some(b'|' | b')')) {
            let Item { tree, repeats } = self.read_item()?;
            parts.push(self.read_repetition(tree, repeats)?);
        }
        Ok(Hir::concat(parts))
    }

    fn read_item(&mut self) -> Result<Item, String> {
        let anchor = |look| Ok(Item { tree: Hir::look(look), repeats: false });
        match self.take() {
            Some(b'^') => anchor(Look::Start),
            Some(b'$') => anchor(Look::End),
            Some(b'.') => Ok(self.make_item(|byte| byte != b'\n')),
            Some(b'[') => self.read_class().map(|tree| Item { tree, repeats: true }),
            Some(b'(') => self.read_group(),
            Some(b'\\') => self.read_escape(),
            Some(b'*' | b'+' | b'?') => Err("a repetition of nothing".to_owned()),
            Some(b'{') => Err("`{` that is not a repetition".to_owned()),
            Some(byte) => Ok(self.make_item(|other| other == byte)),
            None => Err("an end in the middle".to_owned()),
        }
    }

    /// Creates an item that matches each byte that `contains` accepts.
    fn make_item(&self, contains: impl Fn(u8) -> bool) -> Item {
        let mut set = [false; 256];
        (0..=u8::MAX).for_each(|byte| set[usize::from(byte)] = contains(byte));
        Item { tree: make_class(&self.fold_case(set)), repeats: true }
    }

    /// Adds the other case of the letters in a set, if case does not count.
    fn fold_case(&self, mut set: ByteSet) -> ByteSet {
        for lower in (b'a'..=b'z').filter(|_| self.ignore_case) {
            let both = [usize::from(lower), usize::from(lower.to_ascii_uppercase())];
            let has_one = both.iter().any(|at| set[*at]);
            both.iter().for_each(|at| set[*at] = has_one);
        }
        set
    }

    /// Reads the repetition after an item, if there is one. Whether it is lazy decides where a match ends, not whether
    /// there is one.
    fn read_repetition(&mut self, tree: Hir, repeats: bool) -> Result<Hir, String> {
        let (min, max) = match self.rest.first() {
            Some(b'*') => (0, None),
            Some(b'+') => (1, None),
            Some(b'?') => (0, Some(1)),
            Some(b'{') => return self.read_counts(tree, repeats),
            _ => return Ok(tree),
        };
        self.take();
        self.finish_repetition(tree, repeats, min, max)
    }

    /// Reads `{2}`, `{2,}` or `{2,3}`. Versions of PCRE differ in what else they accept.
    fn read_counts(&mut self, tree: Hir, repeats: bool) -> Result<Hir, String> {
        self.take();
        let wrong = || "`{` that is not a repetition".to_owned();
        let min = self.read_number().ok_or_else(wrong)?;
        let max = match self.skip(",") {
            false => Some(min),
            true if self.rest.first() == Some(&b'}') => None,
            true => Some(self.read_number().ok_or_else(wrong)?),
        };
        if !self.skip("}") || max.is_some_and(|max| max < min) {
            return Err(wrong());
        }
        self.finish_repetition(tree, repeats, min, max)
    }

    fn read_number(&mut self) -> Option<u32> {
        let length = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.rest.split_at(length);
        self.rest = rest;
        str::from_utf8(digits).ok()?.parse().ok().filter(|number| *number <= REPEAT_MAX)
    }

    fn finish_repetition(&mut self, tree: Hir, repeats: bool, min: u32, max: Option<u32>) -> Result<Hir, String> {
        let greedy = !self.skip("?");
        if greedy && self.skip("+") && self.reading == Reading::Exact {
            return Err("a repetition without backtracking, such as `a++`".to_owned());
        }
        if !repeats || matches!(self.rest.first(), Some(b'*' | b'+' | b'?' | b'{')) {
            return Err("a repetition of an anchor or a repetition".to_owned());
        }
        Ok(Hir::repetition(Repetition { min, max, greedy, sub: Box::new(tree) }))
    }

    /// Reads a group after its parenthesis.
    fn read_group(&mut self) -> Result<Item, String> {
        let is_kept = match self.rest {
            [b'*', ..] => return Err("a verb, such as `(*UTF8)`".to_owned()),
            [b'?', ..] => self.read_group_kind()?,
            _ => true,
        };
        self.depth += 1;
        if self.depth > NEST_MAX {
            return Err(format!("groups nested more than {NEST_MAX} deep"));
        }
        let tree = self.read_alternatives()?;
        self.depth -= 1;
        match self.skip(")") {
            true => Ok(Item { tree: if is_kept { tree } else { Hir::empty() }, repeats: true }),
            false => Err("`(` without `)`".to_owned()),
        }
    }

    /// Reads `?:`, the name of a group, or what a tree lacks. Returns false for groups that are left out.
    fn read_group_kind(&mut self) -> Result<bool, String> {
        let is_wider = self.reading == Reading::Wider;
        if self.skip("?:") {
            return Ok(true);
        }
        if ["?=", "?!", "?<=", "?<!"].into_iter().any(|start| self.skip(start)) {
            return if is_wider { Ok(false) } else { Err("look-around".to_owned()) };
        }
        if self.skip("?>") {
            return if is_wider { Ok(true) } else { Err("a group without backtracking, `(?>`".to_owned()) };
        }
        let end = if self.skip("?<") || self.skip("?P<") {
            b'>'
        } else if self.skip("?'") {
            b'\''
        } else {
            return Err("a group that starts with `(?` and an option or a condition".to_owned());
        };
        let length = self.rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
        let is_name = self.rest.first().is_some_and(|first| !first.is_ascii_digit()) && length > 0;
        self.rest = &self.rest[length..];
        match is_name && self.take() == Some(end) {
            true => Ok(true),
            false => Err("a group with a wrong name".to_owned()),
        }
    }

    /// Reads an escape outside of a class, after its backslash.
    fn read_escape(&mut self) -> Result<Item, String> {
        let is_wider = self.reading == Reading::Wider;
        match self.rest.first() {
            Some(b'A') => {
                self.take();
                Ok(Item { tree: Hir::look(Look::Start), repeats: false })
            }
            // No subject has line ends.
            Some(b'z' | b'Z') => {
                self.take();
                Ok(Item { tree: Hir::look(Look::End), repeats: false })
            }
            Some(b'b' | b'B') if is_wider => {
                self.take();
                Ok(Item { tree: Hir::empty(), repeats: false })
            }
            // A back-reference, or a byte in octal.
            Some(b'1'..=b'9') if is_wider => {
                self.read_number();
                let any = make_class(&[true; 256]);
                Ok(Item {
                    tree: Hir::repetition(Repetition { min: 0, max: None, greedy: true, sub: Box::new(any) }),
                    repeats: true,
                })
            }
            Some(b'1'..=b'9') => Err("a back-reference".to_owned()),
            Some(b'b' | b'B') => Err("a word boundary".to_owned()),
            _ => Ok(match self.read_set()? {
                EscapedSet::Class(test, expected) => self.make_item(|byte| test(&byte) == expected),
                EscapedSet::Byte(only) => self.make_item(|byte| byte == only),
            }),
        }
    }

    /// Reads an escape that stands for bytes, after its backslash. Inside of a class it means the same as outside.
    fn read_set(&mut self) -> Result<EscapedSet, String> {
        let class = |test: ByteTest, expected: bool| Ok(EscapedSet::Class(test, expected));
        match self.take() {
            Some(b'd') => class(u8::is_ascii_digit, true),
            Some(b'D') => class(u8::is_ascii_digit, false),
            Some(b'w') => class(is_word, true),
            Some(b'W') => class(is_word, false),
            Some(b's') => class(is_space, true),
            Some(b'S') => class(is_space, false),
            Some(b'n') => Ok(EscapedSet::Byte(b'\n')),
            Some(b'r') => Ok(EscapedSet::Byte(b'\r')),
            Some(b't') => Ok(EscapedSet::Byte(b'\t')),
            Some(b'f') => Ok(EscapedSet::Byte(0x0c)),
            Some(b'x') => match self.rest {
                [high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                    let digits = [*high, *low];
                    self.rest = rest;
                    let byte = str::from_utf8(&digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
                    byte.map(EscapedSet::Byte).ok_or_else(|| "`\\x`".to_owned())
                }
                _ => Err("`\\x` without two digits".to_owned()),
            },
            Some(byte) if byte.is_ascii() && !byte.is_ascii_alphanumeric() => Ok(EscapedSet::Byte(byte)),
            Some(byte) if byte.is_ascii() => Err(format!("`\\{}`", char::from(byte))),
            Some(_) => Err("a backslash before a character that is not ASCII".to_owned()),
            None => Err("a backslash at the end".to_owned()),
        }
    }

    /// Reads a class after its bracket.
    fn read_class(&mut self) -> Result<Hir, String> {
        let negates = self.skip("^");
        let mut set = [false; 256];
        let mut is_first = true;
        loop {
            let item = match self.take() {
                None => return Err("`[` without `]`".to_owned()),
                Some(b']') if !is_first => break,
                Some(first) => self.read_class_item(first)?,
            };
            is_first = false;
            let has_range = self.rest.first() == Some(&b'-') && self.rest.get(1).is_some_and(|end| *end != b']');
            match item {
                EscapedSet::Class(..) if has_range => return Err("a range that starts with a class".to_owned()),
                EscapedSet::Class(test, expected) => {
                    (0..=u8::MAX).for_each(|byte| set[usize::from(byte)] |= test(&byte) == expected);
                }
                EscapedSet::Byte(start) if has_range => {
                    self.take();
                    let first = self.take().unwrap_or_default();
                    match self.read_class_item(first)? {
                        EscapedSet::Byte(end) if start <= end => {
                            (start..=end).for_each(|byte| set[usize::from(byte)] = true);
                        }
                        _ => return Err("a range that ends before it starts, or with a class".to_owned()),
                    }
                }
                EscapedSet::Byte(byte) => set[usize::from(byte)] = true,
            }
        }
        let set = self.fold_case(set);
        Ok(make_class(&if negates { set.map(|contains| !contains) } else { set }))
    }

    /// Reads one byte, an escape or a POSIX class inside of a class. `first` is its first byte.
    fn read_class_item(&mut self, first: u8) -> Result<EscapedSet, String> {
        match (first, self.rest.first()) {
            (b'\\', _) => self.read_set(),
            (b'[', Some(b':')) => self.read_posix_class(),
            (b'[', Some(b'.' | b'=')) => Err("`[.` or `[=` in a class".to_owned()),
            (byte, _) => Ok(EscapedSet::Byte(byte)),
        }
    }

    fn read_posix_class(&mut self) -> Result<EscapedSet, String> {
        let classes: [(&str, ByteTest); 8] = [
            (":alpha:]", u8::is_ascii_alphabetic),
            (":digit:]", u8::is_ascii_digit),
            (":alnum:]", u8::is_ascii_alphanumeric),
            (":upper:]", u8::is_ascii_uppercase),
            (":lower:]", u8::is_ascii_lowercase),
            (":punct:]", u8::is_ascii_punctuation),
            (":xdigit:]", u8::is_ascii_hexdigit),
            (":space:]", is_space),
        ];
        let found = classes.into_iter().find(|(name, _)| self.skip(name));
        found.map(|(_, test)| EscapedSet::Class(test, true)).ok_or_else(|| "`[:` in a class".to_owned())
    }
}

/// What an escape stands for.
enum EscapedSet {
    /// The bytes for which a test has this result.
    Class(ByteTest, bool),
    Byte(u8),
}

fn is_word(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || *byte == b'_'
}

fn is_space(byte: &u8) -> bool {
    matches!(byte, b' ' | 0x09..=0x0d)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex_syntax::hir::Hir;

    use super::*;

    /// Returns whether a pattern, as nginx reads it, matches a subject.
    fn matches(pattern: &str, ignore_case: bool, subject: &[u8]) -> Option<bool> {
        let tree: Hir = read_pattern(pattern, ignore_case, Reading::Exact).ok()?;
        let text = tree.to_string();
        let regex = regex::bytes::RegexBuilder::new(&text).unicode(false).build().unwrap();
        Some(regex.is_match(subject))
    }

    /// What libpcre2 10.42 finds without options, or with PCRE2_CASELESS.
    #[test]
    fn patterns_are_read_as_pcre_reads_them() {
        for (pattern, ignore_case, subject, expected) in [
            ("[a-z&&]", false, "&", Some(true)),
            ("^[+--]$", false, ",", Some(true)),
            ("^[a~~]$", false, "~", Some(true)),
            ("^[a[b]]$", false, "[]", Some(true)),
            ("^[a[b]]$", false, "a", Some(false)),
            ("^[]a]$", false, "]", Some(true)),
            ("^[^]a]$", false, "]", Some(false)),
            ("^[a-c-e]$", false, "-", Some(true)),
            ("^[a-c-e]$", false, "d", Some(false)),
            ("^[--/]$", false, ".", Some(true)),
            (r"^[\w-]$", false, "-", Some(true)),
            (r"^[\]\\^-]+$", false, r"]\^-", Some(true)),
            ("^[[:alpha:]_]$", false, "x", Some(true)),
            ("^[é]$", false, "é", Some(false)),
            ("^[é]{2}$", false, "é", Some(true)),
            ("^é{2}$", false, "éé", Some(false)),
            ("^.$", false, "é", Some(false)),
            (r"^\w$", false, "é", Some(false)),
            (r"^\W{2}$", false, "é", Some(true)),
            ("^k$", true, "\u{212a}", Some(false)),
            ("^É$", true, "é", Some(false)),
            ("^[^a]$", true, "A", Some(false)),
            ("(?i)^ADMIN$", false, "admin", Some(true)),
            (r"^\x41\.\_$", false, "A._", Some(true)),
            (r"\Aab\z", false, "ab", Some(true)),
            (r"^a\Z", false, "ab", Some(false)),
            ("^a{2,3}?$", false, "aaa", Some(true)),
            ("^(?:a|)*b$", false, "ab", Some(true)),
            ("a}]", false, "a}]", Some(true)),
        ] {
            assert_eq!(matches(pattern, ignore_case, subject.as_bytes()), expected, "{pattern} {subject}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let refused = r"a++ a*+ a?+ a{1,2}+ (?>a) (?=a) (?!a) (?<=a) (?<!a) (a)\1 \bx \Bx (?x)a (?i:a) a(?i)b (?s). (?m)^a (?U)a+ (?J)a
            (?#c)a (?|a|b) (?R) (?1) (?(1)a|b) (?&n) (*UTF8)é (*FAIL) \h \H \R \K \G \Qa\E \x{41} \x4 \o{101} \cA \N \X \C \07 \0 \v \V \a
            \e \p{L} \k<n> \g1 \é a{,3} a{x} { a{2,1} a{65536} a** a{2}{3} ^* $+ *a (|*) [ [] [a ( ) (a a) a\ [\d-z] [a-\d] [z-a]
            [[:word:]] [[:<:]] [[:^alpha:]] [[.a.]] [[=a=]] [\b] [\1] [\h] (?<1>a) (?<n) (?P>n) (?P=n) (?i)(?s)a";
        for pattern in refused.split_whitespace() {
            assert!(read_pattern(pattern, false, Reading::Exact).is_err(), "{pattern}");
        }
    }

    #[test]
    fn wider_trees_match_more() {
        for (pattern, subject, expected) in [
            (r"^/\.(?!well-known).*$", "/.well-known/x", true),
            (r"^/(?!(a|b)/)x[()]$", "/x(", true),
            (r"^/(?!(a|b)/)x[()]$", "/x", false),
            (r"^/(.)\1$", "/ab", true),
            (r"(?<=a(?:b))c\($", "c(", true),
            ("^a++ab$", "aaab", true),
            (r"^x[](?!](?:a)$", "x!a", true),
            (r"^x[](?!](?:a)$", "xa", false),
        ] {
            let tree = read_pattern(pattern, false, Reading::Wider).unwrap();
            let regex = regex::bytes::RegexBuilder::new(&tree.to_string()).unicode(false).build().unwrap();
            assert_eq!(regex.is_match(subject.as_bytes()), expected, "{pattern} {subject}");
        }
        assert!(read_pattern("(?(1)a|b)", false, Reading::Wider).is_err());
    }

    proptest! {
        /// No pattern panics or overflows.
        #[test]
        fn any_text_is_read_or_refused(pattern in r"[\[\]()?^$|*+{}\\<>=!:,.a-c0-2é&~-]{0,40}") {
            for reading in [Reading::Exact, Reading::Wider] {
                drop(read_pattern(&pattern, true, reading));
            }
        }
    }
}
