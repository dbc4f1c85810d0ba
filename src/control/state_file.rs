//! The state file of `[store]`: what a gateway must know that starts while the store is unavailable. Defines format,
//! reading and writing; `store_state` decides what it contains and when it is written.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::limiting::overrides::RawOverrides;
use crate::replace_file::{self, replace_file};

/// Content of the file.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SavedState {
    pub version: u32,
    /// Store and prefix that the rest refers to.
    pub store: String,
    /// Name under which this gateway is counted.
    pub name: String,
    /// Largest number of gateways that recently shared the store.
    pub gateways: i64,
    /// Set while the store was unavailable to the process that wrote the file.
    pub outage: Option<SavedOutage>,
    /// Live overrides by limit, then by key.
    pub overrides: BTreeMap<String, BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SavedOutage {
    /// Start times of processes in this outage after another one had run in it, in seconds of Unix time.
    pub restarts: Vec<i64>,
}

pub const VERSION: u32 = 1;
/// Maximum size of the file in bytes: about 200,000 overrides.
pub const SIZE_MAX: usize = 16 * 1024 * 1024;

impl SavedState {
    /// Reads the file at `path`; `None` if it does not exist.
    ///
    /// # Errors
    /// Why it cannot be used, for the log.
    pub fn read_file(path: &Path) -> Result<Option<SavedState>, String> {
        let metadata = match fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata.map_err(|error| error.to_string())?,
        };
        // Opening a pipe would wait for its other end.
        if !metadata.is_file() {
            return Err("it is not a regular file".to_owned());
        }
        let file = File::open(path).map_err(|error| error.to_string())?;
        check_owner(&file)?;
        let mut bytes = Vec::new();
        let most = u64::try_from(SIZE_MAX).unwrap_or(u64::MAX);
        file.take(most + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() > SIZE_MAX {
            return Err(format!("it has more than {SIZE_MAX} bytes"));
        }
        let state: SavedState = serde_json::from_slice(&bytes).map_err(|error| format!("it is damaged: {error}"))?;
        match state.version {
            VERSION => Ok(Some(state)),
            version => Err(format!("its version is {version}; this gateway reads version {VERSION}")),
        }
    }

    /// Formats the content of the file.
    ///
    /// # Errors
    /// Why it has no JSON.
    pub fn format(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|error| error.to_string())
    }
}

/// Writes the file at `path` atomically.
///
/// # Errors
/// The system's error.
pub fn write_file(path: &Path, content: &[u8]) -> Result<(), String> {
    replace_file(path, &temporary_prefix(path), content).map_err(|error| error.to_string())
}

/// Checks the owner, because a user who can write the file can lift limits.
fn check_owner(file: &File) -> Result<(), String> {
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    let own = rustix::process::geteuid().as_raw();
    if metadata.uid() != own && metadata.uid() != 0 {
        return Err(format!("it belongs to user {}, not to this process' user {own} or root", metadata.uid()));
    }
    match metadata.mode() & 0o022 {
        0 => Ok(()),
        _ => Err("other users may write to it; set its mode to 0600".to_owned()),
    }
}

/// Removes leftovers of interrupted writes.
pub fn remove_leftovers(path: &Path) {
    replace_file::remove_leftovers(path, &temporary_prefix(path));
}

fn temporary_prefix(path: &Path) -> String {
    format!(".{}.new-", path.file_name().unwrap_or_default().to_string_lossy())
}

/// Formats overrides as text. Bytes of a key that are not text are escaped, as the parser of keys expects.
pub fn format_overrides(raw: &RawOverrides) -> BTreeMap<String, String> {
    let text = |bytes: &Vec<u8>| match str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold(String::new(), |mut text, byte| {
            match byte {
                0x20..0x7f => text.push(char::from(*byte)),
                byte => drop(write!(text, "%{byte:02X}")),
            }
            text
        }),
    };
    raw.iter().map(|(key, value)| (text(key), text(value))).collect()
}

pub fn parse_overrides(text: BTreeMap<String, String>) -> RawOverrides {
    text.into_iter().map(|(key, value)| (key.into_bytes(), value.into_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn saved() -> SavedState {
        let raw =
            RawOverrides::from([(b"a,%20".to_vec(), b"rate=0".to_vec()), (b"\xff\n".to_vec(), b"unlimited".to_vec())]);
        SavedState {
            version: VERSION,
            store: "host:6379/0 sg".to_owned(),
            name: "0123456789abcdef0123456789abcdef".to_owned(),
            gateways: 4,
            outage: Some(SavedOutage { restarts: vec![1, 2] }),
            overrides: [("l".to_owned(), format_overrides(&raw))].into(),
        }
    }

    #[test]
    fn a_saved_file_is_readable_only_by_its_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.json");
        assert_eq!(SavedState::read_file(&path), Ok(None));
        write_file(&path, &saved().format().unwrap()).unwrap();
        write_file(&path, &saved().format().unwrap()).unwrap();
        assert_eq!(SavedState::read_file(&path), Ok(Some(saved())));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
        let raw = parse_overrides(saved().overrides.remove("l").unwrap());
        assert_eq!(raw.keys().collect::<Vec<_>>(), [&b"%FF%0A".to_vec(), &b"a,%20".to_vec()]);
    }

    #[test]
    fn what_cannot_be_trusted_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.json");
        let whole = serde_json::to_string(&saved()).unwrap();
        for text in
            ["", "{", "[]", "{}", "null", &whole[..whole.len() / 2], &whole.replace("\"version\":1", "\"version\":2")]
        {
            fs::write(&path, text).unwrap();
            assert!(SavedState::read_file(&path).is_err(), "{text}");
        }
        fs::write(&path, "[".repeat(1_000_000)).unwrap();
        assert!(SavedState::read_file(&path).is_err(), "deep nesting");
        fs::write(&path, " ".repeat(SIZE_MAX + 1)).unwrap();
        assert!(SavedState::read_file(&path).unwrap_err().contains("bytes"));
        fs::write(&path, &whole).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        assert!(SavedState::read_file(&path).unwrap_err().contains("other users"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(SavedState::read_file(&path).unwrap_err().contains("regular"));
    }
}
