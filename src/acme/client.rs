//! HTTPS client for the ACME server. Every request has a deadline, every response a maximum size, and `Retry-After` is
//! remembered.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{RETRY_AFTER, USER_AGENT};
use http::{Request, Response};
use http_body_util::{BodyExt, Limited};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use tokio::time::timeout;

use crate::config::AcmeSettings;
use crate::https_client::{HttpsClient, OWN_USER_AGENT, Schemes, build_client, join_causes};

/// Time limit of a request including its response.
const REQUEST: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum size of a response in bytes; a chain has a few kilobytes.
const ANSWER_MAX: usize = 256 * 1024;
/// Longer waits are ignored.
const RETRY_AFTER_MAX_S: u64 = 86_400;

/// Number of seconds that the server has asked us to wait.
pub type RetryAfter = Arc<AtomicU64>;

pub struct AcmeClient {
    client: HttpsClient<BodyWrapper<Bytes>>,
    retry_after: RetryAfter,
}

/// Why there is no usable response.
#[derive(Debug, thiserror::Error)]
enum AcmeClientError {
    #[error("no response within {REQUEST:?}")]
    Timeout,
    #[error("{}", join_causes(.0.as_ref()))]
    Failed(Box<dyn StdError + Send + Sync>),
    #[error("it answered {0}")]
    Status(http::StatusCode),
}

impl AcmeClient {
    /// Creates a client.
    ///
    /// # Errors
    /// What is wrong with the CAs.
    pub fn new(settings: &AcmeSettings, retry_after: RetryAfter) -> Result<AcmeClient, String> {
        let client = build_client(settings.ca.as_deref(), Schemes::Https, CONNECT)?;
        Ok(AcmeClient { client, retry_after })
    }
}

impl HttpClient for AcmeClient {
    fn request(
        &self,
        mut request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        request.headers_mut().insert(USER_AGENT, OWN_USER_AGENT);
        let (answer, retry_after) = (self.client.request(request), self.retry_after.clone());
        let whole = async move {
            let (mut parts, body) = answer.await.map_err(|error| AcmeClientError::Failed(error.into()))?.into_parts();
            let seconds = parts.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
            if let Some(seconds) = seconds.filter(|_| !parts.status.is_success()) {
                retry_after.fetch_max(RETRY_AFTER_MAX_S.min(seconds), Ordering::Relaxed);
            }
            // The value is added to a time, which must not overflow.
            if seconds.is_some_and(|seconds| seconds > RETRY_AFTER_MAX_S) {
                parts.headers.remove(RETRY_AFTER);
            }
            let bytes = Limited::new(body, ANSWER_MAX).collect().await.map_err(AcmeClientError::Failed)?.to_bytes();
            // A response that is not a problem document comes from something in front of the ACME server.
            if !parts.status.is_success() && serde_json::from_slice::<serde_json::Map<_, _>>(&bytes).is_err() {
                return Err(AcmeClientError::Status(parts.status));
            }
            Ok(Response::from_parts(parts, bytes))
        };
        Box::pin(async move {
            let answer = timeout(REQUEST, whole).await.unwrap_or(Err(AcmeClientError::Timeout));
            let (parts, bytes) = answer.map_err(|error| Error::Other(Box::new(error)))?.into_parts();
            Ok(BytesResponse { parts, body: Box::new(bytes) })
        })
    }
}
