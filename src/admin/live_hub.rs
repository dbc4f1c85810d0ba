//! The viewers of the live stream. An event is sent to all of them; no viewer delays another one. Used by `live`.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::admin::slots::StreamPermit;

/// The open streams.
pub struct LiveHub<S = StreamPermit> {
    viewers: RefCell<Vec<LiveViewer<S>>>,
    is_running: Cell<bool>,
}

struct LiveViewer<S> {
    events: mpsc::Sender<Bytes>,
    /// Released with the viewer, even if the client reads what is left slowly.
    _permit: S,
    opened: Instant,
    /// Generation of the config that granted access.
    generation: u64,
    /// Number of events that were dropped since the client last read one.
    missed: u32,
}

/// Number of events that wait for a slow viewer. Further ones are dropped.
const QUEUE: usize = 4;
/// Number of dropped events in a row after which a viewer loses its stream.
const MISSED_MAX: u32 = 30;
const STREAM_MAX: Duration = Duration::from_secs(600);

impl<S> Default for LiveHub<S> {
    fn default() -> LiveHub<S> {
        LiveHub { viewers: RefCell::default(), is_running: Cell::default() }
    }
}

impl<S> LiveHub<S> {
    /// Adds a viewer, to which the config with this `generation` grants access. Returns its events.
    pub fn add_viewer(&self, generation: u64, permit: S) -> mpsc::Receiver<Bytes> {
        let (events, received) = mpsc::channel(QUEUE);
        self.viewers.borrow_mut().push(LiveViewer {
            events,
            _permit: permit,
            opened: Instant::now(),
            generation,
            missed: 0,
        });
        received
    }

    /// Records that somebody sends events; returns false if somebody did already.
    pub fn start_sending(&self) -> bool {
        !self.is_running.replace(true)
    }

    /// Forgets viewers that left. Returns whether there are others; if not, nobody sends events any more.
    pub fn has_viewers(&self) -> bool {
        let mut viewers = self.viewers.borrow_mut();
        viewers.retain(|viewer| !viewer.events.is_closed());
        self.is_running.set(!viewers.is_empty());
        !viewers.is_empty()
    }

    /// Sends an event to all viewers, and ends the streams that have lasted for long enough.
    pub fn send_event(&self, event: &Bytes, generation: u64) {
        self.viewers.borrow_mut().retain_mut(|viewer| {
            match viewer.events.try_send(event.clone()) {
                Ok(()) => viewer.missed = 0,
                Err(TrySendError::Full(_)) => viewer.missed += 1,
                Err(TrySendError::Closed(_)) => return false,
            }
            viewer.missed < MISSED_MAX && viewer.generation == generation && viewer.opened.elapsed() < STREAM_MAX
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::error::TryRecvError;

    use super::*;

    #[test]
    fn a_viewer_that_reads_nothing_delays_nobody_and_is_dropped() {
        let hub = LiveHub::<()>::default();
        let (mut reads, silent) = (hub.add_viewer(1, ()), hub.add_viewer(1, ()));
        for event in 0..u32::try_from(QUEUE).unwrap() + MISSED_MAX {
            assert_eq!(hub.viewers.borrow().len(), 2, "after {event} events");
            hub.send_event(&Bytes::from(event.to_string()), 1);
            assert_eq!(reads.try_recv().unwrap(), event.to_string());
        }
        assert_eq!((hub.viewers.borrow().len(), silent.len()), (1, QUEUE));
    }

    #[test]
    fn a_new_config_ends_the_streams_after_one_more_event() {
        let hub = LiveHub::<()>::default();
        let (mut old, new) = (hub.add_viewer(1, ()), hub.add_viewer(2, ()));
        hub.send_event(&Bytes::from("event"), 2);
        assert_eq!(old.try_recv().unwrap(), "event");
        assert_eq!(old.try_recv(), Err(TryRecvError::Disconnected));
        assert!(hub.start_sending() && !hub.start_sending() && hub.has_viewers());
        drop(new);
        assert!(!hub.has_viewers() && hub.start_sending());
    }
}
