//! Notifies systemd of the gateway's state, and receives its sockets. Does nothing outside of systemd. Called by the
//! control loop, the reloader and the listeners.

use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rustix::net::{SendFlags, SocketAddrUnix, SocketType, send};
use sd_notify::NotifyState;

use crate::control::local::connect_within;

/// Environment variable with the socket of the service manager.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// Time limit for one message: a service manager that does not read must not block the control thread.
const SEND_TIMEOUT: Duration = Duration::from_millis(500);

/// Reports that all listeners are open.
pub fn notify_ready() {
    send_states(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

/// Reports the start of a reload; [`notify_reloaded`] must follow.
pub fn notify_reloading() {
    // Since version 253, the time tells which of several reloads is meant.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send_states(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "the clock cannot be read for systemd"),
    }
}

/// Reports the end of a reload, and the generation of the active config.
pub fn notify_reloaded(generation: u64, has_failed: bool) {
    let status = match has_failed {
        false => format!("serving generation {generation} of the config"),
        true => format!("the config does not load: generation {generation} stays active, see the log"),
    };
    send_states(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

pub fn notify_stopping() {
    send_states(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// Reports that another process is the main process now.
pub fn notify_main_pid(pid: Option<i32>) {
    if let Some(pid) = pid.and_then(|pid| u32::try_from(pid).ok()) {
        send_states(&[NotifyState::MainPid(pid)]);
    }
}

fn send_states(states: &[NotifyState]) {
    let Some(socket) = std::env::var_os(NOTIFY_SOCKET) else { return };
    if let Err(error) = send_message(&socket, states) {
        tracing::debug!(%error, "cannot notify systemd");
    }
}

fn send_message(socket: &OsStr, states: &[NotifyState]) -> io::Result<()> {
    // `@` represents the NUL byte at the start of an abstract name.
    let addr = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        _ => SocketAddrUnix::new(socket)?,
    };
    let message = states.iter().fold(String::new(), |mut text, state| {
        let _ = writeln!(text, "{state}");
        text
    });
    let socket = connect_within(SocketType::DGRAM, &addr, SEND_TIMEOUT)?;
    send(&socket, message.as_bytes(), SendFlags::NOSIGNAL)?;
    Ok(())
}
