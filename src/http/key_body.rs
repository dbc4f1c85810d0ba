//! The part of a request's body that its limits go by, read before they are asked: only where the key of
//! one that applies says so, a bounded number of bytes, under the deadlines of bodies. What was read goes
//! on with the rest. Called by `limits`.

use bytes::Bytes;
use http_body::Body as _;

use crate::http::answer::refusal::Refusal;
use crate::http::onward;
use crate::http::under_way::RequestUnderWay;
use crate::limit::source::{BodyFacts, BodyKind, UnreadableBody};
use crate::route::Route;

/// What was read.
pub enum KeyBody {
    None,
    Whole(BodyKind, Bytes),
    UnreadableBody(UnreadableBody),
}

impl KeyBody {
    /// Reads the body if there is one, of a kind that limits know, and not longer than `max` bytes. A client
    /// that expects `100 Continue` is told to go on.
    ///
    /// # Errors
    /// The body is larger than the route takes, or did not come to its end.
    pub async fn read(exchange: &mut RequestUnderWay<'_>, route: &Route, max: usize) -> Result<KeyBody, Refusal> {
        let Some(body) = exchange.received.body.as_ref().filter(|body| !body.is_end_stream()) else {
            return Ok(KeyBody::None);
        };
        let kind = match BodyKind::of(&exchange.received.parts.headers) {
            Ok(_) if body.size_hint().lower() > max as u64 => {
                return Ok(KeyBody::UnreadableBody(UnreadableBody::TooLong));
            }
            Ok(kind) => kind,
            Err(why) => return Ok(KeyBody::UnreadableBody(why)),
        };
        onward::bound(exchange, route)?;
        let Some(mut upload) = onward::take(exchange, route) else { return Ok(KeyBody::None) };
        let read = onward::read_ahead(exchange, &mut upload, max).await?;
        exchange.read_ahead = Some(upload);
        Ok(read.map_or(KeyBody::UnreadableBody(UnreadableBody::TooLong), |bytes| KeyBody::Whole(kind, bytes)))
    }

    pub fn facts(&self) -> BodyFacts<'_> {
        match self {
            KeyBody::None => BodyFacts::None,
            KeyBody::Whole(kind, bytes) => kind.read(bytes),
            KeyBody::UnreadableBody(why) => BodyFacts::UnreadableBody(*why),
        }
    }
}
