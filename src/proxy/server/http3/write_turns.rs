//! Decides which response may write next, when several of a connection wait for its windows. The library reports all of
//! them as soon as one byte has room. If all were woken, the first would take the room and the others would run for
//! nothing. So one is woken at a time: the most urgent, and among equals the one that has waited longest. Now and then
//! urgency does not count, so that an urgent download does not hold up the others until their timers expire.

use std::collections::{BTreeMap, BTreeSet};

use quinn_proto::StreamId;

/// Of this many turns in which a response writes, one goes to the response that has waited longest, whatever its
/// urgency.
const FAIR_TURN: u64 = 8;

/// The responses that wait for their turn to write.
#[derive(Default)]
pub struct WriteTurns {
    /// Urgency, number of the wait, stream.
    waiting: BTreeSet<(u8, u64, StreamId)>,
    /// Waits so far.
    count: u64,
    /// Numbers of waits that have found no room in their turn. They continue when the library reports room again.
    blocked: BTreeMap<StreamId, u64>,
    /// Turns so far that have written.
    written: u64,
    current: Option<Turn>,
}

/// The turn of one response.
struct Turn {
    id: StreamId,
    /// The number of its wait.
    wait: u64,
    has_written: bool,
    /// There was no room for its first byte. Most likely, the next one would find none either.
    is_blocked: bool,
}

impl WriteTurns {
    /// Has a stream wait that does not wait yet. The library has reported room for it.
    pub fn push(&mut self, id: StreamId, urgency: u8) {
        let wait = self.take_blocked(id).unwrap_or(self.count);
        self.waiting.insert((urgency, wait, id));
        self.count += 1;
    }

    /// Returns whether a response waits for its turn.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Begins the next turn, unless one is under way. Returns its stream. `exists`: the stream has not ended.
    pub fn begin(&mut self, exists: impl Fn(StreamId) -> bool) -> Option<StreamId> {
        if self.current.is_some() {
            return None;
        }
        let is_fair = self.written % FAIR_TURN == FAIR_TURN - 1;
        let next = loop {
            let entry = match is_fair {
                true => self.waiting.iter().min_by_key(|(_, wait, _)| *wait),
                false => self.waiting.first(),
            };
            let Some(entry) = entry.copied() else { break None };
            self.waiting.remove(&entry);
            if exists(entry.2) {
                break Some(entry);
            }
        };
        if self.waiting.is_empty() {
            // Most connections are idle, so that an empty set keeps no room.
            self.waiting = BTreeSet::new();
        }
        self.current = next.map(|(_, wait, id)| Turn { id, wait, has_written: false, is_blocked: false });
        next.map(|(_, _, id)| id)
    }

    /// Records that a stream has written.
    pub fn record_written(&mut self, id: StreamId) {
        if let Some(turn) = self.current.as_mut().filter(|turn| turn.id == id) {
            self.written += u64::from(!turn.has_written);
            turn.has_written = true;
        }
    }

    /// Records that there was no room for a stream.
    pub fn record_blocked(&mut self, id: StreamId) {
        if let Some(turn) = self.current.as_mut().filter(|turn| turn.id == id) {
            turn.is_blocked = !turn.has_written;
        }
    }

    /// Ends the turn of a stream, if it has one. Returns whether the next one can begin at once. Otherwise the task of
    /// the connection begins it when it runs next.
    pub fn end(&mut self, id: StreamId) -> bool {
        let Some(turn) = self.current.take_if(|turn| turn.id == id) else { return false };
        if turn.is_blocked {
            self.blocked.insert(id, turn.wait);
        }
        !turn.is_blocked
    }

    /// Forgets a stream that has ended.
    pub fn forget(&mut self, id: StreamId) {
        self.take_blocked(id);
    }

    /// Takes the number of a wait that has found no room. A map that is empty then keeps no room, like `waiting`.
    fn take_blocked(&mut self, id: StreamId) -> Option<u64> {
        let wait = self.blocked.remove(&id);
        if self.blocked.is_empty() {
            self.blocked = BTreeMap::new();
        }
        wait
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

    /// Each round has space for one response. The next response finds none, and continues to wait.
    #[test]
    fn every_eighth_turn_that_writes_goes_to_the_longest_wait() {
        let mut turns = turns(&[(0, 0), (1, 1), (2, 1)]);
        let mut writers = Vec::new();
        for _ in 0..4 * FAIR_TURN {
            let writer = turns.begin(|_| true).unwrap();
            turns.record_written(writer);
            turns.record_blocked(writer);
            assert!(turns.end(writer) && turns.has_waiting());
            let blocked = turns.begin(|_| true).unwrap();
            turns.record_blocked(blocked);
            assert!(!turns.end(blocked) && turns.has_waiting());
            for id in [writer, blocked] {
                turns.push(id, u8::from(id != stream(0)));
            }
            writers.push(writer.index());
        }
        let others: Vec<u64> = writers.iter().copied().filter(|index| *index != 0).collect();
        assert_eq!(others, [1, 2, 1, 2], "{writers:?}");
        assert!(writers.iter().skip(7).step_by(8).all(|index| *index != 0), "{writers:?}");
    }

    #[test]
    fn a_stream_that_has_ended_is_forgotten() {
        let mut turns = turns(&[(0, 3)]);
        assert_eq!(turns.begin(|_| true), Some(stream(0)));
        turns.record_blocked(stream(0));
        assert!(!turns.end(stream(0)));
        assert_eq!(turns.blocked.len(), 1);
        turns.forget(stream(0));
        assert!(turns.blocked.is_empty() && !turns.has_waiting());
    }
}
