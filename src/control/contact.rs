//! Where a running gateway is asked, found by the path of its config alone: the file may have become one that
//! does not load, or tell another address. The process tells it on an abstract Unix socket, which needs no
//! place to write and ends with the process. Either side proves to the other that it may read the config.
//! Called by the control loop, and on the other side by the command line.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::SocketAddrUnix;
use serde_json::{Value, json};
use tokio::io::Interest;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::timeout;

use super::local::{Parcel, connect_within, is_ours, send_parcel};
use super::place::{ConfigPlace, ReadAccess};
use super::shared::SharedState;
use super::source::ConfigSource;
use crate::config::AdminContact;
use crate::snapshot::Current;

/// Before the name is tried again that another process has, as one does that hands over.
const RETRY: Duration = Duration::from_secs(1);
/// Attempts after which that process is none that hands over.
const TAKEN: u32 = 5;
/// For the whole answer, and for who asks to prove who they are.
const PATIENCE: Duration = Duration::from_millis(500);
/// Of what is told: an address and a token.
const MOST: usize = 64 * 1024;
/// What comes with the proof: descriptors do not travel alone.
const HELLO: &[u8] = b"?";

/// Tells whoever may ask, until the handle is aborted or the process ends.
pub fn announce(source: &ConfigSource, current: Current, shared: Arc<SharedState>) -> Option<AbortHandle> {
    let ConfigSource::File(path) = source else { return None };
    let place = ConfigPlace::of(path).inspect_err(no_contact).ok()?;
    Some(spawn_local(tell_all(place, current, shared)).abort_handle())
}

fn no_contact(error: &io::Error) {
    tracing::debug!(%error, "no contact by the config's path");
}

/// Where the gateway listens as admin that runs with the config at `path`, by its own word; `None` where none
/// does, or none whose word can be relied on.
pub fn of_running(path: &Path) -> Option<AdminContact> {
    let place = ConfigPlace::of(path).ok()?;
    let name = SocketAddrUnix::new_abstract_name(&place.name().ok()?).ok()?;
    let stream = connect_within(&name, PATIENCE).ok()?;
    // Root asks gateways of every user, but any user may take any name.
    let enough = match is_ours(&stream).ok()? {
        true => ReadAccess::Public,
        false if rustix::process::geteuid().is_root() => ReadAccess::Private,
        false => return None,
    };
    send_parcel(&stream, HELLO, &place.opened()).ok()?;
    let answer = receive_all(&stream).ok()?;
    if place.proven(answer.fds) < enough {
        return None;
    }
    let told: Value = serde_json::from_slice(&answer.bytes).ok()?;
    AdminContact::new(told["admin"].as_str()?, told["token"].as_str())
}

fn receive_all(stream: &UnixStream) -> io::Result<Parcel> {
    let until = Instant::now() + PATIENCE;
    let mut answer = Parcel::default();
    loop {
        // A timeout of nothing would be none.
        let left = until.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match answer.receive(stream)? {
            0 => return Ok(answer),
            _ if left.is_zero() || answer.bytes.len() > MOST => return Err(io::ErrorKind::TimedOut.into()),
            _ => {}
        }
    }
}

async fn tell_all(place: ConfigPlace, current: Current, shared: Arc<SharedState>) {
    let Some(listener) = listen_in_time(&place).await else { return };
    loop {
        let told = match listener.accept().await {
            Ok((stream, _)) => tell(stream, &place, &current, &shared).await,
            Err(error) => {
                tokio::time::sleep(RETRY).await;
                Err(error)
            }
        };
        if let Err(error) = told {
            tracing::debug!(%error, "where the admin listener is could not be told");
        }
    }
}

/// Once no other process has the name.
async fn listen_in_time(place: &ConfigPlace) -> Option<tokio::net::UnixListener> {
    let name = place.name().inspect_err(no_contact).ok()?;
    let mut attempts = 0;
    loop {
        match listen(&name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => attempts += 1,
            result => return result.inspect_err(no_contact).ok(),
        }
        if attempts == TAKEN {
            let name = format!("@{}", name.escape_ascii());
            tracing::warn!(
                name,
                "another process has the name by which `healthcheck` and `reload` find this gateway; until it ends they \
                 go by the config file (`ss -xlp` shows the process)"
            );
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn listen(name: &[u8]) -> io::Result<tokio::net::UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(listener)
}

/// To this user and root, if they may read the config.
async fn tell(
    stream: tokio::net::UnixStream,
    place: &ConfigPlace,
    current: &Current,
    shared: &SharedState,
) -> io::Result<()> {
    let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
    if !is_ours(&stream)? {
        return Err(denied());
    }
    let mut hello = Parcel::default();
    timeout(PATIENCE, stream.async_io(Interest::READABLE, || hello.receive(&stream))).await??;
    if place.proven(hello.fds) == ReadAccess::Nothing {
        return Err(denied());
    }
    let Some(admin) = shared.admin() else { return Ok(()) };
    let token = current.load().config.admin.token.clone();
    let told = json!({ "admin": admin.to_string(), "token": token });
    // A new socket takes a few hundred bytes at once: nobody is waited for.
    send_parcel(&stream, told.to_string().as_bytes(), &place.opened())
}
