//! One certificate, from the order to the chain (RFC 8555). Called by the manager under the lock of the state
//! directory.

use std::net::IpAddr;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error, Identifier, Key, NewOrder, Order,
    OrderStatus, Problem, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use tokio::time::sleep;

use crate::acme::client::{AcmeClient, RetryAfter};
use crate::acme::dns;
use crate::acme::dns::{DnsFault, DnsRecord};
use crate::acme::state::{StateDirectory, StateError, StateLock, StoredCertificate};
use crate::config::AcmeSettings;
use crate::net::host_address;
use crate::telemetry::metrics::OrderResult;
use crate::tls::{ChallengeKind, NamedKey};

/// Pause between writing a challenge and telling the server, which may query any gateway: all of them have read it by
/// then.
const SPREAD: Duration = Duration::from_millis(800);
/// Time limit for the server to validate, and then to issue.
const POLL: Duration = Duration::from_secs(90);
/// Factor by which the pauses between two queries of an order grow, from a quarter of a second, if the server states
/// none. With it, an order takes at most a third longer than the server does.
const POLL_BACKOFF: f32 = 1.3;
/// Maximum length of a server's message in the log and the state directory.
const SAID_MAX: usize = 400;
/// Maximum length of a token, which is used as a file name.
const TOKEN_MAX: usize = 128;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    #[error("the ACME server could not validate the challenge by {}: {detail}", kind.label())]
    Challenge { kind: ChallengeKind, detail: String },
    #[error(transparent)]
    Dns(#[from] DnsFault),
    #[error("the ACME server refused: {0}")]
    Refused(String),
    /// The server rejected several nonces in a row.
    #[error("the ACME server rejected the nonces of a request: {0}")]
    BadNonce(String),
    #[error("the ACME server cannot be reached: {0}")]
    Unreachable(String),
    #[error("the ACME server was not done in time")]
    Timeout,
    #[error(transparent)]
    State(#[from] StateError),
}

/// Everything needed to order.
pub struct OrderClient<'a> {
    pub settings: &'a AcmeSettings,
    pub state: &'a StateDirectory,
    pub lock: &'a StateLock,
    /// The certificate that the new one replaces, if the server has renewal information about it.
    pub replaces: Option<CertificateIdentifier<'static>>,
}

impl OrderError {
    pub fn result(&self) -> OrderResult {
        match self {
            OrderError::Challenge { .. } | OrderError::Dns(_) => OrderResult::ChallengeFailed,
            OrderError::Refused(_) | OrderError::BadNonce(_) => OrderResult::Refused,
            OrderError::Unreachable(_) => OrderResult::Unreachable,
            OrderError::Timeout => OrderResult::Timeout,
            OrderError::State(_) => OrderResult::NoState,
        }
    }

    pub fn remedy(&self, name: &str) -> String {
        match self {
            OrderError::Challenge { kind: ChallengeKind::TlsAlpn01, .. } => {
                format!("port 443 of {name} must reach a listener with `tls` of this gateway from the public internet")
            }
            OrderError::Challenge { kind: ChallengeKind::Http01, .. } => {
                format!(
                    "port 80 of {name} must reach a listener without `tls` of this gateway from the public internet"
                )
            }
            OrderError::Challenge { kind: ChallengeKind::Dns01, .. } => format!(
                "all servers of the zone of {name} must have the record within `dns_wait` after it was published"
            ),
            OrderError::Dns(fault) => fault.remedy.clone(),
            OrderError::Refused(_) => "the server's message says what to change".to_owned(),
            OrderError::Unreachable(_) => {
                "check `directory` in [acme], `ca` if the server is a private one, and the way there".to_owned()
            }
            OrderError::Timeout | OrderError::BadNonce(_) => "no action needed unless it persists".to_owned(),
            OrderError::State(_) => {
                "check that the gateway's user may write there and that the disk has space".to_owned()
            }
        }
    }
}

impl OrderClient<'_> {
    /// Returns the account of the key in the state directory, registering it if necessary.
    async fn load_account(&self, retry_after: RetryAfter) -> Result<Account, OrderError> {
        let der = self.state.account_key(self.lock)?;
        let key = Key::from_pkcs8_der(der.clone_key())?;
        let client = AcmeClient::new(self.settings, retry_after).map_err(OrderError::Unreachable)?;
        let builder = Account::builder_with_http(Box::new(client));
        let directory = self.settings.directory.clone();
        let (account, _) = builder.create_from_key((key, PrivateKeyDer::Pkcs8(der)), directory).await?;
        let contact: Vec<&str> = self.settings.contact.iter().map(String::as_str).collect();
        match account.update_contacts(&contact).await {
            // Certificates can be issued without contacts.
            Err(Error::Api(problem)) if !is_bad_nonce(&problem) => {
                tracing::warn!("the ACME server rejected `contact` of [acme]: {}", describe_problem(&problem));
            }
            other => other?,
        }
        Ok(account)
    }

    /// Orders a certificate for `name`, and registers the account first if there is none.
    pub async fn order_with_account(
        &self,
        account: &mut Option<Account>,
        retry_after: &RetryAfter,
        name: &str,
        kinds: &[ChallengeKind],
    ) -> Result<StoredCertificate, OrderError> {
        let current = match account.take() {
            Some(account) => account,
            None => self.load_account(retry_after.clone()).await?,
        };
        self.order_certificate(account.insert(current), name, kinds).await
    }

    /// Orders a certificate for `name` with a new key, trying these challenges in turn until the server validates one.
    async fn order_certificate(
        &self,
        account: &Account,
        name: &str,
        kinds: &[ChallengeKind],
    ) -> Result<StoredCertificate, OrderError> {
        let mut result = Err(OrderError::Refused("it has none of the challenges that are left".to_owned()));
        for kind in kinds {
            let mut record = None;
            result = self.order_with_challenge(account, name, *kind, &mut record).await;
            if let (Some(publisher), Some(record)) = (&self.settings.dns, &record) {
                dns::remove_record(publisher, record).await;
            }
            self.state.remove_challenges(self.lock)?;
            match &result {
                Err(fault @ (OrderError::Challenge { .. } | OrderError::Dns(_))) => tracing::info!(name, "{fault}"),
                _ => break,
            }
        }
        result
    }

    async fn order_with_challenge(
        &self,
        account: &Account,
        name: &str,
        kind: ChallengeKind,
        record: &mut Option<DnsRecord>,
    ) -> Result<StoredCertificate, OrderError> {
        let address = host_address(name);
        let identifiers = [address.map_or_else(|| Identifier::Dns(name.to_owned()), Identifier::Ip)];
        if let Some(profile) = &self.settings.profile {
            check_profile(account, profile)?;
        }
        let mut order = self.place_order(account, &identifiers).await?;
        self.publish_proof(&mut order, name, kind, record).await?;
        match order.poll_ready(&polling()).await {
            Ok(OrderStatus::Ready) => {}
            Err(Error::Api(problem)) if is_bad_nonce(&problem) => return Err(Error::Api(problem).into()),
            Ok(_) | Err(Error::Api(_)) => return Err(read_validation_error(&mut order, kind).await?),
            Err(error) => return Err(error.into()),
        }
        let key = KeyPair::generate().map_err(generation_error)?;
        let mut params = CertificateParams::new([subject_of(name)]).map_err(generation_error)?;
        params.distinguished_name = DistinguishedName::new();
        order.finalize_csr(params.serialize_request(&key).map_err(generation_error)?.der()).await?;
        let chain = order.poll_certificate(&polling()).await?;
        let pem = format!("{}{}", key.serialize_pem(), chain);
        let unusable = |what| OrderError::Refused(format!("the issued certificate cannot be used: {what}"));
        Ok(StoredCertificate { key: NamedKey::from_pem(&pem, name).map_err(unusable)?, pem })
    }

    /// Places an order that names the certificate to be replaced, which some servers exempt from their rate limits (RFC
    /// 9773, section 5), or one without it if the server does not accept that.
    async fn place_order(&self, account: &Account, identifiers: &[Identifier]) -> Result<Order, Error> {
        let request = || {
            let request = NewOrder::new(identifiers);
            match &self.settings.profile {
                Some(profile) => request.profile(profile),
                None => request,
            }
        };
        let Some(old) = &self.replaces else { return account.new_order(&request()).await };
        match account.new_order(&request().replaces(old.clone())).await {
            Err(Error::Api(problem)) if is_bad_nonce(&problem) || has_type(&problem, "rateLimited") => {
                Err(Error::Api(problem))
            }
            Err(error) => {
                tracing::info!(
                    "ordering without the renewed certificate, which the ACME server did not accept: {error}"
                );
                account.new_order(&request()).await
            }
            placed => placed,
        }
    }

    /// Publishes the proof to every gateway and asks the server to validate it.
    /// `record`: the DNS record that has been published, if there is one.
    async fn publish_proof(
        &self,
        order: &mut Order,
        name: &str,
        kind: ChallengeKind,
        record: &mut Option<DnsRecord>,
    ) -> Result<(), OrderError> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let challenge_type = match kind {
                ChallengeKind::TlsAlpn01 => ChallengeType::TlsAlpn01,
                ChallengeKind::Http01 => ChallengeType::Http01,
                ChallengeKind::Dns01 => ChallengeType::Dns01,
            };
            let Some(mut challenge) = authorization.challenge(challenge_type) else {
                return Err(OrderError::Challenge { kind, detail: "it does not offer it".to_owned() });
            };
            let proof = challenge.key_authorization();
            match kind {
                ChallengeKind::Dns01 => {
                    let Some(publisher) = &self.settings.dns else { continue };
                    let published =
                        dns::publish_record(publisher, record.insert(DnsRecord::of_challenge(name, proof.dns_value())));
                    if let Err(fault) = published.await {
                        // Then there is nothing to remove.
                        record.take_if(|_| fault.is_refusal);
                        return Err(fault.into());
                    }
                }
                ChallengeKind::Http01 if is_token(&challenge.token) => {
                    self.state.write_challenge(self.lock, kind, &challenge.token, proof.as_str())?;
                }
                ChallengeKind::Http01 => return Err(OrderError::Refused("its token is against RFC 8555".to_owned())),
                ChallengeKind::TlsAlpn01 => {
                    let pem = build_challenge_certificate(name, proof.digest().as_ref()).map_err(generation_error)?;
                    self.state.write_challenge(self.lock, kind, &server_name_of(name), &pem)?;
                }
            }
            sleep(SPREAD).await;
            challenge.set_ready().await.map_err(|error| match error {
                // Some servers validate at once and report the result here.
                Error::Api(problem) if !has_type(&problem, "rateLimited") && !is_bad_nonce(&problem) => {
                    OrderError::Challenge { kind, detail: describe_problem(&problem) }
                }
                error => error.into(),
            })?;
        }
        Ok(())
    }
}

/// Checks that the server offers a profile, so that the error names those that it does.
fn check_profile(account: &Account, profile: &str) -> Result<(), OrderError> {
    let offered: Vec<&str> = account.profiles().map(|offered| offered.name).collect();
    match offered.contains(&profile) {
        true => Ok(()),
        false if offered.is_empty() => Err(OrderError::Refused("it has no profiles: remove `profile`".to_owned())),
        false => {
            let offered = shorten_message(&offered.join(", "));
            Err(OrderError::Refused(format!("it has no profile {profile:?}, but {offered}")))
        }
    }
}

/// Returns how a certificate contains a name: addresses without the brackets of URLs.
fn subject_of(name: &str) -> String {
    host_address(name).map_or_else(|| name.to_owned(), |ip| ip.to_string())
}

/// Returns the server name in the handshake of tls-alpn-01. That for an address is its name in the reverse tree of DNS
/// (RFC 8738).
fn server_name_of(name: &str) -> String {
    match host_address(name) {
        None => name.to_owned(),
        Some(IpAddr::V4(ip)) => {
            let [a, b, c, d] = ip.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        Some(IpAddr::V6(ip)) => {
            let digits = ip.octets().into_iter().rev().flat_map(|byte| [byte & 0xf, byte >> 4]);
            digits.map(|digit| format!("{digit:x}.")).collect::<String>() + "ip6.arpa"
        }
    }
}

fn polling() -> RetryPolicy {
    RetryPolicy::default().backoff(POLL_BACKOFF).timeout(POLL)
}

/// Returns what the server reports about a failed validation.
async fn read_validation_error(order: &mut Order, kind: ChallengeKind) -> Result<OrderError, Error> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        let state = authorization.refresh().await?;
        if let Some(problem) = state.challenges.iter().find_map(|challenge| challenge.error.as_ref()) {
            return Ok(OrderError::Challenge { kind, detail: describe_problem(problem) });
        }
    }
    let problem = order.state().error.as_ref().map(describe_problem);
    Ok(OrderError::Refused(problem.unwrap_or_else(|| "the order has become invalid".to_owned())))
}

/// Returns certificate and key for the handshake of tls-alpn-01 (RFC 8737).
fn build_challenge_certificate(name: &str, digest: &[u8]) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::new([subject_of(name)])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    Ok(format!("{}{}", key.serialize_pem(), params.self_signed(&key)?.pem()))
}

/// Returns whether a problem has a type of RFC 8555, section 6.7. Some types mean that another challenge would fail in
/// the same way.
fn has_type(problem: &Problem, name: &str) -> bool {
    let kind = problem.r#type.as_deref().and_then(|kind| kind.strip_prefix("urn:ietf:params:acme:error:"));
    kind == Some(name)
}

fn is_bad_nonce(problem: &Problem) -> bool {
    has_type(problem, "badNonce")
}

fn is_token(token: &str) -> bool {
    matches!(token.len(), 1..=TOKEN_MAX) && token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
}

impl From<Error> for OrderError {
    fn from(error: Error) -> OrderError {
        match error {
            Error::Api(problem) if is_bad_nonce(&problem) => OrderError::BadNonce(describe_problem(&problem)),
            Error::Api(problem) => OrderError::Refused(describe_problem(&problem)),
            Error::Timeout(_) => OrderError::Timeout,
            Error::Unsupported(what) => OrderError::Refused(format!("it does not support {what}")),
            Error::Json(error) => OrderError::Unreachable(format!("the response is not ACME: {error}")),
            other => OrderError::Unreachable(shorten_message(&other.to_string())),
        }
    }
}

fn generation_error(error: rcgen::Error) -> OrderError {
    OrderError::Refused(format!("no request can be made for it: {error}"))
}

/// Formats a problem document.
fn describe_problem(problem: &Problem) -> String {
    let kind = problem.r#type.as_deref().and_then(|kind| kind.rsplit(':').next()).unwrap_or("no type");
    let status = problem.status.map(|status| format!("{status} ")).unwrap_or_default();
    let parts = problem.subproblems.iter().filter_map(|part| part.detail.as_deref());
    let details: Vec<&str> = problem.detail.as_deref().into_iter().chain(parts).collect();
    shorten_message(&format!("{status}{kind}: {}", details.join("; ")))
}

fn shorten_message(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SAID_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handshake_of_an_address_names_its_reverse() {
        for (name, asked) in [
            ("www.example.com", "www.example.com"),
            ("192.0.2.7", "7.2.0.192.in-addr.arpa"),
            ("[2001:db8::1]", "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"),
        ] {
            assert_eq!(server_name_of(name), asked);
        }
        assert_eq!(subject_of("[2001:db8::1]"), "2001:db8::1");
    }
}
