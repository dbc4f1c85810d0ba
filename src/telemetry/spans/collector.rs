//! HTTP client for an OpenTelemetry collector: HTTP/1.1 with one connection per batch, over TLS if the URL says
//! `https`. Called by the exporter of the OpenTelemetry library.

use std::pin::Pin;
use std::sync::Arc;
use std::{fmt, io};

use bytes::Bytes;
use http::header::HOST;
use http::uri::Scheme;
use http::{HeaderName, HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::telemetry::spans::SpanSettings;
use crate::tls::trust::{Trust, TrustedRoots};

pub struct CollectorClient {
    /// `None` if the collector is plain HTTP.
    tls: Option<Arc<ClientConfig>>,
    /// Headers from the config. They override what the library reads from its environment.
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Maximum number of bytes read of a collector's response.
const RESPONSE_MAX: usize = 64 * 1024;

type Sent<'t> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 't>>;

impl CollectorClient {
    /// Creates a client.
    ///
    /// # Errors
    /// TLS cannot be used.
    pub fn new(settings: &SpanSettings) -> io::Result<CollectorClient> {
        let headers = settings.headers.clone();
        if !settings.to.starts_with("https:") {
            return Ok(CollectorClient { tls: None, headers });
        }
        let roots = TrustedRoots::from_system(rustls_native_certs::load_native_certs().certs);
        let config = Trust::Roots(roots).into_client().map_err(io::Error::other)?.with_no_client_auth();
        Ok(CollectorClient { tls: Some(Arc::new(config)), headers })
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (mut parts, body) = request.into_parts();
        let host = parts.uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let secure = parts.uri.scheme() == Some(&Scheme::HTTPS);
        let port = parts.uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        for (name, _) in &self.headers {
            parts.headers.remove(name);
        }
        parts.headers.extend(self.headers.iter().cloned());
        if let Some(authority) = parts.uri.authority() {
            parts.headers.insert(HOST, HeaderValue::from_str(authority.as_str())?);
        }
        parts.uri = parts.uri.path_and_query().map_or_else(Uri::default, |path| path.clone().into());
        let request = Request::from_parts(parts, Full::new(body));
        match self.tls.as_ref().filter(|_| secure) {
            Some(tls) => {
                let name = ServerName::try_from(host)?;
                exchange(TlsConnector::from(tls.clone()).connect(name, stream).await?, request).await
            }
            None => exchange(stream, request).await,
        }
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, HttpError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let response = async move {
        let (parts, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, RESPONSE_MAX).collect().await?.to_bytes();
        Ok(Response::from_parts(parts, body))
    };
    // The connection ends together with its response, because nothing would drive it between two batches.
    let (response, _) = tokio::join!(response, connection);
    response
}

impl HttpClient for CollectorClient {
    fn send_bytes<'c, 't>(&'c self, request: Request<Bytes>) -> Sent<'t>
    where
        'c: 't,
        Self: 't,
    {
        Box::pin(self.send(request))
    }
}

impl fmt::Debug for CollectorClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectorClient").finish_non_exhaustive()
    }
}
