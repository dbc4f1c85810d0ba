//! The state directory: account, certificates, open challenges and when to try again, for all gateways that
//! share it. Files are put there whole or not at all. Who writes holds the lock, which ends with its process.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use instant_acme::Key;
use jiff::Timestamp;
use rcgen::KeyPair;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};

use crate::config::AcmeSettings;
use crate::control::replace_file::replace_file;
use crate::tls::{ChallengeKind, NamedKey, OpenChallenges, pem, proof_of_pem};

/// Of one ACME server, so that another begins with nothing of it.
#[derive(Clone, Debug)]
pub struct StateDirectory {
    root: PathBuf,
}

/// What could not be done with the directory.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} `{}`: {error}", path.display())]
pub struct StateFault {
    doing: &'static str,
    path: PathBuf,
    error: io::Error,
}

/// Held by the one gateway that orders and writes.
pub struct StateLock(#[allow(dead_code, reason = "it is locked while it is open")] File);

/// Tells one content of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp(u64, i64, i64, u64);

/// What is known of the failures since the last certificate of a name.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct OrderPause {
    pub failures: u32,
    /// Unix time.
    pub next_s: u64,
    pub reason: String,
}

/// A certificate and its key, as they are kept.
#[derive(Clone, Debug)]
pub struct KeptCertificate {
    pub key: NamedKey,
    pub pem: String,
}

/// Larger files are no files of ours.
const FILE_MAX: u64 = 1024 * 1024;
/// More challenges are not open at once.
const CHALLENGES_MAX: usize = 64;
const DIRECTORY_NAME_MAX: usize = 150;
/// Names of files that are not whole yet begin with this.
const TEMPORARY: &str = ".new-";

impl StateDirectory {
    pub fn of(settings: &AcmeSettings) -> StateDirectory {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        let url = settings.directory.trim_start_matches("https://");
        let name: String = url.chars().map(plain).take(DIRECTORY_NAME_MAX).collect();
        StateDirectory { root: settings.state.join(name.trim_start_matches('.')) }
    }

    /// Makes what is missing of it, for nobody else's eyes.
    pub fn prepare(&self) -> Result<(), StateFault> {
        for dir in ["certificates", "attempts", "challenges"] {
            let dir = self.root.join(dir);
            DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(fault("make the directory", &dir))?;
        }
        Ok(())
    }

    /// `None` while another gateway has it.
    pub fn lock(&self) -> Result<Option<StateLock>, StateFault> {
        let path = self.root.join("lock");
        let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = open.map_err(fault("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(StateLock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(fault("lock", &path)(error)),
        }
    }

    /// Removes what a gateway left that was killed: nobody else is writing, and no order is under way.
    pub fn sweep(&self, lock: &StateLock) -> Result<(), StateFault> {
        self.clear_challenges(lock)?;
        for dir in [self.root.clone(), self.root.join("certificates"), self.root.join("attempts")] {
            for path in entries(&dir)?.into_iter().filter(|path| is_temporary(path)) {
                fs::remove_file(&path).map_err(fault("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Changes whenever a certificate comes or goes.
    pub fn certificates_changed(&self) -> Option<SystemTime> {
        fs::metadata(self.root.join("certificates")).and_then(|metadata| metadata.modified()).ok()
    }

    /// Of the file of this name, if there is one.
    ///
    /// # Errors
    /// When that cannot be told now.
    pub fn stamp(&self, name: &str) -> io::Result<Option<FileStamp>> {
        match fs::metadata(self.certificate_path(name)) {
            Ok(m) => Ok(Some(FileStamp(m.ino(), m.mtime(), m.mtime_nsec(), m.size()))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The certificate, or why what is there cannot be used.
    ///
    /// # Errors
    /// When it cannot be read now, whatever it is.
    pub fn certificate(&self, name: &str) -> io::Result<Result<KeptCertificate, String>> {
        let path = self.certificate_path(name);
        let of_file = |what: String| format!("`{}`: {what}", path.display());
        let text = match read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::IsADirectory => return Ok(Err(of_file(error.to_string()))),
            Err(error) => return Err(error),
        };
        Ok(NamedKey::of_pem(&text, name).map(|key| KeptCertificate { key, pem: text }).map_err(of_file))
    }

    pub fn save_certificate(&self, lock: &StateLock, name: &str, pem: &str) -> Result<(), StateFault> {
        self.write(lock, &self.certificate_path(name), pem)
    }

    /// What is known of failures; a file that cannot be read as such counts as one failure.
    pub fn attempt(&self, name: &str) -> Result<Option<OrderPause>, StateFault> {
        let path = self.attempt_path(name);
        match read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(fault("read", &path)(error)),
            Ok(text) => Ok(Some(serde_json::from_str(&text).unwrap_or_else(|error| {
                tracing::warn!(
                    "`{}` is damaged and will be replaced ({error}): the next order is the second attempt",
                    path.display()
                );
                OrderPause { failures: 1, next_s: 0, reason: "unknown".to_owned() }
            }))),
        }
    }

    pub fn put_attempt(&self, lock: &StateLock, name: &str, attempt: &OrderPause) -> Result<(), StateFault> {
        let path = self.attempt_path(name);
        let text = serde_json::to_string(attempt).map_err(|error| fault("write", &path)(error.into()))?;
        self.write(lock, &path, &format!("{text}\n"))
    }

    pub fn clear_attempt(&self, _: &StateLock, name: &str) -> Result<(), StateFault> {
        remove(&self.attempt_path(name))
    }

    /// What is to be shown for a challenge: a text over plain HTTP, or a certificate with its key.
    pub fn put_challenge(
        &self,
        lock: &StateLock,
        kind: ChallengeKind,
        subject: &str,
        shown: &str,
    ) -> Result<(), StateFault> {
        self.write(lock, &self.root.join("challenges").join(format!("{}_{subject}", kind.label())), shown)
    }

    pub fn clear_challenges(&self, _: &StateLock) -> Result<(), StateFault> {
        entries(&self.root.join("challenges"))?.iter().try_for_each(|path| remove(path))
    }

    /// Those that any gateway has open now; what is no challenge, or gone meanwhile, is passed over.
    pub fn challenges(&self) -> Result<Arc<OpenChallenges>, StateFault> {
        let mut open = OpenChallenges::default();
        for path in entries(&self.root.join("challenges"))?.into_iter().take(CHALLENGES_MAX) {
            let Some((kind, subject)) = path.file_name().and_then(OsStr::to_str).and_then(|n| n.split_once('_')) else {
                continue;
            };
            let Ok(text) = read(&path) else { continue };
            if kind == ChallengeKind::Http01.label() {
                open.http.insert(subject.to_owned(), text);
            } else if kind == ChallengeKind::TlsAlpn01.label()
                && let Some(proof) = proof_of_pem(&text)
            {
                open.tls.insert(subject.to_owned(), proof);
            }
        }
        Ok(Arc::new(open))
    }

    /// The key of the account; a new one is kept, twice, before anybody has heard of it.
    pub fn account_key(&self, lock: &StateLock) -> Result<PrivatePkcs8KeyDer<'static>, StateFault> {
        let paths = ["account.pem", "account.backup.pem"].map(|name| self.root.join(name));
        let mut kept = None;
        let mut damaged = Vec::new();
        for path in &paths {
            match read(path) {
                Ok(text) => match account_key(&text) {
                    Some(key) => kept = kept.or(Some((key, text))),
                    None => damaged.push(path),
                },
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(fault("read", path)(error)),
            }
        }
        for path in damaged {
            let aside = path.with_extension(format!("damaged-{}", now_s()));
            fs::rename(path, &aside).map_err(fault("rename", path))?;
            let (path, aside) = (path.display(), aside.display());
            match &kept {
                Some(_) => tracing::warn!("`{path}` is damaged: the account goes on with the other copy of its key"),
                None => tracing::error!(
                    "`{path}` is damaged, and there is no other copy: a new account will be registered; what is left \
                     of the old key is in `{aside}`"
                ),
            }
        }
        let (key, text) = match kept {
            Some(kept) => kept,
            None => {
                let made = KeyPair::generate().map(|key| key.serialize_pem()).ok();
                let made = made.and_then(|text| Some((account_key(&text)?, text)));
                made.ok_or_else(|| fault("make a key for", &paths[0])(ErrorKind::Other.into()))?
            }
        };
        for path in paths.iter().filter(|path| !path.exists()) {
            self.write(lock, path, &text)?;
        }
        Ok(key)
    }

    pub fn certificate_path(&self, name: &str) -> PathBuf {
        self.root.join("certificates").join(format!("{name}.pem"))
    }

    pub fn attempt_path(&self, name: &str) -> PathBuf {
        self.root.join("attempts").join(format!("{name}.json"))
    }

    /// The whole text or nothing, and on disk once this returns.
    fn write(&self, _: &StateLock, path: &Path, text: &str) -> Result<(), StateFault> {
        replace_file(path, TEMPORARY, text.as_bytes()).map_err(fault("write", path))
    }
}

impl KeptCertificate {
    /// When it expires, for the log.
    pub fn until(&self) -> String {
        let time_s = self.key.term.not_after_s;
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

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_MAX).read_to_end(&mut bytes)?;
    // What is no text is no key and no certificate either.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn remove(path: &Path) -> Result<(), StateFault> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(fault("remove", path)(error)),
        _ => Ok(()),
    }
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, StateFault> {
    let list = || -> io::Result<Vec<PathBuf>> { fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect() };
    list().map_err(fault("read the directory", dir))
}

fn is_temporary(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(TEMPORARY))
}

fn fault(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateFault {
    let path = path.to_owned();
    move |error| StateFault { doing, path, error }
}
