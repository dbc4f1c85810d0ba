//! Asks a store once whether it works as the gateway needs it: `sluicegate check --store`. If it does not, the message
//! has the cause, as the server or TLS states it, and the remedy.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::limiting::decision::{Check, ErrorKind, Op};
use crate::limiting::limit::Limit;
use crate::limiting::store::Store;
use crate::limiting::store::redis::connection::link::CONNECT_TIMEOUT;
use crate::limiting::store::redis::connection::sentinel::REFUSED_LOGIN;
use crate::limiting::store::redis::eviction::NO_EVICTION;
use crate::limiting::store::settings::{StoreKind, StoreSettings};
use crate::telemetry::metrics::StoreHealth;

/// Pause before the reason of a failed connection is looked up again.
const REASON_PAUSE: Duration = Duration::from_millis(20);

/// What texts of Redis, of TLS and of the system mean, and what helps. The first that occurs in a text applies.
const REMEDIES: [(&str, &str); 22] = [
    (
        "protected mode",
        "give Redis a password (`requirepass`), and write it as `password`: without one, it serves its own machine only",
    ),
    ("max number of clients", "raise `maxclients` of Redis, or close connections of other programs"),
    (
        REFUSED_LOGIN,
        "correct `sentinel_user` and `sentinel_password` in `url`, and let that user run `SENTINEL`; `username` and \
         `password` are those of the master",
    ),
    ("UnknownIssuer", "set `ca` to the CA that issued the certificate of the server, or to that certificate"),
    ("not valid for name", "write a name of the certificate as the host in `url`"),
    ("NotValidForName", "write a name of the certificate as the host in `url`"),
    ("Expired", "renew the certificate of the server"),
    ("CertificateRequired", "set `client_cert` and `client_key`: the server requires a certificate of its clients"),
    ("UnknownCA", "the server does not trust the CA of `client_cert`: set another one"),
    ("invalid peer certificate", "replace the certificate of the server, or set `ca`"),
    ("WRONGPASS", "correct `username` and `password`; without `username`, the password is that of the user `default`"),
    ("NOAUTH", "set `password`, and `username` unless the user is `default`"),
    ("Connection refused", "see that Redis runs, and that `url` has its host and port"),
    ("failed to lookup", "correct the host in `url`"),
    (CLOSED[0], "if the server speaks TLS on this port, write `rediss://` in `url`"),
    ("timed out", "see that nothing blocks the port"),
    (CLOSED[1], "if the server speaks TLS on this port, write `rediss://` in `url`"),
    ("cluster mode", "write `redis+cluster://` in `url`"),
    ("cluster support disabled", "write `redis://` in `url`: the server is not in cluster mode"),
    ("'SENTINEL'", "name sentinels in `url`, or write `redis://` for the server itself"),
    ("DB index", "correct the number of the database in `url`"),
    ("No such file", "see that Redis runs, and that `url` has the path of its socket"),
];

/// Texts of a connection that the server has closed.
const CLOSED: [&str; 2] = ["Connection reset", "roken pipe"];

/// Charges one unit of a key that no request has, which needs every command of a decision, and resets it. Returns
/// warnings.
///
/// # Errors
/// Why the store does not decide.
pub async fn probe_store(
    store: &Store,
    limit: &Limit,
    settings: &StoreSettings,
    health: &StoreHealth,
) -> Result<Vec<String>, String> {
    store.wait_first_attempt().await;
    let key = format!("{}:{{check}}:{}:{}", settings.prefix, limit.name, limit.rule.name());
    let checks = Rc::new(vec![Check::new(limit, key.clone(), 1)]);
    let outcome = match store.decide(Op::Take, &checks).await {
        Ok(_) => store.reset(&checks).await.map(drop),
        Err(kind) => Err(kind),
    };
    let Store::Redis(redis) = store else {
        return outcome.map(|()| Vec::new()).map_err(|kind| describe_error(kind, "", settings));
    };
    if let Err(kind) = outcome {
        let cause = match redis.find_denial(&key).await {
            Some(denial) => denial,
            None => wait_reason(health).await,
        };
        return Err(describe_error(kind, &cause, settings));
    }
    Ok(match redis.read_eviction_policy(&key).await {
        Ok(Some(policy)) if policy != NO_EVICTION => vec![format!(
            "Redis may evict the budgets of limits when its memory is full (`maxmemory-policy {policy}`), and their owners \
             start with full ones; set `maxmemory-policy noeviction`"
        )],
        Ok(_) => Vec::new(),
        Err(error) => vec![format!("cannot tell whether Redis evicts keys: {error}; allow the command `INFO`")],
    })
}

/// Returns why the store has no connection. A server that does not respond is known only after a while, and if the
/// server closes a connection, the next attempt often has the cause, such as a missing password.
async fn wait_reason(health: &StoreHealth) -> String {
    let start = Instant::now();
    let is_clear = |reason: &str| !CLOSED.iter().any(|text| reason.contains(text));
    loop {
        let (reason, waited) = (health.last_reason(), start.elapsed());
        match reason {
            Some(reason) if is_clear(&reason) || waited > CONNECT_TIMEOUT => return reason,
            None if waited > CONNECT_TIMEOUT + CONNECT_TIMEOUT / 2 => return String::new(),
            _ => sleep(REASON_PAUSE).await,
        }
    }
}

/// Describes why a store does not decide. `cause`: what the server, TLS or the system says; empty if nothing.
fn describe_error(kind: ErrorKind, cause: &str, settings: &StoreSettings) -> String {
    let (what, help) = match kind {
        ErrorKind::Disconnected | ErrorKind::Lost => {
            ("it cannot be reached", "see that `url` is right and that it runs")
        }
        ErrorKind::Denied => (
            "it refuses the login, or a command",
            "see `username`, `password`, and the permissions that the manual lists",
        ),
        ErrorKind::Readonly => ("it is a replica, or has no master", "name the master, or the sentinels"),
        ErrorKind::OutOfMemory => ("its memory is full", "raise `maxmemory`"),
        ErrorKind::Loading => ("it is loading its data", "try again when it has done so"),
        _ => ("it made no decision", "look at the log of the server"),
    };
    let is_tls = matches!(&settings.kind, StoreKind::Redis(url) if url.0.starts_with("rediss"));
    let help = match REMEDIES.iter().find(|(text, _)| cause.contains(text)) {
        // A server without TLS waits for the rest of what it takes for a command.
        Some(("timed out", _)) if is_tls => {
            "see that the server speaks TLS on this port: otherwise, write `redis://` in `url`".to_owned()
        }
        Some((_, remedy)) => (*remedy).to_owned(),
        None if cause.to_ascii_lowercase().contains("perm") => describe_permissions(settings),
        None => help.to_owned(),
    };
    let cause = if cause.is_empty() { String::new() } else { format!(": {cause}") };
    format!("the limit store does not work: {what} ({}){cause}; {help}", kind.label())
}

/// Returns the command that gives a user of Redis the permissions that the gateway needs.
fn describe_permissions(settings: &StoreSettings) -> String {
    let (user, prefix) = (settings.login.username.as_deref().unwrap_or("default"), &settings.prefix);
    let of_servers = match &settings.kind {
        StoreKind::Redis(url) if url.0.contains("+cluster://") => " +cluster|slots +asking",
        StoreKind::Redis(url) if url.0.contains("+sentinel://") => " +role",
        _ => "",
    };
    format!(
        "let the user do what it needs: ACL SETUSER {user} ~{prefix}:* +@read +@write -@dangerous +eval +evalsha \
         +script|load +time +info{of_servers}"
    )
}
