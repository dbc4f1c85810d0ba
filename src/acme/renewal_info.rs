//! Asks the ACME server when it wants a certificate to be renewed (ACME renewal information, RFC 9773), for example
//! early, because it is about to revoke it. The manager asks for one certificate at a time.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Method, Request};
use instant_acme::{BodyWrapper, CertificateIdentifier, HttpClient};
use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, Der};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::acme::client::AcmeClient;
use crate::config::AcmeSettings;

/// When to ask again, if the server states nothing else.
const ASK_AGAIN: Duration = Duration::from_secs(6 * 3600);
/// Bounds of the time that the server states.
const ASK_SOONEST: Duration = Duration::from_secs(60);
const ASK_LATEST: Duration = Duration::from_secs(86_400);

/// The server's advice about one certificate.
#[derive(Debug, PartialEq)]
pub struct RenewalAdvice {
    /// Start and end of the suggested window in seconds of Unix time. `None` if the server has no such information.
    pub window: Option<(i64, i64)>,
    pub ask_again: Duration,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Directory {
    renewal_info: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RenewalInfo {
    suggested_window: SuggestedWindow,
    #[serde(rename = "explanationURL")]
    explanation_url: Option<String>,
}

/// Times of RFC 3339.
#[derive(Deserialize)]
struct SuggestedWindow {
    start: String,
    end: String,
}

impl SuggestedWindow {
    /// Returns the times in seconds of Unix time.
    fn to_seconds(&self) -> Result<(i64, i64), jiff::Error> {
        let [start, end] = [&self.start, &self.end].map(|time| time.parse::<Timestamp>());
        Ok((start?.as_second(), end?.as_second()))
    }
}

/// Returns how the server identifies a certificate. `None` if it has no identifier of its authority.
pub fn identify(certificate: &CertificateDer) -> Option<CertificateIdentifier<'static>> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let authority = certificate.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(authority) => authority.key_identifier.as_ref(),
        _ => None,
    })?;
    let serial = certificate.raw_serial();
    Some(CertificateIdentifier::new(Der::from_slice(authority.0), Der::from_slice(serial)).into_owned())
}

/// Asks the server about a certificate. The error says why there is no response.
pub async fn fetch_advice(
    settings: &AcmeSettings,
    name: &str,
    id: &CertificateIdentifier<'_>,
) -> Result<RenewalAdvice, String> {
    let client = AcmeClient::new(settings, Arc::new(AtomicU64::new(0)))?;
    let (directory, _): (Directory, _) = fetch_json(&client, &settings.directory).await?;
    let Some(base) = directory.renewal_info else { return Ok(RenewalAdvice { window: None, ask_again: ASK_LATEST }) };
    let (info, ask_again): (RenewalInfo, _) =
        fetch_json(&client, &format!("{}/{id}", base.trim_end_matches('/'))).await?;
    let window = info.suggested_window.to_seconds().map_err(|error| format!("its window is not valid: {error}"))?;
    if let Some(explanation) = info.explanation_url {
        let explanation: String = explanation.chars().filter(|c| !c.is_control()).take(200).collect();
        tracing::info!(name, explanation, "the ACME server explains its renewal window");
    }
    Ok(RenewalAdvice { window: Some(window), ask_again: ask_again.unwrap_or(ASK_AGAIN).clamp(ASK_SOONEST, ASK_LATEST) })
}

/// Fetches a JSON document. Returns it with the time after which the server wants to be asked again.
async fn fetch_json<T: DeserializeOwned>(client: &AcmeClient, url: &str) -> Result<(T, Option<Duration>), String> {
    let request = Request::builder().method(Method::GET).uri(url).body(BodyWrapper::default());
    let request = request.map_err(|error| format!("`{url}`: {error}"))?;
    let mut response = client.request(request).await.map_err(|error| error.to_string())?;
    let status = response.parts.status;
    if !status.is_success() {
        return Err(format!("`{url}`: it answered {status}"));
    }
    let again = response.parts.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let body = response.body.into_bytes().await.map_err(|error| error.to_string())?;
    let document =
        serde_json::from_slice(&body).map_err(|error| format!("`{url}`: the response is not ACME: {error}"))?;
    Ok((document, again.map(Duration::from_secs)))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, Issuer, KeyPair, SerialNumber};

    use super::*;

    #[test]
    fn a_certificate_is_identified_by_its_authority_and_serial_number() {
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::new(CertificateParams::default(), key);
        let own = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["a.test".to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from_slice(&[0x87, 0x65, 0x43, 0x21]));
        assert_eq!(identify(params.self_signed(&own).unwrap().der()), None);
        params.use_authority_key_identifier_extension = true;
        let id = identify(params.signed_by(&own, &issuer).unwrap().der()).unwrap().to_string();
        // The example of RFC 9773, section 4.1, has this serial number, too.
        assert!(id.ends_with(".AIdlQyE"), "{id}");
        assert_eq!(identify(&CertificateDer::from_slice(b"x")), None);
    }

    #[test]
    fn documents_are_read() {
        let text = r#"{"suggestedWindow": {"start": "2026-01-02T04:00:00Z", "end": "2026-01-03T04:00:00+01:00"}}"#;
        let info: RenewalInfo = serde_json::from_str(text).unwrap();
        assert_eq!(info.suggested_window.to_seconds().unwrap(), (1_767_326_400, 1_767_409_200));
        for (start, end) in
            [("soon", "2026-01-03T04:00:00Z"), ("2026-01-03T04:00:00Z", ""), ("2026-01-03", "2026-01-04")]
        {
            let window = SuggestedWindow { start: start.to_owned(), end: end.to_owned() };
            assert!(window.to_seconds().is_err(), "{start} {end}");
        }
    }
}
