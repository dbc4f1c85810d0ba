//! An exchange whose client has left. Where the request holds a slot of a limit, the upstream is not
//! cut off, which would free the slot while a server that takes no notice works on: the exchange goes on
//! without a client, and the slot goes back at its end. Started by `forward` and `body` when dropped, and by `tunnel`.

use std::future::pending;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use crate::http::connections::CountedPlace;
use crate::http::context::Client;
use crate::limit::held::HeldLeases;
use crate::metrics::Cutoff;
use crate::route::Timeouts;

/// What an exchange needs to go on without its client.
#[derive(Clone)]
pub struct Linger {
    client: Rc<Client>,
    leases: Rc<HeldLeases>,
    /// The longest pause of an answer.
    pub stream: Duration,
}

impl Linger {
    pub fn new(client: &Rc<Client>, leases: Rc<HeldLeases>, timeouts: &Timeouts) -> Linger {
        Linger { client: client.clone(), leases, stream: timeouts.stream }
    }

    /// Runs `rest`, which ends with the exchange, and then lets go of the leases: at the end of their
    /// time at the latest, or when the worker is stopped. Where no place is left for the exchange it ends at once,
    /// and the leases stay for their time: nobody knows for how long its server works on.
    pub fn go_on(self, rest: impl Future<Output = ()> + 'static) {
        // A request cut by the gateway itself ends.
        if self.client.deadline().is_cut() || self.leases.linger().is_none() {
            return;
        }
        let place = self.enter();
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
            while let Some(linger) = self.leases.linger() {
                tokio::select! {
                    () = &mut rest => return,
                    () = self.client.deadline().linger() => return,
                    () = sleep_until(left + linger) => self.leases.give_back(linger),
                }
            }
        });
    }

    /// The place that a connection had keeps one exchange. Each of many on a connection takes one of its own.
    fn enter(&self) -> Result<Option<CountedPlace>, Cutoff> {
        if !self.client.deadline().is_multiplexed() {
            return Ok(None);
        }
        let view = self.client.local.view();
        let server = &view.snapshot.config.server;
        self.client.ticket.enter_beside(server.max_connections, server.max_connections_per_ip).map(Some)
    }
}
