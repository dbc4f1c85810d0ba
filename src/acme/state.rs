//! State directory: account, certificates, open challenges and pauses, shared by gateways. Files are replaced
//! atomically. Writers hold the lock, which ends with their process.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use instant_acme::Key;
use jiff::Timestamp;
use rcgen::KeyPair;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};

use crate::config::AcmeSettings;
use crate::file_stamp::FileStamp;
use crate::replace_file::replace_file;
use crate::tls::{ChallengeKind, NamedKey, OpenChallenges, certificate_from_pem, pem};

/// Directory of one ACME server; another server starts with an empty one.
#[derive(Clone, Debug)]
pub struct StateDirectory {
    root: PathBuf,
}

/// A failed operation on the directory.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} `{}`: {error}", path.display())]
pub struct StateError {
    doing: &'static str,
    path: PathBuf,
    error: io::Error,
}

/// Held by the one gateway that orders and writes.
pub struct StateLock(#[allow(dead_code, reason = "it is locked while it is open")] File);

/// Failures since the last certificate of a name.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct OrderPause {
    pub failures: u32,
    /// Unix time of the next attempt.
    pub next_s: u64,
    pub reason: String,
}

/// A certificate and its key as stored.
#[derive(Clone, Debug)]
pub struct StoredCertificate {
    pub key: NamedKey,
    pub pem: String,
}

/// Maximum size of a file in bytes.
const FILE_MAX: u64 = 1024 * 1024;
/// Maximum number of open challenges.
const CHALLENGES_MAX: usize = 64;
const DIRECTORY_NAME_MAX: usize = 150;
/// Prefix of incomplete files.
const TEMPORARY: &str = ".new-";

impl StateDirectory {
    pub fn for_server(settings: &AcmeSettings) -> StateDirectory {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        let url = settings.directory.trim_start_matches("https://");
        let name: String = url.chars().map(plain).take(DIRECTORY_NAME_MAX).collect();
        StateDirectory { root: settings.state.join(name.trim_start_matches('.')) }
    }

    /// Creates missing directories, accessible to this user only.
    pub fn create_directories(&self) -> Result<(), StateError> {
        for dir in ["certificates", "attempts", "challenges"] {
            let dir = self.root.join(dir);
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&dir)
                .map_err(state_error("make the directory", &dir))?;
        }
        Ok(())
    }

    /// Takes the lock; `None` while another gateway holds it.
    pub fn try_lock(&self) -> Result<Option<StateLock>, StateError> {
        let path = self.root.join("lock");
        let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = open.map_err(state_error("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(StateLock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(state_error("lock", &path)(error)),
        }
    }

    /// Removes leftovers of a killed gateway: with the lock, nobody else writes and no order is in progress.
    pub fn remove_leftovers(&self, lock: &StateLock) -> Result<(), StateError> {
        self.remove_challenges(lock)?;
        let is_temporary =
            |path: &PathBuf| path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(TEMPORARY));
        for dir in [self.root.clone(), self.root.join("certificates"), self.root.join("attempts")] {
            for path in list_entries(&dir)?.into_iter().filter(is_temporary) {
                fs::remove_file(&path).map_err(state_error("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Returns a stamp that changes whenever a certificate is added or removed.
    pub fn certificates_stamp(&self) -> Option<FileStamp> {
        FileStamp::read(&self.root.join("certificates")).ok()
    }

    /// Returns the stamp of a name's file, if it exists.
    ///
    /// # Errors
    /// If that cannot be determined now.
    pub fn file_stamp(&self, name: &str) -> io::Result<Option<FileStamp>> {
        match FileStamp::read(&self.certificate_path(name)) {
            Ok(stamp) => Ok(Some(stamp)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a certificate, or why the file is unusable.
    ///
    /// # Errors
    /// If it cannot be read now.
    pub fn read_certificate(&self, name: &str) -> io::Result<Result<StoredCertificate, String>> {
        let path = self.certificate_path(name);
        let of_file = |what: String| format!("`{}`: {what}", path.display());
        let text = match read_file(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::IsADirectory => return Ok(Err(of_file(error.to_string()))),
            Err(error) => return Err(error),
        };
        Ok(NamedKey::from_pem(&text, name).map(|key| StoredCertificate { key, pem: text }).map_err(of_file))
    }

    pub fn save_certificate(&self, lock: &StateLock, name: &str, pem: &str) -> Result<(), StateError> {
        self.write_file(lock, &self.certificate_path(name), pem)
    }

    /// Reads the failures of a name; an unreadable file counts as one failure.
    pub fn read_pause(&self, name: &str) -> Result<Option<OrderPause>, StateError> {
        let path = self.attempt_path(name);
        match read_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(state_error("read", &path)(error)),
            Ok(text) => Ok(Some(serde_json::from_str(&text).unwrap_or_else(|error| {
                tracing::warn!(
                    "`{}` is damaged and will be replaced ({error}): the next order is the second attempt",
                    path.display()
                );
                OrderPause { failures: 1, next_s: 0, reason: "unknown".to_owned() }
            }))),
        }
    }

    pub fn write_pause(&self, lock: &StateLock, name: &str, attempt: &OrderPause) -> Result<(), StateError> {
        let path = self.attempt_path(name);
        let text = serde_json::to_string(attempt).map_err(|error| state_error("write", &path)(error.into()))?;
        self.write_file(lock, &path, &format!("{text}\n"))
    }

    pub fn remove_pause(&self, _: &StateLock, name: &str) -> Result<(), StateError> {
        remove_file(&self.attempt_path(name))
    }

    /// Writes the response to a challenge: a text for plain HTTP, or a certificate with its key.
    pub fn write_challenge(
        &self,
        lock: &StateLock,
        kind: ChallengeKind,
        subject: &str,
        shown: &str,
    ) -> Result<(), StateError> {
        self.write_file(lock, &self.root.join("challenges").join(format!("{}_{subject}", kind.label())), shown)
    }

    pub fn remove_challenges(&self, _: &StateLock) -> Result<(), StateError> {
        list_entries(&self.root.join("challenges"))?.iter().try_for_each(|path| remove_file(path))
    }

    /// Returns the open challenges of all gateways; other files, and files removed in the meantime, are skipped.
    pub fn read_challenges(&self) -> Result<Arc<OpenChallenges>, StateError> {
        let mut open = OpenChallenges::default();
        for path in list_entries(&self.root.join("challenges"))?.into_iter().take(CHALLENGES_MAX) {
            let Some((kind, subject)) = path.file_name().and_then(OsStr::to_str).and_then(|n| n.split_once('_')) else {
                continue;
            };
            let Ok(text) = read_file(&path) else { continue };
            if kind == ChallengeKind::Http01.label() {
                open.http.insert(subject.to_owned(), text);
            } else if kind == ChallengeKind::TlsAlpn01.label()
                && let Some(proof) = certificate_from_pem(&text)
            {
                open.tls.insert(subject.to_owned(), proof);
            }
        }
        Ok(Arc::new(open))
    }

    /// Returns the key of the account. A new one is stored in two copies before it is used.
    pub fn account_key(&self, lock: &StateLock) -> Result<PrivatePkcs8KeyDer<'static>, StateError> {
        let paths = ["account.pem", "account.backup.pem"].map(|name| self.root.join(name));
        let mut intact_copy = None;
        let mut damaged_paths = Vec::new();
        for path in &paths {
            match read_file(path) {
                Ok(text) => match account_key(&text) {
                    Some(key) => intact_copy = intact_copy.or(Some((key, text))),
                    None => damaged_paths.push(path),
                },
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(state_error("read", path)(error)),
            }
        }
        for path in damaged_paths {
            let aside = path.with_extension(format!("damaged-{}", now_s()));
            fs::rename(path, &aside).map_err(state_error("rename", path))?;
            let (path, aside) = (path.display(), aside.display());
            match &intact_copy {
                Some(_) => tracing::warn!("`{path}` is damaged: the account continues with the other copy of its key"),
                None => tracing::error!(
                    "`{path}` is damaged, and there is no other copy: a new account will be registered; what is left \
                     of the old key is in `{aside}`"
                ),
            }
        }
        let (key, text) = match intact_copy {
            Some(pair) => pair,
            None => {
                let text = KeyPair::generate().map(|key| key.serialize_pem()).ok();
                let pair = text.and_then(|text| Some((account_key(&text)?, text)));
                pair.ok_or_else(|| state_error("make a key for", &paths[0])(ErrorKind::Other.into()))?
            }
        };
        for path in paths.iter().filter(|path| !path.exists()) {
            self.write_file(lock, path, &text)?;
        }
        Ok(key)
    }

    pub fn certificate_path(&self, name: &str) -> PathBuf {
        self.root.join("certificates").join(format!("{}.pem", file_stem(name)))
    }

    pub fn attempt_path(&self, name: &str) -> PathBuf {
        self.root.join("attempts").join(format!("{}.json", file_stem(name)))
    }

    /// Writes a file atomically and returns once it is on disk.
    fn write_file(&self, _: &StateLock, path: &Path, text: &str) -> Result<(), StateError> {
        replace_file(path, TEMPORARY, text.as_bytes()).map_err(state_error("write", path))
    }
}

impl StoredCertificate {
    /// Returns the certificate without those of its authorities.
    pub fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.key.key.cert.first()
    }

    /// Returns the expiry for the log.
    pub fn expiry_text(&self) -> String {
        let time_s = self.key.validity.not_after_s;
        Timestamp::from_second(time_s).map_or_else(|_| time_s.to_string(), |time| time.to_string())
    }
}

pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn account_key(pem: &str) -> Option<PrivatePkcs8KeyDer<'static>> {
    let PrivateKeyDer::Pkcs8(key) = pem::private_key(pem).ok()? else { return None };
    Key::from_pkcs8_der(key.clone_key()).ok().map(|_| key)
}

/// Returns a name as files contain it: a shell would expand the `*` of a wildcard.
fn file_stem(name: &str) -> String {
    name.replace('*', "_")
}

fn read_file(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_MAX).read_to_end(&mut bytes)?;
    // Text that is not UTF-8 is neither a key nor a certificate.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn remove_file(path: &Path) -> Result<(), StateError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(state_error("remove", path)(error)),
        _ => Ok(()),
    }
}

fn list_entries(dir: &Path) -> Result<Vec<PathBuf>, StateError> {
    let list = || -> io::Result<Vec<PathBuf>> { fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect() };
    list().map_err(state_error("read the directory", dir))
}

fn state_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |error| StateError { doing, path, error }
}
