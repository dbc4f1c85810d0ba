//! `GET /-/live`: one event per second that says what the gateway does. An event is built once for all viewers, and only
//! while there are any.
//!
//! A viewer that reads slowly loses events, and one that reads nothing for long loses its stream. No viewer delays
//! another one. Streams end after some minutes and with each new config, so that access is checked again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::spawn_local;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::admin::access::guard;
use crate::admin::page_request::PageRequest;
use crate::admin::pages::AdminContext;
use crate::admin::problem::Problem;
use crate::admin::response::{AdminResponse, stream_response};
use crate::admin::streams::summary::LiveSampler;

/// The open streams.
#[derive(Default)]
pub struct LiveHub {
    viewers: RefCell<Vec<LiveViewer>>,
    is_running: Cell<bool>,
}

struct LiveViewer {
    events: mpsc::Sender<Bytes>,
    opened: Instant,
    /// Generation of the config that granted access.
    generation: u64,
    /// Number of events that were dropped since the client last read one.
    missed: u32,
}

const EVERY: Duration = Duration::from_secs(1);
/// Number of events that wait for a slow viewer. Further ones are dropped.
const QUEUE: usize = 4;
/// Number of dropped events in a row after which a viewer loses its stream.
const MISSED_MAX: u32 = 30;
const STREAM_MAX: Duration = Duration::from_secs(600);
/// Building events takes at most one part in `SHARE` of the time of the control thread.
const SHARE: u32 = 10;
/// A comment precedes one in this many events, for proxies that wait for one.
const COMMENT_EVERY: u64 = 15;

pub async fn stream_live(request: PageRequest) -> Result<AdminResponse, Problem> {
    // Otherwise, any web page could occupy all slots of streams.
    guard::check_same_site(&request.head.headers).map_err(|refusal| refusal.problem)?;
    let slot = request.take_stream_slot()?;
    let context = &request.context;
    let (events, pieces) = mpsc::channel(QUEUE);
    let generation = context.current.load().generation;
    context.live.viewers.borrow_mut().push(LiveViewer { events, opened: Instant::now(), generation, missed: 0 });
    if !context.live.is_running.replace(true) {
        spawn_local(send_events(context.clone()));
    }
    Ok(stream_response(pieces, slot))
}

/// Sends an event per second until nobody reads them.
async fn send_events(context: Rc<AdminContext>) {
    let (mut sampler, mut tick, mut count) = (LiveSampler::default(), interval(EVERY), 0_u64);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if context.live.drop_closed() == 0 {
            context.live.is_running.set(false);
            return;
        }
        let started = Instant::now();
        let comment = if count.is_multiple_of(COMMENT_EVERY) { ": one event per second\n\n" } else { "" };
        let event = format!("{comment}data: {}\n\n", sampler.make_event(&context));
        context.live.send_event(&event.into(), context.current.load().generation);
        count += 1;
        sleep((started.elapsed() * SHARE).saturating_sub(EVERY)).await;
    }
}

impl LiveHub {
    /// Forgets viewers that left; returns the number of the others.
    fn drop_closed(&self) -> usize {
        let mut viewers = self.viewers.borrow_mut();
        viewers.retain(|viewer| !viewer.events.is_closed());
        viewers.len()
    }

    /// Sends an event to all viewers, and ends the streams that have lasted for long enough.
    fn send_event(&self, event: &Bytes, generation: u64) {
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
    use super::*;

    fn viewer(hub: &LiveHub, generation: u64) -> mpsc::Receiver<Bytes> {
        let (events, pieces) = mpsc::channel(QUEUE);
        hub.viewers.borrow_mut().push(LiveViewer { events, opened: Instant::now(), generation, missed: 0 });
        pieces
    }

    #[test]
    fn a_viewer_that_reads_nothing_delays_nobody_and_is_dropped() {
        let hub = LiveHub::default();
        let (mut reads, silent) = (viewer(&hub, 1), viewer(&hub, 1));
        for event in 0..QUEUE as u32 + MISSED_MAX {
            assert_eq!(hub.drop_closed(), 2, "after {event} events");
            hub.send_event(&Bytes::from(event.to_string()), 1);
            assert_eq!(reads.try_recv().unwrap(), event.to_string());
        }
        assert_eq!((hub.drop_closed(), silent.len()), (1, QUEUE));
    }

    #[test]
    fn a_new_config_ends_the_streams_after_one_more_event() {
        let hub = LiveHub::default();
        let (mut old, _new) = (viewer(&hub, 1), viewer(&hub, 2));
        hub.send_event(&Bytes::from("event"), 2);
        assert_eq!(old.try_recv().unwrap(), "event");
        assert_eq!(old.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
        assert_eq!(hub.drop_closed(), 1);
    }
}
