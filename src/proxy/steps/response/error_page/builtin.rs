//! The default error page, and the same as plain text. The page loads nothing, has no script, and says what happened
//! and what to do next.

use std::fmt::Write;
use std::sync::LazyLock;

use base64::prelude::{BASE64_STANDARD, Engine};
use http::{HeaderValue, StatusCode};
use sha2::{Digest, Sha256};

use crate::proxy::render::escape::push_escaped;
use crate::proxy::steps::response::error_page::{ErrorFacts, reason};
use crate::route::error_pages::PageFormat;

const STYLE: &str = include_str!("page.css");

/// The policy of the default page: only its own style, which the hash names.
pub static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = Sha256::digest(STYLE);
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        BASE64_STANDARD.encode(hash)
    );
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// Renders the default page.
pub fn render_html(facts: &ErrorFacts) -> String {
    let (status, reason) = (facts.status.as_str(), reason(facts.status));
    let mut page = String::with_capacity(STYLE.len() + 1024);
    page.push_str(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<meta name=\"robots\" content=\"noindex\">\n<title>",
    );
    page.extend([status, " "]);
    push_escaped(&mut page, reason, PageFormat::Html);
    page.extend(["</title>\n<style>", STYLE, "</style>\n</head>\n<body>\n<main>\n<p class=\"code\">Error ", status]);
    page.push_str("</p>\n<h1>");
    push_escaped(&mut page, reason, PageFormat::Html);
    page.push_str("</h1>\n<p>");
    push_escaped(&mut page, &explain(facts), PageFormat::Html);
    page.push_str("</p>\n<p>");
    push_escaped(&mut page, &next_step(facts), PageFormat::Html);
    page.push_str("</p>\n");
    if facts.status == StatusCode::NOT_FOUND {
        page.push_str("<p><a href=\"/\">Go to the start page</a></p>\n");
    }
    if let Some(id) = facts.request_id {
        page.push_str("<p class=\"id\">Request ID: <code>");
        push_escaped(&mut page, id, PageFormat::Html);
        page.push_str("</code></p>\n");
    }
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// Renders the default text.
pub fn render_text(facts: &ErrorFacts) -> String {
    let mut text =
        format!("{} {}\n\n{}\n{}\n", facts.status.as_str(), reason(facts.status), explain(facts), next_step(facts));
    if let Some(id) = facts.request_id {
        let _ = writeln!(text, "Request ID: {id}");
    }
    text
}

/// Returns what happened, in words for visitors of a site.
fn explain(facts: &ErrorFacts) -> String {
    let general = match facts.status {
        StatusCode::NOT_FOUND => "There is no page at this address.",
        StatusCode::TOO_MANY_REQUESTS => "You have sent too many requests.",
        StatusCode::BAD_GATEWAY => "The server behind this site does not respond as it should.",
        StatusCode::SERVICE_UNAVAILABLE => "This site cannot serve your request at the moment.",
        StatusCode::GATEWAY_TIMEOUT => "The server behind this site did not respond in time.",
        _ => return to_sentence(facts.detail),
    };
    general.to_owned()
}

/// Returns the text with a capital letter and a full stop.
fn to_sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    let mut sentence: String = first.into_iter().chain(chars).collect();
    if !sentence.ends_with(['.', '!', '?']) {
        sentence.push('.');
    }
    sentence
}

/// Returns what a person can do next.
fn next_step(facts: &ErrorFacts) -> String {
    if let Some(wait_s) = facts.retry_after {
        return match wait_s {
            1 => "Try again in 1 second.".to_owned(),
            2..120 => format!("Try again in {wait_s} seconds."),
            120..7200 => format!("Try again in {} minutes.", (wait_s + 59) / 60),
            _ => format!("Try again in {} hours.", (wait_s + 3599) / 3600),
        };
    }
    let step = match facts.status {
        StatusCode::BAD_REQUEST | StatusCode::URI_TOO_LONG => "Check the address, then try again.",
        StatusCode::UNAUTHORIZED => "Sign in, then try again.",
        StatusCode::NOT_FOUND | StatusCode::GONE => "Check the address.",
        StatusCode::PAYLOAD_TOO_LARGE => "Send a smaller file.",
        StatusCode::MISDIRECTED_REQUEST => "Reload the page.",
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            "Delete the cookies of this site in your browser, then reload the page."
        }
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => "Try again later.",
        status if status.is_server_error() => {
            "Try again in a few minutes. If the error persists, contact the owner of this site."
        }
        _ => "If you think that this is a mistake, contact the owner of this site.",
    };
    step.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_a_next_step() {
        for code in 400..600 {
            let status = StatusCode::from_u16(code).unwrap();
            let facts = ErrorFacts { status, detail: "it failed", request_id: None, retry_after: None };
            let text = render_text(&facts);
            let is_general = [404, 429, 502, 503, 504].contains(&code);
            assert!(text.starts_with(&format!("{code} ")) && text.contains("It failed.\n") != is_general, "{text}");
            assert!(!text.contains("Request ID") && !render_html(&facts).contains("Request ID"), "{text}");
        }
        let facts = |wait_s| ErrorFacts {
            status: StatusCode::TOO_MANY_REQUESTS,
            detail: "a",
            request_id: Some("<b>"),
            retry_after: Some(wait_s),
        };
        for (wait_s, text) in [(1, "1 second."), (90, "90 seconds."), (121, "3 minutes."), (7201, "3 hours.")] {
            assert!(render_text(&facts(wait_s)).contains(&format!("Try again in {text}")), "{wait_s}");
        }
        assert!(render_html(&facts(1)).contains("<code>&#60;b&#62;</code>"));
    }
}
