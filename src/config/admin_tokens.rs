//! Roles and tokens of the admin listener, as the config sets them. `compile` creates them, `admin::access` checks
//! requests against them.

use std::fmt;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::labels::labels;

labels! {
    /// Permissions of a token. Each role includes those before it.
    Role:
    /// Read `/metrics`.
    Metrics = "metrics",
    /// See the config and the state of the gateway.
    Read = "read",
    /// See what single keys have used.
    Keys = "keys",
    /// Decide, reset and refund limits.
    Limits = "limits",
    /// Change the config.
    Edit = "edit",
}

impl Role {
    /// Returns whether this role may do what `needed` may do.
    pub fn includes(self, needed: Role) -> bool {
        self as u8 >= needed as u8
    }

    /// Returns the role that may do less.
    pub fn min(self, other: Role) -> Role {
        if self.includes(other) { other } else { self }
    }
}

/// SHA-256 of a token. Two digests are compared in constant time.
#[derive(Clone, Copy)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    pub fn of_token(token: &[u8]) -> TokenDigest {
        TokenDigest(Sha256::digest(token).into())
    }

    /// Parses 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<TokenDigest> {
        let mut digest = [0; 32];
        hex::decode_to_slice(text, &mut digest).ok()?;
        Some(TokenDigest(digest))
    }
}

/// Compares all bytes, so that the time reveals nothing.
impl PartialEq for TokenDigest {
    fn eq(&self, other: &TokenDigest) -> bool {
        self.0.iter().zip(&other.0).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
    }
}

/// Hides the digest: it does not belong in a log.
impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct AdminToken {
    /// Name in the audit log, in messages and metrics.
    pub name: String,
    pub digest: TokenDigest,
    pub role: Role,
    /// First moment at which the token is refused.
    pub expires: Option<SystemTime>,
}

impl AdminToken {
    /// Name of the token in the option `token`.
    pub const DEFAULT_NAME: &str = "token";
    /// How long before the expiry a warning is logged.
    const WARNED_BEFORE: Duration = Duration::from_secs(14 * 24 * 60 * 60);

    pub fn is_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// Returns whether the token expires soon, or has expired.
    pub fn expires_soon(&self, now: SystemTime) -> bool {
        self.is_expired(now + AdminToken::WARNED_BEFORE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_includes_those_before_it() {
        for (i, role) in Role::ALL.iter().enumerate() {
            for (j, needed) in Role::ALL.iter().enumerate() {
                assert_eq!(role.includes(*needed), i >= j, "{role:?} {needed:?}");
                assert_eq!(role.min(*needed), Role::ALL[i.min(j)]);
            }
        }
    }

    #[test]
    fn a_digest_is_64_digits_and_never_shown() {
        let written = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
        assert!(TokenDigest::parse(written) == Some(TokenDigest::of_token(b"secret")));
        assert!(TokenDigest::parse(&written.to_ascii_uppercase()) == Some(TokenDigest::of_token(b"secret")));
        assert!(TokenDigest::of_token(b"secret") != TokenDigest::of_token(b"secreu"));
        for wrong in ["", "2bb8", &written[1..], &format!("{written}00"), &format!("+{}", &written[1..])] {
            assert!(TokenDigest::parse(wrong).is_none(), "{wrong}");
        }
        assert_eq!(format!("{:?}", TokenDigest::of_token(b"secret")), "***");
    }
}
