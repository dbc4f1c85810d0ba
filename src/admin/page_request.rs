//! A request to a page of the admin listener, with bounded reading of its body. Used by all pages.

use std::rc::Rc;
use std::time::Duration;

use http::StatusCode;
use http::request::Parts;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::admin::pages::AdminContext;
use crate::admin::problem::Problem;
use crate::admin::room::{AdminSlot, StreamSlot, WorkGuard};

/// A request that may see its page.
pub struct PageRequest {
    pub context: Rc<AdminContext>,
    /// The name in the path; empty if the page has none.
    pub name: String,
    pub head: Parts,
    /// `None` once it was read.
    body: Option<Incoming>,
    slot: Rc<AdminSlot>,
}

/// Time limit from the head to the last byte of a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(3);

impl PageRequest {
    pub fn new(context: Rc<AdminContext>, name: &str, head: Parts, body: Incoming, slot: Rc<AdminSlot>) -> PageRequest {
        PageRequest { context, name: name.to_owned(), head, body: Some(body), slot }
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
    pub fn start_work(&self) -> Result<WorkGuard<'_>, Problem> {
        self.slot
            .start_work()
            .ok_or_else(|| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once; try again"))
    }

    /// Takes one of the few slots of streams, which have no time limit, for `stream_response`.
    pub fn take_stream_slot(&self) -> Result<StreamSlot, Problem> {
        AdminSlot::take_stream_slot(&self.slot)
            .ok_or_else(|| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many streams at once; close one"))
    }

    /// Reads the body, of `most` bytes at most.
    pub async fn read_body(&mut self, most: usize) -> Result<Vec<u8>, Problem> {
        let Some(mut body) = self.body.take() else { return Ok(Vec::new()) };
        let large = || Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a body here has at most {most} bytes"));
        // Checked before the client gets `100 Continue`.
        if body.size_hint().lower() > most as u64 {
            return Err(large());
        }
        let whole = async {
            let mut bytes = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|_| Problem::new(StatusCode::BAD_REQUEST, "the body broke off"))?;
                let Ok(piece) = frame.into_data() else { continue };
                let length = bytes.len() + piece.len();
                if length > most {
                    return Err(large());
                }
                if !self.slot.hold_bytes(length) {
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
