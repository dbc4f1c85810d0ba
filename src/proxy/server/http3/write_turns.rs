//! Decides which response may write next, when several of a connection wait for its windows. The library reports all of
//! them as soon as one byte has room. If all were woken, the first would take the room and the others would run for
//! nothing. So one is woken at a time: the most urgent, and among equals the one that has waited longest.

use std::collections::BTreeSet;

use quinn_proto::StreamId;

/// The responses that wait for their turn to write.
#[derive(Default)]
pub struct WriteTurns {
    /// Urgency, number of the wait, stream.
    waiting: BTreeSet<(u8, u64, StreamId)>,
    /// Waits so far.
    count: u64,
    current: Option<Turn>,
}

/// The turn of one response.
struct Turn {
    id: StreamId,
    has_written: bool,
    /// There was no room for its first byte, so that the next one would find none either.
    is_blocked: bool,
}

impl WriteTurns {
    /// Has a stream wait that does not wait yet. The library has reported room for it.
    pub fn push(&mut self, id: StreamId, urgency: u8) {
        self.waiting.insert((urgency, self.count, id));
        self.count += 1;
    }

    /// Begins the next turn, unless one is under way. Returns its stream. `exists`: the stream has not ended.
    pub fn begin(&mut self, exists: impl Fn(StreamId) -> bool) -> Option<StreamId> {
        if self.current.is_some() {
            return None;
        }
        let next = loop {
            match self.waiting.pop_first() {
                Some((_, _, id)) if exists(id) => break Some(id),
                Some(_) => {}
                None => break None,
            }
        };
        if self.waiting.is_empty() {
            // Most connections are idle, so that an empty set keeps no room.
            self.waiting = BTreeSet::new();
        }
        self.current = next.map(|id| Turn { id, has_written: false, is_blocked: false });
        next
    }

    /// Records that a stream has written.
    pub fn record_written(&mut self, id: StreamId) {
        if let Some(turn) = self.current.as_mut().filter(|turn| turn.id == id) {
            turn.has_written = true;
        }
    }

    /// Records that there was no room for a stream.
    pub fn record_blocked(&mut self, id: StreamId) {
        if let Some(turn) = self.current.as_mut().filter(|turn| turn.id == id) {
            turn.is_blocked = !turn.has_written;
        }
    }

    /// Ends the turn of a stream, if it has one. Returns whether the next one can begin at once. Otherwise it begins when
    /// something has come from the client.
    pub fn end(&mut self, id: StreamId) -> bool {
        let turn = self.current.take_if(|turn| turn.id == id);
        turn.is_some_and(|turn| !turn.is_blocked)
    }
}

#[cfg(test)]
mod tests {
    use quinn_proto::{Dir, Side};

    use super::*;

    fn stream(index: u64) -> StreamId {
        StreamId::new(Side::Client, Dir::Bi, index)
    }

    fn turns(waiting: &[(u64, u8)]) -> WriteTurns {
        let mut turns = WriteTurns::default();
        waiting.iter().for_each(|(index, urgency)| turns.push(stream(*index), *urgency));
        turns
    }

    #[test]
    fn the_most_urgent_writes_first_and_equals_take_turns() {
        let mut turns = turns(&[(7, 3), (5, 3), (9, 1), (2, 7)]);
        for (index, again) in [(9, false), (7, true), (5, false), (7, false), (2, false)] {
            assert_eq!(turns.begin(|_| true), Some(stream(index)));
            assert_eq!(turns.begin(|_| true), None, "one at a time");
            turns.record_written(stream(index));
            turns.record_blocked(stream(index));
            if again {
                turns.push(stream(index), 3);
            }
            assert!(!turns.end(stream(100)) && turns.end(stream(index)));
        }
        assert_eq!(turns.begin(|_| true), None);
    }

    #[test]
    fn a_turn_without_room_is_the_last_and_one_without_need_is_not() {
        let mut turns = turns(&[(0, 3), (1, 3), (2, 3)]);
        assert_eq!(turns.begin(|id| id != stream(0)), Some(stream(1)), "the first has ended");
        assert!(turns.end(stream(1)), "it had nothing to write");
        assert_eq!(turns.begin(|_| true), Some(stream(2)));
        turns.record_blocked(stream(2));
        assert!(!turns.end(stream(2)));
    }
}
