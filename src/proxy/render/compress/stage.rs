//! Compresses a body while it streams: takes frames from the source of the body and returns compressed ones.
//!
//! The stage compresses at most [`SLICE`] bytes before other tasks of the worker run, holds at most one frame of its
//! source, and reads the next one only when the connection asks for it. When the source pauses, it flushes the encoder.

use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use http_body::Frame;
use tokio::task::yield_now;

use crate::proxy::render::compress::encoder::{BodyEncoder, EncoderFault};
use crate::proxy::render::compress::memory::MemoryPermit;
use crate::proxy::render::compress::worker::WorkerCompression;
use crate::route::compress::CompressionAlgorithm;
use crate::telemetry::metrics::CompressionCounters;

/// Bytes that are compressed before other tasks run: a millisecond or two with brotli, less with the others.
pub const SLICE: usize = 64 * 1024;
/// Compressed bytes that make a frame while the source has more to compress.
const FRAME: usize = 16 * 1024;
/// Trailers that describe the bytes of the uncompressed body.
const DIGESTS: [HeaderName; 2] = [HeaderName::from_static("digest"), HeaderName::from_static("repr-digest")];

/// The compression of one body.
pub struct CompressionStage<E> {
    worker: Rc<WorkerCompression>,
    algorithm: CompressionAlgorithm,
    /// `None` once the end of the compressed body is written.
    encoder: Option<(BodyEncoder, MemoryPermit)>,
    /// The rest of the last frame of the source.
    input: Bytes,
    /// The encoder may hold back input since the last flush.
    has_unflushed: bool,
    /// Bytes to compress until other tasks run.
    slice_left: usize,
    /// The trailers that follow the compressed data, or the error that broke the source off.
    rest: Option<Result<HeaderMap, E>>,
    /// The body has no end, because its source or the encoder failed.
    has_failed: bool,
    has_yielded_before_error: bool,
    bytes_in: u64,
}

/// Returns `Pending`, and wakes the task when the worker has served its other connections once.
fn let_others_run<T>(cx: &mut Context<'_>) -> Poll<T> {
    // Unlike a waker that is woken at once, this lets the worker look at its sockets first.
    match pin!(yield_now()).poll(cx) {
        Poll::Pending => {}
        Poll::Ready(()) => cx.waker().wake_by_ref(),
    }
    Poll::Pending
}

impl<E: From<EncoderFault>> CompressionStage<E> {
    /// `permit`: the memory of the encoder.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(
        algorithm: CompressionAlgorithm,
        permit: MemoryPermit,
        worker: &Rc<WorkerCompression>,
    ) -> Result<CompressionStage<E>, EncoderFault> {
        let encoder = BodyEncoder::new(algorithm, &worker.cache)?;
        Ok(CompressionStage {
            worker: worker.clone(),
            algorithm,
            encoder: Some((encoder, permit)),
            input: Bytes::new(),
            has_unflushed: false,
            slice_left: SLICE,
            rest: None,
            has_failed: false,
            has_yielded_before_error: false,
            bytes_in: 0,
        })
    }

    /// Bytes of the uncompressed body so far.
    pub fn bytes_in(&self) -> u64 {
        self.bytes_in
    }

    /// Returns whether the last frame of a complete body has been returned.
    pub fn is_end(&self) -> bool {
        self.encoder.is_none() && self.rest.is_none() && !self.has_failed
    }

    /// Returns the next compressed frame. `poll_source` returns the frames of the uncompressed body.
    ///
    /// After an error of the source, the client gets what the source sent before it, and then the error: the compressed
    /// body has no end.
    pub fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
        poll_source: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, E>>>,
    ) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        let worker = self.worker.clone();
        let mut output = worker.output.borrow_mut();
        output.clear();
        let poll = self.fill_output(cx, poll_source, &mut output);
        if !output.is_empty() {
            self.counters().add_out(output.len());
            let data = Bytes::copy_from_slice(&output);
            worker.shrink_output(&mut output);
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match &self.rest {
            None if poll.is_pending() => Poll::Pending,
            // The connection drops what it has not sent when it gets an error, so it sends that first.
            Some(Err(_)) if !std::mem::replace(&mut self.has_yielded_before_error, true) => let_others_run(cx),
            _ => Poll::Ready(self.rest.take().map(|rest| rest.map(Frame::trailers))),
        }
    }

    /// Compresses until there is a frame of output, the source pauses, or the slice is used up. Ready if more can be
    /// returned at once.
    fn fill_output(
        &mut self,
        cx: &mut Context<'_>,
        mut poll_source: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, E>>>,
        output: &mut Vec<u8>,
    ) -> Poll<()> {
        while self.encoder.is_some() && output.len() < FRAME {
            if self.slice_left == 0 {
                if !output.is_empty() {
                    return Poll::Ready(());
                }
                self.slice_left = SLICE;
                return let_others_run(cx);
            }
            if !self.input.is_empty() {
                let piece = self.input.split_to(self.input.len().min(self.slice_left));
                self.slice_left -= piece.len();
                self.compress(&piece, output);
                continue;
            }
            match poll_source(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.input = data,
                    Err(frame) => self.finish(frame.into_trailers().ok(), output),
                },
                Poll::Ready(Some(Err(error))) => {
                    self.flush(output);
                    self.fail(error);
                }
                Poll::Ready(None) => self.finish(None, output),
                Poll::Pending => {
                    self.slice_left = SLICE;
                    self.flush(output);
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(())
    }

    fn compress(&mut self, piece: &[u8], output: &mut Vec<u8>) {
        self.bytes_in += piece.len() as u64;
        self.counters().add_in(piece.len());
        self.has_unflushed = true;
        if let Some((encoder, _)) = &mut self.encoder
            && let Err(fault) = encoder.encode(piece, output)
        {
            self.fail(fault.into());
        }
    }

    fn flush(&mut self, output: &mut Vec<u8>) {
        if std::mem::take(&mut self.has_unflushed)
            && let Some((encoder, _)) = &mut self.encoder
            && let Err(fault) = encoder.flush(output)
        {
            self.fail(fault.into());
        }
    }

    /// Writes the end of the compressed body. Trailers about its uncompressed bytes are dropped.
    fn finish(&mut self, trailers: Option<HeaderMap>, output: &mut Vec<u8>) {
        let Some((encoder, _permit)) = self.encoder.take() else { return };
        match encoder.finish(output, &self.worker.cache) {
            Ok(()) => {
                self.rest = trailers.map(|mut trailers| {
                    DIGESTS.iter().for_each(|name| drop(trailers.remove(name)));
                    Ok(trailers)
                });
            }
            Err(fault) => self.fail(fault.into()),
        }
    }

    fn fail(&mut self, error: E) {
        (self.encoder, self.rest, self.has_failed) = (None, Some(Err(error)), true);
    }

    fn counters(&self) -> &CompressionCounters {
        self.worker.counters(self.algorithm)
    }
}
