//! Counts what an HTTP/3 client sends that costs work and brings nothing, as `http2::frames` does for HTTP/2.

use quinn_proto::{ConnectionStats, FrameStats};

use crate::ends::End;
use crate::proxy::head::frame_head::EARNED_MAX;
use crate::rate::Bucket;

/// Frames that only cost: the most at once, and how many are earned a second. Data in either direction earns more.
const IDLE: (u32, u32) = (2000, 100);
/// Requests that are reset: the most at once, and how many are earned a second. A browser that leaves a page resets all
/// of its requests.
const RESETS: (u32, u32) = (200, 10);
/// Seconds of the time of a connection that a change of its IP address costs, and the most that it has of them: 16
/// changes at once, then one in 10 seconds. A client that sends from addresses of others makes the library send a
/// datagram or two to each, before the address has answered.
const SECONDS_PER_MOVE: u32 = 10;
const MOVES: (u32, u32) = (16 * SECONDS_PER_MOVE, 1);
/// Frames earned by each frame of a stream that the gateway sends: acknowledgements, credit.
const PER_SENT: u64 = 4;
/// Bytes of datagrams that earn one frame.
const BYTES: u64 = 512;
/// Bytes of datagrams for each frame of a stream. Frames beyond that are mostly empty, and bring nothing.
const STREAM_FRAME: u64 = 16;

/// The budgets of one connection.
pub struct FloodBudget {
    idle: Bucket,
    resets: Bucket,
    moves: Bucket,
    /// Frames and bytes that the library had counted at the last check.
    received: u64,
    sent: u64,
    stream_frames: u64,
    bytes: u64,
}

impl FloodBudget {
    /// Makes full budgets. `now_ms`: the worker's coarse clock.
    pub fn new(now_ms: u64) -> FloodBudget {
        FloodBudget {
            idle: Bucket::new(IDLE, EARNED_MAX, now_ms),
            resets: Bucket::new(RESETS, EARNED_MAX, now_ms),
            moves: Bucket::new(MOVES, 0, now_ms),
            received: 0,
            sent: 0,
            stream_frames: 0,
            bytes: 0,
        }
    }

    /// Records a response.
    pub fn record_response(&mut self) {
        self.resets.earn(1);
    }

    /// Takes the allowance of a request that is reset before it is answered.
    ///
    /// # Errors
    /// The connection must end.
    pub fn take_reset(&mut self) -> Result<(), End> {
        if self.resets.take() { Ok(()) } else { Err(End::H2Resets) }
    }

    /// Takes the allowance of a change of the client's IP address.
    ///
    /// # Errors
    /// The connection must end.
    pub fn take_move(&mut self, now_ms: u64) -> Result<(), End> {
        self.moves.fill(now_ms);
        let all = (0..SECONDS_PER_MOVE).all(|_| self.moves.take());
        if all { Ok(()) } else { Err(End::H2Frames) }
    }

    /// Takes the allowance of `count` frames of HTTP/3 that bring nothing.
    ///
    /// # Errors
    /// The connection must end.
    pub fn take_idle(&mut self, count: u64) -> Result<(), End> {
        let all = (0..count).all(|_| self.idle.take());
        if all { Ok(()) } else { Err(End::H2Frames) }
    }

    /// Counts the frames of QUIC that have come since the last call.
    ///
    /// # Errors
    /// They are a flood, so that the connection must end.
    pub fn count(&mut self, stats: &ConnectionStats, now_ms: u64) -> Result<(), End> {
        self.idle.fill(now_ms);
        self.resets.fill(now_ms);
        let (sent, stream_frames, bytes) = (stats.frame_tx.stream, stats.frame_rx.stream, stats.udp_rx.bytes);
        let earned = (sent - self.sent) * PER_SENT + (bytes / BYTES - self.bytes / BYTES);
        self.idle.earn(u32::try_from(earned).unwrap_or(u32::MAX));
        let small = (stream_frames - self.stream_frames).saturating_sub((bytes - self.bytes) / STREAM_FRAME);
        (self.sent, self.stream_frames, self.bytes) = (sent, stream_frames, bytes);
        let received = idle_frames(&stats.frame_rx);
        let fresh = received.saturating_sub(self.received) + small;
        self.received = received;
        self.take_idle(fresh)
    }
}

/// Returns how many frames have come that carry no data of a stream. Those of the handshake are few.
fn idle_frames(frames: &FrameStats) -> u64 {
    let credit = frames.max_data + frames.max_stream_data + frames.max_streams_bidi + frames.max_streams_uni;
    let blocked =
        frames.data_blocked + frames.stream_data_blocked + frames.streams_blocked_bidi + frames.streams_blocked_uni;
    let paths = frames.path_challenge
        + frames.path_response
        + frames.new_connection_id
        + frames.retire_connection_id
        + frames.new_token;
    let resets = frames.reset_stream + frames.stop_sending;
    let others =
        frames.acks + frames.ping + frames.crypto + frames.ack_frequency + frames.immediate_ack + frames.datagram;
    credit + blocked + paths + resets + others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_only_cost_run_out_and_data_earns_more() {
        let mut stats = ConnectionStats::default();
        let mut budget = FloodBudget::new(0);
        stats.frame_rx.ping = 1000;
        stats.frame_rx.path_challenge = 1000;
        assert_eq!(budget.count(&stats, 0), Ok(()));
        stats.frame_rx.new_connection_id = 1;
        assert_eq!(budget.count(&stats, 0), Err(End::H2Frames));
        assert_eq!(budget.count(&stats, 1000), Ok(()), "nothing has come since");
        stats.frame_rx.stop_sending = 101;
        assert_eq!(budget.count(&stats, 1000), Err(End::H2Frames));
        stats.frame_tx.stream = 100;
        stats.frame_rx.acks = 400;
        assert_eq!(budget.count(&stats, 1000), Ok(()), "what was sent is acknowledged");
        stats.udp_rx.bytes = 512 * 100;
        stats.frame_rx.acks = 500;
        assert_eq!(budget.count(&stats, 1000), Ok(()), "an upload");
        assert_eq!(budget.take_idle(1), Err(End::H2Frames));
    }

    #[test]
    fn frames_of_streams_bring_bytes() {
        let mut stats = ConnectionStats::default();
        let mut budget = FloodBudget::new(0);
        // Messages of a few bytes, each in a datagram.
        for _ in 0..10_000 {
            stats.frame_rx.stream += 1;
            stats.udp_rx.bytes += 35;
            assert_eq!(budget.count(&stats, 0), Ok(()));
        }
        // Datagrams full of empty frames.
        let flood = (0..1000).take_while(|_| {
            stats.frame_rx.stream += 600;
            stats.udp_rx.bytes += 1250;
            budget.count(&stats, 0).is_ok()
        });
        let count = flood.count();
        assert!((3..10).contains(&count), "{count}");
    }

    #[test]
    fn an_address_changes_seldom() {
        let mut budget = FloodBudget::new(0);
        let moves = (0..100).take_while(|_| budget.take_move(0).is_ok()).count();
        assert_eq!(moves, 16);
        assert_eq!(budget.take_move(9000), Err(End::H2Frames));
        let mut budget = FloodBudget::new(0);
        assert!((0..1000).all(|round| budget.take_move(round * 10_000).is_ok()));
    }

    #[test]
    fn requests_that_are_reset_run_out() {
        let mut budget = FloodBudget::new(0);
        let resets = (0..1000).take_while(|_| budget.take_reset().is_ok()).count();
        assert_eq!(resets, RESETS.0 as usize);
        budget.record_response();
        assert_eq!((budget.take_reset(), budget.take_reset()), (Ok(()), Err(End::H2Resets)));
    }
}
