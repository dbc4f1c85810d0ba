//! The certificates that have been issued, as this gateway holds them: in memory, whatever becomes of their
//! files, and in the state directory, where other gateways find them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use sha2::{Digest, Sha256};

use super::schedule;
use super::state::{FileStamp, KeptCertificate, StateDirectory};
use crate::tls::Issued;

#[derive(Default)]
pub struct Shelf {
    held: BTreeMap<String, HeldCertificate>,
    /// Files that cannot be used, told of once.
    unusable: BTreeMap<String, FileStamp>,
    /// Names with files that cannot be read now, and why: nothing is known of what they hold.
    unread: BTreeMap<String, String>,
}

struct HeldCertificate {
    certificate: KeptCertificate,
    copy: FileCopy,
    renewal_s: i64,
}

/// What is in the state directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileCopy {
    /// The same.
    Whole(FileStamp),
    /// None yet, or a damaged one.
    Unsaved,
    /// Somebody took it away, for another to come.
    Removed,
}

/// What a name is in need of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Order,
    Save,
}

impl Shelf {
    /// Takes over what the directory has for these names. True if anything is different now.
    pub fn refresh(&mut self, state: &StateDirectory, names: &BTreeSet<String>) -> bool {
        let before = self.held.len();
        self.held.retain(|name, _| names.contains(name));
        self.unread.retain(|name, _| names.contains(name));
        let mut changed = before != self.held.len();
        for name in names {
            changed |= self.refresh_one(state, name);
        }
        changed
    }

    fn refresh_one(&mut self, state: &StateDirectory, name: &str) -> bool {
        let stamp = match state.stamp(name) {
            Ok(stamp) => stamp,
            Err(error) => return self.leave_unread(state, name, &error),
        };
        let held = self.held.get_mut(name);
        let Some(stamp) = stamp else {
            self.unread.remove(name);
            self.unusable.remove(name);
            if let Some(held) = held.filter(|held| matches!(held.copy, FileCopy::Whole(_))) {
                tracing::info!(name, "the file of this certificate was removed: another will be ordered");
                held.copy = FileCopy::Removed;
            }
            return false;
        };
        let known = self.unusable.get(name) == Some(&stamp);
        if known || held.as_ref().is_some_and(|held| held.copy == FileCopy::Whole(stamp)) {
            self.unread.remove(name);
            return false;
        }
        let found = match state.certificate(name) {
            Ok(found) => found,
            Err(error) => return self.leave_unread(state, name, &error),
        };
        self.unread.remove(name);
        match (found, held) {
            (Ok(found), Some(held)) if held.copy == FileCopy::Unsaved && is_older(&found, &held.certificate) => false,
            (Ok(found), _) => {
                let until = found.until();
                tracing::info!(name, until, "a certificate from the state directory is in use");
                self.put(name, found, FileCopy::Whole(stamp));
                true
            }
            (Err(what), held) => {
                self.unusable.insert(name.to_owned(), stamp);
                match held {
                    Some(held) => {
                        held.copy = FileCopy::Unsaved;
                        tracing::warn!(name, "{what}: it will be written again, the certificate in use is whole");
                    }
                    None => tracing::warn!(name, "{what}: another will be ordered in its place"),
                }
                false
            }
        }
    }

    /// All stays as it is, until the file can be read or is gone.
    fn leave_unread(&mut self, state: &StateDirectory, name: &str, error: &io::Error) -> bool {
        let what = error.to_string();
        if self.unread.get(name) != Some(&what) {
            let path = state.certificate_path(name);
            tracing::error!(
                name,
                "cannot read `{}`: {what}; until that works, nothing is ordered or written in its place; see that the \
                 user of the gateway may read it, or remove it",
                path.display()
            );
            self.unread.insert(name.to_owned(), what);
        }
        false
    }

    /// One that was issued just now.
    pub fn add(&mut self, state: &StateDirectory, name: &str, certificate: KeptCertificate, is_saved: bool) {
        let stamp = state.stamp(name).ok().flatten();
        let copy = stamp.filter(|_| is_saved).map_or(FileCopy::Unsaved, FileCopy::Whole);
        self.put(name, certificate, copy);
    }

    fn put(&mut self, name: &str, certificate: KeptCertificate, copy: FileCopy) {
        let renewal_s = renewal_s(&certificate);
        self.held.insert(name.to_owned(), HeldCertificate { certificate, copy, renewal_s });
    }

    pub fn need(&self, name: &str, now_s: i64) -> Option<Need> {
        if self.unread.contains_key(name) {
            return None;
        }
        let Some(held) = self.held.get(name) else { return Some(Need::Order) };
        match held.copy {
            _ if held.renewal_s <= now_s => Some(Need::Order),
            FileCopy::Removed => Some(Need::Order),
            FileCopy::Unsaved => Some(Need::Save),
            FileCopy::Whole(_) => None,
        }
    }

    pub fn get(&self, name: &str) -> Option<&KeptCertificate> {
        self.held.get(name).map(|held| &held.certificate)
    }

    pub fn issued(&self) -> Issued {
        self.held.iter().map(|(name, held)| (name.clone(), held.certificate.key.clone())).collect()
    }
}

/// When it is due, in seconds of Unix time: the same for all gateways, and after a restart.
pub fn renewal_s(certificate: &KeptCertificate) -> i64 {
    let digest = Sha256::digest(certificate.key.key.cert.first().map_or(&[][..], |der| der));
    schedule::renewal_s(&certificate.key.term, f64::from(digest[0]) / 255.0)
}

fn is_older(found: &KeptCertificate, held: &KeptCertificate) -> bool {
    found.key.term.not_after_s < held.key.term.not_after_s
}
