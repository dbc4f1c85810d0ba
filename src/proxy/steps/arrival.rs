//! The first steps of every received request: open the log entry, and check the head strictly.

use http::Method;

use crate::config::Config;
use crate::ends::End;
use crate::limiting::source::Facts;
use crate::proxy::account::log_entry::LogEntry;
use crate::proxy::account::request_context::{Received, RequestContext, RoutedRequest};
use crate::proxy::head::http2_head;
use crate::proxy::head::request_id;
use crate::proxy::head::validate;
use crate::proxy::head::validate::ValidatedHead;
use crate::proxy::steps::forwarded_head::count_ambiguous_lines;
use crate::proxy::steps::limits::request_facts;
use crate::proxy::steps::stated_headers;
use crate::proxy::words::known_headers::KnownHeader;
use crate::proxy::words::refusal::Refusal;
use crate::proxy::words::trace;
use crate::route::client_facts::ClientFact;
use crate::snapshot::UNMATCHED;

/// Opens the access log entry and the span of the request, if they are enabled or an operator taps requests.
pub fn open_log_entry(request: &mut RequestContext<'_>) {
    let identity = request.identity;
    let Config { server, geo, .. } = &request.view.snapshot.config;
    let headers = &request.received.parts.headers;
    let span = server.spans.as_ref().and_then(|spans| trace::open_span(spans, headers));
    let is_tapped = request.client.worker.process.taps.is_active();
    let is_logged = server.access_log.is_some() || span.is_some() || is_tapped;
    if is_logged || server.answer_request_id {
        request.request_id = Some(request_id::received_or_new(headers, identity.trusted_peer));
    }
    if is_logged {
        let mut entry = LogEntry::open(request.client, server, identity.ip, &request.received.parts, span);
        geo.iter().for_each(|geo| entry.record_country(geo));
        if is_tapped {
            entry.record_for_taps();
        }
        request.request_id.iter().for_each(|id| entry.record_request_id(id));
        if !server.log_facts.is_empty() {
            let certificate = request.client.tls.as_ref().and_then(|tls| tls.certificate.as_ref());
            let facts = Facts { certificate, ..Facts::new(identity.ip, UNMATCHED, headers) };
            entry.record_facts(server.log_facts.iter().map(|fact| stated_headers::find_logged_value(fact, &facts)));
        }
        request.account.set_log_entry(entry);
    }
}

/// Records the facts of the log again, once the token of the client has been verified.
pub fn record_facts(request: &mut RequestContext<'_>, routed: RoutedRequest<'_>, wanted: &[ClientFact]) {
    let facts = request_facts(request, routed, true);
    let values: Vec<Option<String>> =
        wanted.iter().map(|fact| stated_headers::find_logged_value(fact, &facts)).collect();
    if let Some(entry) = request.account.log_entry() {
        entry.record_facts(values.into_iter());
    }
}

/// Checks what the HTTP parser does not: the header list of HTTP/2, and the bytes that the parser, or the check before
/// it, silently repairs. Returns the fault that was repaired.
pub fn check_framing(request: &mut RequestContext<'_>) -> Result<Option<End>, Refusal> {
    let max_headers = request.view.snapshot.config.server.max_headers;
    if request.received.is_on_stream() {
        let Received { parts, header_set, .. } = &mut *request.received;
        let fault = header_set.has_ambiguous_names.then(|| http2_head::take_raw_bytes(&mut parts.headers)).flatten();
        http2_head::normalize_headers(&mut parts.headers, max_headers).map_err(Refusal::from)?;
        return Ok(fault);
    }
    let Received { parts, body, .. } = &*request.received;
    let length = body.find_length();
    let inspector = request.client.inspector.as_ref();
    let (fault, names) = match inspector.map(|inspector| inspector.borrow_mut()) {
        Some(mut inspector) => (inspector.take_fault(length), inspector.take_names()),
        None => (None, None),
    };
    // After a repair, the bytes that follow were not inspected. After CONNECT, they may be meant for a tunnel (RFC
    // 9931, section 7).
    request.must_close = fault.is_some() || parts.method.as_str().eq_ignore_ascii_case(Method::CONNECT.as_str());
    if let Some(names) = names {
        request.received.parts.extensions.insert(names);
    }
    Ok(fault)
}

/// Refuses a head that servers could read differently, and computes the canonical host, path and method.
pub fn validate_head(request: &RequestContext<'_>) -> Result<ValidatedHead, Refusal> {
    let Received { parts, header_set: fields, .. } = &*request.received;
    validate::validate_head(parts, *fields, request.client.last_host()).map_err(Refusal::from)
}

/// Records the path again if the route keeps repeated slashes: the log has the path that its limits see.
pub fn record_kept_slashes(request: &mut RequestContext<'_>, head: &ValidatedHead) {
    if head.path().len() != head.matched_path().len() {
        record_target(request, head);
    }
}

/// Records the canonical host and path for the log.
pub fn record_target(request: &mut RequestContext<'_>, head: &ValidatedHead) {
    if let Some(entry) = request.account.log_entry() {
        entry.record_target(head.read_host(), head.path());
    }
}

/// Reports a peer that sends forwarding headers without being listed in `trusted_proxies`.
pub fn report_untrusted_headers(request: &RequestContext<'_>) {
    let RequestContext { client, identity, .. } = *request;
    let (fields, headers) = (request.received.header_set, &request.received.parts.headers);
    let rules = &request.view.snapshot.config.server.client_address;
    if !identity.trusted_peer
        && (fields.has_client_headers
            || fields.has(KnownHeader::Forwarded)
            || rules.headers.singles().any(|name| headers.contains_key(name)))
    {
        client.listener.untrusted.report_headers(headers, client.peer, rules, &client.untrusted_reported);
    }
}

/// Counts the headers that are removed because servers could confuse their names with others.
pub fn count_ambiguous_headers(request: &RequestContext<'_>) {
    if request.received.header_set.has_ambiguous_names {
        let headers = &request.received.parts.headers;
        let count = count_ambiguous_lines(headers, &request.view.snapshot.config);
        request.client.listener.untrusted.count_ambiguous(count);
    }
}

/// Reports a trusted proxy that does not name the client of its request.
pub fn report_unnamed_client(request: &RequestContext<'_>) {
    let RequestContext { client, identity, view, .. } = *request;
    if identity.trusted_peer && !identity.is_named {
        let (headers, rules) = (&request.received.parts.headers, &view.snapshot.config.server.client_address);
        client.listener.untrusted.report_unnamed((headers, rules), client.peer, &client.untrusted_reported);
    }
}
