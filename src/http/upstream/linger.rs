//! An exchange whose client has left. Where the request holds a slot of a limit, the upstream is not
//! cut off, which would free the slot while a server that takes no notice works on: the exchange goes on
//! without a client, and the slot goes back at its end. Started by `forward` and `body` when dropped, and by `tunnel`.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use crate::http::context::Client;
use crate::limit::held::HeldLeases;
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
    /// time at the latest, or when the worker is stopped.
    pub fn go_on(self, rest: impl Future<Output = ()> + 'static) {
        // A request cut by the gateway itself ends.
        if self.client.deadline().is_cut() || self.leases.linger().is_none() {
            return;
        }
        let left = Instant::now();
        spawn_local(async move {
            let mut rest = pin!(rest);
            while let Some(linger) = self.leases.linger() {
                tokio::select! {
                    () = &mut rest => return,
                    () = self.client.deadline().linger() => return,
                    () = sleep_until(left + linger) => self.leases.give_back(linger),
                }
            }
        });
    }
}
