//! The request body towards the upstream, with its deadline and its cap. Made by `gateway`, read by
//! the upstream connection or echoed by `body`.

use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;

use super::slot::{Phase, Slot};
use crate::route::Timeouts;

/// A request body as the upstream connection reads it.
pub enum RequestBody {
    Empty,
    Upload(Upload),
}

/// A client's body with its deadline and cap.
pub struct Upload {
    body: Incoming,
    slot: Rc<Slot>,
    progress: Rc<Progress>,
    timeouts: Timeouts,
    max_bytes: u64,
    started_ms: u64,
    /// Bytes seen when the deadline was last set.
    armed_at: Option<u64>,
}

/// How far an upload is; shared with the forwarder, which waits for the response meanwhile.
#[derive(Default)]
pub struct Progress {
    seen: Cell<u64>,
    state: Cell<UploadState>,
    /// The response head has arrived: the deadline now follows the response.
    answered: Cell<bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UploadState {
    #[default]
    Running,
    Done,
    /// The body is larger than the route allows.
    TooLarge,
    /// The client went away or broke the framing.
    Broken,
}

/// Ends an upstream exchange whose request body cannot be completed.
#[derive(Debug)]
pub struct UploadError(UploadState);

impl fmt::Display for UploadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            UploadState::TooLarge => f.write_str("the request body is larger than the route allows"),
            _ => f.write_str("the client did not complete the request body"),
        }
    }
}

impl std::error::Error for UploadError {}

impl Progress {
    pub fn state(&self) -> UploadState {
        self.state.get()
    }

    pub fn answer(&self) {
        self.answered.set(true);
    }
}

impl Upload {
    pub fn new(body: Incoming, slot: Rc<Slot>, timeouts: &Timeouts, max_bytes: u64) -> (Upload, Rc<Progress>) {
        let progress = Rc::new(Progress::default());
        let started_ms = slot.now_ms();
        let upload = Upload {
            body,
            slot,
            progress: progress.clone(),
            timeouts: timeouts.clone(),
            max_bytes,
            started_ms,
            armed_at: None,
        };
        (upload, progress)
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending => {
                self.wait();
                Poll::Pending
            }
            Poll::Ready(None) => {
                self.done();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(_))) => self.fail(UploadState::Broken),
            Poll::Ready(Some(Ok(frame))) => {
                let seen = self.progress.seen.get() + frame.data_ref().map_or(0, |data| data.len() as u64);
                self.progress.seen.set(seen);
                if seen > self.max_bytes {
                    return self.fail(UploadState::TooLarge);
                }
                if self.body.is_end_stream() {
                    self.done();
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    pub fn is_end(&self) -> bool {
        self.body.is_end_stream()
    }

    pub fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    fn fail(&mut self, state: UploadState) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        self.progress.state.set(state);
        Poll::Ready(Some(Err(UploadError(state))))
    }

    fn done(&mut self) {
        self.progress.state.set(UploadState::Done);
        if !self.progress.answered.get() {
            self.slot.arm(Phase::Response, self.timeouts.response);
        }
    }

    /// Sets the deadline for more bytes: a pause of at most `body`, and after the first such
    /// interval an average of at least `min_body_rate`.
    fn wait(&mut self) {
        let seen = self.progress.seen.get();
        if self.progress.answered.get() || self.armed_at == Some(seen) {
            return;
        }
        self.armed_at = Some(seen);
        let pause = self.timeouts.body;
        let earned = Duration::from_secs(seen / self.timeouts.min_body_rate.max(1));
        let spent = Duration::from_millis(self.slot.now_ms() - self.started_ms);
        self.slot.arm(Phase::Upload, pause.min((pause + earned).saturating_sub(spent)));
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        match &mut *self {
            RequestBody::Empty => Poll::Ready(None),
            RequestBody::Upload(upload) => upload.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Empty => true,
            RequestBody::Upload(upload) => upload.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Empty => SizeHint::with_exact(0),
            RequestBody::Upload(upload) => upload.size_hint(),
        }
    }
}
