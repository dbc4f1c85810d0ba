//! Pages of the admin listener, in one table. Access is checked before a body is read, and `recording` adds the request
//! to the audit log when it ends. Called by `serve` for every request.
//!
//! `access`, `config`, `effective` and `limits` have the pages of the directories of these names; to add one, see
//! `admin`. Input: the head of a request and its body. Output: a response, or a problem.

mod access;
mod config;
mod limits;
mod recording;
mod traffic;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use http::header::ALLOW;
use http::request::Parts;
use http::{Request, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use serde_json::json;

use crate::admin::access::{Access, Peer, guard};
use crate::admin::context::AdminContext;
use crate::admin::openapi::{self, DescribedPage};
use crate::admin::page_request::{AllowedRequest, PageRequest};
use crate::admin::pages::access as access_pages;
use crate::admin::pages::config as config_pages;
use crate::admin::pages::limits as limit_pages;
use crate::admin::pages::recording::PendingRecord;
use crate::admin::problem::Problem;
use crate::admin::response::{AdminResponse, json_response, problem_response, refusal_response};
use crate::admin::slots::AdminPermit;
use crate::admin::streams::{live, tap};
use crate::admin::{dashboard, peers, runbook, status, upstreams};
use crate::ends::End;
use crate::telemetry::metrics::Metrics;

type PageFuture = Pin<Box<dyn Future<Output = Result<AdminResponse, Problem>>>>;

struct Page {
    methods: &'static str,
    /// `NAME` represents a name, such as that of a limit.
    path: &'static str,
    access: Access,
    handler: fn(PageRequest) -> PageFuture,
}

/// Builds a row of the table; `$handler` is an async function of a [`PageRequest`].
macro_rules! page {
    ($methods:literal, $path:literal, $access:ident, $handler:path) => {
        Page { methods: $methods, path: $path, access: Access::$access, handler: |request| Box::pin($handler(request)) }
    };
}

const PAGES: &[Page] = &[
    page!("GET, HEAD", "/", Open, dashboard::show_dashboard),
    page!("GET, HEAD", "/livez", Open, status::show_liveness),
    page!("GET, HEAD", "/readyz", Open, status::show_readiness),
    page!("GET, HEAD", "/metrics", Metrics, status::show_metrics),
    page!("GET, HEAD", "/-/status", Read, status::show_status),
    page!("GET, HEAD", "/-/schema.json", Read, status::show_schema),
    page!("POST", "/-/reload", Edit, status::reload_config),
    page!("GET, HEAD", "/-/config", Read, config::show_config),
    page!("GET, HEAD", "/-/config/files", Read, config_pages::list_files),
    page!("GET, HEAD", "/-/config/files/NAME", Edit, config_pages::show_file),
    page!("PUT", "/-/config/files/NAME", Edit, config_pages::edit_file),
    page!("GET, HEAD", "/-/config/history", Read, config_pages::show_history),
    page!("POST", "/-/rollback", Edit, config_pages::roll_back),
    page!("GET, HEAD", "/-/routes", Read, config_pages::list_routes),
    page!("GET, HEAD", "/-/traffic", Read, traffic::show_traffic),
    page!("GET, HEAD", "/-/history", Read, traffic::show_history),
    page!("GET, HEAD", "/-/limits", Read, limit_pages::list_limits),
    page!("GET, HEAD", "/-/limits/NAME", Read, limit_pages::show_limit),
    page!("GET, HEAD", "/-/limits/NAME/state", Keys, limit_pages::show_state),
    page!("DELETE", "/-/limits/NAME/state", Limits, limit_pages::reset_key),
    page!("GET, HEAD", "/-/limits/NAME/usage", Keys, limit_pages::show_usage),
    page!("PUT", "/-/limits/NAME/override", Limits, limit_pages::set_override),
    page!("DELETE", "/-/limits/NAME/override", Limits, limit_pages::remove_override),
    page!("GET, HEAD", "/-/overrides", Keys, limit_pages::list_overrides),
    page!("DELETE", "/-/overrides", Limits, limit_pages::remove_listed),
    page!("GET, HEAD", "/-/bans", Keys, limit_pages::list_bans),
    page!("POST", "/-/limits/NAME/refund", Limits, limit_pages::refund_charge),
    page!("POST", "/-/decide", Limits, limit_pages::decide),
    page!("POST", "/-/explain", Keys, limit_pages::explain),
    page!("GET, HEAD", "/-/top", Keys, limit_pages::list_top),
    page!("GET, HEAD", "/-/refusals", Keys, limit_pages::list_refusals),
    page!("GET, HEAD", "/-/customers", Keys, limit_pages::show_customer),
    page!("POST", "/-/limits/NAME/what-if", Read, limit_pages::what_if),
    page!("GET, HEAD", "/-/gateways", Read, peers::list_gateways),
    page!("GET, HEAD", "/-/upstreams", Read, upstreams::show_upstreams),
    page!("GET", "/-/live", Read, live::stream_live),
    page!("GET", "/-/tap", Keys, tap::stream_tap),
    page!("POST", "/-/session", Open, access_pages::open_session),
    page!("GET, HEAD", "/-/audit", Edit, access_pages::show_audit),
    page!("GET, HEAD", "/-/runbook", Open, runbook::list_alerts),
    page!("GET, HEAD", "/-/runbook/NAME", Open, runbook::show_alert),
    page!("GET, HEAD", "/-/openapi.json", Read, show_openapi),
];

/// The `page` label of requests that no page of the table handles.
const NO_PAGE: &str = "_none";

/// Creates the series of every page, so that they exist with value 0 from the start.
pub fn create_series(metrics: &Metrics) {
    let paths = PAGES.iter().map(|page| page.path);
    paths.for_each(|path| drop(metrics.admin_request_counter(path, StatusCode::OK)));
}

impl Page {
    /// Returns the name in `path`, empty if the page has none; `None` if `path` belongs to another page.
    fn name_in<'p>(&self, path: &'p str) -> Option<&'p str> {
        let (mut ours, mut theirs, mut name) = (self.path.split('/'), path.split('/'), "");
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return Some(name),
                (Some("NAME"), Some(given)) => name = given,
                (Some(our), Some(their)) if our == their => {}
                _ => return None,
            }
        }
    }

    fn accepts_method(&self, method: &str) -> bool {
        self.methods.split(", ").any(|known| known == method)
    }
}

/// Describes all pages for programs.
async fn show_openapi(_: PageRequest) -> Result<AdminResponse, Problem> {
    let broken = |detail| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail);
    openapi::document(describe_pages()).map(json_response).map_err(broken)
}

fn describe_pages() -> impl Iterator<Item = DescribedPage> {
    PAGES.iter().map(|page| DescribedPage { methods: page.methods, path: page.path, access: page.access })
}

/// Responds to a request. Every refusal is a problem document (RFC 9457).
pub async fn respond(
    context: &Rc<AdminContext>,
    request: Request<Incoming>,
    fault: Option<End>,
    peer: Peer,
    permit: &Rc<AdminPermit>,
) -> AdminResponse {
    let (head, body) = request.into_parts();
    let clear = match fault {
        Some(fault) => Err((fault.status(), fault.row().text)),
        None => guard::check_host(&head),
    };
    let lookup = match clear {
        Ok(()) => find_page(&head),
        Err((status, detail)) => Err(Box::new(refusal_response(Problem::new(status, detail)))),
    };
    let path = lookup.as_ref().map_or(NO_PAGE, |(page, _)| page.path);
    let answer = match lookup {
        Ok((page, name)) => {
            let name = name.to_owned();
            show_page(context, page, name, (head, body), (peer, permit)).await
        }
        Err(answer) => *answer,
    };
    context.metrics.admin_request_counter(path, answer.status()).inc();
    // The response counts as held memory until it is sent. It is sent even if it exceeds the total.
    permit.hold_bytes(answer.body().size_hint().lower().try_into().unwrap_or(usize::MAX / 2));
    answer
}

/// Calls the page if access is allowed, and records changes and refused requests.
async fn show_page(
    context: &Rc<AdminContext>,
    page: &'static Page,
    name: String,
    (head, body): (Parts, Incoming),
    (peer, permit): (Peer, &Rc<AdminPermit>),
) -> AdminResponse {
    let mut record = PendingRecord::new(context, page.path, &name, &head, peer);
    let access = {
        let admin = &context.current.load().config.admin;
        context.access.authorize(page.access, &head, admin, peer)
    };
    let is_refused = access.is_err();
    let result = match access {
        Ok(caller) => {
            record.caller = Some(caller.clone()).filter(|_| page.access != Access::Open);
            let request = AllowedRequest { head, body, caller, peer, permit: permit.clone() };
            (page.handler)(PageRequest::new(context.clone(), name, request, record.note.clone())).await
        }
        Err(refusal) => {
            record.caller = refusal.caller.map(|caller| *caller);
            Err(*refusal.problem)
        }
    };
    let kind = result.as_ref().err().map(|problem| problem.kind);
    let mut answer = result.unwrap_or_else(refusal_response);
    record.finish(&mut answer, kind, is_refused);
    answer
}

/// Returns the requested page and the name in its path.
fn find_page(head: &Parts) -> Result<(&'static Page, &str), Box<AdminResponse>> {
    let path = head.uri.path();
    let there = || PAGES.iter().filter_map(|page| Some((page, page.name_in(path)?)));
    there().find(|(page, _)| page.accepts_method(head.method.as_str())).ok_or_else(|| {
        let methods: Vec<&str> = there().map(|(page, _)| page.methods).collect();
        Box::new(match methods.as_slice() {
            [] => {
                let pages = PAGES.iter().map(|page| format!("{} {}", page.methods.replace(", HEAD", ""), page.path));
                let detail = format!("there are {}", pages.collect::<Vec<_>>().join(", "));
                problem_response(StatusCode::NOT_FOUND, &detail, json!({}))
            }
            methods => method_not_allowed(&methods.join(", ")),
        })
    })
}

fn method_not_allowed(methods: &str) -> AdminResponse {
    let mut answer = problem_response(StatusCode::METHOD_NOT_ALLOWED, &format!("use {methods}"), json!({}));
    if let Ok(methods) = methods.try_into() {
        answer.headers_mut().insert(ALLOW, methods);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_page_for_each_method() {
        for (i, page) in PAGES.iter().enumerate() {
            let path = page.path.replace("NAME", "daily");
            let others = PAGES.iter().enumerate().filter(|(j, other)| *j != i && other.name_in(&path).is_some());
            for (_, other) in others {
                assert!(page.methods.split(", ").all(|method| !other.accepts_method(method)), "{}", page.path);
            }
        }
        let name = |path: &'static str| PAGES.iter().find_map(|page| page.name_in(path));
        assert_eq!(name("/-/limits/a-b/state"), Some("a-b"));
        assert_eq!(name("/livez"), Some(""));
        for path in ["", "/livez/", "//livez", "/-/limits/a/states", "/-/limits/a/state/b", "/-"] {
            assert_eq!(name(path), None, "{path}");
        }
    }
    #[test]
    fn every_page_is_described_and_the_committed_copy_is_current() {
        let path = "docs/reference/openapi.json";
        let text = String::from_utf8(openapi::document(describe_pages()).unwrap().to_vec()).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        for page in PAGES {
            for method in page.methods.split(", ").filter(|method| *method != "HEAD") {
                let operation = &document["paths"][page.path.replace("NAME", "{name}")][method.to_ascii_lowercase()];
                let is_described = operation["summary"].is_string() && operation["responses"]["200"].is_object();
                assert!(is_described, "describe {method} {} in src/admin/openapi/operations/", page.path);
            }
        }
        if std::env::var("GOLDEN").is_ok_and(|mode| mode == "write") {
            std::fs::write(path, &text).unwrap();
        }
        let copy = std::fs::read_to_string(path).unwrap_or_default();
        assert!(copy == text, "{path} is old: run GOLDEN=write cargo test --lib admin::pages");
    }
}
