//! `POST /-/explain`: what the gateway would do with a request, with the live state of its limits. Called by `pages`.

use std::net::IpAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::StatusCode;

use crate::admin::limits::json::{Faults, JsonNode, parse_body};
use crate::admin::limits::{LimitsApi, refuse_hidden};
use crate::admin::problem::Problem;
use crate::config::admin_tokens::Role;
use crate::explain;
use crate::explain::{
    BODY_MAX, DESCRIPTORS_MAX, DescriptorInput, ENTRIES_MAX, ExplainContext, ExplainInput, RateLimitInput,
};
use crate::limiting::decision::Op;

/// Maximum number of hits of a descriptor.
const HITS_MAX: i64 = 1 << 53;
/// Maximum number of headers of a request: more than the parser accepts.
const HEADERS_MAX: usize = 10_000;

impl LimitsApi {
    /// Explains the request, or the rate limit request of Envoy, that `body` describes to a caller with this role.
    /// Charges nothing.
    pub async fn explain_request(&self, body: &[u8], role: Role) -> Result<String, Problem> {
        let value = parse_body(body)?;
        let faults = Faults::default();
        let root = faults.root(&value);
        let snapshot = self.current.load_full();
        let limiter = self.link.limiter();
        let context = ExplainContext {
            config: &snapshot.config,
            limiter: &limiter,
            display: &snapshot.config.admin.key_display,
            op: Op::Peek,
            explains_hidden: role.includes(Role::Limits),
            is_live: true,
            stated_ms: None,
        };
        let explanation = if root.get("rls").is_some() {
            let input = parse_rate_limit(&root);
            let input = faults.into_result(input)?;
            if !context.explains_hidden {
                refuse_hidden_values(&input, &context, role)?;
            }
            explain::explain_rate_limit(&input, &context).await
        } else {
            let input = parse_input(&root);
            let unusable = |detail: String| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail);
            explain::explain_request(&faults.into_result(input)?, &context).await.map_err(unusable)?.0
        };
        let internal_error = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the explanation cannot be written");
        serde_json::to_string(&explanation).map_err(internal_error)
    }
}

/// Refuses a rate limit request whose explanation would confirm a guess of a hidden value.
fn refuse_hidden_values(input: &RateLimitInput, context: &ExplainContext, role: Role) -> Result<(), Problem> {
    if input.has_hidden_values(context.display) {
        return Err(refuse_hidden("the config hides values of these entries", role));
    }
    match input.find_hidden_limit(context.config, context.display) {
        Some(limit) => {
            Err(refuse_hidden(&format!("the config hides values that the limit {} reads", limit.name), role))
        }
        None => Ok(()),
    }
}

/// Parses `{"rls": {"domain": "NAME", "descriptors": [{"entries": ..., "hits": N}]}}`.
fn parse_rate_limit(root: &JsonNode) -> Option<RateLimitInput> {
    root.check_members(&["rls"])?;
    let node = root.require("rls")?;
    node.check_members(&["domain", "descriptors"])?;
    let domain = node.require("domain")?.text()?.to_owned();
    let items = node.require("descriptors")?.items(1..=DESCRIPTORS_MAX)?;
    Some(RateLimitInput { domain, descriptors: items.iter().map(parse_descriptor).collect::<Option<_>>()? })
}

fn parse_descriptor(node: &JsonNode) -> Option<DescriptorInput> {
    node.check_members(&["entries", "hits"])?;
    let entries = parse_pairs(&node.require("entries")?, ENTRIES_MAX)?;
    let hits = match node.get("hits") {
        Some(hits) => hits.integer(-HITS_MAX..=HITS_MAX)?,
        None => 1,
    };
    Some(DescriptorInput { entries, hits })
}

fn parse_input(root: &JsonNode) -> Option<ExplainInput> {
    root.check_members(&[
        "method",
        "url",
        "headers",
        "from",
        "body",
        "body_base64",
        "certificate_subject",
        "user",
        "ext_authz",
    ])?;
    let text = |name: &str| match root.get(name) {
        Some(node) => node.text().map(|text| Some(text.to_owned())),
        None => Some(None),
    };
    let method = text("method")?.unwrap_or_else(|| "GET".to_owned());
    let url = root.require("url")?.text()?.to_owned();
    let headers = match root.get("headers") {
        Some(node) => parse_pairs(&node, HEADERS_MAX)?,
        None => Vec::new(),
    };
    let from = match root.get("from") {
        Some(node) => Some(parse_address(&node)?),
        None => None,
    };
    let (certificate_subject, user, ext_authz) = (text("certificate_subject")?, text("user")?, text("ext_authz")?);
    let body = parse_request_body(root)?;
    Some(ExplainInput { method, url, headers, from, body, certificate_subject, user, ext_authz })
}

/// Parses `{"NAME": "VALUE"}`, or `[["NAME", "VALUE"]]` for names that repeat.
fn parse_pairs(node: &JsonNode, most: usize) -> Option<Vec<(String, String)>> {
    if node.is_object() {
        let pair = |(name, value): (&str, JsonNode)| Some((name.to_owned(), value.text()?.to_owned()));
        return node.entries()?.into_iter().map(pair).collect();
    }
    let items = node.items(0..=most)?;
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
            let bytes = BASE64_STANDARD.decode(node.text()?).ok();
            (bytes.or_else(|| node.add_fault("it is not Base64"))?, node)
        }
    };
    match bytes.len() {
        0..=BODY_MAX => Some(Some(bytes)),
        _ => node.add_fault(format!("a body has at most {BODY_MAX} bytes here; state its length in content-length")),
    }
}
