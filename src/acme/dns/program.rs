//! Has a program of the operator publish and remove records (`dns_program`).

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::acme::dns::{DnsFault, DnsRecord, shorten_message};

/// Time limit of one call of the program.
const CALL: Duration = Duration::from_secs(120);
const REMEDY: &str = "call the program by hand with the same arguments";

/// Calls the program with the same arguments as the `exec` providers of other ACME clients, so that their scripts work.
pub async fn call(command: &[String], action: &str, record: &DnsRecord) -> Result<(), DnsFault> {
    let Some((path, first)) = command.split_first() else { return Ok(()) };
    let fault = |what: String| DnsFault { what: format!("`dns_program` of [acme] {what}"), remedy: REMEDY.to_owned() };
    let mut command = Command::new(path);
    command.args(first).args([action, &record.name, &record.text]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    let output = match timeout(CALL, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(fault(format!("cannot be started: {error}"))),
        Err(_) => return Err(fault(format!("did not end within {} seconds", CALL.as_secs()))),
    };
    if output.status.success() {
        return Ok(());
    }
    let said = shorten_message(&String::from_utf8_lossy(&output.stderr));
    Err(fault(format!("ended with {} after `{action}`: {said}", output.status)))
}
