//! Hand-over: a new process takes over the listening sockets, so that there is no moment in which nobody listens. It
//! requests them from the old process on a Unix socket and reports once it serves them; then the old process drains.
//! The secrets of session tickets come along. Called by the control loop on both sides.

use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketType, recvmsg, sendmsg, sockopt,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::timeout;

use crate::config::Config;
use crate::control::local::connect_within;
use crate::net::SocketAccess;
use crate::tls::TicketSecrets;
use crate::worker::Listener;
use crate::worker::socket_file::{SocketFile, with_suffix};

/// Number of sockets per message; the system allows 253.
const SOCKETS_PER_MESSAGE: usize = 64;
/// Maximum number of sockets, and of bytes of names, that a new process accepts.
const SOCKETS_MAX: usize = 4096;
const NAMES_MAX: usize = 1024 * 1024;
/// Time limit for connecting to the old process, and then for receiving all sockets.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that the new process has from receiving the sockets to serving them.
const SERVE_TIMEOUT: Duration = Duration::from_secs(120);
/// Follows the last name.
const END_OF_NAMES: &str = "";
/// Sent by the new process once it serves.
const SERVING: &[u8] = b"serving\n";

/// Connection to the old process, which keeps serving until it is released.
pub struct OldProcess {
    stream: UnixStream,
}

/// Waits for a new process.
pub struct HandoverSocket {
    pub requests: mpsc::Receiver<NewProcessRequest>,
    path: PathBuf,
    file: SocketFile,
    task: AbortHandle,
}

/// Request of a new process.
pub enum NewProcessRequest {
    /// Send every listening socket, under the address that the config uses for it.
    Sockets(oneshot::Sender<Vec<Listener>>),
    /// The new process serves alone from now on; its process id if known.
    Serves(Option<i32>),
}

/// State of the `handover` path of the config when the process starts.
pub enum HandoverPath {
    /// Nothing, or a socket without a listener: later processes take over there.
    Free,
    OldProcess(OldProcess, Vec<Listener>),
    /// A process that refuses the hand-over, perhaps of another program; its socket is left alone.
    Foreign,
}

impl OldProcess {
    /// Requests the sockets of the process that listens at `path`; `None` if there is none.
    ///
    /// # Errors
    /// If the process refuses, runs as another user, or sends sockets that do not match their names.
    fn request_sockets(path: &Path) -> io::Result<Option<(OldProcess, Vec<Listener>)>> {
        let stream = match connect_within(SocketType::STREAM, &SocketAddrUnix::new(path)?, RECEIVE_TIMEOUT) {
            Ok(stream) => UnixStream::from(stream),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let peer = sockopt::socket_peercred(&stream)?.uid.as_raw();
        let own = rustix::process::geteuid().as_raw();
        if !is_trusted_user(peer, own) {
            return Err(io::Error::other(format!("user {peer} listens there; user {own} trusts only itself and root")));
        }
        let (listeners, tickets) = receive_sockets(&stream, Instant::now() + RECEIVE_TIMEOUT)?;
        // An earlier release sends none.
        if let Some(tickets) = tickets {
            tickets.adopt();
        }
        Ok(Some((OldProcess { stream }, listeners)))
    }

    /// Tells the old process to stop serving.
    pub fn release(mut self) {
        if let Err(error) = self.stream.write_all(SERVING) {
            tracing::warn!(%error, "the old process cannot be told to stop; send it SIGTERM");
        }
    }
}

impl HandoverSocket {
    /// Listens at `path`, replacing the socket of the old process.
    ///
    /// # Errors
    /// The system's error.
    pub fn listen(path: &Path) -> io::Result<HandoverSocket> {
        // A rename leaves no moment without a socket or with one that others may open.
        let next = temporary_path(path);
        let (listener, file) = SocketFile::bind(&next, &SocketAccess::OWN_USER)?;
        file.rename(&next, path)?;
        let listener = UnixListener::from_std(listener)?;
        let (sender, requests) = mpsc::channel(1);
        let task = spawn_local(serve_new_processes(listener, sender)).abort_handle();
        Ok(HandoverSocket { requests, path: path.to_owned(), file, task })
    }

    /// Stops listening, unless a newer process already listens there.
    pub fn stop_listening(self) {
        self.task.abort();
        // A different file belongs to a newer process.
        let _ = self.file.remove(&self.path);
    }
}

/// Requests the listening sockets of the process that listens at the `handover` path of the config.
///
/// # Errors
/// The path has a file that is not a socket, or it cannot be read.
pub fn request_handover(config: &Config) -> Result<HandoverPath, (PathBuf, io::Error)> {
    let Some(path) = &config.server.handover else { return Ok(HandoverPath::Free) };
    check_path(path)?;
    Ok(match OldProcess::request_sockets(path) {
        Ok(None) => HandoverPath::Free,
        Ok(Some((old_process, sockets))) => HandoverPath::OldProcess(old_process, sockets),
        Err(error) => {
            tracing::error!(
                path = %path.display(),
                %error,
                "the process that listens there does not hand over its sockets; its socket stays, and no later process \
                 can take over from this one"
            );
            HandoverPath::Foreign
        }
    })
}

/// Returns the next request of a new process; pending forever if hand-over is off.
pub async fn next_handover_request(handover: &mut Option<HandoverSocket>) -> Option<NewProcessRequest> {
    match handover {
        Some(handover) => handover.requests.recv().await,
        None => std::future::pending().await,
    }
}

/// Starts listening for a new process if the config sets `handover`.
pub fn listen_for_handover(config: &Config) -> Option<HandoverSocket> {
    let path = config.server.handover.as_ref()?;
    let log_failure = |error: &io::Error| {
        tracing::error!(path = %path.display(), %error, "hand-over to a new process is disabled");
    };
    HandoverSocket::listen(path).inspect_err(log_failure).ok()
}

/// Checks that the hand-over socket can be created at `path` without harming a file that is not a socket.
///
/// # Errors
/// The path of the file that is not a socket.
fn check_path(path: &Path) -> Result<(), (PathBuf, io::Error)> {
    let check_free = |path: PathBuf| match SocketFile::from_path(&path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err((path, error)),
        _ => Ok(()),
    };
    check_free(path.to_owned()).and_then(|()| check_free(temporary_path(path)))
}

/// Returns where the socket is bound before it is renamed to `path`.
fn temporary_path(path: &Path) -> PathBuf {
    with_suffix(path, ".next")
}

/// Returns whether this process, of user `own`, exchanges sockets with a process of user `peer`.
fn is_trusted_user(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

/// Serves one new process after another.
async fn serve_new_processes(listener: UnixListener, requests: mpsc::Sender<NewProcessRequest>) {
    loop {
        let result = match listener.accept().await {
            Ok((stream, _)) => hand_over_sockets(stream, &requests).await,
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            tracing::warn!(%error, "a new process has not taken over");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn hand_over_sockets(
    stream: tokio::net::UnixStream,
    requests: &mpsc::Sender<NewProcessRequest>,
) -> io::Result<()> {
    let shutdown_error = || io::Error::other("the gateway ends");
    let peer = stream.peer_cred()?;
    let own = rustix::process::geteuid().as_raw();
    if !is_trusted_user(peer.uid(), own) {
        return Err(io::Error::other(format!("user {} requested the sockets of user {own}", peer.uid())));
    }
    let (reply, sockets) = oneshot::channel();
    requests.send(NewProcessRequest::Sockets(reply)).await.map_err(|_| shutdown_error())?;
    let sockets = sockets.await.map_err(|_| shutdown_error())?;
    let stream = stream.into_std()?;
    // The message has a few hundred bytes, which the socket accepts without blocking.
    send_sockets(&stream, &sockets)?;
    drop(sockets);
    let mut stream = tokio::net::UnixStream::from_std(stream)?;
    let mut greeting = [0; SERVING.len()];
    timeout(SERVE_TIMEOUT, stream.read_exact(&mut greeting))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if greeting != SERVING {
        return Err(io::ErrorKind::InvalidData.into());
    }
    requests.send(NewProcessRequest::Serves(peer.pid())).await.map_err(|_| shutdown_error())?;
    let _ = stream.shutdown().await;
    Ok(())
}

/// Sends one line per socket with its name, and the sockets with the lines in the same order. The secrets of session
/// tickets follow.
fn send_sockets(stream: &UnixStream, listeners: &[Listener]) -> io::Result<()> {
    for some in listeners.chunks(SOCKETS_PER_MESSAGE) {
        let names: String = some.iter().map(|listener| format!("{}\n", listener.addr())).collect();
        let fds: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_PER_MESSAGE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let count = sendmsg(stream, &[IoSlice::new(names.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
        if count < names.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    // One write, so that it arrives at once. Earlier releases ignore what follows `END_OF_NAMES`.
    let tickets = TicketSecrets::of_process().to_lines();
    (&mut &*stream).write_all(format!("{END_OF_NAMES}\n{tickets}{END_OF_NAMES}\n").as_bytes())
}

/// Receives what [`send_sockets`] sent, until `due`. The other process may be hostile, so everything is bounded.
fn receive_sockets(stream: &UnixStream, due: Instant) -> io::Result<(Vec<Listener>, Option<TicketSecrets>)> {
    let (mut names, mut fds) = (Vec::new(), Vec::<OwnedFd>::new());
    while names != b"\n" && !names.ends_with(b"\n\n") {
        if names.len() > NAMES_MAX || fds.len() > SOCKETS_MAX {
            return Err(io::Error::other(format!(
                "the running process sent more than {SOCKETS_MAX} sockets or their names"
            )));
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_PER_MESSAGE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let read = match recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            // A signal, such as SIGHUP. The system does not restart a read with a timeout.
            Err(Errno::INTR) => continue,
            outcome => outcome?,
        };
        if read.bytes == 0 {
            return Err(io::Error::other("the process that runs has refused, see its log"));
        }
        names.extend_from_slice(&bytes[..read.bytes]);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
    }
    let lines = BufReader::new(&*names).lines().collect::<io::Result<Vec<_>>>()?;
    let names: Vec<&String> = lines.iter().take_while(|name| *name != END_OF_NAMES).collect();
    // The system drops sockets for which this process has no descriptor left.
    if names.len() != fds.len() {
        let (came, all) = (fds.len(), names.len());
        return Err(io::Error::other(format!("sockets were lost on the way: {came} of {all} came")));
    }
    let tickets = TicketSecrets::from_lines(lines.iter().skip(names.len() + 1).map(String::as_str));
    let listeners = names.into_iter().zip(fds).map(|(name, fd)| Listener::from_fd(fd, name));
    Ok((listeners.collect::<io::Result<_>>()?, tickets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_socket_comes_with_its_name_or_none_does() {
        let listener = Listener::from_tcp(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        let addr = listener.addr().clone();
        let (old, new) = UnixStream::pair().unwrap();
        send_sockets(&old, &[listener]).unwrap();
        let (received, tickets) = receive_sockets(&new, Instant::now() + RECEIVE_TIMEOUT).unwrap();
        assert!(tickets == Some(TicketSecrets::clone(&TicketSecrets::of_process())));
        assert_eq!(received.iter().map(Listener::addr).collect::<Vec<_>>(), [&addr]);
        // An earlier release, which sends no secrets.
        (&mut &old).write_all(b"\n").unwrap();
        let (received, tickets) = receive_sockets(&new, Instant::now() + RECEIVE_TIMEOUT).unwrap();
        assert!(received.is_empty() && tickets.is_none());
        // Simulates a process that has no descriptors left.
        (&mut &old).write_all(format!("{addr}\n\n").as_bytes()).unwrap();
        assert!(
            receive_sockets(&new, Instant::now() + RECEIVE_TIMEOUT)
                .unwrap_err()
                .to_string()
                .starts_with("sockets were lost on the way: 0 of 1")
        );
    }
}
