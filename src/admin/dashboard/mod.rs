//! `GET /`: the dashboard, one page with its style and script. The page holds no data: its script requests the other
//! pages with the token of the operator. Listed in `pages`.
//!
//! The sources are in `ui/` and are part of the program. The content security policy allows nothing but this style and
//! this script, by their hashes, and requests to this listener.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, HeaderValue, StatusCode};
use sha2::{Digest, Sha256};

use crate::admin::page_request::PageRequest;
use crate::admin::problem::Problem;
use crate::admin::response::{AdminResponse, typed_response};

/// The page and the policy that browsers enforce for it.
struct DashboardPage {
    html: Bytes,
    policy: String,
}

/// Contains an empty `style` and an empty `script` element.
const INDEX: &str = include_str!("../../../ui/index.html");
const STYLE: &str = include_str!("../../../ui/style.css");
/// The parts of the script, in their order.
const SCRIPTS: [&str; 19] = [
    include_str!("../../../ui/text.js"),
    include_str!("../../../ui/elements.js"),
    include_str!("../../../ui/session.js"),
    include_str!("../../../ui/stream.js"),
    include_str!("../../../ui/past.js"),
    include_str!("../../../ui/now.js"),
    include_str!("../../../ui/routes.js"),
    include_str!("../../../ui/limits.js"),
    include_str!("../../../ui/actions.js"),
    include_str!("../../../ui/key.js"),
    include_str!("../../../ui/customer.js"),
    include_str!("../../../ui/override.js"),
    include_str!("../../../ui/overrides.js"),
    include_str!("../../../ui/tap.js"),
    include_str!("../../../ui/upstreams.js"),
    include_str!("../../../ui/gateways.js"),
    include_str!("../../../ui/config.js"),
    include_str!("../../../ui/tls.js"),
    include_str!("../../../ui/main.js"),
];

static PAGE: LazyLock<DashboardPage> = LazyLock::new(build_page);

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

pub async fn show_dashboard(_: PageRequest) -> Result<AdminResponse, Problem> {
    let policy = HeaderValue::try_from(&PAGE.policy)
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let mut answer = typed_response(StatusCode::OK, "text/html; charset=utf-8", PAGE.html.clone());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(OPENER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    Ok(answer)
}

fn build_page() -> DashboardPage {
    let script = format!("\"use strict\";\n{}", strip_layout(&SCRIPTS.join("\n")));
    let style = strip_layout(STYLE);
    let html = INDEX.replacen("<style></style>", &format!("<style>{style}</style>"), 1);
    let html = html.replacen("<script></script>", &format!("<script>{script}</script>"), 1);
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
        hash_source(&script),
        hash_source(&style)
    );
    DashboardPage { html: html.into(), policy }
}

/// Removes indents, lines that are comments, and line ends after punctuation that needs none. No text and no comment
/// continues on the next line, so none of them changes.
fn strip_layout(source: &str) -> String {
    let lines = source.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("//"));
    let ends = |line: &str| if line.ends_with([';', ',', '{', '(', '[']) { "" } else { "\n" };
    lines.flat_map(|line| [line, ends(line)]).collect()
}

/// Returns the hash of an element's text as a policy names it.
fn hash_source(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE_MAX: usize = 152 * 1024;

    #[test]
    fn the_page_is_small_and_its_elements_end_where_they_should() {
        let html = str::from_utf8(&PAGE.html).unwrap();
        assert!(html.len() <= SIZE_MAX, "the page has {} bytes; at most {SIZE_MAX} are allowed", html.len());
        for end in ["</style", "</script", "<script", "<style"] {
            assert_eq!(html.matches(end).count(), 1, "`{end}` must not be in a text");
        }
        // A browser hashes line ends as it reads them.
        assert!(!html.contains('\r'));
        let spans_lines = |line: &&str| line.matches('`').count() % 2 == 1;
        let spanning: Vec<&str> = SCRIPTS.iter().flat_map(|script| script.lines()).filter(spans_lines).collect();
        assert!(spanning.is_empty(), "a template must end on its line: {spanning:?}");
        let comments: Vec<&str> = html.lines().filter(|line| line.contains("// ")).collect();
        assert!(comments.is_empty(), "a comment must have its own lines: {comments:?}");
    }

    #[test]
    fn scripts_use_no_sink_that_parses_text() {
        let sinks = ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc"];
        for (sink, script) in sinks.iter().flat_map(|sink| SCRIPTS.iter().map(move |script| (sink, script))) {
            assert!(!script.contains(sink), "use textContent in place of {sink}");
        }
    }
}
