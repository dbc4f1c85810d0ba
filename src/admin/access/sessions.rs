//! Sessions: codes that are used once, and the tokens that they are traded for. A session lends the role of a token to
//! a browser for some hours, without showing it the token. Called by `pages` and `credentials`.

use std::time::{Duration, Instant, SystemTime};

use crate::admin::access::AdminCaller;
use crate::config::Admin;
use crate::config::admin_tokens::{Role, TokenDigest};

#[derive(Default)]
pub struct Sessions {
    codes: Vec<Grant>,
    sessions: Vec<Grant>,
}

struct Grant {
    digest: TokenDigest,
    name: Option<String>,
    role: Role,
    /// Digest of the token that it was made with; `None` if no token was configured.
    parent: Option<TokenDigest>,
    until: Instant,
}

/// A new session.
#[derive(Debug)]
pub struct OpenedSession {
    pub token: String,
    pub caller: AdminCaller,
    pub expires_at: SystemTime,
}

pub const CODE_LIFE: Duration = Duration::from_secs(60);
const SESSION_LIFE: Duration = Duration::from_secs(12 * 60 * 60);
/// Maximum number of codes, and of sessions.
const GRANTS_MAX: usize = 64;
/// Start of every token of a session. Tokens of the config may start so too.
pub const SESSION_PREFIX: &str = "sgs_";
const CODE_PREFIX: &str = "sgc_";

impl Sessions {
    /// Returns a code with which a session of `role` can be opened once.
    pub fn issue_code(&mut self, caller: &AdminCaller, role: Role, now: Instant) -> String {
        let code = random_secret(CODE_PREFIX);
        let grant = Grant {
            digest: TokenDigest::of_token(code.as_bytes()),
            name: caller.name.clone(),
            role,
            parent: caller.token,
            until: now + CODE_LIFE,
        };
        add_grant(&mut self.codes, grant, now);
        code
    }

    /// Opens a session; `None` if the code is unknown, used, too old, or the token that it was made with is gone.
    pub fn redeem_code(&mut self, code: &str, admin: &Admin, now: Instant, time: SystemTime) -> Option<OpenedSession> {
        let digest = TokenDigest::of_token(code.as_bytes());
        let place = self.codes.iter().position(|grant| grant.digest == digest)?;
        let code = self.codes.swap_remove(place);
        let caller = code.to_caller(admin, now, time)?;
        let own = |digest| admin.tokens.iter().find(|token| token.digest == digest);
        let parent_end = code.parent.and_then(own).and_then(|token| token.expires);
        let end = time + SESSION_LIFE;
        let token = random_secret(SESSION_PREFIX);
        let grant = Grant { digest: TokenDigest::of_token(token.as_bytes()), until: now + SESSION_LIFE, ..code };
        add_grant(&mut self.sessions, grant, now);
        Some(OpenedSession { token, caller, expires_at: parent_end.map_or(end, |parent| parent.min(end)) })
    }

    /// Returns the caller of the session with this token.
    pub fn find_session(
        &self,
        digest: TokenDigest,
        admin: &Admin,
        now: Instant,
        time: SystemTime,
    ) -> Option<AdminCaller> {
        self.sessions.iter().find(|grant| grant.digest == digest)?.to_caller(admin, now, time)
    }
}

impl Grant {
    /// Returns the caller, whose role is at most that of the parent now; `None` if the grant is no longer valid.
    fn to_caller(&self, admin: &Admin, now: Instant, time: SystemTime) -> Option<AdminCaller> {
        let most = match self.parent {
            None => admin.tokens.is_empty().then_some(Role::Edit)?,
            Some(parent) => {
                let token = admin.tokens.iter().find(|token| token.digest == parent)?;
                (!token.is_expired(time)).then_some(token.role)?
            }
        };
        let caller =
            AdminCaller { name: self.name.clone(), role: self.role.min(most), token: self.parent, is_session: true };
        (now < self.until).then_some(caller)
    }
}

/// Adds a grant. If there are too many, the oldest of the token with the most goes, so that nobody ends the sessions of
/// others.
fn add_grant(grants: &mut Vec<Grant>, grant: Grant, now: Instant) {
    grants.retain(|grant| now < grant.until);
    if grants.len() >= GRANTS_MAX {
        let count = |parent: Option<TokenDigest>| grants.iter().filter(|grant| grant.parent == parent).count();
        // Of equal ones, `rev` finds the oldest: grants are in order of their creation.
        let most = grants.iter().enumerate().rev().max_by_key(|(_, grant)| count(grant.parent));
        if let Some((place, _)) = most {
            grants.remove(place);
        }
    }
    grants.push(grant);
}

/// Returns a secret of 256 random bits.
fn random_secret(prefix: &str) -> String {
    prefix.to_owned() + &hex::encode(rand::random::<[u8; 32]>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::access::guard::tests::{admin, token};

    fn caller(name: &str, role: Role) -> AdminCaller {
        let token = Some(TokenDigest::of_token(name.as_bytes()));
        AdminCaller { name: Some(name.to_owned()), role, token, is_session: false }
    }

    #[test]
    fn a_code_is_used_once_within_a_minute() {
        let (mut sessions, now, time) = (Sessions::default(), Instant::now(), SystemTime::now());
        let admin = admin(vec![token("ops", Role::Edit)], false);
        let code = sessions.issue_code(&caller("ops", Role::Edit), Role::Keys, now);
        let opened = sessions.redeem_code(&code, &admin, now, time).unwrap();
        assert_eq!((opened.caller.role, opened.expires_at), (Role::Keys, time + SESSION_LIFE));
        assert!(sessions.redeem_code(&code, &admin, now, time).is_none());
        let digest = TokenDigest::of_token(opened.token.as_bytes());
        let find = |sessions: &Sessions, admin, now, time| {
            sessions.find_session(digest, admin, now, time).map(|caller| (caller.name.unwrap(), caller.role))
        };
        assert_eq!(find(&sessions, &admin, now, time), Some(("ops".to_owned(), Role::Keys)));
        assert_eq!(find(&sessions, &admin, now + SESSION_LIFE, time), None);
        let late = sessions.issue_code(&caller("ops", Role::Edit), Role::Keys, now);
        assert!(sessions.redeem_code(&late, &admin, now + CODE_LIFE, time).is_none());
        assert!(sessions.redeem_code("", &admin, now, time).is_none());
        assert!(sessions.redeem_code(&opened.token, &admin, now, time).is_none());
    }

    #[test]
    fn a_session_ends_with_its_token() {
        let (mut sessions, now, time) = (Sessions::default(), Instant::now(), SystemTime::now());
        let mut config = admin(vec![token("ops", Role::Edit), token("other", Role::Edit)], false);
        let code = sessions.issue_code(&caller("ops", Role::Edit), Role::Edit, now);
        let opened = sessions.redeem_code(&code, &config, now, time).unwrap();
        let digest = TokenDigest::of_token(opened.token.as_bytes());
        let role = |sessions: &Sessions, config: &Admin| {
            sessions.find_session(digest, config, now, time).map(|caller| caller.role)
        };
        assert_eq!(role(&sessions, &config), Some(Role::Edit));
        config.tokens[0].role = Role::Read;
        assert_eq!(role(&sessions, &config), Some(Role::Read), "the token lost its role");
        config.tokens[0].expires = Some(time);
        assert_eq!(role(&sessions, &config), None, "the token expired");
        config.tokens.remove(0);
        assert_eq!(role(&sessions, &config), None, "the token was removed");
        config.tokens.clear();
        assert_eq!(role(&sessions, &config), None, "without tokens, it is no session of this machine");
        let code =
            sessions.issue_code(&AdminCaller { name: None, token: None, ..caller("", Role::Edit) }, Role::Edit, now);
        let opened = sessions.redeem_code(&code, &config, now, time).unwrap();
        let own = TokenDigest::of_token(opened.token.as_bytes());
        assert!(sessions.find_session(own, &config, now, time).is_some());
        config.tokens.push(token("ops", Role::Edit));
        assert!(sessions.find_session(own, &config, now, time).is_none(), "a token is needed now");
    }

    #[test]
    fn many_sessions_of_one_token_end_no_others() {
        let (mut sessions, now, time) = (Sessions::default(), Instant::now(), SystemTime::now());
        let config = admin(vec![token("ops", Role::Edit), token("low", Role::Metrics)], false);
        let mut open = |name: &str| {
            let code = sessions.issue_code(&caller(name, Role::Metrics), Role::Metrics, now);
            TokenDigest::of_token(sessions.redeem_code(&code, &config, now, time).unwrap().token.as_bytes())
        };
        let (first, oldest) = (open("ops"), open("low"));
        let last = (0..2 * GRANTS_MAX).map(|_| open("low")).last().unwrap();
        assert!(sessions.find_session(first, &config, now, time).is_some());
        assert!(sessions.find_session(oldest, &config, now, time).is_none());
        assert!(sessions.find_session(last, &config, now, time).is_some());
        assert_eq!((sessions.sessions.len(), sessions.codes.len()), (GRANTS_MAX, 0));
    }
}
