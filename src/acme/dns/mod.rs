//! The DNS record of a `dns-01` challenge (RFC 8555, section 8.4).
//!
//! Input: the record, and how to publish it. Output: the record in the zone, and later its removal. The gateway changes
//! the zone itself by signed dynamic updates (`update`, over `exchange`), or has a program of the operator do so
//! (`program`), because many providers of DNS have an interface of their own. To add a way, add a variant of
//! [`DnsMethod`] and a file here.

mod exchange;
mod program;
mod update;

use hickory_proto::rr::Name;
use tokio::time::sleep;

use crate::config::{DnsMethod, DnsPublisher};

/// Maximum length of a text from outside in the log, in characters.
const MESSAGE_MAX: usize = 400;

/// A TXT record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsRecord {
    /// The name has a dot at its end.
    name: String,
    text: String,
}

/// Why a record was not published or removed.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct DnsFault {
    /// The option, and what failed.
    what: String,
    /// The remedy, as an instruction to the operator.
    pub remedy: String,
}

impl DnsRecord {
    /// Returns the record that proves `name`, a host or a wildcard.
    pub fn of_challenge(name: &str, text: String) -> DnsRecord {
        let host = name.strip_prefix("*.").unwrap_or(name);
        DnsRecord { name: format!("_acme-challenge.{host}."), text }
    }

    fn dns_name(&self) -> Result<Name, DnsFault> {
        Name::from_ascii(&self.name).map_err(|error| {
            DnsFault::new(format!("{} is not a name of DNS: {error}", self.name), "use a shorter name")
        })
    }
}

impl DnsFault {
    /// Makes a fault of the option `dns`.
    fn new(what: impl std::fmt::Display, remedy: impl Into<String>) -> DnsFault {
        DnsFault { what: format!("`dns` of [acme]: {what}"), remedy: remedy.into() }
    }
}

/// Publishes a record, and waits until the servers of the zone have it.
///
/// # Errors
/// Why the record has not been published.
pub async fn publish_record(publisher: &DnsPublisher, record: &DnsRecord) -> Result<(), DnsFault> {
    match &publisher.method {
        DnsMethod::Program(command) => {
            program::call(command, "present", record).await?;
            sleep(publisher.wait).await;
        }
        DnsMethod::Update(settings) => {
            let zone = update::add_record(settings, record).await?;
            update::wait_for_servers(settings, &zone, record, publisher.wait).await;
        }
    }
    Ok(())
}

/// Removes a record. A record that stays does no harm, so a failure is only logged.
pub async fn remove_record(publisher: &DnsPublisher, record: &DnsRecord) {
    let removed = match &publisher.method {
        DnsMethod::Program(command) => program::call(command, "cleanup", record).await,
        DnsMethod::Update(settings) => update::remove_record(settings, record).await,
    };
    if let Err(fault) = removed {
        tracing::warn!("{fault}; the TXT record {} may still exist: remove it", record.name);
    }
}

/// Shortens a text from another program for the log, and replaces control characters with spaces.
fn shorten_message(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(MESSAGE_MAX).collect()
}
