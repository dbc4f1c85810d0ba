//! Changes the zone of the operator by dynamic updates (RFC 2136), signed with a shared key (TSIG, RFC 8945). The
//! signature of each response is verified, so that nobody in between can pretend that a record was published.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hickory_proto::op::{Message, ResponseCode, update_message};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::rdata::tsig::{TsigAlgorithm, TsigError};
use hickory_proto::rr::{Name, RData, Record, RecordSet, RecordType, TSigner};
use tokio::net::lookup_host;
use tokio::time::{Instant, sleep, timeout_at};

use crate::acme::dns::exchange::{exchange, parse_response, query};
use crate::acme::dns::{DnsFault, DnsRecord};
use crate::config::{DnsUpdate, KeyAlgorithm};

/// Lifetime of the record in the caches of resolvers, in seconds.
const TTL_S: u32 = 60;
/// How much the clocks of both sides may differ, in seconds (RFC 8945, section 10).
const CLOCK_DIFFERENCE_S: u16 = 300;
/// The port of the name servers of a zone.
const PORT: u16 = 53;
/// Pause between two questions to a name server that does not have the record yet.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Maximum number of name servers that the gateway asks for the record.
const SERVERS_MAX: usize = 16;
const PROGRAM_BUG: &str = "this is a bug in this program";

/// Adds a record, beside others that the name has: another gateway may prove a name at the same time, and a wildcard
/// has the record of its base name. Returns the zone.
pub async fn add_record(settings: &DnsUpdate, record: &DnsRecord) -> Result<Name, DnsFault> {
    let zone = find_zone(settings, record).await?;
    let message = update_message::append(record_set(record)?, zone.clone(), false, false);
    send_update(settings, &zone, record, message).await?;
    Ok(zone)
}

/// Removes a record, and no other that the name has.
pub async fn remove_record(settings: &DnsUpdate, record: &DnsRecord) -> Result<(), DnsFault> {
    let zone = find_zone(settings, record).await?;
    let message = update_message::delete_by_rdata(record_set(record)?, zone.clone(), false);
    send_update(settings, &zone, record, message).await
}

fn record_set(record: &DnsRecord) -> Result<RecordSet, DnsFault> {
    let text = RData::TXT(TXT::new(vec![record.text.clone()]));
    Ok(RecordSet::from(Record::from_rdata(record.dns_name()?, TTL_S, text)))
}

/// Returns the zone of a record: the configured one, or the one that the name server states.
async fn find_zone(settings: &DnsUpdate, record: &DnsRecord) -> Result<Name, DnsFault> {
    let name = record.dns_name()?;
    if let Some(zone) = &settings.zone {
        return match zone.zone_of(&name) {
            true => Ok(zone.clone()),
            false => Err(DnsFault::new(
                format!("{name} is not in the zone {zone}"),
                "remove `zone` from `dns`, or remove the name from the listener",
            )),
        };
    }
    let response = query(settings.server.as_str(), &name, RecordType::SOA).await?;
    // The server of the zone reports it, even for a name that does not exist.
    let records = response.answers.iter().chain(&response.authorities);
    let mut zones = records.filter(|found| found.record_type() == RecordType::SOA && found.name.zone_of(&name));
    zones.next().map(|found| found.name.clone()).ok_or_else(|| {
        DnsFault::new(
            format!("{} does not state the zone of {name} (it answered {})", settings.server, response.response_code),
            "`server` in `dns` must be the primary name server of the zone; or name the zone in `zone`",
        )
    })
}

/// Signs and sends a change of the zone, and verifies the response.
async fn send_update(
    settings: &DnsUpdate,
    zone: &Name,
    record: &DnsRecord,
    mut message: Message,
) -> Result<(), DnsFault> {
    let algorithm = match settings.algorithm {
        KeyAlgorithm::HmacSha256 => TsigAlgorithm::HmacSha256,
        KeyAlgorithm::HmacSha384 => TsigAlgorithm::HmacSha384,
        KeyAlgorithm::HmacSha512 => TsigAlgorithm::HmacSha512,
    };
    let signer = TSigner::new(settings.secret.0.clone(), algorithm, settings.key.clone(), CLOCK_DIFFERENCE_S)
        .map_err(|error| DnsFault::new(error, PROGRAM_BUG))?;
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let verifier = message.finalize(&signer, now_s).map_err(|error| DnsFault::new(error, PROGRAM_BUG))?;
    let bytes = message.to_vec().map_err(|error| DnsFault::new(error, PROGRAM_BUG))?;
    let response = exchange(settings.server.as_str(), &bytes).await?;
    let parsed = parse_response(&response, &message, &settings.server)?;
    let tsig_error = parsed.signature().and_then(|signature| signature.data.error);
    if let Some(fault) = describe_failure(settings, zone, record, (parsed.response_code, tsig_error)) {
        return Err(fault);
    }
    match verifier.map(|mut verifier| verifier.verify(&response)) {
        Some(Ok(_)) => Ok(()),
        _ => Err(DnsFault::new(
            format!("the response of {} has no valid signature of the key {}", settings.server, settings.key),
            "see that `server` in `dns` is the name server itself, and that the clocks of both are right",
        )),
    }
}

/// Describes why the name server did not change the zone. Failures have no valid signature in most cases, so they are
/// what somebody states; but nothing depends on that.
fn describe_failure(
    settings: &DnsUpdate,
    zone: &Name,
    record: &DnsRecord,
    (code, tsig_error): (ResponseCode, Option<TsigError>),
) -> Option<DnsFault> {
    let (server, key, name) = (&settings.server, &settings.key, &record.name);
    let (what, remedy) = match (tsig_error, code) {
        (Some(TsigError::BadKey), _) => (
            format!(
                "{server} does not accept the key {key} with {} for the zone {zone} (BADKEY)",
                settings.algorithm.label()
            ),
            "compare `key` and `algorithm` in `dns` with the config of the name server, and let the key change the zone"
                .to_owned(),
        ),
        (Some(TsigError::BadSig), _) => (
            format!("{server} has another secret for the key {key} (BADSIG)"),
            "copy `secret` in `dns` from the config of the name server again".to_owned(),
        ),
        (Some(TsigError::BadTime), _) => (
            format!("the clock of {server} differs by more than {CLOCK_DIFFERENCE_S} seconds (BADTIME)"),
            "set the clocks of both machines, for example by NTP".to_owned(),
        ),
        (Some(error), _) => (
            format!("{server} rejected the signature: {error:?}"),
            "compare `key`, `algorithm` and `secret` in `dns` with the config of the name server".to_owned(),
        ),
        (None, ResponseCode::NoError) => return None,
        (None, ResponseCode::Refused) => (
            format!("{server} refused to change {name} (REFUSED)"),
            format!("let the key {key} change TXT records of {name} in the zone {zone} on the name server"),
        ),
        (None, ResponseCode::NotAuth) => (
            format!(
                "{server} is not the primary server of the zone {zone}, or the key {key} may not be used (NOTAUTH)"
            ),
            "write the primary server of the zone in `server`, and the zone in `zone`".to_owned(),
        ),
        (None, ResponseCode::NotZone) => (
            format!("{server} does not have {name} in the zone {zone} (NOTZONE)"),
            "remove `zone` from `dns`, or write the zone that the name server has".to_owned(),
        ),
        (None, ResponseCode::NotImp) => (
            format!("{server} does not support dynamic updates (NOTIMP)"),
            "enable dynamic updates (RFC 2136) there, or use `dns_program` instead".to_owned(),
        ),
        (None, code) => {
            (format!("{server} did not change {name}: {code}"), "the log of the name server says why".to_owned())
        }
    };
    Some(DnsFault::new(what, remedy))
}

/// Waits until the primary and the other name servers of the zone have a record, at most for `wait`. Servers that
/// cannot be asked from here delay the order, but do not fail it.
pub async fn wait_for_servers(settings: &DnsUpdate, zone: &Name, record: &DnsRecord, wait: Duration) {
    let deadline = Instant::now() + wait;
    let servers = timeout_at(deadline, list_servers(settings, zone)).await.unwrap_or_default();
    let Ok(name) = record.dns_name() else { return };
    let primary = wait_for_record(settings.server.clone(), &name, record, deadline);
    let others = servers.iter().map(|server| wait_for_record(server.to_string(), &name, record, deadline));
    let (primary, others) = futures_util::future::join(primary, futures_util::future::join_all(others)).await;
    let missing: Vec<String> = [primary].into_iter().chain(others).filter_map(Result::err).collect();
    if !missing.is_empty() && !wait.is_zero() {
        tracing::info!(
            "continuing after `dns_wait`, although these name servers do not show {} yet: {}",
            record.name,
            missing.join(", ")
        );
    }
}

/// Returns the addresses of the name servers that the zone lists.
async fn list_servers(settings: &DnsUpdate, zone: &Name) -> Vec<SocketAddr> {
    let Ok(response) = query(settings.server.as_str(), zone, RecordType::NS).await else { return Vec::new() };
    let mut addresses = Vec::new();
    for server in response.answers.iter().filter_map(|found| match &found.data {
        RData::NS(server) => Some(&server.0),
        _ => None,
    }) {
        let glue = response.additionals.iter().filter(|found| found.name == *server);
        let glue = glue.filter_map(|found| found.data.ip_addr()).map(|ip| SocketAddr::new(ip, PORT));
        let known = addresses.len();
        addresses.extend(glue);
        if addresses.len() == known {
            addresses.extend(lookup_host((server.to_ascii(), PORT)).await.into_iter().flatten());
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(SERVERS_MAX);
    addresses
}

/// Waits until a name server has a record.
///
/// # Errors
/// The name of the server, if it does not have the record at `deadline`.
async fn wait_for_record(server: String, name: &Name, record: &DnsRecord, deadline: Instant) -> Result<(), String> {
    let asking = async {
        while !has_record(&server, name, record).await {
            sleep(ASK_AGAIN).await;
        }
    };
    timeout_at(deadline, asking).await.map_err(|_| server.clone())
}

async fn has_record(server: &str, name: &Name, record: &DnsRecord) -> bool {
    let Ok(response) = query(server, name, RecordType::TXT).await else { return false };
    response.answers.iter().any(|found| match &found.data {
        RData::TXT(text) => text.txt_data.concat() == record.text.as_bytes(),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KeySecret;

    #[test]
    fn each_failure_is_named_with_its_remedy() {
        let settings = DnsUpdate {
            server: "192.0.2.53:53".to_owned(),
            zone: None,
            key: Name::from_ascii("acme.").unwrap(),
            algorithm: KeyAlgorithm::HmacSha256,
            secret: KeySecret(Vec::new()),
        };
        let (zone, record) = (Name::from_ascii("test.").unwrap(), DnsRecord::of_challenge("*.a.test", String::new()));
        let describe = |code, tsig_error| describe_failure(&settings, &zone, &record, (code, tsig_error));
        assert!(describe(ResponseCode::NoError, None).is_none());
        for (code, tsig_error, words) in [
            (ResponseCode::NotAuth, Some(TsigError::BadKey), ["BADKEY", "`key` and `algorithm`"]),
            (ResponseCode::NotAuth, Some(TsigError::BadSig), ["BADSIG", "`secret`"]),
            (ResponseCode::NotAuth, Some(TsigError::BadTime), ["BADTIME", "clocks"]),
            (ResponseCode::NoError, Some(TsigError::Unknown(99)), ["rejected the signature", "`secret`"]),
            (ResponseCode::Refused, None, ["change _acme-challenge.a.test. (REFUSED)", "let the key acme. change TXT"]),
            (ResponseCode::NotAuth, None, ["(NOTAUTH)", "primary server"]),
            (ResponseCode::NotZone, None, ["(NOTZONE)", "`zone`"]),
            (ResponseCode::NotImp, None, ["(NOTIMP)", "`dns_program`"]),
            (ResponseCode::ServFail, None, ["did not change", "log of the name server"]),
        ] {
            let fault = describe(code, tsig_error).unwrap();
            assert!(
                fault.to_string().contains(words[0]) && fault.remedy.contains(words[1]),
                "{fault}; {}",
                fault.remedy
            );
        }
    }
}
