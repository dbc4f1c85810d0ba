//! Where a running gateway is asked, found by the path of its config alone: the file may have become one that
//! does not load, or tell another address. The process tells it on an abstract Unix socket, which needs no
//! place to write and ends with the process. Called by the control loop, and on the other side by the command line.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::SocketAddrUnix;
use serde_json::{Value, json};
use tokio::task::{AbortHandle, spawn_local};

use super::local::{connect_within, is_ours};
use super::shared::SharedState;
use super::source::ConfigSource;
use crate::config::AdminContact;
use crate::snapshot::Current;

/// Before the name is tried again that another process has, as one does that hands over.
const RETRY: Duration = Duration::from_secs(1);
/// For each step of asking.
const PATIENCE: Duration = Duration::from_millis(500);
/// Of what is told: an address and a token.
const MOST: u64 = 64 * 1024;

/// Tells whoever may ask, until the handle is aborted or the process ends.
pub fn announce(source: &ConfigSource, current: Current, shared: Arc<SharedState>) -> Option<AbortHandle> {
    let ConfigSource::File(path) = source else { return None };
    let name = name(path).inspect_err(|error| tracing::debug!(%error, "no contact by the config's path")).ok()?;
    Some(spawn_local(tell_all(name, current, shared)).abort_handle())
}

/// Where the gateway listens as admin that runs with the config at `path`, by its own word; `None` where none
/// does, or none of this user or root.
pub fn of_running(path: &Path) -> Option<AdminContact> {
    let name = SocketAddrUnix::new_abstract_name(&name(path).ok()?).ok()?;
    let stream = connect_within(&name, PATIENCE).ok()?;
    // Any user may take any name. Root asks gateways of every user, but whose word it is then is not known.
    if !is_ours(&stream).ok()? && !rustix::process::geteuid().is_root() {
        return None;
    }
    let mut told = Vec::new();
    stream.take(MOST).read_to_end(&mut told).ok()?;
    let told: Value = serde_json::from_slice(&told).ok()?;
    AdminContact::new(told["admin"].as_str()?, told["token"].as_str())
}

/// The same for both sides however the file is saved: its directory, which outlives it, and its name there.
/// Containers that share a network have directories of their own.
fn name(config: &Path) -> io::Result<Vec<u8>> {
    let path = std::path::absolute(config)?;
    let (Some(directory), Some(file)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::IsADirectory.into());
    };
    let directory = std::fs::metadata(directory)?;
    let mut name = format!("sluicegate/{:x}:{:x}/", directory.dev(), directory.ino()).into_bytes();
    name.extend_from_slice(file.as_bytes());
    Ok(name)
}

async fn tell_all(name: Vec<u8>, current: Current, shared: Arc<SharedState>) {
    let listener = loop {
        match listen(&name) {
            Ok(listener) => break listener,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => tokio::time::sleep(RETRY).await,
            Err(error) => return tracing::debug!(%error, "no contact by the config's path"),
        }
    };
    loop {
        let told = match listener.accept().await {
            Ok((stream, _)) => tell(stream, &current, &shared),
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

fn listen(name: &[u8]) -> io::Result<tokio::net::UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(listener)
}

/// To this user and root, who could read it from the config as well.
fn tell(stream: tokio::net::UnixStream, current: &Current, shared: &SharedState) -> io::Result<()> {
    let mut stream = stream.into_std()?;
    if !is_ours(&stream)? {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let Some(admin) = shared.admin() else { return Ok(()) };
    let token = current.load().config.admin.token.clone();
    let told = json!({ "admin": admin.to_string(), "token": token });
    // A new socket takes a few hundred bytes at once: nobody is waited for.
    stream.write_all(told.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_is_known_by_its_directory_and_its_name() {
        let tmp = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|directory| tmp.path().join(directory));
        std::fs::create_dir(&a).unwrap();
        std::fs::create_dir(&b).unwrap();
        let link = tmp.path().join("link");
        std::os::unix::fs::symlink(&a, &link).unwrap();
        let of = |directory: &Path, file: &str| name(&directory.join(file)).unwrap();
        assert_eq!(of(&a, "x.toml"), of(&link, "x.toml"));
        assert_eq!(of(&a, "x.toml"), of(&tmp.path().join("b/../a"), "x.toml"));
        assert_ne!(of(&a, "x.toml"), of(&b, "x.toml"));
        assert_ne!(of(&a, "x.toml"), of(&a, "y.toml"));
        assert!(name(Path::new("/")).is_err());
    }
}
