//! One process takes over from another without a moment in which nobody listens: the new one asks the old one,
//! on a Unix socket, for its listening sockets, and tells it once it serves them; then the old one drains.
//! Called by the control loop on either side.

use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketType, recvmsg, sendmsg, sockopt,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::timeout;

use super::local::connect_within;
use crate::worker::Listener;
use crate::worker::socket_file::{SocketFile, with_suffix};

/// Sockets that go in one message; the system takes up to 253.
const AT_ONCE: usize = 64;
/// Sockets and bytes of names that a new process accepts from the old one.
const SOCKETS_MAX: usize = 4096;
const NAMES_MAX: usize = 1024 * 1024;
/// How long connecting to the old process may take, and then how long all its sockets may take to arrive.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the new process may take from the sockets to its first request.
const START: Duration = Duration::from_secs(120);
/// After the last name.
const END: &str = "";
/// What the new process says when it serves.
const SERVING: &[u8] = b"serving\n";

/// The way to the process that ran before, which goes on until it is told that it need not.
pub struct Predecessor {
    stream: UnixStream,
}

/// Waits for the process that comes after.
pub struct Heir {
    pub requests: mpsc::Receiver<HeirRequest>,
    path: PathBuf,
    file: SocketFile,
    task: AbortHandle,
}

/// What a new process wants.
pub enum HeirRequest {
    /// Every listening socket, under the name by which the config asks for it.
    Sockets(oneshot::Sender<Vec<Listener>>),
    /// To serve alone from now on; its process id, if it is known.
    Serves(Option<i32>),
}

impl Predecessor {
    /// The sockets of the process that waits at `path`; `None` where there is none.
    ///
    /// # Errors
    /// The process there does not hand them over, runs as another user, or passes sockets that are not what their names claim.
    pub fn ask(path: &Path) -> io::Result<Option<(Predecessor, Vec<Listener>)>> {
        let stream = match connect_within(SocketType::STREAM, &SocketAddrUnix::new(path)?, PATIENCE) {
            Ok(stream) => UnixStream::from(stream),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let peer = sockopt::socket_peercred(&stream)?.uid.as_raw();
        let own = rustix::process::geteuid().as_raw();
        if !is_trusted(peer, own) {
            return Err(io::Error::other(format!("user {peer} listens there; user {own} trusts only itself and root")));
        }
        let listeners = receive(&stream, Instant::now() + PATIENCE)?;
        Ok(Some((Predecessor { stream }, listeners)))
    }

    /// It need not serve any longer.
    pub fn release(mut self) {
        if let Err(error) = self.stream.write_all(SERVING) {
            tracing::warn!(%error, "the process that ran before cannot be told to end; send it SIGTERM");
        }
    }
}

impl Heir {
    /// Waits at `path`, in place of the process that waited there before.
    ///
    /// # Errors
    /// What the system says.
    pub fn expect(path: &Path) -> io::Result<Heir> {
        // A rename leaves no moment without a socket, nor one that others may open.
        let next = next_of(path);
        let (listener, file) = SocketFile::bind(&next)?;
        std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o600))?;
        file.rename(&next, path)?;
        let listener = UnixListener::from_std(listener)?;
        let (sender, requests) = mpsc::channel(1);
        let task = spawn_local(serve(listener, sender)).abort_handle();
        Ok(Heir { requests, path: path.to_owned(), file, task })
    }

    /// Nobody waits there any more, but for a process that has come after.
    pub fn end(self) {
        self.task.abort();
        // Another file there is that of a process that has come after.
        let _ = self.file.remove(&self.path);
    }
}

/// Checks that the hand-over socket can be created at `path` without harm to a file that is no socket.
///
/// # Errors
/// Something other than a socket is there, with its path.
pub fn check_path(path: &Path) -> Result<(), (PathBuf, io::Error)> {
    let occupied = |path: PathBuf| match SocketFile::at(&path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err((path, error)),
        _ => Ok(()),
    };
    occupied(path.to_owned()).and_then(|()| occupied(next_of(path)))
}

/// Where the socket is bound before it is renamed to `path`.
fn next_of(path: &Path) -> PathBuf {
    with_suffix(path, ".next")
}

/// Whether this process, of user `own`, hands sockets to a process of user `peer` or accepts them from it.
fn is_trusted(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

/// One new process after the other.
async fn serve(listener: UnixListener, requests: mpsc::Sender<HeirRequest>) {
    loop {
        let result = match listener.accept().await {
            Ok((stream, _)) => hand_over(stream, &requests).await,
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            tracing::warn!(%error, "a new process has not taken over");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn hand_over(stream: tokio::net::UnixStream, requests: &mpsc::Sender<HeirRequest>) -> io::Result<()> {
    let ended = || io::Error::other("the gateway ends");
    let peer = stream.peer_cred()?;
    let own = rustix::process::geteuid().as_raw();
    if !is_trusted(peer.uid(), own) {
        return Err(io::Error::other(format!("user {} asked for the sockets of user {own}", peer.uid())));
    }
    let (reply, sockets) = oneshot::channel();
    requests.send(HeirRequest::Sockets(reply)).await.map_err(|_| ended())?;
    let sockets = sockets.await.map_err(|_| ended())?;
    let stream = stream.into_std()?;
    // What is sent is a few hundred bytes, which the socket takes at once.
    send(&stream, &sockets)?;
    drop(sockets);
    let mut stream = tokio::net::UnixStream::from_std(stream)?;
    let mut said = [0; SERVING.len()];
    timeout(START, stream.read_exact(&mut said)).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if said != SERVING {
        return Err(io::ErrorKind::InvalidData.into());
    }
    requests.send(HeirRequest::Serves(peer.pid())).await.map_err(|_| ended())?;
    let _ = stream.shutdown().await;
    Ok(())
}

/// A line with the name of each, and with the lines the sockets in the same order.
fn send(stream: &UnixStream, listeners: &[Listener]) -> io::Result<()> {
    for some in listeners.chunks(AT_ONCE) {
        let names: String = some.iter().map(|listener| format!("{}\n", listener.addr())).collect();
        let fds: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let sent = sendmsg(stream, &[IoSlice::new(names.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
        if sent < names.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    (&mut &*stream).write_all(format!("{END}\n").as_bytes())
}

/// What [`send`] has sent, until `due`. An old process may be of a hostile user's making, so all is bounded.
fn receive(stream: &UnixStream, due: Instant) -> io::Result<Vec<Listener>> {
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
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let read = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
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
    let names = BufReader::new(&*names).lines().collect::<io::Result<Vec<_>>>()?;
    let names: Vec<&String> = names.iter().take_while(|name| *name != END).collect();
    // The system drops those that this process may not have, for want of descriptors.
    if names.len() != fds.len() {
        let (came, all) = (fds.len(), names.len());
        return Err(io::Error::other(format!("sockets were lost on the way: {came} of {all} came")));
    }
    names.into_iter().zip(fds).map(|(name, fd)| Listener::of_fd(fd, name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_socket_comes_with_its_name_or_none_does() {
        let listener = Listener::of_tcp(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        let addr = listener.addr().clone();
        let (old, new) = UnixStream::pair().unwrap();
        send(&old, &[listener]).unwrap();
        let received = receive(&new, Instant::now() + PATIENCE).unwrap();
        assert_eq!(received.iter().map(Listener::addr).collect::<Vec<_>>(), [&addr]);
        // What the system does to a process that has no descriptors left.
        (&mut &old).write_all(format!("{addr}\n\n").as_bytes()).unwrap();
        assert!(
            receive(&new, Instant::now() + PATIENCE)
                .unwrap_err()
                .to_string()
                .starts_with("sockets were lost on the way: 0 of 1")
        );
    }
}
