//! Waits for the end of a stream whose response is complete for the client. Many servers end a stream only with a frame
//! of its own. If the gateway reset the stream instead, they would count the reset as an attack. Used by `exchange`.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, SendStream};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::ends::UpstreamFailureKind;
use crate::proxy::outbound::http2::response_data::ResponseData;
use crate::proxy::outbound::http2::streams::StreamPermit;
use crate::proxy::words::failure_log::UpstreamFailureLog;

/// How long a server has to end the stream. Then the gateway resets it.
const END_WAIT: Duration = Duration::from_secs(5);

/// A stream whose response is complete from the client's point of view.
pub struct AnsweredStream {
    pub body: Rc<RefCell<ResponseData>>,
    pub sender: Option<SendStream<Bytes>>,
    pub slot: StreamPermit,
    /// Name of the server in logs.
    pub server: String,
    pub failure_log: Rc<UpstreamFailureLog>,
}

impl AnsweredStream {
    /// Waits in a task of its own until the server ends the stream. Content that it sends is an error, which the client
    /// does not notice. At most half of the streams of a connection wait; further ones are reset immediately.
    pub fn await_end(self) {
        let waiting = &self.slot.connection.awaited_ends;
        if waiting.get() >= self.slot.connection.max_streams().div_ceil(2) {
            return;
        }
        waiting.set(waiting.get() + 1);
        spawn_local(async move {
            let AnsweredStream { body, mut sender, slot, server, failure_log } = self;
            let end = timeout(END_WAIT, read_end(&body)).await;
            if let Ok(Err(error)) = end {
                if let Some(sender) = &mut sender {
                    sender.send_reset(Reason::PROTOCOL_ERROR);
                }
                failure_log.log_failure(UpstreamFailureKind::Broken, &server, &error);
            }
            let waiting = &slot.connection.awaited_ends;
            waiting.set(waiting.get() - 1);
        });
    }
}

/// Reads empty frames and trailers up to the end of the stream.
///
/// # Errors
/// The server sent content.
async fn read_end(body: &RefCell<ResponseData>) -> Result<(), String> {
    while let Some(frame) = poll_fn(|cx| body.borrow_mut().poll_frame(cx)).await {
        match frame {
            Ok(frame) if frame.data_ref().is_none_or(Bytes::is_empty) => {}
            Ok(_) => return Err("the response is complete, but the server sent more content".to_owned()),
            // The library counts the content of responses to HEAD, and of those that state their length.
            Err(error) if error.is_library() => {
                return Err(format!("the response is complete, but the server sent more: {error}"));
            }
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}
