//! The streams on which a client may still send: it has begun a request with a body, and neither ended nor reset it.

/// The most streams that are known. A client leaves out the end of streams that the gateway has reset, so they
/// accumulate.
const STREAMS_MAX: usize = 1000;

/// The open streams of a connection, as its client sees them.
#[derive(Default)]
pub struct OpenStreams {
    /// The numbers in ascending order, because clients number their streams so.
    streams: Vec<u32>,
    /// The last stream that was removed because there were too many. Streams up to it may be open or not.
    forgotten: u32,
}

impl OpenStreams {
    /// Adds a stream whose number is higher than all others.
    pub fn open(&mut self, stream: u32) {
        self.streams.push(stream);
        if self.streams.len() > STREAMS_MAX {
            self.forgotten = self.streams.remove(0);
        }
    }

    /// Removes a stream that the client has ended or reset.
    pub fn end(&mut self, stream: u32) {
        if let Ok(place) = self.streams.binary_search(&stream) {
            self.streams.remove(place);
        }
    }

    /// Returns whether the client must send no headers on a stream with this number: it has ended or reset the stream,
    /// or has skipped the number.
    pub fn is_closed(&self, stream: u32) -> bool {
        stream > self.forgotten && self.streams.binary_search(&stream).is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_open_until_they_end_or_are_forgotten() {
        let mut streams = OpenStreams::default();
        for stream in [1, 5, 9] {
            streams.open(stream);
        }
        streams.end(5);
        streams.end(7);
        assert_eq!([1, 3, 5, 7, 9].map(|stream| streams.is_closed(stream)), [false, true, true, true, false]);
        let count = u32::try_from(STREAMS_MAX).unwrap();
        (10..10 + count).for_each(|stream| streams.open(2 * stream + 1));
        assert_eq!(streams.streams.len(), STREAMS_MAX);
        assert_eq!([1, 5, 9, 11].map(|stream| streams.is_closed(stream)), [false, false, false, true]);
    }
}
