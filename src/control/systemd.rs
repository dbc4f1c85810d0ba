//! What systemd is told of the gateway's life, and the sockets that it hands over. Outside of systemd there is
//! nothing to tell and nothing handed over. Called by the control loop, the reloader and the listeners.

use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rustix::net::{SendFlags, SocketAddrUnix, SocketType, send};
use sd_notify::NotifyState;

use super::local::connect_within;

/// Environment variable with the socket of the service manager.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// How long one message may take: a service manager that does not read must not stop the control thread.
const PATIENCE: Duration = Duration::from_millis(500);

/// All listeners are open.
pub fn ready() {
    tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

/// A reload begins. To be followed by [`reloaded`].
pub fn reloading() {
    // Since version 253 the time tells which of several reloads is meant.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "the clock cannot be read for systemd"),
    }
}

/// Whether the last reload has put its config in force or not, `generation` is.
pub fn reloaded(generation: u64, has_failed: bool) {
    let status = match has_failed {
        false => format!("serving generation {generation} of the config"),
        true => format!("the config does not load: generation {generation} stays in force, see the log"),
    };
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// Another process is the gateway now.
pub fn succeeded(pid: Option<i32>) {
    if let Some(pid) = pid.and_then(|pid| u32::try_from(pid).ok()) {
        tell(&[NotifyState::MainPid(pid)]);
    }
}

fn tell(news: &[NotifyState]) {
    let Some(socket) = std::env::var_os(NOTIFY_SOCKET) else { return };
    if let Err(error) = notify(&socket, news) {
        tracing::debug!(%error, "systemd cannot be told");
    }
}

fn notify(socket: &OsStr, news: &[NotifyState]) -> io::Result<()> {
    // `@` stands for the NUL with which an abstract name begins.
    let addr = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        _ => SocketAddrUnix::new(socket)?,
    };
    let message = news.iter().fold(String::new(), |mut text, state| {
        let _ = writeln!(text, "{state}");
        text
    });
    let socket = connect_within(SocketType::DGRAM, &addr, PATIENCE)?;
    send(&socket, message.as_bytes(), SendFlags::NOSIGNAL)?;
    Ok(())
}
