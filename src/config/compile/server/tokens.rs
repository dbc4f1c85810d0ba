//! Access to the admin listener: `[admin] token`, `[[admin.tokens]]` and `audit`. Called by `server`.

use std::time::SystemTime;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

use crate::config::admin_tokens::{AdminToken, Role, TokenDigest};
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::Section;
use crate::config::schema::{admin, admin_token};
use crate::config::tree::{Node, Value};
use crate::config::values::{NAME_HELP, TextFault, invalid_text, is_name};

/// Maximum number of tokens: each request is compared with all of them.
const TOKENS_MAX: usize = 64;
/// Shortest token in bytes. The option `token` accepts shorter ones.
const LENGTH_MIN: usize = 16;
/// Longest token in bytes: a request head has 16 KiB.
const LENGTH_MAX: usize = 4096;

/// Compiles both options. Returns `None` if anything is wrong.
pub fn compile_tokens(section: &Section) -> Option<Vec<AdminToken>> {
    let single = section.parse_string(&admin::TOKEN, |text| match text {
        "" => invalid_text("the token is empty", "give it at least 16 random characters, or leave it out"),
        text => check_characters(text),
    });
    let mut tokens: Vec<AdminToken> = single
        .map(|digest| AdminToken { name: AdminToken::DEFAULT_NAME.to_owned(), digest, role: Role::Edit, expires: None })
        .into_iter()
        .collect();
    let items = list_tokens(section)?;
    // Every token is read, to find all mistakes.
    let compiled_items: Vec<Option<AdminToken>> = items.iter().map(compile_token).collect();
    for (item, token) in items.iter().zip(compiled_items) {
        let token = token?;
        let place = item.node(&admin_token::NAME).map_or(item.place, |node| node.place);
        if let Some(same) = tokens.iter().find(|earlier| earlier.name == token.name) {
            let what = match same.name == AdminToken::DEFAULT_NAME && section.node(&admin::TOKEN).is_some() {
                true => format!("`{}` is the name of the option `token`", token.name),
                false => format!("two tokens are called `{}`", token.name),
            };
            return item.report_fault_at(admin_token::NAME.name, place, &what, "give each token a name of its own");
        }
        if let Some(same) = tokens.iter().find(|earlier| earlier.digest == token.digest) {
            let what = format!("`{}` and `{}` are the same token", same.name, token.name);
            return item.report_fault_at(admin_token::NAME.name, place, &what, "create another: openssl rand -hex 32");
        }
        warn_about_expiry(item, &token);
        tokens.push(token);
    }
    Some(tokens)
}

/// Lists the tables of `tokens`.
fn list_tokens<'a>(section: &Section<'a>) -> Option<Vec<Section<'a>>> {
    let items = match section.node(&admin::TOKENS) {
        None => return Some(Vec::new()),
        Some(node @ Node { value: Value::Array(items), .. }) => match items.len() {
            0 => {
                let help = "an empty list would lock out everyone: add [[admin.tokens]], or leave `tokens` out";
                return section.report_fault(admin::TOKENS.name, node, "it has no token", help);
            }
            1..=TOKENS_MAX => items,
            count => {
                let what = format!("{count} tokens, more than the {TOKENS_MAX} allowed");
                return section.report_fault(admin::TOKENS.name, node, &what, "remove those that are not used");
            }
        },
        Some(node) => return section.report_wrong_type(admin::TOKENS.name, "a list of tables", node),
    };
    let tables = items.iter().map(|item| match &item.value {
        Value::Table(table) => Some(Section::new(section.sources, &admin_token::TABLE, "[[admin.tokens]]", table)),
        _ => section.report_wrong_type(admin::TOKENS.name, "a list of tables", item),
    });
    tables.collect()
}

fn compile_token(item: &Section) -> Option<AdminToken> {
    let name = match item.node(&admin_token::NAME) {
        Some(_) => item.parse_string(&admin_token::NAME, |text| match is_name(text) {
            true => Ok(text.to_owned()),
            false => invalid_text(format!("`{text}` is not a name"), NAME_HELP),
        }),
        None => item.report_missing("a token has no name", "add name = \"grafana\": the audit log shows it"),
    };
    let role = match item.node(&admin_token::ROLE) {
        Some(_) => item.get(&admin_token::ROLE),
        None => item.report_missing(
            "a token has no role",
            "add role = \"read\"; the roles are metrics, read, keys, limits, edit",
        ),
    };
    let digest = compile_secret(item);
    let expires = match item.node(&admin_token::EXPIRES) {
        Some(_) => item.parse_string(&admin_token::EXPIRES, parse_expiry).map(Some),
        None => Some(None),
    };
    item.report_unknown();
    Some(AdminToken { name: name?, digest: digest?, role: role?, expires: expires? })
}

/// Reads `token` or `sha256`. No message repeats the token.
fn compile_secret(item: &Section) -> Option<TokenDigest> {
    match (item.node(&admin_token::TOKEN), item.node(&admin_token::SHA256)) {
        (Some(_), Some(node)) => {
            item.report_fault(admin_token::SHA256.name, node, "`token` is set too", "keep one of them")
        }
        (Some(_), None) => item.parse_string(&admin_token::TOKEN, |text| match text.len() {
            LENGTH_MIN..=LENGTH_MAX => check_characters(text),
            length => invalid_text(
                format!("the token has {length} bytes; it needs {LENGTH_MIN} to {LENGTH_MAX}"),
                "create one with `openssl rand -hex 32`",
            ),
        }),
        (None, Some(_)) => item.parse_string(&admin_token::SHA256, |text| {
            TokenDigest::parse(text).ok_or_else(|| TextFault {
                what: "it is not a SHA-256 in 64 hexadecimal digits".to_owned(),
                help: "create it with `printf %s \"$TOKEN\" | sha256sum`".to_owned(),
            })
        }),
        (None, None) => item.report_missing(
            "a token has neither `token` nor `sha256`",
            "add token = \"${file:/run/secrets/NAME}\", or sha256 = \"...\" of the token",
        ),
    }
}

fn check_characters(text: &str) -> Result<TokenDigest, TextFault> {
    match text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(TokenDigest::of_token(text.as_bytes())),
        false => invalid_text(
            "the token contains a space or another character that a header cannot contain",
            "use letters, digits and `-._~+/`",
        ),
    }
}

/// Parses a time with offset, or a date: then the token is valid until the end of that day in UTC.
fn parse_expiry(text: &str) -> Result<SystemTime, TextFault> {
    let end_of_day = |date: Date| {
        let next = date.checked_add(Span::new().days(1)).ok()?;
        next.to_zoned(TimeZone::UTC).ok().map(|midnight| midnight.timestamp())
    };
    let date = || text.parse::<Date>().ok().filter(|_| text.len() == "2027-01-31".len()).and_then(end_of_day);
    let time = text.parse::<Timestamp>().ok().or_else(date);
    time.map(SystemTime::from).ok_or_else(|| TextFault {
        what: format!("`{text}` is not a date or a time with offset"),
        help: "write \"2027-01-31\" (valid until the end of that day, UTC) or \"2027-01-31T12:00:00Z\"".to_owned(),
    })
}

/// Warns about a token that expires soon. An expired one is not a mistake either: a gateway must start without it.
fn warn_about_expiry(item: &Section, token: &AdminToken) {
    let now = SystemTime::now();
    let (true, Some(expires), Some(node)) = (token.expires_soon(now), token.expires, item.node(&admin_token::EXPIRES))
    else {
        return;
    };
    let time = Timestamp::try_from(expires).map_or_else(|_| String::new(), |time| format!("{time:.0}"));
    let what = match token.is_expired(now) {
        true => format!("the token `{}` has expired, at {time}", token.name),
        false => format!("the token `{}` expires at {time}", token.name),
    };
    let help = "add a new token, switch its users to it, then remove this one";
    let warning = Diagnostic::new(node.place, what).with_help(help);
    item.sources.add_warning(DiagnosticCode::TokenExpires, warning);
}

/// Returns a token of role `edit` that the file contains, for commands that contact the gateway.
pub fn find_written_token(section: &Section) -> Option<String> {
    if let Some(token) = section.read_string(&admin::TOKEN) {
        return Some(token);
    }
    let now = SystemTime::now();
    let items = list_tokens(section)?;
    let usable =
        |item: &&Section| compile_token(item).is_some_and(|token| token.role == Role::Edit && !token.is_expired(now));
    items
        .iter()
        .filter(usable)
        .find_map(|item| item.node(&admin_token::TOKEN).and_then(|_| item.read_string(&admin_token::TOKEN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_includes_its_day() {
        let seconds = |text: &str| {
            let time = parse_expiry(text).ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
            Some(time.as_secs())
        };
        assert_eq!(seconds("1970-01-01"), Some(86_400));
        assert_eq!(seconds("1970-01-01T00:00:10Z"), Some(10));
        assert_eq!(seconds("1970-01-01T02:00:10+02:00"), Some(10));
        for wrong in ["", "tomorrow", "2027-13-01", "2027-01-31T12:00:00", "9999-12-31", "20270131"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
