//! HTTPS client of the gateway itself, for ACME servers and issuers of tokens. Its users bound each request in time and
//! each response in size.

use std::error::Error;
use std::time::Duration;

use http::HeaderValue;
use hyper::body::Body;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::tls::trust::Trust;

/// A client for requests with bodies of one type. It keeps one idle connection for each host.
pub type HttpsClient<B> = Client<HttpsConnector<HttpConnector>, B>;

/// The `User-Agent` of these requests. ACME servers may refuse requests without it (RFC 8555, section 6.1).
pub const OWN_USER_AGENT: HeaderValue = HeaderValue::from_static(concat!("sluicegate/", env!("CARGO_PKG_VERSION")));

/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(10);

/// Which URLs a client may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schemes {
    Https,
    HttpsOrHttp,
}

/// Creates a client that trusts the CAs in PEM, or the CAs of the system. It connects within `connect`.
///
/// # Errors
/// What is wrong with the CAs.
pub fn build_client<B>(ca: Option<&str>, schemes: Schemes, connect: Duration) -> Result<HttpsClient<B>, String>
where
    B: Body + Send,
    B::Data: Send,
{
    let tls = Trust::in_pem_or_system(ca)?.into_client()?.with_no_client_auth();
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(Some(connect));
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
    let builder = match schemes {
        Schemes::Https => builder.https_only(),
        Schemes::HttpsOrHttp => builder.https_or_http(),
    };
    let connector = builder.enable_http1().wrap_connector(http);
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(1)
        .build(connector))
}

/// Joins an error with its causes: the outermost message says least.
pub fn join_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}
