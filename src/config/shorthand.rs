//! The config of a gateway without a file: `sluicegate proxy --to URL --limit "10/s burst 100 by
//! ip"` as TOML. Called through `config::proxy_text`.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::PathBuf;

use super::origin;
use super::report::{Diagnostic, Place, Report};
use super::source::SourceTexts;
use super::values::{self, Fault};
use crate::limit::key::KeyPart;

const HELP: &str =
    "write RATE [burst N] [by KEY], like \"10/s burst 100 by ip\" or \"1000/day by header:x-api-key,path\"";

/// What the command line of `sluicegate proxy` says.
#[derive(Default)]
pub struct ProxyArguments<'a> {
    /// The URL of the server, which may have a path.
    pub to: &'a str,
    pub listen: &'a str,
    pub limits: &'a [String],
    /// PEM files of a certificate and its key, for TLS.
    pub certificate: Option<(&'a str, &'a str)>,
    /// Whether requests are logged.
    pub access_log: bool,
}

/// The TOML text, or what is wrong with an argument.
pub fn proxy_text(arguments: &ProxyArguments) -> Result<String, Report> {
    let &ProxyArguments { to, listen, limits, certificate, access_log } = arguments;
    let sources = SourceTexts::default();
    let to = url(to);
    let (upstream, path) = split_path(&to);
    let server = match to.contains(['?', '#']) && !to.starts_with("unix:") {
        true => values::fault("the URL of a server has no query", "leave out what follows the path"),
        false => origin::check(upstream),
    };
    check(&sources, "--to", &to, server);
    check(&sources, "--listen", listen, values::listen(listen));
    let limits: Vec<Option<Shorthand>> = limits.iter().map(|text| parse(&sources, text)).collect();
    let (Some(limits), false) = (limits.into_iter().collect::<Option<Vec<_>>>(), sources.has_mistakes()) else {
        return Err(sources.into_report());
    };

    let names = names(&limits);
    let listener = match certificate {
        None => format!("[server]\nlisten = {}\naccess_log = {access_log}\n", quoted(listen)),
        Some((cert, key)) => format!(
            "[server]\naccess_log = {access_log}\n\n[[listener]]\naddress = {}\n\
             tls = {{ certificates = [{{ cert = {}, key = {} }}] }}\n",
            quoted(listen),
            quoted(cert),
            quoted(key)
        ),
    };
    let mut text = format!("{listener}\n[[route]]\npath = \"/\"\nupstream = {}\n", quoted(upstream));
    if !path.is_empty() {
        let _ = writeln!(text, "rewrite = {{ add_prefix = {} }}", quoted(path));
    }
    if !names.is_empty() {
        let _ = writeln!(text, "limits = [{}]", names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", "));
    }
    for (name, Shorthand { rate, burst, key }) in names.iter().zip(&limits) {
        let _ = write!(text, "\n[limit.{name}]\nrate = {}\n", quoted(rate));
        if let Some(burst) = burst {
            let _ = writeln!(text, "burst = {burst}");
        }
        let _ = writeln!(text, "key = [{}]", key.iter().map(|part| quoted(part)).collect::<Vec<_>>().join(", "));
    }
    Ok(text)
}

/// `HOST:PORT`, `:PORT` and `PORT` stand for `http://`; the latter two for this machine.
fn url(to: &str) -> Cow<'_, str> {
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (address, path) = to.split_at(to.find('/').unwrap_or(to.len()));
    match address.strip_prefix(':').unwrap_or(address) {
        _ if to.contains("://") || to.starts_with("unix:") => Cow::Borrowed(to),
        port if is_port(port) => Cow::Owned(format!("http://127.0.0.1:{port}{path}")),
        _ => Cow::Owned(format!("http://{to}")),
    }
}

/// The URL of a server without a path, and the path without a slash at its end.
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

fn parse(sources: &SourceTexts, text: &str) -> Option<Shorthand> {
    let file = sources.add("--limit".to_owned(), PathBuf::new(), text.to_owned());
    let wrong = |word: &str, what: &str, help: &str| {
        // `word` is a slice of `text`.
        let start = (word.as_ptr() as usize).saturating_sub(text.as_ptr() as usize).min(text.len());
        let place = Place { file, start, end: start + word.len() };
        sources.mistake(Diagnostic::new(place, what).help(help));
    };
    let mut words = text.split_whitespace();
    let Some(rate) = words.next() else {
        sources.mistake(Diagnostic::new(Place { file, start: 0, end: 0 }, "the limit is empty").help(HELP));
        return None;
    };
    let mut ok = true;
    if let Err(Fault { what, help }) = values::rate(rate) {
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
                // A shorthand has no spaces within a word.
                let written = |part: &str| part.replace('|', KeyPart::OR);
                for part in parts.split(',') {
                    if let Err(Fault { what, help }) = values::key_part(&written(part)) {
                        wrong(part, &what, &help);
                        ok = false;
                    }
                }
                key = Some(parts.split(',').map(written).collect());
            }
            ("burst" | "by", Some(_)) => wrong(word, &format!("`{word}` stands there twice"), HELP),
            ("burst" | "by", None) => wrong(word, &format!("`{word}` needs a value"), HELP),
            _ => wrong(word, &format!("unknown word `{word}`"), HELP),
        }
        ok &= !matches!((word, argument), ("burst" | "by", None)) && matches!(word, "burst" | "by");
    }
    ok.then(|| Shorthand { rate: rate.to_owned(), burst, key: key.unwrap_or_else(|| vec!["ip".to_owned()]) })
}

/// `per-ip`, and `per-ip-2` for the next one of the same key.
fn names(limits: &[Shorthand]) -> Vec<String> {
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

/// A TOML string.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\U{:08X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    // A text from the command line means itself.
    quoted.replace("${", "$${")
}

fn check<T>(sources: &SourceTexts, name: &str, text: &str, result: Result<T, Fault>) {
    let file = sources.add(name.to_owned(), PathBuf::new(), text.to_owned());
    if let Err(Fault { what, help }) = result {
        sources.mistake(Diagnostic::new(Place { file, start: 0, end: text.len() }, what).help(help));
    }
}
