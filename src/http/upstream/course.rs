//! One request's way from server to server, and where it ends: at a connection, or without. Begun by `servers`, led
//! by `acquire`.

use std::rc::Rc;
use std::sync::Arc;

use tokio::time::Instant;

use super::asked::{AskedServer, ConnectionNeed};
use super::connect::ConnectFault;
use super::pool::ServerLease;
use crate::labels::labels;
use crate::upstream::caps::InFlight;

/// One request's way from server to server.
#[derive(Default)]
pub struct Course {
    /// Those that failed it.
    pub(super) tried: Vec<Rc<AskedServer>>,
    /// What it is told apart by, where that says which server it gets.
    pub(super) hash: Option<u64>,
    pub(super) need: ConnectionNeed,
    /// When it last asked for a connection.
    pub(super) asked_ms: u64,
    /// For a server with room, if it has waited.
    pub(super) waits_until: Option<Instant>,
    /// At the server that it is sent to once more.
    pub(super) turn: Option<Turn>,
}

/// A server, and a request's place there.
pub(super) type Turn = (Rc<AskedServer>, InFlight);

/// Why a request has no server.
pub enum Unserved {
    /// None accepted a connection: the last one for this.
    Connect(ConnectFault),
    /// None had room.
    Overflow(Overflow),
}

impl From<ConnectFault> for Unserved {
    fn from(fault: ConnectFault) -> Unserved {
        Unserved::Connect(fault)
    }
}

/// A connection for a request, and whose it is.
pub struct Acquired {
    pub server: Rc<AskedServer>,
    pub connection: ServerLease,
}

labels! {
    /// Why a request has had no turn.
    Overflow:
    /// As many as may wait do.
    QueueFull = "queue_full",
    QueueTimeout = "queue_timeout",
}

impl Course {
    /// Servers that failed the request.
    pub fn failures(&self) -> usize {
        self.tried.len()
    }

    /// What was kept when it last asked for a connection is not asked any more: servers may have closed it.
    pub fn renew(&mut self) {
        self.need.since_ms = Some(self.asked_ms);
    }

    pub fn is_renewed(&self) -> bool {
        self.need.since_ms.is_some()
    }

    pub(super) fn has_tried(&self, server: &AskedServer) -> bool {
        self.tried.iter().any(|tried| Arc::ptr_eq(&tried.state, &server.state))
    }
}
