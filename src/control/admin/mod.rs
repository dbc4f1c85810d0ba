//! The admin listener: metrics, probes, status, reload and limits, served on the control
//! thread so that it answers however busy the workers are. Bounded in connections, time and bytes.

mod guard;
mod limits;
mod pages;
mod room;
mod scrape;
mod serve;

use std::io;
use std::rc::Rc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{JoinHandle, spawn_local};

pub use limits::Limits;
pub use pages::Context;

use crate::net::ListenAddr;
use crate::worker::{Listener, remove_socket_file};
use room::Room;
use serve::serve;

/// The listener and what its pages show.
pub struct Server {
    context: Rc<Context>,
    room: Rc<Room>,
    open: Option<(ListenAddr, JoinHandle<()>)>,
}

/// Pause after an accept failed for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// What the kernel takes of an answer at once. It would take megabytes from each of many clients that do
/// not read, in memory and in time.
const SEND_BUFFER: usize = 128 * 1024;

impl Server {
    pub fn new(context: Context) -> Server {
        Server { context: Rc::new(context), room: Rc::default(), open: None }
    }

    /// Accepts from `listener` and no longer from the one before it.
    pub fn listen(&mut self, addr: ListenAddr, listener: Listener) -> io::Result<()> {
        let (context, room) = (self.context.clone(), self.room.clone());
        let task = match listener {
            Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                // Those accepted inherit it.
                SockRef::from(&listener).set_send_buffer_size(SEND_BUFFER)?;
                spawn_local(accept_tcp(TcpListener::from_std(listener)?, context, room))
            }
            Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                spawn_local(accept_unix(UnixListener::from_std(listener)?, context, room))
            }
        };
        if let Some((_, before)) = self.open.replace((addr, task)) {
            before.abort();
        }
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
        if let Some((addr, task)) = self.open {
            task.abort();
            remove_socket_file(&addr);
        }
    }
}

async fn accept_tcp(listener: TcpListener, context: Rc<Context>, room: Rc<Room>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let local = peer.ip().to_canonical().is_loopback();
                spawn_local(serve(stream, local, context.clone(), Room::enter(&room)));
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn accept_unix(listener: UnixListener, context: Rc<Context>, room: Rc<Room>) {
    loop {
        match listener.accept().await {
            // The file's permissions say who may come.
            Ok((stream, _)) => drop(spawn_local(serve(stream, true, context.clone(), Room::enter(&room)))),
            Err(error) => pause(&error).await,
        }
    }
}

async fn pause(error: &io::Error) {
    tracing::warn!(%error, "the admin listener cannot accept a connection, pausing");
    tokio::time::sleep(PAUSE).await;
}
