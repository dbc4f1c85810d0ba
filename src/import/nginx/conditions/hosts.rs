//! An `if` of a server that compares the host with a regular expression. The names of the server are known, so the import
//! evaluates it for each of them, with its groups.

use regex::{Captures, Regex, RegexBuilder};

use crate::import::expressions::translate_ascii_regex;
use crate::import::nginx::redirects::is_response;
use crate::import::nginx::scope::read_words;
use crate::import::syntax::Directive;

/// A condition such as `if ($host ~* ^www\.(.*)$) { return 301 https://$1$request_uri; }`.
pub struct HostCondition<'a> {
    /// What matches, as nginx reads it.
    exact: Regex,
    /// The same with its groups.
    regex: Regex,
    /// Hosts that do not match get the response.
    is_negated: bool,
    response: &'a Directive,
}

/// Reads the condition of an `if` of a server. Returns `None` for all others.
pub fn read_host_condition(at: &Directive) -> Option<HostCondition<'_>> {
    let [response] = at.inner() else { return None };
    if at.name != "if" {
        return None;
    }
    let words = read_words(at);
    let ["$host", sign, pattern] = words.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        return None;
    };
    let (is_negated, ignore_case) = match sign {
        "~" => (false, false),
        "~*" => (false, true),
        "!~" => (true, false),
        "!~*" => (true, true),
        _ => return None,
    };
    // The names of a server are ASCII.
    let written = translate_ascii_regex(pattern, ignore_case).ok()?;
    let build = |pattern: &str, ignores| RegexBuilder::new(pattern).case_insensitive(ignores).build().ok();
    let (exact, regex) = (build(&written, false)?, build(pattern, ignore_case)?);
    // An expression that is written in another way has no groups. Names are ASCII, for which both dialects differ in classes.
    let has_odd_class = written != pattern && ["&&", "--", "~~", "[["].iter().any(|text| pattern.contains(text));
    (is_response(response) && !has_odd_class).then_some(HostCondition { exact, regex, is_negated, response })
}

impl HostCondition<'_> {
    /// Returns the response that requests for a host get, with the groups of the expression instead of their variables.
    pub fn answer(&self, host: &str) -> Option<Directive> {
        if self.exact.is_match(host) == self.is_negated {
            return None;
        }
        let captures = self.regex.captures(host);
        let mut response = self.response.clone();
        if let Some(captures) = captures {
            response.args.iter_mut().for_each(|arg| *arg = self.replace_groups(arg, &captures));
        }
        Some(response)
    }

    /// Replaces `$1` and `$name`. The pattern of a `rewrite` would set the numbers again, so its target has none.
    fn replace_groups(&self, text: &str, captures: &Captures) -> String {
        if self.response.name == "rewrite" {
            return text.to_owned();
        }
        let group = |name: &str| captures.name(name).map_or("", |group| group.as_str());
        let mut text = text.to_owned();
        for name in self.regex.capture_names().flatten() {
            let (value, name) = (group(name), name.to_ascii_lowercase());
            text = text.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value);
        }
        for number in 1..=self.regex.captures_len().min(10).saturating_sub(1) {
            let value = captures.get(number).map_or("", |group| group.as_str());
            text = text.replace(&format!("${{{number}}}"), value).replace(&format!("${number}"), value);
        }
        text
    }
}
