//! `POST /-/explain`: what the gateway would do with a request, with the live state of its limits. Called by `pages`.

use std::net::IpAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::StatusCode;

use crate::admin::limits::LimitsApi;
use crate::admin::limits::json::{Faults, JsonNode, parse_body};
use crate::admin::problem::Problem;
use crate::config::admin_tokens::Role;
use crate::explain;
use crate::explain::{BODY_MAX, ExplainContext, ExplainInput};
use crate::limiting::decision::Op;

/// Most headers of a request: more than the parser accepts.
const HEADERS_MAX: usize = 10_000;

impl LimitsApi {
    /// Explains the request that `body` describes to a caller with this role. Charges nothing.
    pub async fn explain_request(&self, body: &[u8], role: Role) -> Result<String, Problem> {
        let value = parse_body(body)?;
        let faults = Faults::default();
        let input = parse_input(&faults.root(&value));
        let input = faults.into_result(input)?;
        let snapshot = self.current.load_full();
        let limiter = self.link.limiter();
        let context = ExplainContext {
            config: &snapshot.config,
            limiter: &limiter,
            display: &snapshot.config.admin.key_display,
            op: Op::Peek,
            explains_hidden: role.includes(Role::Limits),
            is_live: true,
        };
        let unusable = |detail: String| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail);
        let (explanation, _) = explain::explain_request(&input, &context).await.map_err(unusable)?;
        let failed = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the explanation cannot be written");
        serde_json::to_string(&explanation).map_err(failed)
    }
}

fn parse_input(root: &JsonNode) -> Option<ExplainInput> {
    root.check_members(&["method", "url", "headers", "from", "body", "body_base64", "certificate_subject", "user"])?;
    let text = |name: &str| match root.get(name) {
        Some(node) => node.text().map(|text| Some(text.to_owned())),
        None => Some(None),
    };
    let method = text("method")?.unwrap_or_else(|| "GET".to_owned());
    let url = root.require("url")?.text()?.to_owned();
    let headers = match root.get("headers") {
        Some(node) => parse_headers(&node)?,
        None => Vec::new(),
    };
    let from = match root.get("from") {
        Some(node) => Some(parse_address(&node)?),
        None => None,
    };
    let (certificate_subject, user) = (text("certificate_subject")?, text("user")?);
    Some(ExplainInput { method, url, headers, from, body: parse_request_body(root)?, certificate_subject, user })
}

/// Parses `{"NAME": "VALUE"}`, or `[["NAME", "VALUE"]]` for headers that repeat.
fn parse_headers(node: &JsonNode) -> Option<Vec<(String, String)>> {
    if node.is_object() {
        let pair = |(name, value): (&str, JsonNode)| Some((name.to_owned(), value.text()?.to_owned()));
        return node.entries()?.into_iter().map(pair).collect();
    }
    let items = node.items(0..=HEADERS_MAX)?;
    let pair = |item: &JsonNode| match item.items(2..=2)?.as_slice() {
        [name, value] => Some((name.text()?.to_owned(), value.text()?.to_owned())),
        _ => None,
    };
    items.iter().map(pair).collect()
}

fn parse_address(node: &JsonNode) -> Option<IpAddr> {
    node.text()?.parse().ok().or_else(|| node.add_fault("it must be an IP address"))
}

/// Parses the body of the request to explain, if there is one.
fn parse_request_body(root: &JsonNode) -> Option<Option<Vec<u8>>> {
    let (text, encoded) = (root.get("body"), root.get("body_base64"));
    let (bytes, node) = match (text, encoded) {
        (None, None) => return Some(None),
        (Some(_), Some(encoded)) => return encoded.add_fault("there is `body` as well; keep one of the two"),
        (Some(node), None) => (node.text()?.as_bytes().to_vec(), node),
        (None, Some(node)) => {
            let decoded = BASE64_STANDARD.decode(node.text()?).ok();
            (decoded.or_else(|| node.add_fault("it is not Base64"))?, node)
        }
    };
    match bytes.len() {
        0..=BODY_MAX => Some(Some(bytes)),
        _ => node.add_fault(format!("a body has at most {BODY_MAX} bytes here; state its length in content-length")),
    }
}
