//! Priorities of responses (RFC 9218). The gateway honours the urgency. Responses of the same urgency share the
//! connection, also if the client has not called them incremental: one that lasts must not hold up the others.

use std::collections::VecDeque;

use http::HeaderMap;
use quinn_proto::StreamId;

/// The urgency of a request that states none; 0 is the most urgent, and 7 the least.
pub const DEFAULT_URGENCY: u8 = 3;
/// The priority of the control stream for the library: above that of each response. All responses have the same one
/// there, so that what the gateway has written of one does not wait for the end of a more urgent one.
pub const CONTROL_PRIORITY: i32 = i32::MAX;
const HEADER: &str = "priority";
/// Urgencies that are kept for requests that have not arrived.
const EARLY_MAX: usize = 32;

/// Returns the urgency that a request states.
pub fn urgency_of(headers: &HeaderMap) -> u8 {
    let urgency = headers.get_all(HEADER).iter().rev().find_map(|value| find_urgency(value.as_bytes()));
    urgency.unwrap_or(DEFAULT_URGENCY)
}

/// Finds the urgency in a dictionary of parameters such as `u=1, i`. Anything that it cannot read has no effect.
pub fn find_urgency(parameters: &[u8]) -> Option<u8> {
    parameters.rsplit(|byte| *byte == b',').find_map(|parameter| {
        let value = parameter.trim_ascii().strip_prefix(b"u=")?;
        match value.split(|byte| *byte == b';').next()?.trim_ascii_end() {
            [digit @ b'0'..=b'7'] => Some(digit - b'0'),
            _ => None,
        }
    })
}

/// Urgencies from PRIORITY_UPDATE frames that were faster than their requests. The newest few are kept.
#[derive(Default)]
pub struct EarlyUrgencies(VecDeque<(StreamId, u8)>);

impl EarlyUrgencies {
    pub fn set(&mut self, id: StreamId, urgency: u8) {
        self.take(id);
        if self.0.len() >= EARLY_MAX {
            self.0.pop_front();
        }
        self.0.push_back((id, urgency));
    }

    /// Takes the urgency of a request that has arrived.
    pub fn take(&mut self, id: StreamId) -> Option<u8> {
        let index = self.0.iter().position(|(other, _)| *other == id)?;
        self.0.remove(index).map(|(_, urgency)| urgency)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use quinn_proto::{Dir, Side};

    use super::*;

    #[test]
    fn the_urgency_is_a_number_from_0_to_7() {
        for (text, urgency) in [
            ("u=0", Some(0)),
            ("u=7, i", Some(7)),
            ("i,u=5", Some(5)),
            ("i\t,  u=5;a=b ;c", Some(5)),
            ("u=1, u=2", Some(2)),
            ("u=1, u=8", Some(1)),
            ("u=8", None),
            ("u=-1", None),
            ("u=1.0", None),
            ("u", None),
            ("u=", None),
            ("U=1", None),
            ("xu=1", None),
            ("", None),
            (",,", None),
            ("i", None),
        ] {
            assert_eq!(find_urgency(text.as_bytes()), urgency, "{text}");
        }
        let mut headers = HeaderMap::new();
        assert_eq!(urgency_of(&headers), DEFAULT_URGENCY);
        headers.append(HEADER, HeaderValue::from_static("u=6"));
        headers.append(HEADER, HeaderValue::from_static("i"));
        assert_eq!(urgency_of(&headers), 6);
    }

    #[test]
    fn the_newest_early_urgencies_are_kept() {
        let stream = |index| StreamId::new(Side::Client, Dir::Bi, index);
        let mut early = EarlyUrgencies::default();
        for index in 0..1000 {
            early.set(stream(index), 1);
            early.set(stream(index), 2);
        }
        assert_eq!((early.0.len(), early.take(stream(999)), early.take(stream(999))), (EARLY_MAX, Some(2), None));
        assert_eq!((early.take(stream(0)), early.take(stream(970))), (None, Some(2)));
    }
}
