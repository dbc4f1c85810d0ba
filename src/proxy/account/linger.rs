//! Continues an exchange whose client has disconnected, if the request holds a slot of a concurrency limit. Closing the
//! connection would free the slot while a server that does not notice works on. So the exchange continues without a
//! client, and the slot is released at its end. Started by `forward` and `body` when they are dropped, and by `tunnel`.

use std::future::pending;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use crate::ends::End;
use crate::limiting::charges::guard::LeaseGuard;
use crate::proxy::connection::connection_count::{ConnectionBounds, CountedConnection};
use crate::proxy::context::ClientConnection;
use crate::route::Timeouts;

/// The means of an exchange to continue without its client.
#[derive(Clone)]
pub struct Linger {
    client: Rc<ClientConnection>,
    leases: Rc<LeaseGuard>,
    /// Longest pause of the response body (`stream_timeout`).
    pub stream: Duration,
}

impl Linger {
    pub fn new(client: &Rc<ClientConnection>, leases: Rc<LeaseGuard>, timeouts: &Timeouts) -> Linger {
        Linger { client: client.clone(), leases, stream: timeouts.stream }
    }

    /// Runs `rest`, which ends with the exchange, and then releases the leases: at the latest when they expire or the
    /// worker stops. If the connection limit leaves no place for the exchange, it ends at once. Its leases then stay
    /// until they expire, because nobody knows for how long the server works on.
    pub fn continue_exchange(self, rest: impl Future<Output = ()> + 'static) {
        // A request that the gateway itself ended does not linger.
        if self.client.connection().is_cut() || self.leases.next_release().is_none() {
            return;
        }
        let place = self.take_place();
        let rest = place.is_ok().then_some(rest);
        let left = Instant::now();
        spawn_local(async move {
            let mut rest = pin!(async move {
                let _place = place;
                match rest {
                    Some(rest) => rest.await,
                    None => pending().await,
                }
            });
            while let Some(linger) = self.leases.next_release() {
                tokio::select! {
                    () = &mut rest => return,
                    () = self.client.connection().wait_for_cut() => return,
                    () = sleep_until(left + linger) => self.leases.release_after(linger),
                }
            }
        });
    }

    /// Takes a place of the connection limit. The place of an HTTP/1.1 connection serves its exchange; over HTTP/2 each
    /// exchange needs its own.
    fn take_place(&self) -> Result<Option<CountedConnection>, End> {
        if !self.client.connection().is_multiplexed() {
            return Ok(None);
        }
        let view = self.client.worker.view();
        let bounds = ConnectionBounds::of(&view.snapshot.config.server, self.client.peer);
        self.client.ticket.count_lingering(bounds).map(Some)
    }
}
