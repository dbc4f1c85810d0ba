//! The config of `sluicegate proxy --to URL --limit "10/s burst 100 by ip"`, as TOML text. Called through
//! `config::proxy_text`.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::PathBuf;

use crate::config::diagnostics::report::{Diagnostic, Place, Report};
use crate::config::source::SourceTexts;
use crate::config::values::TextFault;
use crate::config::{origin, values};
use crate::limiting::key::KeyPart;
use crate::text::quote_literal;

const HELP: &str =
    "write RATE [burst N] [by KEY], like \"10/s burst 100 by ip\" or \"1000/day by header:x-api-key,path\"";

/// Arguments of `sluicegate proxy`.
#[derive(Default)]
pub struct ProxyArguments<'a> {
    /// URL of the server; it may have a path.
    pub to: &'a str,
    pub listen: &'a str,
    pub limits: &'a [String],
    /// PEM files of the certificate and key, for TLS.
    pub certificate: Option<(&'a str, &'a str)>,
    /// True if requests are logged.
    pub access_log: bool,
}

/// Returns the TOML text.
///
/// # Errors
/// A report of what is wrong with an argument.
pub fn proxy_text(arguments: &ProxyArguments) -> Result<String, Report> {
    let &ProxyArguments { to, listen, limits, certificate, access_log } = arguments;
    let sources = SourceTexts::default();
    let to = complete_url(to);
    let (upstream, path) = split_path(&to);
    let server = match to.contains(['?', '#']) && !to.starts_with("unix:") {
        true => values::invalid_text("the URL of a server has no query", "leave out what follows the path"),
        false => origin::check_origin(upstream),
    };
    check_argument(&sources, "--to", &to, server);
    check_argument(&sources, "--listen", listen, values::parse_listen(listen));
    let limits: Vec<Option<Shorthand>> = limits.iter().map(|text| parse_limit(&sources, text)).collect();
    let (Some(limits), false) = (limits.into_iter().collect::<Option<Vec<_>>>(), sources.has_mistakes()) else {
        return Err(sources.into_report());
    };

    let names = name_limits(&limits);
    let listener = match certificate {
        None => format!("[server]\nlisten = {}\naccess_log = {access_log}\n", quote_literal(listen)),
        Some((cert, key)) => format!(
            "[server]\naccess_log = {access_log}\n\n[[listener]]\naddress = {}\n\
             tls = {{ certificates = [{{ cert = {}, key = {} }}] }}\n",
            quote_literal(listen),
            quote_literal(cert),
            quote_literal(key)
        ),
    };
    let mut text = format!("{listener}\n[[route]]\npath = \"/\"\nupstream = {}\n", quote_literal(upstream));
    if !path.is_empty() {
        let _ = writeln!(text, "rewrite = {{ add_prefix = {} }}", quote_literal(path));
    }
    if !names.is_empty() {
        let _ = writeln!(
            text,
            "limits = [{}]",
            names.iter().map(|name| quote_literal(name)).collect::<Vec<_>>().join(", ")
        );
    }
    for (name, Shorthand { rate, burst, key }) in names.iter().zip(&limits) {
        let _ = write!(text, "\n[limit.{name}]\nrate = {}\n", quote_literal(rate));
        if let Some(burst) = burst {
            let _ = writeln!(text, "burst = {burst}");
        }
        let _ = writeln!(text, "key = [{}]", key.iter().map(|part| quote_literal(part)).collect::<Vec<_>>().join(", "));
    }
    Ok(text)
}

/// Completes `HOST:PORT`, `:PORT` and `PORT` to an `http://` URL; without a host, this machine is meant.
fn complete_url(to: &str) -> Cow<'_, str> {
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (address, path) = to.split_at(to.find('/').unwrap_or(to.len()));
    match address.strip_prefix(':').unwrap_or(address) {
        _ if to.contains("://") || to.starts_with("unix:") => Cow::Borrowed(to),
        port if is_port(port) => Cow::Owned(format!("http://127.0.0.1:{port}{path}")),
        _ => Cow::Owned(format!("http://{to}")),
    }
}

/// Splits the URL into the server and the path without a trailing slash.
fn split_path(to: &str) -> (&str, &str) {
    let start = to.find("://").map_or(0, |at| at + "://".len());
    let path = to[start..].find('/').map_or(to.len(), |at| start + at);
    match to.starts_with("unix:") {
        true => (to.strip_suffix('/').unwrap_or(to), ""),
        false => (&to[..path], to[path..].trim_end_matches('/')),
    }
}

struct Shorthand {
    rate: String,
    burst: Option<i64>,
    key: Vec<String>,
}

fn parse_limit(sources: &SourceTexts, text: &str) -> Option<Shorthand> {
    let file = sources.add_source("--limit".to_owned(), PathBuf::new(), text.to_owned());
    let wrong = |word: &str, what: &str, help: &str| {
        // `word` is a slice of `text`, so the difference of the pointers is its offset.
        let start = (word.as_ptr() as usize).saturating_sub(text.as_ptr() as usize).min(text.len());
        let place = Place { file, start, end: start + word.len() };
        sources.add_mistake(Diagnostic::new(place, what).with_help(help));
    };
    let mut words = text.split_whitespace();
    let Some(rate) = words.next() else {
        sources.add_mistake(Diagnostic::new(Place { file, start: 0, end: 0 }, "the limit is empty").with_help(HELP));
        return None;
    };
    let mut ok = true;
    if let Err(TextFault { what, help }) = values::parse_rate(rate) {
        wrong(rate, &what, &help);
        ok = false;
    }
    let (mut burst, mut key) = (None, None);
    while let Some(word) = words.next() {
        let argument = words.next();
        match (word, argument) {
            ("burst", Some(count)) if burst.is_none() => match count.parse::<i64>() {
                Ok(count) if count >= 1 => burst = Some(count),
                _ => wrong(count, &format!("`{count}` is not a positive whole number"), HELP),
            },
            ("by", Some(parts)) if key.is_none() => {
                // In the shorthand, words contain no spaces, so alternatives are separated by `|`.
                let with_alternatives = |part: &str| part.replace('|', KeyPart::OR);
                for part in parts.split(',') {
                    if let Err(TextFault { what, help }) = values::parse_key_part(&with_alternatives(part)) {
                        wrong(part, &what, &help);
                        ok = false;
                    }
                }
                key = Some(parts.split(',').map(with_alternatives).collect());
            }
            ("burst" | "by", Some(_)) => wrong(word, &format!("`{word}` occurs twice"), HELP),
            ("burst" | "by", None) => wrong(word, &format!("`{word}` needs a value"), HELP),
            _ => wrong(word, &format!("unknown word `{word}`"), HELP),
        }
        ok &= !matches!((word, argument), ("burst" | "by", None)) && matches!(word, "burst" | "by");
    }
    ok.then(|| Shorthand { rate: rate.to_owned(), burst, key: key.unwrap_or_else(|| vec!["ip".to_owned()]) })
}

/// Returns names such as `per-ip`, and `per-ip-2` for the next limit with the same key.
fn name_limits(limits: &[Shorthand]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for limit in limits {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '-' };
        let mut base: String = format!("per-{}", limit.key.join("-")).chars().map(plain).collect();
        base.truncate(60);
        let number = names.iter().filter(|name| **name == base || name.starts_with(&format!("{base}-"))).count() + 1;
        names.push(if number == 1 { base } else { format!("{base}-{number}") });
    }
    names
}

fn check_argument<T>(sources: &SourceTexts, name: &str, text: &str, result: Result<T, TextFault>) {
    let file = sources.add_source(name.to_owned(), PathBuf::new(), text.to_owned());
    if let Err(TextFault { what, help }) = result {
        sources.add_mistake(Diagnostic::new(Place { file, start: 0, end: text.len() }, what).with_help(help));
    }
}
