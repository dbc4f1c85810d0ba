//! Records one request in the audit log when it ends, even if its client has disconnected. Called by `admin::pages`.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::SystemTime;

use http::request::Parts;
use http::{HeaderValue, Method};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::admin::access::audit::{AuditEntry, AuditNote, format_time};
use crate::admin::access::line_limiter::LineKind;
use crate::admin::access::{AccessState, AdminCaller, Peer};
use crate::admin::context::AdminContext;
use crate::admin::problem::ProblemKind;
use crate::admin::response::AdminResponse;

/// A request that gets an audit line, at the latest when this is dropped.
pub struct PendingRecord {
    context: Rc<AdminContext>,
    entry: AuditEntry,
    peer: Peer,
    /// The caller; `None` if it is unknown.
    pub caller: Option<AdminCaller>,
    /// Fields that the page adds to the line.
    pub note: Rc<RefCell<AuditNote>>,
    /// The page makes changes, so the request gets a line even if it is not refused.
    is_change: bool,
    /// The kind of line about a known caller that is not refused.
    kind: LineKind,
    is_done: bool,
}

/// Pages whose POST changes nothing but usage of limits.
const UNAUDITED: [&str; 3] = ["/-/decide", "/-/explain", "/-/limits/NAME/what-if"];
/// Pages whose changes of the config always have a line.
const CONFIG_PAGES: [&str; 3] = ["/-/reload", "/-/config/files/NAME", "/-/rollback"];
/// Page that any role may use without changing anything for others.
const SESSION_PAGE: &str = "/-/session";
/// Status of a request whose client disconnected before the response, as in the access log.
const CLIENT_LEFT: u16 = 499;

impl PendingRecord {
    /// Starts the record of a request to the page with this path.
    pub fn new(context: &Rc<AdminContext>, page: &str, name: &str, head: &Parts, peer: Peer) -> PendingRecord {
        let entry = AuditEntry {
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            peer: peer.label(),
            limit: page.starts_with("/-/limits/NAME").then(|| name.to_owned()),
            generation_before: context.current.load().generation,
            request_id: Some(format!("{:016x}", rand::random::<u64>())),
            ..AuditEntry::default()
        };
        let is_change = !matches!(head.method, Method::GET | Method::HEAD) && !UNAUDITED.contains(&page);
        let (context, note) = (context.clone(), Rc::default());
        let is_dry_run = matches!(head.uri.query(), Some("dry_run=1" | "dry_run=true"));
        // The kind if the caller is known and not refused.
        let kind = match page {
            SESSION_PAGE => LineKind::Failed,
            _ if CONFIG_PAGES.contains(&page) && !is_dry_run => LineKind::Config,
            _ => LineKind::Change,
        };
        PendingRecord { context, entry, peer, caller: None, note, is_change, kind, is_done: false }
    }

    /// Records the request, if it is a change or `is_refused`, and adds its id to the response.
    pub fn finish(mut self, answer: &mut AdminResponse, problem: Option<ProblemKind>, is_refused: bool) {
        self.is_done = true;
        if !self.is_change && !is_refused {
            return;
        }
        self.entry.problem = problem.map(ProblemKind::label);
        self.write(answer.status().as_u16());
        let id = self.entry.request_id.as_deref().map(HeaderValue::from_str);
        if let Some(Ok(id)) = id {
            answer.headers_mut().insert("x-request-id", id);
        }
    }

    fn write(&mut self, status: u16) {
        let snapshot = self.context.current.load();
        let note = self.note.take();
        let caller = note.caller.or_else(|| self.caller.take());
        let kind = match caller {
            None => LineKind::Unproven,
            // The change of a client that disconnected may have been made.
            Some(_) if (400..500).contains(&status) && status != CLIENT_LEFT => LineKind::Failed,
            Some(_) => self.kind,
        };
        let entry = &mut self.entry;
        (entry.status, entry.time, entry.generation_after) =
            (status, format_time(SystemTime::now()), snapshot.generation);
        (entry.key, entry.change) = (note.key, note.change);
        entry.limit = note.limit.or_else(|| entry.limit.take());
        if let Some(caller) = caller {
            (entry.token, entry.session, entry.role) = (caller.name, caller.is_session, Some(caller.role.label()));
        }
        if self.context.access.record(entry, kind, self.peer, &snapshot.config.admin) {
            let context = self.context.clone();
            spawn_local(async move {
                sleep(AccessState::SUMMARY_PERIOD).await;
                context.write_summaries();
            });
        }
    }
}

impl Drop for PendingRecord {
    fn drop(&mut self) {
        if !self.is_done && self.is_change {
            let note = "the client disconnected before the response; the change may have been made";
            self.note.borrow_mut().change = Some(note.to_owned());
            self.write(CLIENT_LEFT);
        }
    }
}

impl AdminContext {
    /// Writes one audit line for each token or peer with requests that have none.
    pub fn write_summaries(&self) {
        let snapshot = self.current.load();
        self.access.write_summaries(&snapshot.config.admin, snapshot.generation);
    }
}
