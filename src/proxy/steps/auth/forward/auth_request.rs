//! The request to an auth server: `GET`, the headers of the client, and the `X-Forwarded-*` headers that describe the
//! client's request.

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
    RANGE, TE, TRAILER, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request};

use crate::auth::forward::ForwardAuth;
use crate::config::ForwardedHeader;
use crate::ends::End;
use crate::proxy::account::request_context::{RequestContext, RoutedRequest};
use crate::proxy::outbound::forwarded_headers::ForwardedHeadersWriter;
use crate::proxy::outbound::http1::request::HostSource;
use crate::proxy::steps::outgoing_request::OutgoingRequest;
use crate::proxy::words::refusal::Refusal;

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// Headers about the body and the upgrade of the client's request, which the auth server does not get, and conditions
/// on the resource, which it does not serve.
const OMITTED: [HeaderName; 12] = [
    CONNECTION,
    UPGRADE,
    CONTENT_LENGTH,
    EXPECT,
    TE,
    TRAILER,
    RANGE,
    IF_RANGE,
    IF_MATCH,
    IF_NONE_MATCH,
    IF_MODIFIED_SINCE,
    IF_UNMODIFIED_SINCE,
];

/// Builds the request that asks the auth server about `request`.
///
/// # Errors
/// The request has no host, or its target is not a value of a header.
pub fn build_auth_request(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    rule: &ForwardAuth,
) -> Result<OutgoingRequest, Refusal> {
    if routed.head.authority().is_empty() {
        // An auth server would mistake its own host for the host of the request.
        return Err(End::HostMissing.into());
    }
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.headers = client_headers(request, rule);
    describe_request(request, routed, &mut parts.headers)?;
    let mut outgoing =
        OutgoingRequest::new(&parts, routed.identity.ip, &rule.target, HostSource::Server, None, None, |_| {});
    if let Some(entry) = request.account.log_entry()
        && let Some(parent) = entry.traceparent()
    {
        outgoing.head.find_span_id(&parent);
    }
    Ok(outgoing)
}

/// Returns the headers of the client that the auth server may see, as the upstream server gets them. The client's own
/// versions of the identity headers are left out, so that no auth server mistakes them for the result of an earlier
/// check. Credentials stay.
fn client_headers(request: &RequestContext<'_>, rule: &ForwardAuth) -> HeaderMap {
    let mut headers = request.received.parts.headers.clone();
    let is_sent = |name: &HeaderName| (rule.is_sent(name) || describes_client(name)) && !OMITTED.contains(name);
    let names: Vec<HeaderName> = headers.keys().filter(|name| !is_sent(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
    headers
}

/// Returns true for headers in which a trusted proxy describes the client. `forwarded_headers` continues them.
fn describes_client(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-port" | "x-real-ip" | "x-request-id" | "via"
    )
}

/// Adds the headers that describe the client and its request: those of requests to upstream servers, at least
/// `X-Forwarded-For`, `-Proto` and `-Host` and `Via`, and the method and target of the request.
fn describe_request(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    headers: &mut HeaderMap,
) -> Result<(), Refusal> {
    let RoutedRequest { head, identity, .. } = routed;
    let needed_headers = [
        ForwardedHeader::XForwardedFor,
        ForwardedHeader::XForwardedProto,
        ForwardedHeader::XForwardedHost,
        ForwardedHeader::Via,
    ];
    let fields = request.view.snapshot.config.server.forwarded_headers;
    let forwarding = ForwardedHeadersWriter {
        hop: request.client.hop(),
        via: &request.client.worker.process.via,
        version: request.received.parts.version,
        identity,
        fields: needed_headers.into_iter().fold(fields, |fields, header| fields.with(header)),
        request_id: request.request_id.as_ref(),
    };
    forwarding.add_to_headers(headers, head.authority());
    // The auth server judges the path, so it gets the form that rules read.
    let query = head.query().map_or_else(String::new, |query| format!("?{query}"));
    let target = format!("{}{query}", head.path());
    let is_invalid = |_| End::TargetForm;
    headers.insert(X_FORWARDED_URI, HeaderValue::from_bytes(target.as_bytes()).map_err(is_invalid)?);
    let method = HeaderValue::from_str(head.method().as_str());
    headers.insert(X_FORWARDED_METHOD, method.map_err(|_| End::TargetForm)?);
    if let Some(entry) = request.account.log_entry() {
        entry.set_trace_parent(headers);
    }
    Ok(())
}
