//! Session tickets of listeners (RFC 5077; RFC 8446, section 4.6.1). A ticket contains the session, encrypted, so that
//! the gateway stores nothing for it.
//!
//! The secrets belong to the process, change every six hours and are never written to a disk. A process that takes over
//! gets them through the socket of the hand-over, so that clients resume their sessions with it. The key of a ticket is
//! derived from a secret, the listener with its settings, and a random salt. So a ticket is valid for one listener with
//! the same settings only, and no key encrypts twice.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use rustls::server::ProducesTickets;

/// Seconds for which a secret encrypts tickets. It decrypts them for as long again.
const PERIOD_S: u64 = 6 * 60 * 60;
/// Seconds for which clients may use a ticket.
const LIFETIME_S: u32 = 12 * 60 * 60;
const NAME_BYTES: usize = 16;
const SALT_BYTES: usize = 16;
const TAG_BYTES: usize = 16;

static SECRETS: LazyLock<ArcSwap<TicketSecrets>> =
    LazyLock::new(|| ArcSwap::from_pointee(TicketSecrets { current: TicketSecret::new(now_s()), previous: None }));

/// The secrets of this process.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketSecrets {
    current: TicketSecret,
    previous: Option<TicketSecret>,
}

#[derive(Clone, PartialEq, Eq)]
struct TicketSecret {
    /// Public, the first bytes of each ticket.
    name: [u8; NAME_BYTES],
    secret: [u8; 32],
    /// Unix time of its first use.
    since_s: u64,
}

impl TicketSecret {
    fn new(since_s: u64) -> TicketSecret {
        TicketSecret { name: rand::random(), secret: rand::random(), since_s }
    }

    /// Returns whether the secret is at most `periods` old. One from the future is not: the clock was set back.
    fn is_within(&self, periods: u64, now_s: u64) -> bool {
        now_s.checked_sub(self.since_s).is_some_and(|age_s| age_s < periods * PERIOD_S)
    }

    /// Returns the key of one ticket.
    fn ticket_key(&self, listener: &[u8; 32], salt: &[u8]) -> Option<LessSafeKey> {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.secret));
        context.update(listener);
        context.update(salt);
        UnboundKey::new(&AES_256_GCM, context.sign().as_ref()).ok().map(LessSafeKey::new)
    }
}

impl TicketSecrets {
    /// Returns the secrets of this process, for another process of the same user.
    pub fn of_process() -> Arc<TicketSecrets> {
        TicketSecrets::at(now_s())
    }

    /// Uses the secrets of another process from now on.
    pub fn adopt(self) {
        SECRETS.store(Arc::new(self));
    }

    /// Returns the secrets after replacing a current one that is too old.
    fn at(now_s: u64) -> Arc<TicketSecrets> {
        let secrets = SECRETS.load_full();
        if secrets.current.is_within(1, now_s) {
            return secrets;
        }
        let next = Arc::new(secrets.rotate(now_s));
        let before = SECRETS.compare_and_swap(&secrets, next.clone());
        // Another thread may have replaced it first.
        if Arc::ptr_eq(&before, &secrets) { next } else { before.clone() }
    }

    fn rotate(&self, now_s: u64) -> TicketSecrets {
        let previous = Some(&self.current).filter(|secret| secret.is_within(2, now_s)).cloned();
        TicketSecrets { current: TicketSecret::new(now_s), previous }
    }

    /// Returns the secret with this name if it still decrypts.
    fn find(&self, name: &[u8], now_s: u64) -> Option<&TicketSecret> {
        let all = [Some(&self.current), self.previous.as_ref()];
        all.into_iter().flatten().find(|secret| secret.name == name && secret.is_within(2, now_s))
    }

    /// Writes one line for each secret, the current one first, for [`TicketSecrets::from_lines`].
    pub fn to_lines(&self) -> String {
        let all = [Some(&self.current), self.previous.as_ref()];
        let line = |secret: &TicketSecret| {
            format!("{LINE}{} {} {}\n", hex::encode(secret.name), hex::encode(secret.secret), secret.since_s)
        };
        all.into_iter().flatten().map(line).collect()
    }

    /// Reads what [`TicketSecrets::to_lines`] wrote; `None` if a line is wrong or there is none. Lines of other kinds
    /// are ignored: a newer release may send more.
    pub fn from_lines<'t>(lines: impl Iterator<Item = &'t str>) -> Option<TicketSecrets> {
        let mut all = lines.filter_map(|line| line.strip_prefix(LINE)).map(|line| {
            let mut words = line.split(' ');
            let secret = TicketSecret {
                name: from_hex(words.next()?)?,
                secret: from_hex(words.next()?)?,
                since_s: words.next()?.parse().ok()?,
            };
            words.next().is_none().then_some(secret)
        });
        let current = all.next()??;
        let previous = match all.next() {
            Some(secret) => Some(secret?),
            None => None,
        };
        all.next().is_none().then_some(TicketSecrets { current, previous })
    }
}

/// Start of a line with a secret.
const LINE: &str = "ticket-secret ";

/// Encrypts and decrypts the tickets of one listener.
pub struct ListenerTickets {
    /// Digest of the address and the settings of the listener.
    listener: [u8; 32],
}

impl ListenerTickets {
    pub fn new(listener: [u8; 32]) -> ListenerTickets {
        ListenerTickets { listener }
    }

    fn encrypt_at(&self, session: &[u8], now_s: u64) -> Option<Vec<u8>> {
        let secrets = TicketSecrets::at(now_s);
        let (name, salt) = (secrets.current.name, rand::random::<[u8; SALT_BYTES]>());
        let key = secrets.current.ticket_key(&self.listener, &salt)?;
        let mut ticket = Vec::with_capacity(NAME_BYTES + SALT_BYTES + session.len() + TAG_BYTES);
        ticket.extend(name);
        ticket.extend(salt);
        ticket.extend(session);
        let payload = &mut ticket[NAME_BYTES + SALT_BYTES..];
        // The key is used once.
        let tag = key.seal_in_place_separate_tag(Nonce::assume_unique_for_key([0; 12]), Aad::empty(), payload).ok()?;
        ticket.extend(tag.as_ref());
        Some(ticket)
    }

    fn decrypt_at(&self, ticket: &[u8], now_s: u64) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_at_checked(NAME_BYTES)?;
        let (salt, sealed) = rest.split_at_checked(SALT_BYTES)?;
        let secrets = TicketSecrets::at(now_s);
        let key = secrets.find(name, now_s)?.ticket_key(&self.listener, salt)?;
        let mut session = sealed.to_vec();
        let length = key.open_in_place(Nonce::assume_unique_for_key([0; 12]), Aad::empty(), &mut session).ok()?.len();
        session.truncate(length);
        Some(session)
    }
}

impl ProducesTickets for ListenerTickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME_S
    }

    fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
        self.encrypt_at(session, now_s())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.decrypt_at(ticket, now_s())
    }
}

/// Does not show the digest, which depends on private keys.
impl fmt::Debug for ListenerTickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ListenerTickets")
    }
}

/// Does not show the secrets.
impl fmt::Debug for TicketSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketSecrets")
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because the secrets belong to the process.
    #[test]
    fn a_ticket_is_valid_for_its_listener_until_its_secret_has_expired() {
        let [one, other] = [[1; 32], [2; 32]].map(ListenerTickets::new);
        let start = now_s();
        TicketSecrets { current: TicketSecret::new(start), previous: None }.adopt();
        let ticket = one.encrypt_at(b"session", start).unwrap();
        assert_ne!(one.encrypt_at(b"session", start).unwrap(), ticket);
        assert_eq!(one.decrypt_at(&ticket, start).as_deref(), Some(&b"session"[..]));
        assert_eq!(other.decrypt_at(&ticket, start), None);
        for place in 0..ticket.len() {
            let mut wrong = ticket.clone();
            wrong[place] ^= 1;
            assert_eq!(one.decrypt_at(&wrong, start), None, "{place}");
            assert_eq!(one.decrypt_at(&ticket[..place], start), None, "{place}");
        }
        // Another process gets the secrets, and replaces them when this one would have.
        let handed = TicketSecrets::of_process().to_lines();
        TicketSecrets { current: TicketSecret::new(start), previous: None }.adopt();
        assert_eq!(one.decrypt_at(&ticket, start), None);
        TicketSecrets::from_lines(handed.lines()).unwrap().adopt();
        assert!(one.decrypt_at(&ticket, start + PERIOD_S - 1).is_some());
        let second = one.encrypt_at(b"session", start + PERIOD_S).unwrap();
        assert_ne!(second[..NAME_BYTES], ticket[..NAME_BYTES]);
        assert!(one.decrypt_at(&ticket, start + 2 * PERIOD_S - 1).is_some());
        assert!(one.decrypt_at(&ticket, start + 2 * PERIOD_S).is_none());
        assert_eq!(one.decrypt_at(&second, start + 3 * PERIOD_S), None);
        // After a long time without handshakes, nothing old is left.
        let lines = TicketSecrets::at(start + 9 * PERIOD_S).to_lines();
        assert_eq!(lines.lines().count(), 1);
        // The clock was set back.
        let third = one.encrypt_at(b"session", start - 10).unwrap();
        assert!(one.decrypt_at(&third, start).is_some());
    }

    #[test]
    fn lines_that_contain_no_secrets_are_refused() {
        let secrets = TicketSecrets { current: TicketSecret::new(u64::MAX), previous: Some(TicketSecret::new(0)) };
        let lines = secrets.to_lines();
        let read = |text: &str| TicketSecrets::from_lines(text.lines());
        assert!(read(&format!("a newer kind\n{lines}")) == Some(secrets));
        for wrong in [
            String::new(),
            LINE.to_owned(),
            lines.repeat(2),
            lines.replace(' ', "  "),
            lines.replacen(LINE, &format!("{LINE}+"), 1),
            lines.replacen(LINE, &format!("{LINE}é"), 1),
            lines.replacen('\n', " 1\n", 1),
            lines.replacen('\n', "-\n", 1),
        ] {
            assert!(read(&wrong).is_none(), "{wrong}");
        }
        assert_eq!(format!("{:?}", TicketSecrets::of_process()), "TicketSecrets");
    }
}
