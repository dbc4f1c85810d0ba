//! A TLS client whose handshake the test defines.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, SupportedProtocolVersion};

use super::WAIT_MAX;
use super::ca::{Ca, Pair};
use super::http::{Message, Reader, framing};

/// TLS settings of a client: roots, certificate and protocols. Stores sessions for resumption.
#[derive(Clone)]
pub struct Trust {
    config: Arc<ClientConfig>,
}

/// One connection after its handshake.
pub struct SecureClient {
    reader: Reader<StreamOwned<ClientConnection, TcpStream>>,
}

impl Trust {
    /// Trusts certificates of `ca`.
    pub fn in_ca(ca: &Ca) -> Trust {
        Trust::with(ca, None, rustls::ALL_VERSIONS)
    }

    /// Trusts certificates of the CA in this PEM text.
    pub fn in_pem(pem: &str) -> Trust {
        Trust::with_root(pem, None, rustls::ALL_VERSIONS)
    }

    /// Trusts `ca`, and presents a client certificate if there is one, in these versions of TLS.
    pub fn with(ca: &Ca, own: Option<&Pair>, versions: &[&'static SupportedProtocolVersion]) -> Trust {
        Trust::with_root(&ca.pem(), own, versions)
    }

    /// Trusts `ca`, and offers these key exchanges in this order.
    pub fn exchanging(ca: &Ca, groups: &[&'static dyn SupportedKxGroup]) -> Trust {
        let provider = CryptoProvider { kx_groups: groups.to_vec(), ..aws_lc_rs::default_provider() };
        let builder = ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions();
        let config = builder.unwrap().with_root_certificates(root_store(&ca.pem())).with_no_client_auth();
        Trust { config: Arc::new(config) }
    }

    fn with_root(pem: &str, own: Option<&Pair>, versions: &[&'static SupportedProtocolVersion]) -> Trust {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let builder = builder.with_root_certificates(root_store(pem));
        let config = match own {
            Some(pair) => builder.with_client_auth_cert(pair.chain(), pair.private_key()).unwrap(),
            None => builder.with_no_client_auth(),
        };
        Trust { config: Arc::new(config) }
    }

    /// Offers these protocols (ALPN).
    pub fn offering(&self, protocols: &[&str]) -> Trust {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Trust { config: Arc::new(config) }
    }

    /// Connects and verifies `name`, a host or an address. A handshake names a host only.
    #[track_caller]
    pub fn connect(&self, addr: SocketAddr, name: &str) -> SecureClient {
        self.try_connect(addr, name).unwrap_or_else(|error| panic!("no handshake with {name}: {error}"))
    }

    /// The client's side of a handshake whose bytes the test transfers.
    pub fn session(&self, name: &str) -> ClientConnection {
        ClientConnection::new(self.config.clone(), ServerName::try_from(name.to_owned()).unwrap()).unwrap()
    }

    pub fn try_connect(&self, addr: SocketAddr, name: &str) -> io::Result<SecureClient> {
        self.try_over(TcpStream::connect(addr)?, name)
    }

    /// Handshakes on an open connection.
    #[track_caller]
    pub fn over(&self, stream: TcpStream, name: &str) -> SecureClient {
        self.try_over(stream, name).unwrap_or_else(|error| panic!("no handshake with {name}: {error}"))
    }

    fn try_over(&self, stream: TcpStream, name: &str) -> io::Result<SecureClient> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        stream.set_write_timeout(Some(WAIT_MAX))?;
        let mut stream = StreamOwned::new(self.session(name), stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(SecureClient { reader: Reader::new(stream) })
    }
}

impl SecureClient {
    pub fn stream(&mut self) -> &mut StreamOwned<ClientConnection, TcpStream> {
        &mut self.reader.stream
    }

    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream().write_all(bytes.as_ref()).unwrap();
    }

    /// Sends a request and reads its response. The method is the first word of `head`.
    #[track_caller]
    pub fn fetch(&mut self, head: &str, body: impl AsRef<[u8]>) -> Message {
        self.try_fetch(head, body).unwrap_or_else(|error| panic!("no response: {error}"))
    }

    pub fn try_fetch(&mut self, head: &str, body: impl AsRef<[u8]>) -> io::Result<Message> {
        self.stream().write_all(&[head.as_bytes(), body.as_ref()].concat())?;
        self.try_read_response(head.split(' ').next().unwrap_or_default())
    }

    pub fn try_read_response(&mut self, method: &str) -> io::Result<Message> {
        let head = self.reader.head()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut message = Message { head, body: Vec::new() };
        message.body = self.reader.body(&framing(&message, Some(method)))?;
        Ok(message)
    }

    /// Waits until the gateway closes the connection with `close_notify`.
    #[track_caller]
    pub fn assert_closed(&mut self) {
        assert!(
            self.reader.ended().expect("the connection ends with close_notify"),
            "the gateway sent more bytes before it closed the connection"
        );
    }

    pub fn was_resumed(&mut self) -> bool {
        self.stream().conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The names in the server's certificate.
    pub fn server_names(&mut self) -> Vec<String> {
        let chain = self.stream().conn.peer_certificates().unwrap_or_default();
        chain.first().map(|own| dns_names(own)).unwrap_or_default()
    }

    pub fn alpn(&mut self) -> Option<String> {
        self.stream().conn.alpn_protocol().map(|protocol| String::from_utf8_lossy(protocol).into_owned())
    }
}

pub fn root_store(pem: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    roots
}

fn dns_names(der: &[u8]) -> Vec<String> {
    use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
    let (_, certificate) = X509Certificate::from_der(der).unwrap();
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    let dns = |name: &GeneralName| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(dns).collect()
}
