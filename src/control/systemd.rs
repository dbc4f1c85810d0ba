//! What systemd is told of the gateway's life, and the sockets that it hands over. Outside of systemd there is
//! nothing to tell and nothing handed over. Called by the control loop, the reloader and the listeners.

use sd_notify::NotifyState;

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
    if let Err(error) = sd_notify::notify(news) {
        tracing::debug!(%error, "systemd cannot be told");
    }
}
