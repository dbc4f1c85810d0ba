//! The place of one request below the adaptive limit of its upstream, from the selection of a server to the head of the
//! response. Taken by `reserve`, ended by `forward`.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use tokio::task::spawn_local;

use crate::upstream::adaptive::AdaptivePermit;
use crate::upstream::adaptive::window::SampleKind;
use crate::upstream::caps::UpstreamLoad;

/// A place below the adaptive limit.
///
/// If the client disconnects after its request was sent, the server may still work on it. So the place stays taken for
/// the usual response time. Otherwise, clients that disconnect immediately could send any number of requests to the
/// servers.
pub struct CapacityPermit {
    place: Option<AdaptivePermit>,
    load: Arc<UpstreamLoad>,
    /// When the request of the current attempt was sent completely.
    sent: Cell<Option<Instant>>,
}

impl CapacityPermit {
    /// Takes a place if the upstream has an adaptive limit. Returns `None` at the limit.
    pub fn take(load: &Arc<UpstreamLoad>) -> Option<CapacityPermit> {
        let place = match &load.adaptive {
            Some(adaptive) => Some(adaptive.take_place()?),
            None => None,
        };
        Some(CapacityPermit { place, load: load.clone(), sent: Cell::new(None) })
    }

    /// Records that the request was sent completely, if it was not recorded yet.
    pub fn record_sent(&self) {
        if self.place.is_some() && self.sent.get().is_none() {
            self.sent.set(Some(Instant::now()));
        }
    }

    /// Returns whether [`CapacityPermit::record_sent`] has an effect.
    pub fn awaits_sending(&self) -> bool {
        self.place.is_some() && self.sent.get().is_none()
    }

    /// Prepares for another attempt. The last one is not a sample.
    pub fn restart(&self) {
        self.sent.set(None);
    }

    /// Frees the place, and records how the last attempt ended if it is a sample.
    pub fn end(mut self, kind: Option<SampleKind>) {
        let Some(place) = self.place.take() else { return };
        if let (Some(kind), Some(sent)) = (kind, self.sent.get()) {
            let now = Instant::now();
            place.record(kind, now.saturating_duration_since(sent), self.load.queue.len() > 0, now);
        }
        self.free(place);
    }

    fn free(&self, place: AdaptivePermit) {
        drop(place);
        self.load.queue.notify_first();
    }
}

impl Drop for CapacityPermit {
    /// The client has disconnected, or the request ended before it was sent.
    fn drop(&mut self) {
        let Some(place) = self.place.take() else { return };
        let Some(sent) = self.sent.get() else { return self.free(place) };
        let (waited, usual) = (sent.elapsed(), place.limit().recent());
        if waited >= usual {
            // The response would have taken even longer.
            place.record(SampleKind::ClientLeft, waited, self.load.queue.len() > 0, Instant::now());
            return self.free(place);
        }
        let load = self.load.clone();
        spawn_local(async move {
            tokio::time::sleep(usual - waited).await;
            drop(place);
            load.queue.notify_first();
        });
    }
}
