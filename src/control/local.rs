//! Unix sockets of processes on this machine. Called by the hand-over, by what is told to systemd and by the command
//! line.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// A connection to `addr` that waits at most `patience` each time, also for a process that no longer accepts: without
/// a deadline the system waits for that for ever.
///
/// # Errors
/// Nobody listens there, or nobody accepts.
pub fn connect_within(kind: SocketType, addr: &SocketAddrUnix, patience: Duration) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
    connect(&socket, addr)?;
    Ok(socket)
}
