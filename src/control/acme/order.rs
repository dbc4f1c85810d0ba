//! One certificate, from the order to the chain (RFC 8555). Called by the clerk, under the lock of the state
//! directory, off the path of requests.

use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, Identifier, Key, NewOrder, Order, OrderStatus, Problem,
    RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use tokio::time::sleep;

use super::client::{AcmeClient, RetryAfter};
use super::state::{KeptCertificate, StateDirectory, StateFault, StateLock};
use crate::config::AcmeSettings;
use crate::metrics::OrderResult;
use crate::tls::{ChallengeKind, NamedKey};

/// From a challenge being in the state directory to the server being told: every gateway has seen it then,
/// for the server may ask any of them.
const SPREAD: Duration = Duration::from_millis(800);
/// For the server to look for its proof, and then to issue.
const POLL: Duration = Duration::from_secs(90);
/// Of what a server says, in the log and in the state directory.
const SAID_MAX: usize = 400;
/// Tokens are file names here.
const TOKEN_MAX: usize = 128;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum OrderFault {
    #[error("the ACME server did not get its proof by {}: {said}", kind.label())]
    Challenge { kind: ChallengeKind, said: String },
    #[error("the ACME server refused: {0}")]
    Refused(String),
    #[error("the ACME server cannot be asked: {0}")]
    Unreachable(String),
    #[error("the ACME server was not done in time")]
    Timeout,
    #[error(transparent)]
    State(#[from] StateFault),
}

/// What is needed to order.
pub struct Customer<'a> {
    pub settings: &'a AcmeSettings,
    pub state: &'a StateDirectory,
    pub lock: &'a StateLock,
}

impl OrderFault {
    pub fn result(&self) -> OrderResult {
        match self {
            OrderFault::Challenge { .. } => OrderResult::ChallengeFailed,
            OrderFault::Refused(_) => OrderResult::Refused,
            OrderFault::Unreachable(_) => OrderResult::Unreachable,
            OrderFault::Timeout => OrderResult::Timeout,
            OrderFault::State(_) => OrderResult::NoState,
        }
    }

    pub fn remedy(&self, name: &str) -> String {
        match self {
            OrderFault::Challenge { kind: ChallengeKind::TlsAlpn01, .. } => {
                format!("port 443 of {name} must lead, for anybody, to a listener with `tls` of this gateway")
            }
            OrderFault::Challenge { kind: ChallengeKind::Http01, .. } => {
                format!("port 80 of {name} must lead, for anybody, to a listener without `tls` of this gateway")
            }
            OrderFault::Refused(_) => "its words say what to change".to_owned(),
            OrderFault::Unreachable(_) => {
                "check `directory` in [acme], `ca` if the server is a private one, and the way there".to_owned()
            }
            OrderFault::Timeout => "nothing, unless it goes on".to_owned(),
            OrderFault::State(_) => {
                "see that the user of the gateway may write there, and that there is room".to_owned()
            }
        }
    }
}

impl Customer<'_> {
    /// The account that belongs to the key in the state directory, registered if need be.
    pub async fn account(&self, retry_after: RetryAfter) -> Result<Account, OrderFault> {
        let der = self.state.account_key(self.lock)?;
        let key = Key::from_pkcs8_der(der.clone_key())?;
        let client = AcmeClient::new(self.settings, retry_after).map_err(OrderFault::Unreachable)?;
        let builder = Account::builder_with_http(Box::new(client));
        let directory = self.settings.directory.clone();
        let (account, _) = builder.create_from_key((key, PrivateKeyDer::Pkcs8(der)), directory).await?;
        let contact: Vec<&str> = self.settings.contact.iter().map(String::as_str).collect();
        match account.update_contacts(&contact).await {
            // Certificates come without.
            Err(Error::Api(problem)) => {
                tracing::warn!("the ACME server does not take `contact` of [acme]: {}", said(&problem));
            }
            other => other?,
        }
        Ok(account)
    }

    /// A certificate for `name` with a new key, proved in one of these ways: the next is taken when the server
    /// does not get its proof by one.
    pub async fn order(
        &self,
        account: &Account,
        name: &str,
        kinds: &[ChallengeKind],
    ) -> Result<KeptCertificate, OrderFault> {
        let mut result = Err(OrderFault::Refused("it has none of the challenges that are left".to_owned()));
        for kind in kinds {
            result = self.order_by(account, name, *kind).await;
            self.state.clear_challenges(self.lock)?;
            match &result {
                Err(fault @ OrderFault::Challenge { .. }) => tracing::info!(name, "{fault}"),
                _ => break,
            }
        }
        result
    }

    async fn order_by(
        &self,
        account: &Account,
        name: &str,
        kind: ChallengeKind,
    ) -> Result<KeptCertificate, OrderFault> {
        let identifiers = [Identifier::Dns(name.to_owned())];
        let mut order = account.new_order(&NewOrder::new(&identifiers)).await?;
        self.prove(&mut order, name, kind).await?;
        match order.poll_ready(&RetryPolicy::default().timeout(POLL)).await {
            Ok(OrderStatus::Ready) => {}
            Ok(_) | Err(Error::Api(_)) => return Err(unproved(&mut order, kind).await?),
            Err(error) => return Err(error.into()),
        }
        let key = KeyPair::generate().map_err(unmade)?;
        let mut params = CertificateParams::new([name.to_owned()]).map_err(unmade)?;
        params.distinguished_name = DistinguishedName::new();
        order.finalize_csr(params.serialize_request(&key).map_err(unmade)?.der()).await?;
        let chain = order.poll_certificate(&RetryPolicy::default().timeout(POLL)).await?;
        let pem = format!("{}{}", key.serialize_pem(), chain);
        let unusable = |what| OrderFault::Refused(format!("what it issued cannot be used: {what}"));
        Ok(KeptCertificate { key: NamedKey::of_pem(&pem, name).map_err(unusable)?, pem })
    }

    /// Puts the proof where every gateway finds it, and has the server look.
    async fn prove(&self, order: &mut Order, name: &str, kind: ChallengeKind) -> Result<(), OrderFault> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let asked = match kind {
                ChallengeKind::TlsAlpn01 => ChallengeType::TlsAlpn01,
                ChallengeKind::Http01 => ChallengeType::Http01,
            };
            let Some(mut challenge) = authorization.challenge(asked) else {
                return Err(OrderFault::Challenge { kind, said: "it does not offer it".to_owned() });
            };
            let proof = challenge.key_authorization();
            match kind {
                ChallengeKind::Http01 if is_token(&challenge.token) => {
                    self.state.put_challenge(self.lock, kind, &challenge.token, proof.as_str())?;
                }
                ChallengeKind::Http01 => return Err(OrderFault::Refused("its token is against RFC 8555".to_owned())),
                ChallengeKind::TlsAlpn01 => {
                    let pem = proving_certificate(name, proof.digest().as_ref()).map_err(unmade)?;
                    self.state.put_challenge(self.lock, kind, name, &pem)?;
                }
            }
            sleep(SPREAD).await;
            challenge.set_ready().await.map_err(|error| match error {
                // Some servers look at once, and say here what they found.
                Error::Api(problem) if !is_rate_limit(&problem) => OrderFault::Challenge { kind, said: said(&problem) },
                error => error.into(),
            })?;
        }
        Ok(())
    }
}

/// What the server says of a proof that it did not get.
async fn unproved(order: &mut Order, kind: ChallengeKind) -> Result<OrderFault, Error> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        let state = authorization.refresh().await?;
        if let Some(problem) = state.challenges.iter().find_map(|challenge| challenge.error.as_ref()) {
            return Ok(OrderFault::Challenge { kind, said: said(problem) });
        }
    }
    let problem = order.state().error.as_ref().map(said);
    Ok(OrderFault::Refused(problem.unwrap_or_else(|| "the order has become invalid".to_owned())))
}

/// The certificate and key to be shown in a handshake (RFC 8737).
fn proving_certificate(name: &str, digest: &[u8]) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    Ok(format!("{}{}", key.serialize_pem(), params.self_signed(&key)?.pem()))
}

/// There would be no more luck with another challenge.
fn is_rate_limit(problem: &Problem) -> bool {
    problem.r#type.as_deref().is_some_and(|kind| kind.ends_with(":rateLimited"))
}

fn is_token(token: &str) -> bool {
    matches!(token.len(), 1..=TOKEN_MAX) && token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
}

impl From<Error> for OrderFault {
    fn from(error: Error) -> OrderFault {
        match error {
            Error::Api(problem) => OrderFault::Refused(said(&problem)),
            Error::Timeout(_) => OrderFault::Timeout,
            Error::Json(error) => OrderFault::Unreachable(format!("what it answered is not ACME: {error}")),
            other => OrderFault::Unreachable(shortened(&other.to_string())),
        }
    }
}

fn unmade(error: rcgen::Error) -> OrderFault {
    OrderFault::Refused(format!("no request can be made for it: {error}"))
}

/// A problem document in its own words.
fn said(problem: &Problem) -> String {
    let kind = problem.r#type.as_deref().and_then(|kind| kind.rsplit(':').next()).unwrap_or("no type");
    let status = problem.status.map(|status| format!("{status} ")).unwrap_or_default();
    let parts = problem.subproblems.iter().filter_map(|part| part.detail.as_deref());
    let details: Vec<&str> = problem.detail.as_deref().into_iter().chain(parts).collect();
    shortened(&format!("{status}{kind}: {}", details.join("; ")))
}

fn shortened(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SAID_MAX).collect()
}
