//! Unix sockets of processes on this machine. Called by the hand-over, the contact and the command line.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};

/// Open files in a parcel; the system drops what is more.
const FILES: usize = 2;

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

/// True when the other side is this user or root. Of a listening process, the one that began to listen.
///
/// # Errors
/// The system does not tell.
pub fn is_ours(stream: impl AsFd) -> io::Result<bool> {
    let peer = socket_peercred(stream)?.uid;
    Ok(peer.is_root() || peer == rustix::process::geteuid())
}

/// Sends `bytes` at once, and open files with them.
///
/// # Errors
/// The other side has gone, or does not take all of it now.
pub fn send_parcel(stream: impl AsFd, bytes: &[u8], files: &[File]) -> io::Result<()> {
    let fds: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // Of none there is no message.
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    match sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)? {
        sent if sent < bytes.len() => Err(io::ErrorKind::WriteZero.into()),
        _ => Ok(()),
    }
}

/// What has come, piece by piece.
#[derive(Default)]
pub struct Parcel {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Parcel {
    /// Takes the next piece; its length, 0 at the end.
    ///
    /// # Errors
    /// What the system says.
    pub fn receive(&mut self, stream: impl AsFd) -> io::Result<usize> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let read = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
        self.bytes.extend_from_slice(&bytes[..read]);
        // More pieces than the first bring no more of them: what they hold open is closed.
        let is_first = self.fds.is_empty();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                received.for_each(|fd| {
                    if is_first {
                        self.fds.push(fd)
                    }
                });
            }
        }
        Ok(read)
    }
}
