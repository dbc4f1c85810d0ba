//! The data of responses that has arrived and that no client has taken yet. Used by `exchange`, and by the task of the
//! connection.
//!
//! The library keeps each frame until it is read, at a cost far above that of a small one. When too many small frames
//! wait on a connection, its task joins the frames of each response into one buffer. That opens no window, so the
//! windows still bound the bytes, and the server still sees that nobody reads.

use std::cell::RefCell;
use std::mem;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use http_body::Frame;

use crate::proxy::outbound::http2::frame_guard::FrameBudget;

/// Most joined bytes that are read at once: the payload of a frame of the usual size.
const PIECE_MAX: usize = 16 * 1024;

/// The data of one response.
pub struct ResponseData {
    stream: RecvStream,
    /// Data of the frames that `join_frames` took out of the library. It precedes what the library has.
    joined: BytesMut,
    frames: Rc<FrameBudget>,
}

/// The responses on one connection.
#[derive(Default)]
pub struct OpenResponses(RefCell<Vec<Weak<RefCell<ResponseData>>>>);

impl OpenResponses {
    /// Adds a response, whose frames are counted in `frames`.
    pub fn open(&self, stream: RecvStream, frames: &Rc<FrameBudget>) -> Rc<RefCell<ResponseData>> {
        let data = ResponseData { stream, joined: BytesMut::new(), frames: frames.clone() };
        let data = Rc::new(RefCell::new(data));
        let mut open = self.0.borrow_mut();
        if open.len() == open.capacity() {
            open.retain(|response| response.strong_count() > 0);
        }
        open.push(Rc::downgrade(&data));
        data
    }

    /// Joins the waiting frames of each response.
    pub fn join_frames(&self) {
        for response in self.0.borrow().iter().filter_map(Weak::upgrade) {
            response.borrow_mut().join_frames();
        }
    }
}

impl Drop for ResponseData {
    fn drop(&mut self) {
        if !self.stream.is_end_stream() {
            self.frames.record_reset();
        }
    }
}

impl ResponseData {
    /// Reads the next data, or the trailers. Data opens the windows by as much.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let data = match self.joined.len() {
            0 => match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    self.frames.record_read_data(data.len());
                    data
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    return self
                        .stream
                        .poll_trailers(cx)
                        .map(|read| read.map(|some| some.map(Frame::trailers)).transpose());
                }
            },
            1..=PIECE_MAX => mem::take(&mut self.joined).freeze(),
            _ => self.joined.split_to(PIECE_MAX).freeze(),
        };
        let _ = self.stream.flow_control().release_capacity(data.len());
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    /// Returns whether the response has ended, and all of it was read.
    pub fn is_end_stream(&self) -> bool {
        self.joined.is_empty() && self.stream.is_end_stream()
    }

    /// Moves the waiting frames from the library into the buffer.
    fn join_frames(&mut self) {
        // The task that waits for data is registered in the library. Polling without need would replace it.
        while self.stream.flow_control().used_capacity() > self.joined.len() {
            let mut cx = Context::from_waker(Waker::noop());
            let Poll::Ready(Some(Ok(data))) = self.stream.poll_data(&mut cx) else { break };
            self.joined.extend_from_slice(&data);
            self.frames.record_read_data(data.len());
        }
    }
}
