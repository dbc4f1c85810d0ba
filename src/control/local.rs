//! Unix sockets of processes on this machine. Called by the hand-over and the command line.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// A connection that waits at most `patience` each time, also for a process that no longer accepts: without a
/// deadline the system waits for that for ever.
///
/// # Errors
/// Nobody listens there, or nobody accepts.
pub fn connect_within(addr: &SocketAddrUnix, patience: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
    connect(&socket, addr)?;
    Ok(UnixStream::from(socket))
}
