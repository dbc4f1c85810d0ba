//! Finds out where in an HTML page a placeholder stands. A request id may come from a client through a trusted proxy.
//! Escaping makes it safe in text and in most attributes, but not in a script.

use std::ops::Range;

use crate::config::values::{TextFault, invalid_text};

/// Attributes whose values are only shown or stored.
const PLAIN_ATTRIBUTES: [&str; 5] = ["title", "alt", "value", "label", "placeholder"];

/// The parts of a page that are not text.
pub struct HtmlPage<'t> {
    text: &'t str,
    /// The text in lower case, to find closing tags.
    lower: String,
    /// The regions in their order. They do not overlap.
    regions: Vec<(Range<usize>, Region<'t>)>,
}

#[derive(Clone, Copy)]
enum Region<'t> {
    /// The content of `<script>` or `<style>`.
    Raw,
    /// The value of the attribute with this name, in quotes.
    Attribute(&'t str),
    /// A comment, or the rest of a tag.
    Markup,
}

impl<'t> HtmlPage<'t> {
    /// Splits a page roughly as a browser does. Unclear parts count as markup, in which only numbers are allowed.
    pub fn scan(text: &'t str) -> HtmlPage<'t> {
        let mut page = HtmlPage { text, lower: text.to_ascii_lowercase(), regions: Vec::new() };
        let mut at = 0;
        while let Some(open) = text[at..].find('<').map(|offset| at + offset) {
            let rest = &text[open..];
            at = if let Some(comment) = rest.strip_prefix("<!--") {
                let end = comment.find("-->").map_or(text.len(), |offset| open + 4 + offset + 3);
                page.regions.push((open..end, Region::Markup));
                end
            } else if rest[1..].starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '!' | '?')) {
                page.scan_tag(open)
            } else {
                open + 1
            };
        }
        page
    }

    /// Scans a tag and, after `<script>` or `<style>`, the content. Returns where text continues.
    fn scan_tag(&mut self, open: usize) -> usize {
        let text = self.text;
        let is_name = |byte: &u8| !byte.is_ascii_whitespace() && !matches!(byte, b'>' | b'=' | b'/');
        let skip = |at: usize, accepts: &dyn Fn(&u8) -> bool| {
            at + text.as_bytes()[at..].iter().take_while(|byte| accepts(byte)).count()
        };
        let name_end = skip(open + 1, &is_name);
        let (mut at, mut markup_from) = (skip(name_end, &|byte| *byte == b'/'), open);
        let tag_end = loop {
            at = skip(at, &|byte| byte.is_ascii_whitespace() || *byte == b'/');
            match text.as_bytes().get(at) {
                None => break text.len(),
                Some(b'>') => break at + 1,
                Some(_) => {}
            }
            let name = at..skip(at + usize::from(text.as_bytes()[at] == b'='), &is_name);
            at = skip(name.end, &u8::is_ascii_whitespace);
            if text.as_bytes().get(at) != Some(&b'=') {
                continue;
            }
            at = skip(at + 1, &u8::is_ascii_whitespace);
            let Some(quote @ (b'"' | b'\'')) = text.as_bytes().get(at).copied() else {
                at = skip(at, &|byte| !byte.is_ascii_whitespace() && *byte != b'>');
                continue;
            };
            let start = at + 1;
            let Some(length) = text[start..].find(char::from(quote)) else { break text.len() };
            self.regions.push((markup_from..start, Region::Markup));
            self.regions.push((start..start + length, Region::Attribute(text.get(name).unwrap_or_default())));
            (markup_from, at) = (start + length, start + length + 1);
        };
        self.regions.push((markup_from..tag_end, Region::Markup));
        let name = &text[open + 1..name_end];
        if !name.eq_ignore_ascii_case("script") && !name.eq_ignore_ascii_case("style") {
            return tag_end;
        }
        let closing = format!("</{}", name.to_ascii_lowercase());
        let end = match self.lower[tag_end..].find(&closing).map(|offset| tag_end + offset) {
            // After `<!--` and `<script`, the next closing tag does not end the script.
            Some(end) if !has_nested_script(&self.lower[tag_end..end]) => end,
            _ => text.len(),
        };
        self.regions.push((tag_end..end, Region::Raw));
        end
    }

    fn region_at(&self, at: usize) -> Option<&(Range<usize>, Region<'t>)> {
        let next = self.regions.partition_point(|(range, _)| range.end <= at);
        self.regions.get(next).filter(|(range, _)| range.contains(&at))
    }

    /// Returns whether the offset is in a script or a style.
    pub fn is_raw(&self, at: usize) -> bool {
        matches!(self.region_at(at), Some((_, Region::Raw)))
    }

    /// Returns whether a name at the offset would be the name of a tag. Placeholders before it may be empty.
    fn starts_tag(&self, at: usize) -> bool {
        let mut before = &self.text[..at];
        while let Some(open) = before.strip_suffix('}').and_then(|inner| inner.rfind('{')) {
            before = &before[..open];
        }
        before.ends_with('<')
    }

    /// Checks that a value which a client may have chosen can stand at an offset.
    ///
    /// # Errors
    /// Escaping would not make the value safe there.
    pub fn check_foreign_value(&self, at: usize, name: &str) -> Result<(), TextFault> {
        let is_safe = match self.region_at(at) {
            None => !self.starts_tag(at),
            Some((_, Region::Raw | Region::Markup)) => false,
            Some((range, Region::Attribute(attribute))) => {
                let attribute = attribute.to_ascii_lowercase();
                let before = self.text[range.start..at].trim_start().to_ascii_lowercase();
                let has_safe_scheme =
                    ["https:", "http:", "mailto:", "/", "?", "#"].iter().any(|start| before.starts_with(start));
                PLAIN_ATTRIBUTES.contains(&attribute.as_str())
                    || attribute.starts_with("data-")
                    || attribute.starts_with("aria-")
                    || (attribute == "href" && has_safe_scheme && before.contains(['?', '#']))
            }
        };
        if is_safe {
            return Ok(());
        }
        invalid_text(
            format!("`{{{name}}}` would not be safe here, because a client may have chosen its value"),
            "write it in the text, in a quoted attribute such as title=\"...\" or data-id=\"...\", or in the query of an \
             href=\"...\"",
        )
    }
}

/// Returns whether the content of a script, in lower case, opens a comment and a script in it.
fn has_nested_script(content: &str) -> bool {
    content.split_once("<!--").is_some_and(|(_, comment)| comment.contains("<script"))
}
