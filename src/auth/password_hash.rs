//! Stored hashes of passwords: which formats are accepted, and whether a password matches. Pure functions; the hash
//! threads (`password_verifier`) run [`PasswordHash::matches`], which takes milliseconds to about a second.
//!
//! To add a format: add a variant to `HashScheme`, its checks in `parse_hash`, its arm in `matches`, and documentation
//! in `docs/guides/authentication.md`.

use argon2::{Argon2, PasswordHash as PhcHash};
use sha_crypt::{PasswordVerifier as _, ShaCrypt};

/// Hash of a password in a format that is slow to try out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PasswordHash {
    scheme: HashScheme,
    text: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HashScheme {
    /// `$2a$`, `$2b$` and `$2y$`.
    Bcrypt,
    /// `$argon2id$`.
    Argon2id,
    /// `$5$` (SHA-256) and `$6$` (SHA-512).
    ShaCrypt,
}

/// Why a hash is not accepted: what is wrong and what to do. Never contains the hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashFault {
    pub what: String,
    pub help: &'static str,
}

/// Longest password in bytes.
pub const PASSWORD_MAX: usize = 256;
/// bcrypt ignores what follows.
const BCRYPT_PASSWORD_MAX: usize = 72;
/// Largest cost of bcrypt, about two seconds of one core. Each step doubles the time.
const BCRYPT_COST_MAX: u32 = 15;
/// Maximum memory of argon2id in KiB.
const ARGON2_MEMORY_MAX: u32 = 256 * 1024;
/// Largest product of memory and passes of argon2id, in KiB; about a second of one core.
const ARGON2_WORK_MAX: u64 = 1024 * 1024;
const ARGON2_LANES_MAX: u32 = 16;
/// Largest number of rounds of SHA-crypt, about a second of one core.
const SHA_CRYPT_ROUNDS_MAX: u32 = 1_000_000;
const SHA_CRYPT_SALT_MAX: usize = 16;

const MAKE_BCRYPT: &str = "make a bcrypt hash: htpasswd -B FILE USER";
const LOWER_COST: &str =
    "guesses would cost this gateway too much time; make a cheaper hash: htpasswd -B -C 10 FILE USER";

impl PasswordHash {
    /// Parses a hash.
    ///
    /// # Errors
    /// The format is unknown or too weak, the hash is damaged, or it would take too long to compute.
    pub fn parse(text: &str) -> Result<PasswordHash, HashFault> {
        let scheme = match text {
            _ if ["$2a$", "$2b$", "$2y$"].iter().any(|prefix| text.starts_with(prefix)) => check_bcrypt(text)?,
            _ if text.starts_with("$argon2id$") => check_argon2(text)?,
            _ if text.starts_with("$5$") || text.starts_with("$6$") => check_sha_crypt(text)?,
            _ => return Err(HashFault { what: describe_refused(text).to_owned(), help: MAKE_BCRYPT }),
        };
        Ok(PasswordHash { scheme, text: text.into() })
    }

    /// Returns the hash as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether `password` has this hash. Compares in constant time. A password that the format would truncate
    /// never matches.
    pub fn matches(&self, password: &[u8]) -> bool {
        match self.scheme {
            HashScheme::Bcrypt => {
                // The hash is computed for a long password as well, so that the time reveals nothing about the format.
                let matches = bcrypt::verify(password, &self.text).unwrap_or(false);
                matches && password.len() <= BCRYPT_PASSWORD_MAX
            }
            HashScheme::Argon2id => {
                PhcHash::new(&self.text).is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok())
            }
            HashScheme::ShaCrypt => ShaCrypt::default().verify_password(password, &*self.text).is_ok(),
        }
    }
}

/// Names a format that is not accepted.
fn describe_refused(text: &str) -> &'static str {
    match text {
        "" => "the hash is empty",
        _ if text.starts_with("{SHA}") => "it is an unsalted SHA-1 hash, which is quick to guess",
        _ if text.starts_with("{SSHA}") => "it is a SHA-1 hash, which is quick to guess",
        _ if text.starts_with("$apr1$") || text.starts_with("$1$") => "it is an MD5 hash, which is quick to guess",
        _ if text.starts_with("$2x$") => "it is a bcrypt hash of a faulty version ($2x$)",
        _ if text.starts_with("$argon2i$") || text.starts_with("$argon2d$") => {
            "it is argon2i or argon2d, and only argon2id is accepted"
        }
        _ if text.starts_with('$') => "its format is not bcrypt, argon2id or SHA-crypt ($5$, $6$)",
        _ if text.len() == 13 => "it is a DES crypt hash or a plain password",
        _ => "it is not a hash in a known format; perhaps a plain password",
    }
}

fn damaged(what: &str) -> HashFault {
    HashFault { what: format!("its {what} hash is damaged"), help: MAKE_BCRYPT }
}

fn check_bcrypt(text: &str) -> Result<HashScheme, HashFault> {
    let cost = text.parse::<bcrypt::HashParts>().map_err(|_| damaged("bcrypt"))?.get_cost();
    match cost {
        4..=BCRYPT_COST_MAX => Ok(HashScheme::Bcrypt),
        0..4 => Err(damaged("bcrypt")),
        _ => Err(HashFault {
            what: format!("its bcrypt cost is {cost}, at most {BCRYPT_COST_MAX} is accepted"),
            help: LOWER_COST,
        }),
    }
}

fn check_argon2(text: &str) -> Result<HashScheme, HashFault> {
    let hash = PhcHash::new(text).map_err(|_| damaged("argon2id"))?;
    let params = argon2::Params::try_from(&hash).map_err(|_| damaged("argon2id"))?;
    if hash.salt.is_none() || hash.hash.is_none() || hash.version.is_some_and(|version| version != 19) {
        return Err(damaged("argon2id"));
    }
    let (memory, passes, lanes) = (params.m_cost(), params.t_cost(), params.p_cost());
    let what = if memory > ARGON2_MEMORY_MAX {
        format!("its argon2id memory is m={memory}, at most {ARGON2_MEMORY_MAX} (256 MiB) is accepted")
    } else if u64::from(memory) * u64::from(passes) > ARGON2_WORK_MAX {
        format!(
            "its argon2id work is m*t={}, at most {ARGON2_WORK_MAX} is accepted",
            u64::from(memory) * u64::from(passes)
        )
    } else if lanes > ARGON2_LANES_MAX {
        format!("its argon2id parallelism is p={lanes}, at most {ARGON2_LANES_MAX} is accepted")
    } else {
        return Ok(HashScheme::Argon2id);
    };
    Err(HashFault { what, help: "guesses would cost this gateway too much; make a cheaper hash, like m=65536,t=3,p=4" })
}

/// Checks `$5$[rounds=N$]SALT$HASH`.
fn check_sha_crypt(text: &str) -> Result<HashScheme, HashFault> {
    let broken = || damaged("SHA-crypt");
    let mut fields = text[3..].split('$');
    let mut salt = fields.next().ok_or_else(broken)?;
    if let Some(rounds) = salt.strip_prefix("rounds=") {
        let count = rounds.parse::<u32>().ok().filter(|_| !rounds.starts_with('+')).ok_or_else(broken)?;
        match count {
            1000..=SHA_CRYPT_ROUNDS_MAX => {}
            0..1000 => return Err(broken()),
            _ => {
                let what =
                    format!("its SHA-crypt hash has {count} rounds, at most {SHA_CRYPT_ROUNDS_MAX} are accepted");
                return Err(HashFault { what, help: LOWER_COST });
            }
        }
        salt = fields.next().ok_or_else(broken)?;
    }
    let digits = if text.starts_with("$5$") { 43 } else { 86 };
    let hash = fields.next().ok_or_else(broken)?;
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'/';
    let is_salt = (1..=SHA_CRYPT_SALT_MAX).contains(&salt.len()) && salt.bytes().all(|byte| byte.is_ascii_graphic());
    let is_hash = hash.len() == digits && hash.bytes().all(is_digit);
    if is_salt && is_hash && fields.next().is_none() { Ok(HashScheme::ShaCrypt) } else { Err(broken()) }
}
