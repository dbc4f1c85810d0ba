//! The body of a request over HTTP/3. It is read from the QUIC library as fast as the action of the route wants it.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use quinn_proto::StreamId;

use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::head::body::{BodyFault, BodyStream};
use crate::proxy::server::http3::error::MESSAGE_ERROR;
use crate::proxy::server::http3::fields;
use crate::proxy::server::http3::fields::FieldFault;
use crate::proxy::server::http3::request_reader::RequestItem;
use crate::proxy::server::http3::request_streams::StreamItem;
use crate::proxy::server::http3::shared::Http3Connection;

/// A request body. Its rest is discarded when it is dropped.
pub struct Http3Body {
    pub connection: Rc<Http3Connection>,
    pub id: StreamId,
    pub deadline: RequestDeadline,
    /// Number of bytes that have not arrived yet, if the head announced a length.
    pub left: Option<u64>,
    /// Trailers, which count once the stream has ended.
    pub trailers: Option<HeaderMap>,
    pub is_over: bool,
}

impl BodyStream for Http3Body {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let result = ready!(self.poll_next(cx));
        if !matches!(&result, Some(Ok(frame)) if frame.is_data()) {
            self.is_over = true;
        }
        if matches!(result, Some(Err(BodyFault::Malformed))) {
            // The stream ends without a response, like one of HTTP/2.
            self.connection.fail_request(self.id, MESSAGE_ERROR);
        }
        Poll::Ready(result)
    }

    fn is_end(&self) -> bool {
        self.is_over
    }

    fn size_hint(&self) -> SizeHint {
        match self.left {
            _ if self.is_over => SizeHint::with_exact(0),
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }
}

impl Drop for Http3Body {
    fn drop(&mut self) {
        if !self.is_over {
            self.connection.discard_request(self.id, Some(self.deadline.clone()));
        }
    }
}

impl Http3Body {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        loop {
            if self.deadline.poll_stream_cut(cx.waker()) {
                return Poll::Ready(Some(Err(BodyFault::CutOff)));
            }
            let item = match ready!(self.connection.poll_item(self.id, cx)) {
                Ok(item) => item,
                Err(fatal) => {
                    self.connection.fail(fatal);
                    return Poll::Ready(Some(Err(BodyFault::Malformed)));
                }
            };
            return Poll::Ready(match item {
                StreamItem::Item(RequestItem::Data(data)) => match self.take(data.len()) {
                    Ok(()) => Some(Ok(Frame::data(data))),
                    Err(fault) => Some(Err(fault)),
                },
                StreamItem::Item(RequestItem::Trailers(section)) => match self.read_trailers(&section) {
                    Ok(trailers) => {
                        self.trailers = Some(trailers);
                        continue;
                    }
                    Err(fault) => Some(Err(fault)),
                },
                StreamItem::Item(RequestItem::TooLarge) => Some(Err(BodyFault::Malformed)),
                StreamItem::Finished if self.left.is_some_and(|left| left > 0) => Some(Err(BodyFault::Malformed)),
                StreamItem::Finished => self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))),
                StreamItem::Reset => Some(Err(BodyFault::CutOff)),
                StreamItem::Item(RequestItem::Nothing | RequestItem::Head(_)) | StreamItem::Blocked => continue,
            });
        }
    }

    /// Counts bytes of the body against the length that was announced.
    fn take(&mut self, count: usize) -> Result<(), BodyFault> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(count as u64).ok_or(BodyFault::Malformed)?;
        }
        Ok(())
    }

    fn read_trailers(&mut self, section: &[u8]) -> Result<HeaderMap, BodyFault> {
        if self.left.is_some_and(|left| left > 0) {
            return Err(BodyFault::Malformed);
        }
        match fields::read_trailers(section, self.connection.max_header_bytes()) {
            Ok(trailers) => Ok(trailers),
            Err(FieldFault::Connection(code)) => {
                self.connection.fail(code.into());
                Err(BodyFault::Malformed)
            }
            Err(FieldFault::TooLarge) => Err(BodyFault::Malformed),
            Err(FieldFault::Malformed(rule, _)) => {
                self.connection.count_malformed(rule);
                Err(BodyFault::Malformed)
            }
        }
    }
}
