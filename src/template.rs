//! Texts with placeholders in braces, such as `{retry_after}`: bodies of refusals, error pages and redirect targets.
//!
//! A text may contain braces of its own, because it may be JSON, CSS or JavaScript. The caller of
//! [`TextTemplate::parse`] decides for each `{word}` whether it is a placeholder, a literal text or a mistake.

/// A text with placeholders of type `P`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextTemplate<P> {
    pieces: Vec<Piece<P>>,
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<P> {
    Literal(String),
    Placeholder(P),
}

impl<P> TextTemplate<P> {
    /// Parses a text. `find` gets the content of each pair of braces, and the offset of its opening brace. It returns
    /// the placeholder, or `None` if the text is literal.
    ///
    /// # Errors
    /// The first error of `find`.
    pub fn parse<E>(
        text: &str,
        mut find: impl FnMut(&str, usize) -> Result<Option<P>, E>,
    ) -> Result<TextTemplate<P>, E> {
        let mut pieces = Vec::new();
        let (mut literal_from, mut at) = (0, 0);
        while let Some(open) = text[at..].find('{').map(|offset| at + offset) {
            at = open + 1;
            let Some(end) = text[at..].find(['{', '}']).map(|offset| at + offset) else { break };
            if text.as_bytes()[end] == b'{' {
                continue;
            }
            if let Some(placeholder) = find(&text[at..end], open)? {
                pieces.push(Piece::Literal(text[literal_from..open].to_owned()));
                pieces.push(Piece::Placeholder(placeholder));
                literal_from = end + 1;
            }
            at = end + 1;
        }
        pieces.push(Piece::Literal(text[literal_from..].to_owned()));
        pieces.retain(|piece| !matches!(piece, Piece::Literal(text) if text.is_empty()));
        Ok(TextTemplate { pieces })
    }

    /// Returns the text with every placeholder replaced. `write` appends the value of a placeholder to the text so far.
    pub fn render(&self, mut write: impl FnMut(&P, &mut String)) -> String {
        let literal = |piece: &Piece<P>| match piece {
            Piece::Literal(text) => text.len(),
            Piece::Placeholder(_) => 16,
        };
        let mut text = String::with_capacity(self.pieces.iter().map(literal).sum());
        for piece in &self.pieces {
            match piece {
                Piece::Literal(literal) => text.push_str(literal),
                Piece::Placeholder(placeholder) => write(placeholder, &mut text),
            }
        }
        text
    }

    /// Returns the template with each literal text replaced.
    pub fn map_literals(self, change: impl Fn(&str) -> String) -> TextTemplate<P> {
        let pieces = self.pieces.into_iter().map(|piece| match piece {
            Piece::Literal(text) => Piece::Literal(change(&text)),
            Piece::Placeholder(placeholder) => Piece::Placeholder(placeholder),
        });
        TextTemplate { pieces: pieces.collect() }
    }

    /// Returns the parts in their order.
    pub fn pieces(&self) -> &[Piece<P>] {
        &self.pieces
    }

    /// Returns the placeholders in their order.
    pub fn placeholders(&self) -> impl Iterator<Item = &P> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Literal(_) => None,
            Piece::Placeholder(placeholder) => Some(placeholder),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn render(text: &str) -> String {
        let find = |name: &str, _| Ok::<_, Infallible>((name == "x" || name == "long").then(|| name.to_owned()));
        let Ok(template) = TextTemplate::parse(text, find);
        template.render(|name, out| out.extend(["<", name, ">"]))
    }

    #[test]
    fn only_known_words_are_replaced() {
        for (text, rendered) in [
            ("", ""),
            ("plain", "plain"),
            ("{x}", "<x>"),
            ("a{x}b{long}", "a<x>b<long>"),
            ("a{color:red}{x}", "a{color:red}<x>"),
            ("{{x}}", "{<x>}"),
            ("{ x }", "{ x }"),
            ("{", "{"),
            ("}{", "}{"),
            ("{x", "{x"),
            ("{\u{e9}}{x}\u{e9}", "{\u{e9}}<x>\u{e9}"),
            ("{}", "{}"),
        ] {
            assert_eq!(render(text), rendered, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_text_without_placeholders_stays_as_it_is(text in "[a-w{} \u{e9}]{0,40}") {
            prop_assume!(!text.contains("{long}"));
            prop_assert_eq!(render(&text), text);
        }

        #[test]
        fn each_placeholder_is_replaced_once(pieces in prop::collection::vec("[a-w ]{0,5}", 0..8)) {
            prop_assert_eq!(render(&pieces.join("{x}")), pieces.join("<x>"));
        }
    }
}
