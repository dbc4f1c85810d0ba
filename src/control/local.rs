//! Unix sockets of local processes. Called by the hand-over, the systemd notification and the command line.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Connects to `addr` and applies `patience` to connecting and to each later operation. Without it, connecting to a
/// process that no longer accepts would block forever.
///
/// # Errors
/// If nobody listens there or nobody accepts in time.
pub fn connect_within(kind: SocketType, addr: &SocketAddrUnix, patience: Duration) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
    connect(&socket, addr)?;
    Ok(socket)
}
