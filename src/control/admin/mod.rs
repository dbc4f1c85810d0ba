//! The admin listener: metrics, probes, status, reload and limits, served on the control
//! thread so that it answers however busy the workers are. Bounded in connections, time and bytes.

mod cached;
mod guard;
mod inspected;
mod limits;
mod pages;
mod room;
mod serve;
mod upstreams;

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_local};

pub use limits::Limits;
pub use pages::AdminContext;

use crate::net::ListenAddr;
use crate::sampled::Sampled;
use crate::worker::{Accepted, Acceptor, Listener};
use room::AdminRoom;
use serve::serve;

/// The listener and what its pages show.
pub struct AdminServer {
    context: Rc<AdminContext>,
    room: Rc<AdminRoom>,
    open: Option<(ListenAddr, JoinHandle<()>)>,
}

/// Pause after an accept failed for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// What the kernel takes of an answer at once. It would take megabytes from each of many clients that do
/// not read, in memory and in time.
const SEND_BUFFER: usize = 128 * 1024;

impl AdminServer {
    pub fn new(context: AdminContext) -> AdminServer {
        AdminServer { context: Rc::new(context), room: Rc::default(), open: None }
    }

    /// Accepts from `listener` and no longer from the one before it.
    pub fn listen(&mut self, listener: Listener) -> io::Result<()> {
        let (addr, bound) = (listener.addr().clone(), listener.bound_addr());
        listener.set_send_buffer(SEND_BUFFER)?;
        let task = spawn_local(accept(listener.accept()?, self.context.clone(), self.room.clone()));
        if let Some((_, before)) = self.open.replace((addr, task)) {
            before.abort();
        }
        self.context.shared.admin_listens_at(bound);
        Ok(())
    }

    pub fn addr(&self) -> Option<&ListenAddr> {
        self.open.as_ref().map(|(addr, _)| addr)
    }

    /// Stops accepting; the address is free when this returns.
    pub async fn close(&mut self) {
        if let Some((_, task)) = self.open.take() {
            task.abort();
            // Cancelled, as asked.
            let _ = task.await;
        }
    }

    /// The end of the process.
    pub fn end(self) {
        if let Some((_, task)) = self.open {
            task.abort();
        }
    }
}

async fn accept(acceptor: Acceptor, context: Rc<AdminContext>, room: Rc<AdminRoom>) {
    let line = Sampled::default();
    loop {
        match acceptor.next().await {
            // On a Unix socket, the file's permissions say who may come.
            Ok(Accepted { stream, peer, .. }) => {
                spawn_local(serve(stream, peer.ip().is_loopback(), context.clone(), AdminRoom::enter(&room)));
            }
            Err(error) => pause(&error, &line).await,
        }
    }
}

async fn pause(error: &io::Error, line: &Sampled) {
    if let Some(left_out) = line.due() {
        tracing::warn!(%error, left_out, "the admin listener cannot accept a connection, pausing");
    }
    tokio::time::sleep(PAUSE).await;
}
