//! Settlement of what the limits charged for a request: by its response, by the gateway's refusal, or by its end.

use std::rc::Rc;
use std::time::Duration;

use http::{HeaderMap, Method, Response, StatusCode};

use crate::ends::{End, Refund};
use crate::limiting::charges::guard::ChargeGuard;
use crate::limiting::limit::request_end::{RequestEnd, ResponseTail};
use crate::proxy::account::{Life, RequestAccount, ResponseEnd, SentResponse};
use crate::proxy::connection::upload::{UploadProgress, UploadState};

impl RequestAccount {
    /// Keeps what limits charged, besides what is kept already, until the outcome of the request is known.
    pub fn hold_charges(&mut self, charged: Option<Box<ChargeGuard>>) {
        match (&mut self.charges, charged) {
            (Some(charges), Some(mut charged)) => charges.absorb(&mut charged),
            (charges @ None, charged) => *charges = charged,
            (Some(_), None) => {}
        }
    }

    /// Leaves what the limits charged as it is, because the gateway does not learn how the request ends.
    pub fn keep_charges(&mut self) {
        if let Some(charges) = self.charges.take() {
            charges.keep_charges();
        }
    }

    /// Refunds what the limits charged, as far as the outcome of the request is not known yet.
    pub fn refund_charges(&mut self) {
        if let Some(charges) = self.charges.take() {
            charges.refund();
        }
    }

    /// Records that a delayed request continues: its charge is no longer refunded if the client disconnects.
    pub fn end_delay(&mut self) {
        if let Some(charges) = &mut self.charges {
            charges.end_wait();
        }
    }

    /// Records that the response is that of the route: of a server, not of the gateway in its place.
    pub fn note_route_response(&mut self) {
        if let Some(charges) = &mut self.charges {
            charges.note_route_response();
        }
    }

    /// Settles what the limits charged by the head of the response, as the server sent it. Limits that need the body
    /// or the trailers settle later. `ends_by_close`: only the end of the server's connection ends the body.
    pub fn settle_by_response<B>(&mut self, response: &Response<B>, ends_by_close: bool) {
        let Some(charges) = &mut self.charges else { return };
        let (status, head, none) = (response.status(), response.headers(), HeaderMap::new());
        // A tunnel follows such a head, and no trailers.
        let is_switch = status == StatusCode::SWITCHING_PROTOCOLS;
        if charges.reads_usage() {
            let is_empty = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
            charges.start_scan(status, head, !is_switch && !is_empty && self.method != Method::HEAD, ends_by_close);
        }
        let tail = if is_switch { ResponseTail::Whole(&none) } else { ResponseTail::Awaited };
        charges.settle_outcome(RequestEnd::Response { status, head, tail });
    }

    /// Settles what the limits charged by the gateway's own response to a refusal. `status` is the status of the
    /// refusal, not the 200 of a gRPC response.
    ///
    /// A server that got a part of the request may have acted on it. If the client then ends the exchange, the request
    /// counts as aborted, regardless of the status.
    pub fn settle_by_refusal(&mut self, status: StatusCode, head: &HeaderMap, end: End) {
        let Some(charges) = &mut self.charges else { return };
        let none = HeaderMap::new();
        let reached_server = matches!(self.life, Life::Open { reached_server: true });
        charges.settle_outcome(match end.row().refund {
            Refund::Abort if reached_server => RequestEnd::Aborted,
            Refund::Overload if !reached_server => RequestEnd::Overloaded { status, head },
            Refund::Unsent if !reached_server => RequestEnd::ConnectError { status, head },
            _ => RequestEnd::Response { status, head, tail: ResponseTail::Whole(&none) },
        });
    }

    /// Returns whether a limit settles by the body of the response.
    pub fn reads_usage(&self) -> bool {
        self.charges.as_ref().is_some_and(|charges| charges.reads_usage())
    }

    /// Returns whether the gateway must request the usage of the stream from the server.
    pub fn requests_usage(&self) -> bool {
        self.charges.as_ref().is_some_and(|charges| charges.requests_usage())
    }

    /// Reads a copy of the next piece of the response body as the server sent it, for limits that settle by it.
    pub fn scan_body(&mut self, bytes: &[u8]) {
        if let Some(charges) = &mut self.charges {
            charges.scan_body(bytes);
        }
    }

    /// Settles the charges by a response body that has arrived completely.
    pub fn settle_by_full_body(&mut self, bytes: &[u8]) {
        if let Some(charges) =
            self.charges.as_mut().filter(|charges| charges.reads_usage() && charges.is_awaiting_end())
        {
            charges.scan_body(bytes);
            charges.settle_end(Some(ResponseTail::Whole(&HeaderMap::new())));
        }
    }

    /// Settles the charges that wait for the trailers of the response, as the server sent them.
    pub fn settle_by_trailers(&mut self, trailers: &HeaderMap) {
        let Some(charges) = self.charges.as_mut().filter(|charges| charges.is_awaiting_end()) else { return };
        let is_broken = self.life.upload_state().is_client_fault();
        charges.settle_end((!is_broken).then_some(ResponseTail::Whole(trailers)));
    }

    /// Takes out the charges that still wait for the end of the response, with the longest time to wait. Called if the
    /// response body has ended before its stream.
    pub fn take_waiting_charges(&mut self) -> Option<(Box<ChargeGuard>, Duration)> {
        let Life::Answering(SentResponse { stream, .. }) = self.life else { return None };
        self.take_pending_charges().map(|charges| (charges, stream))
    }

    /// Takes out the charges that still wait for the end of the server's response, because the client gets another one.
    pub fn take_pending_charges(&mut self) -> Option<Box<ChargeGuard>> {
        self.count_upload();
        self.charges.take_if(|charges| charges.is_awaiting_end())
    }

    /// Records the body of the request, for limits that count its bytes.
    pub fn record_upload(&mut self, upload: Rc<UploadProgress>) {
        self.upload = Some(upload);
    }

    /// Tells the charges how much of the request body has arrived.
    pub(super) fn count_upload(&mut self) {
        if let (Some(charges), Some(upload)) = (&mut self.charges, &self.upload) {
            charges.record_received(upload.received_bytes());
        }
    }

    /// Settles the charges that wait for the end of the response.
    ///
    /// Without trailers, the response was complete, or the server cut it off, or the client aborted it. A client aborts
    /// a response if it disconnects, aborts its own body, or pauses its body until the server has been silent for too
    /// long.
    pub(super) fn settle_at_end(&mut self, life: &Life, end: ResponseEnd) {
        let Some(charges) = self.charges.as_mut().filter(|charges| charges.is_awaiting_end()) else { return };
        let none = HeaderMap::new();
        charges.settle_end(match end {
            ResponseEnd::Whole => Some(ResponseTail::Whole(&none)),
            ResponseEnd::Broken(end) if end.is_server_fault() => {
                let state = life.upload_state();
                let is_stall = end == End::ResponseStalled;
                let is_by_client = state.is_client_fault() || (is_stall && state != UploadState::Done);
                (!is_by_client).then_some(ResponseTail::Cut)
            }
            ResponseEnd::Broken(_) | ResponseEnd::Abandoned => None,
        });
    }
}
