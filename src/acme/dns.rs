//! The DNS record of a `dns-01` challenge (RFC 8555, section 8.4). A program of the operator publishes and removes it,
//! because each provider of DNS has an interface of its own.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::config::DnsProgram;

/// Time limit of one call of the program.
const CALL: Duration = Duration::from_secs(120);
/// Maximum length of the program's message in the log, in characters.
const MESSAGE_MAX: usize = 400;

/// A TXT record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsRecord {
    /// The name has a dot at its end.
    name: String,
    text: String,
}

impl DnsRecord {
    /// Returns the record that proves `name`, a host or a wildcard.
    pub fn of_challenge(name: &str, text: String) -> DnsRecord {
        let host = name.strip_prefix("*.").unwrap_or(name);
        DnsRecord { name: format!("_acme-challenge.{host}."), text }
    }
}

/// Has the program publish a record, and waits until all servers of the zone have it.
///
/// # Errors
/// Why the record has not been published, after the name of the option.
pub async fn publish_record(program: &DnsProgram, record: &DnsRecord) -> Result<(), String> {
    call(program, "present", record).await?;
    sleep(program.wait).await;
    Ok(())
}

/// Has the program remove a record. A record that stays does no harm, so a failure is only logged.
pub async fn remove_record(program: &DnsProgram, record: &DnsRecord) {
    if let Err(fault) = call(program, "cleanup", record).await {
        tracing::warn!("`dns_program` of [acme] {fault}: the TXT record {} may still exist; remove it", record.name);
    }
}

/// Calls the program with the arguments that the `exec` providers of other ACME clients use, and which scripts
/// therefore know.
async fn call(program: &DnsProgram, action: &str, record: &DnsRecord) -> Result<(), String> {
    let Some((path, first)) = program.command.split_first() else { return Ok(()) };
    let mut command = Command::new(path);
    command.args(first).args([action, &record.name, &record.text]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    let output = match timeout(CALL, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(format!("cannot be started: {error}")),
        Err(_) => return Err(format!("did not end within {} seconds", CALL.as_secs())),
    };
    if output.status.success() {
        return Ok(());
    }
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let said: String = String::from_utf8_lossy(&output.stderr).trim().chars().map(plain).take(MESSAGE_MAX).collect();
    Err(format!("ended with {} after `{action}`: {said}", output.status))
}
