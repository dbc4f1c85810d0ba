//! Cache of issued certificates: in memory, where they survive the loss of their files, and in the state directory,
//! where other gateways find them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};

use crate::acme::renewal_info::RenewalAdvice;
use crate::acme::schedule;
use crate::acme::state::{StateDirectory, StoredCertificate};
use crate::file_stamp::FileStamp;
use crate::tls::IssuedCertificates;

#[derive(Default)]
pub struct CertCache {
    held: BTreeMap<String, CachedCertificate>,
    /// Unusable files, each reported once.
    unusable: BTreeMap<String, FileStamp>,
    /// Names whose files cannot be read now, and why; their content is unknown.
    unread: BTreeMap<String, String>,
}

struct CachedCertificate {
    certificate: StoredCertificate,
    copy: FileCopy,
    renewal_s: i64,
    /// When the ACME server wants it to be renewed, if it says so.
    suggested_s: Option<i64>,
    /// When to ask the server for that.
    ask_at: Instant,
}

/// A certificate that replaces another one is not asked about for as long. So a server that suggests to renew every
/// certificate at once causes one order a day, whatever the clock.
const NOT_ASKED: Duration = Duration::from_secs(86_400);

/// State of a certificate's copy in the state directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileCopy {
    /// Identical to the cached one.
    Whole(FileStamp),
    /// Missing or damaged.
    Unsaved,
    /// Removed by an operator, so that a new one is ordered.
    Removed,
}

/// The next step for the certificate of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertNeed {
    Order,
    Save,
}

impl CertCache {
    /// Loads what the directory contains for these names. Returns whether anything changed.
    pub fn refresh_all(&mut self, state: &StateDirectory, names: &BTreeSet<String>) -> bool {
        let before = self.held.len();
        self.held.retain(|name, _| names.contains(name));
        self.unread.retain(|name, _| names.contains(name));
        let mut has_changed = before != self.held.len();
        for name in names {
            has_changed |= self.refresh_one(state, name);
        }
        has_changed
    }

    fn refresh_one(&mut self, state: &StateDirectory, name: &str) -> bool {
        let stamp = match state.file_stamp(name) {
            Ok(stamp) => stamp,
            Err(error) => return self.keep_unread(state, name, &error),
        };
        let entry = self.held.get_mut(name);
        let Some(stamp) = stamp else {
            self.unread.remove(name);
            self.unusable.remove(name);
            if let Some(entry) = entry.filter(|entry| matches!(entry.copy, FileCopy::Whole(_))) {
                tracing::info!(name, "the file of this certificate was removed: another will be ordered");
                entry.copy = FileCopy::Removed;
            }
            return false;
        };
        let is_unusable = self.unusable.get(name) == Some(&stamp);
        if is_unusable || entry.as_ref().is_some_and(|entry| entry.copy == FileCopy::Whole(stamp)) {
            self.unread.remove(name);
            return false;
        }
        let certificate = match state.read_certificate(name) {
            Ok(certificate) => certificate,
            Err(error) => return self.keep_unread(state, name, &error),
        };
        self.unread.remove(name);
        match (certificate, entry) {
            (Ok(certificate), Some(entry))
                if entry.copy == FileCopy::Unsaved
                    && certificate.key.validity.not_after_s < entry.certificate.key.validity.not_after_s =>
            {
                false
            }
            (Ok(certificate), _) => {
                let until = certificate.expiry_text();
                tracing::info!(name, until, "a certificate from the state directory is in use");
                self.insert_certificate(name, certificate, FileCopy::Whole(stamp));
                true
            }
            (Err(what), entry) => {
                self.unusable.insert(name.to_owned(), stamp);
                match entry {
                    Some(entry) => {
                        entry.copy = FileCopy::Unsaved;
                        tracing::warn!(name, "{what}: writing it again; the certificate in use is intact");
                    }
                    None => tracing::warn!(name, "{what}: another will be ordered in its place"),
                }
                false
            }
        }
    }

    /// Keeps everything as it is until the file can be read or is gone.
    fn keep_unread(&mut self, state: &StateDirectory, name: &str, error: &io::Error) -> bool {
        let what = error.to_string();
        if self.unread.get(name) != Some(&what) {
            let path = state.certificate_path(name);
            tracing::error!(
                name,
                "cannot read `{}`: {what}; until it can be read, nothing is ordered or overwritten; see that the \
                 user of the gateway may read it, or remove it",
                path.display()
            );
            self.unread.insert(name.to_owned(), what);
        }
        false
    }

    /// Adds a certificate that was just issued.
    pub fn add_issued(&mut self, state: &StateDirectory, name: &str, certificate: StoredCertificate, is_saved: bool) {
        let stamp = state.file_stamp(name).ok().flatten();
        let copy = stamp.filter(|_| is_saved).map_or(FileCopy::Unsaved, FileCopy::Whole);
        self.insert_certificate(name, certificate, copy);
    }

    fn insert_certificate(&mut self, name: &str, certificate: StoredCertificate, copy: FileCopy) {
        let renewal_s = renewal_time_s(&certificate);
        // A certificate that is read again from its file and has not changed keeps its renewal information.
        let (suggested_s, ask_at) = match self.held.get(name) {
            None => (None, Instant::now()),
            Some(held) if held.certificate.pem == certificate.pem => (held.suggested_s, held.ask_at),
            Some(_) => (None, Instant::now() + NOT_ASKED),
        };
        let new = CachedCertificate { certificate, copy, renewal_s, suggested_s, ask_at };
        self.held.insert(name.to_owned(), new);
    }

    /// Returns the name of a certificate that the ACME server is to be asked about: the one that has waited longest, so
    /// that each gets its turn.
    pub fn find_question(&self, now: Instant) -> Option<&str> {
        let due = self.held.iter().filter(|(_, held)| held.ask_at <= now);
        due.min_by_key(|(_, held)| held.ask_at).map(|(name, _)| name.as_str())
    }

    /// Keeps what the ACME server says about a certificate, unless another one has replaced it. Without a valid window,
    /// its lifetime decides.
    pub fn set_advice(&mut self, name: &str, certificate: &CertificateDer, advice: &RenewalAdvice) {
        let Some(held) = self.held.get_mut(name) else { return };
        if held.certificate.leaf() != Some(certificate) {
            return;
        }
        held.ask_at = Instant::now() + advice.ask_again;
        let term = &held.certificate.key.validity;
        let suggested_s =
            advice.window.and_then(|window| schedule::suggested_s(term, window, chance_of(&held.certificate)));
        if suggested_s != held.suggested_s {
            let (before, after) = (held.suggested_s.unwrap_or(held.renewal_s), suggested_s.unwrap_or(held.renewal_s));
            let format =
                |time_s| Timestamp::from_second(time_s).map_or_else(|_| time_s.to_string(), |time| time.to_string());
            tracing::info!(
                name,
                from = format(before),
                to = format(after),
                "the renewal moves, as the ACME server suggests"
            );
        }
        held.suggested_s = suggested_s;
    }

    /// Returns whether the ACME server has renewal information about the certificate of a name.
    pub fn has_advice(&self, name: &str) -> bool {
        self.held.get(name).is_some_and(|held| held.suggested_s.is_some())
    }

    pub fn find_need(&self, name: &str, now_s: i64) -> Option<CertNeed> {
        if self.unread.contains_key(name) {
            return None;
        }
        let Some(held) = self.held.get(name) else { return Some(CertNeed::Order) };
        match held.copy {
            _ if held.suggested_s.unwrap_or(held.renewal_s) <= now_s => Some(CertNeed::Order),
            FileCopy::Removed => Some(CertNeed::Order),
            FileCopy::Unsaved => Some(CertNeed::Save),
            FileCopy::Whole(_) => None,
        }
    }

    pub fn get(&self, name: &str) -> Option<&StoredCertificate> {
        self.held.get(name).map(|held| &held.certificate)
    }

    pub fn issued_certificates(&self) -> IssuedCertificates {
        self.held.iter().map(|(name, held)| (name.clone(), held.certificate.key.clone())).collect()
    }
}

/// Returns when it is due for renewal, in seconds of Unix time: the same for all gateways and after a restart.
pub fn renewal_time_s(certificate: &StoredCertificate) -> i64 {
    schedule::renewal_s(&certificate.key.validity, chance_of(certificate))
}

/// Returns a number from 0 to 1 that is the same for all gateways.
fn chance_of(certificate: &StoredCertificate) -> f64 {
    let digest = Sha256::digest(certificate.leaf().map_or(&[][..], |der| der));
    f64::from(digest[0]) / 255.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::NamedKey;

    #[test]
    fn each_certificate_gets_its_turn() {
        let pem = [include_str!("../../conf/tls/sample.pem"), include_str!("../../conf/tls/sample.key")].concat();
        let key = NamedKey::from_pem(&pem, "example.com").unwrap();
        let certificate = StoredCertificate { key, pem };
        let leaf = certificate.leaf().unwrap().clone();
        let mut cache = CertCache::default();
        let names: Vec<String> = (0..12).map(|number| format!("{number:02}.example.com")).collect();
        for name in &names {
            cache.insert_certificate(name, certificate.clone(), FileCopy::Unsaved);
        }
        // Each is due again at once, as after a pause of the server's.
        let advice = RenewalAdvice { window: None, ask_again: Duration::ZERO };
        let mut asked = BTreeSet::new();
        for _ in &names {
            let name = cache.find_question(Instant::now()).unwrap().to_owned();
            cache.set_advice(&name, &leaf, &advice);
            asked.insert(name);
        }
        assert_eq!(asked.into_iter().collect::<Vec<_>>(), names);
    }
}
