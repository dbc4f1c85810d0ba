//! A request to a page of the admin listener, with bounded reading of its body. Used by all pages.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::admin::access::audit::AuditNote;
use crate::admin::access::{AdminCaller, Peer};
use crate::admin::context::AdminContext;
use crate::admin::problem::Problem;
use crate::admin::slots::{AdminPermit, StreamClaim, StreamPermit, WorkPermit};

/// A request that may see its page.
pub struct PageRequest {
    pub context: Rc<AdminContext>,
    /// The name in the path; empty if the page has none.
    pub name: String,
    pub head: Parts,
    /// The authenticated sender, with its role.
    pub caller: AdminCaller,
    pub peer: Peer,
    /// `None` once it was read.
    body: Option<Incoming>,
    permit: Rc<AdminPermit>,
    note: Rc<RefCell<AuditNote>>,
}

/// A request whose access is allowed, before its page gets it.
pub struct AllowedRequest {
    pub head: Parts,
    pub body: Incoming,
    pub caller: AdminCaller,
    pub peer: Peer,
    pub permit: Rc<AdminPermit>,
}

/// Time limit from the head to the last byte of a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(3);

impl PageRequest {
    /// `note` receives what the page reports for the audit log.
    pub fn new(
        context: Rc<AdminContext>,
        name: String,
        AllowedRequest { head, body, caller, peer, permit }: AllowedRequest,
        note: Rc<RefCell<AuditNote>>,
    ) -> PageRequest {
        PageRequest { context, name, head, caller, peer, body: Some(body), permit, note }
    }

    /// Reports for the audit log what was changed.
    pub fn note_change(&self, change: impl Into<String>) {
        self.note.borrow_mut().change = Some(change.into());
    }

    /// Reports for the audit log what a reload changed, or would change. `body` is its response.
    pub fn note_reload(&self, body: &serde_json::Value, dry_run: bool) {
        let summary = body["summary"].as_str().unwrap_or("unchanged");
        self.note_change(if dry_run { format!("dry run: {summary}") } else { summary.to_owned() });
    }

    /// Reports for the audit log the limit that was changed, if the path does not name it.
    pub fn note_limit(&self, limit: Option<&str>) {
        self.note.borrow_mut().limit = limit.map(str::to_owned);
    }

    /// Reports for the audit log the key that was changed, as logs show it.
    pub fn note_key(&self, key: Option<&str>) {
        self.note.borrow_mut().key = key.map(str::to_owned);
    }

    /// Reports for the audit log who sent the request, if the page found that out.
    pub fn note_caller(&self, caller: AdminCaller) {
        self.note.borrow_mut().caller = Some(caller);
    }

    pub fn query(&self) -> &str {
        self.head.uri.query().unwrap_or_default()
    }

    /// Returns whether the query asks for a dry run, which is the only parameter.
    pub fn is_dry_run(&self) -> Result<bool, Problem> {
        match self.query() {
            "" | "dry_run=0" | "dry_run=false" => Ok(false),
            "dry_run=1" | "dry_run=true" => Ok(true),
            _ => Err(Problem::new(StatusCode::BAD_REQUEST, "the only parameter is dry_run, 0 or 1")),
        }
    }

    /// Marks the connection as working, so that it keeps its slot.
    pub fn start_work(&self) -> Result<WorkPermit<'_>, Problem> {
        self.permit
            .start_work()
            .ok_or_else(|| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once; try again"))
    }

    /// Takes one of the few slots of streams, which have no time limit. Each token, or without tokens each peer, gets a
    /// part of them.
    pub fn take_stream_permit(&self, is_tap: bool) -> Result<StreamPermit, Problem> {
        let claim = StreamClaim { owner: self.caller.identify(self.peer), is_tap };
        AdminPermit::take_stream_permit(&self.permit, claim)
            .map_err(|detail| Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail))
    }

    /// Reads the body, JSON of `most` bytes at most.
    pub async fn read_body(&mut self, most: usize) -> Result<Vec<u8>, Problem> {
        self.read_typed_body(most, "application/json").await
    }

    /// Reads the body of `most` bytes at most. A body needs the header `Content-Type`: pages of other sites cannot send
    /// this header without permission, as they can send forms.
    pub async fn read_typed_body(&mut self, most: usize, content_type: &str) -> Result<Vec<u8>, Problem> {
        let Some(mut body) = self.body.take() else { return Ok(Vec::new()) };
        if body.is_end_stream() {
            return Ok(Vec::new());
        }
        if !has_content_type(&self.head.headers, content_type) {
            let detail = format!("send the body with the header `Content-Type: {content_type}`");
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let large = || Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a body here has at most {most} bytes"));
        // Checked before the client gets `100 Continue`.
        if body.size_hint().lower() > most as u64 {
            return Err(large());
        }
        let whole = async {
            let mut bytes = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|_| Problem::new(StatusCode::BAD_REQUEST, "the body is cut off"))?;
                let Ok(piece) = frame.into_data() else { continue };
                let length = bytes.len() + piece.len();
                if length > most {
                    return Err(large());
                }
                if !self.permit.hold_bytes(length) {
                    return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many bodies at once; try again"));
                }
                bytes.extend_from_slice(&piece);
            }
            Ok(bytes)
        };
        let late =
            |_| Problem::new(StatusCode::REQUEST_TIMEOUT, format!("the body was not there within {BODY_TIMEOUT:?}"));
        timeout(BODY_TIMEOUT, whole).await.map_err(late)?
    }
}

/// Returns whether the request has exactly this content type, with or without parameters.
fn has_content_type(headers: &HeaderMap, expected: &str) -> bool {
    let mut all = headers.get_all(CONTENT_TYPE).iter();
    let value = all.next().and_then(|value| value.to_str().ok());
    let essence = value.map(|text| text.split_once(';').map_or(text, |(essence, _)| essence).trim());
    all.next().is_none() && essence.is_some_and(|essence| essence.eq_ignore_ascii_case(expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_content_type_is_accepted() {
        let json = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_TYPE, value.parse().unwrap());
            }
            has_content_type(&headers, "application/json")
        };
        for right in ["application/json", "Application/JSON", "application/json; charset=utf-8", "application/json ;a"]
        {
            assert!(json(&[right]), "{right}");
        }
        for wrong in
            ["", "text/plain", "application/jsonx", "text/plain; application/json", "application/x-www-form-urlencoded"]
        {
            assert!(!json(&[wrong]), "{wrong}");
        }
        assert!(!json(&[]) && !json(&["application/json", "text/plain"]));
    }
}
