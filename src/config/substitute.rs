//! Replaces `${VAR}`, `${VAR:-default}` and `${file:PATH}` inside strings; `$${` is a literal `${`. Called by `tree`
//! for every string after parsing, so that a value can never change the structure.

use std::borrow::Cow;

use crate::config::diagnostics::hidden::Substitution;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::source::{PrivateFile, SourceTexts};
use crate::config::values::{TextFault, invalid_text};

/// A string of the config.
#[derive(Clone, Debug)]
pub struct Text {
    pub value: String,
    /// The text as written, if it contains a `${...}`. Messages show this and never the value.
    pub written: Option<String>,
}

impl Text {
    /// Parses the value. If the text contains `${...}`, a mistake is reported for the text as written, so that no
    /// message contains a part of the value.
    ///
    /// # Errors
    /// What is wrong with the value.
    pub fn parse_value<'t, T>(&'t self, parse: impl Fn(&'t str) -> Result<T, TextFault>) -> Result<T, TextFault> {
        let result = parse(&self.value);
        match (&result, &self.written) {
            (Err(_), Some(written)) => match parse(written) {
                Err(fault) => Err(fault),
                Ok(_) => {
                    invalid_text(format!("the value of `{written}` is not valid"), "correct the variable or the file")
                }
            },
            _ => result,
        }
    }
}

/// Returns the text with every `${...}` replaced; `None` if one cannot be, which is reported.
pub fn replace_expressions(sources: &SourceTexts, place: Place, text: &str) -> Option<Text> {
    if !text.contains("${") {
        return Some(Text { value: text.to_owned(), written: None });
    }
    let (mut value, mut ok) = (String::with_capacity(text.len()), true);
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            value.push_str(before);
            value.push_str("${");
            rest = &from[2..];
            continue;
        }
        value.push_str(before);
        let Some((name, after)) = from[2..].split_once('}') else {
            report_expression(
                sources,
                place,
                from,
                "`${` is not closed",
                "close it with `}`, or write `$${` for a plain `${`",
            );
            return None;
        };
        match look_up_expression(sources, place, name) {
            Ok(found) => {
                value.push_str(&found);
                let reference = from[..name.len() + 3].to_owned();
                sources.add_substitution(Substitution { value: found.into_owned(), written: reference });
            }
            Err((message, help)) => {
                report_expression(sources, place, &from[..name.len() + 3], &message, &help);
                ok = false;
            }
        }
        rest = after;
    }
    value.push_str(rest);
    ok.then_some(Text { value, written: Some(text.to_owned()) })
}

fn look_up_expression<'t>(
    sources: &SourceTexts,
    place: Place,
    name: &'t str,
) -> Result<Cow<'t, str>, (String, String)> {
    if let Some(path) = name.strip_prefix("file:") {
        let path = sources.resolve_path(place.file, path.trim());
        return match sources.read_file(&path) {
            Ok(text) => {
                sources.add_private_file(&path, PrivateFile::Secret);
                // Editors and `echo` end a file with a newline that is not part of the secret.
                let text = text.strip_suffix('\n').unwrap_or(&text);
                Ok(text.strip_suffix('\r').unwrap_or(text).to_owned().into())
            }
            Err(error) => {
                // Converted to UTF-8, a secret would be another one.
                let help =
                    if error.is_of_content() { "a secret is text in UTF-8; choose another one" } else { error.help() };
                Err((format!("cannot read `{}`: {error}", path.display()), help.to_owned()))
            }
        };
    }
    let (variable, default) = match name.split_once(":-") {
        Some((variable, default)) => (variable, Some(default)),
        None => (name, None),
    };
    let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if variable.is_empty() || !variable.bytes().all(letters) || variable.as_bytes()[0].is_ascii_digit() {
        let message = format!("`{variable}` is not the name of an environment variable");
        return Err((message, "write ${VAR}, ${VAR:-default} or ${file:PATH}; `$${` is a plain `${`".into()));
    }
    match (std::env::var(variable), default) {
        // An empty secret would protect nothing.
        (Ok(value), None) if value.is_empty() => Err((
            format!("the environment variable `{variable}` is empty"),
            format!("set it, or write ${{{variable}:-}} if it may be empty"),
        )),
        (Ok(value), None) => Ok(value.into()),
        (Ok(value), Some(_)) if !value.is_empty() => Ok(value.into()),
        (Err(std::env::VarError::NotUnicode(_)), _) => {
            Err((format!("the environment variable `{variable}` is not UTF-8"), String::new()))
        }
        (_, Some(default)) => Ok(default.into()),
        (Err(std::env::VarError::NotPresent), None) => Err((
            format!("the environment variable `{variable}` is not set"),
            format!("set it, or give a default: ${{{variable}:-default}}"),
        )),
    }
}

/// Reports at the `${...}` itself if the source spells it in the same way.
fn report_expression(sources: &SourceTexts, place: Place, part: &str, message: &str, help: &str) {
    let source = sources.source(place.file);
    let at = source.text.get(place.start..place.end).and_then(|raw| raw.find(part));
    let place = match at {
        Some(at) => Place { start: place.start + at, end: place.start + at + part.len(), ..place },
        None => place,
    };
    sources.add_mistake(Diagnostic::new(place, message).with_help(help));
}
