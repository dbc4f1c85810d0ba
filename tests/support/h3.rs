//! An HTTP/3 client that sends what the test wants, over the QUIC of another library.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, RecvStream, SendStream, TransportConfig, VarInt};
use rustls::ClientConfig as TlsConfig;
use rustls::crypto::aws_lc_rs;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::WAIT_MAX;
use super::ca::{Ca, Pair};
use super::tls;

#[path = "../../src/proxy/server/http3/qpack/static_table.rs"]
mod static_table;

pub const DATA: u64 = 0;
pub const HEADERS: u64 = 1;
pub const SETTINGS: u64 = 4;
pub const GOAWAY: u64 = 7;

/// The certificate that the client trusts, and what it is.
pub struct H3Options<'a> {
    pub ca: &'a Ca,
    pub own: Option<&'a Pair>,
    pub protocol: &'a str,
    /// Address that the client binds.
    pub source: &'a str,
    /// Bytes that the client accepts of one stream before it reads.
    pub stream_window: u32,
    /// The same of all streams.
    pub window: u32,
    /// How often the client pings.
    pub pings: Option<Duration>,
}

impl<'a> H3Options<'a> {
    pub fn trusting(ca: &'a Ca) -> H3Options<'a> {
        let (stream_window, window) = (1_250_000, 1 << 30);
        H3Options { ca, own: None, protocol: "h3", source: "127.0.0.1:0", stream_window, window, pings: None }
    }
}

/// One connection.
pub struct H3Client {
    pub connection: Connection,
    pub endpoint: Endpoint,
    pub runtime: Runtime,
    _control: Option<SendStream>,
}

/// A request stream.
pub struct Exchange<'a> {
    pub client: &'a H3Client,
    pub send: SendStream,
    pub receive: RecvStream,
}

#[derive(Debug)]
pub struct H3Response {
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

impl H3Response {
    pub fn get(&self, name: &str) -> Option<&str> {
        find(&self.fields, name)
    }

    pub fn status(&self) -> u16 {
        self.get(":status").unwrap().parse().unwrap()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub fn find<'f>(fields: &'f [(String, String)], name: &str) -> Option<&'f str> {
    fields.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
}

impl H3Client {
    /// Connects and sends SETTINGS.
    pub fn connect(addr: SocketAddr, ca: &Ca) -> H3Client {
        H3Client::with(addr, &H3Options::trusting(ca)).expect("the gateway accepts the connection")
    }

    pub fn with(addr: SocketAddr, options: &H3Options<'_>) -> Result<H3Client, ConnectionError> {
        let mut client = H3Client::raw(addr, options)?;
        let control = client.runtime.block_on(async {
            let mut stream = client.connection.open_uni().await?;
            let _ = stream.write_all(&[&[0][..], &frame(SETTINGS, b"")].concat()).await;
            Ok::<_, ConnectionError>(stream)
        })?;
        client._control = Some(control);
        Ok(client)
    }

    /// Connects and sends nothing on any stream.
    pub fn raw(addr: SocketAddr, options: &H3Options<'_>) -> Result<H3Client, ConnectionError> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let config = client_config(options);
        let (endpoint, connection) = runtime.block_on(async {
            let endpoint = Endpoint::client(options.source.parse().unwrap()).unwrap();
            let connecting = endpoint.connect_with(config, addr, "a.test").unwrap();
            timeout(WAIT_MAX, connecting).await.expect("the handshake ends").map(|connection| (endpoint, connection))
        })?;
        Ok(H3Client { connection, endpoint, runtime, _control: None })
    }

    /// Opens a unidirectional stream that begins with `bytes`.
    pub fn open_uni(&self, bytes: &[u8]) -> SendStream {
        self.runtime.block_on(async {
            let mut stream = self.connection.open_uni().await.unwrap();
            let _ = stream.write_all(bytes).await;
            stream
        })
    }

    /// Opens a request stream that begins with `bytes`.
    pub fn open(&self, bytes: &[u8]) -> Exchange<'_> {
        let (send, receive) = self.runtime.block_on(async {
            let (mut send, receive) = timeout(WAIT_MAX, self.connection.open_bi()).await.unwrap().unwrap();
            let _ = send.write_all(bytes).await;
            (send, receive)
        });
        Exchange { client: self, send, receive }
    }

    /// Sends a request, and reads its response.
    pub fn try_fetch(&self, fields: &[(&str, &str)], body: &[u8]) -> Result<H3Response, String> {
        let body = if body.is_empty() { Vec::new() } else { frame(DATA, body) };
        let mut exchange = self.open(&head(fields));
        exchange.write(&body);
        exchange.finish();
        exchange.response()
    }

    #[track_caller]
    pub fn fetch(&self, fields: &[(&str, &str)], body: &[u8]) -> H3Response {
        self.try_fetch(fields, body).unwrap()
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> H3Response {
        self.fetch(&get(path), b"")
    }

    /// Waits for the end of the connection. Returns its application error code.
    #[track_caller]
    pub fn close_code(&self) -> u64 {
        let reason = self.runtime.block_on(async { timeout(WAIT_MAX, self.connection.closed()).await });
        match reason.expect("the gateway closes the connection") {
            ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
            reason => panic!("the connection ends otherwise: {reason}"),
        }
    }

    /// Reads the next unidirectional stream of the gateway until the connection ends.
    pub fn read_uni(&self) -> Vec<u8> {
        self.runtime.block_on(async {
            let mut stream = timeout(WAIT_MAX, self.connection.accept_uni()).await.unwrap().unwrap();
            let mut bytes = Vec::new();
            while let Ok(Some(chunk)) = timeout(WAIT_MAX, stream.read_chunk(1000, true)).await.unwrap() {
                bytes.extend_from_slice(&chunk.bytes);
            }
            bytes
        })
    }

    /// Reads the settings that the gateway announces at the beginning of its control stream. The connection ends once the
    /// stream is dropped.
    pub fn read_settings(&self) -> (Vec<(u64, u64)>, RecvStream) {
        let (payload, stream) = self.runtime.block_on(async {
            let mut stream = timeout(WAIT_MAX, self.connection.accept_uni()).await.unwrap().unwrap();
            let mut start = [0; 3];
            stream.read_exact(&mut start).await.unwrap();
            assert_eq!((start[0], u64::from(start[1])), (0, SETTINGS));
            let mut payload = vec![0; usize::from(start[2])];
            stream.read_exact(&mut payload).await.unwrap();
            (payload, stream)
        });
        let (mut rest, mut settings) = (&payload[..], Vec::new());
        while !rest.is_empty() {
            settings.push((read_varint(&mut rest), read_varint(&mut rest)));
        }
        (settings, stream)
    }

    /// Goes on with another port of the local address `ip`.
    pub fn rebind(&self, ip: [u8; 4]) {
        let _guard = self.runtime.enter();
        self.endpoint.rebind(UdpSocket::bind((Ipv4Addr::from(ip), 0)).unwrap()).unwrap();
    }

    pub fn wait(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }
}

pub fn client_config(options: &H3Options<'_>) -> ClientConfig {
    let builder = TlsConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(tls::root_store(&options.ca.pem()));
    let mut tls = match options.own {
        Some(own) => builder.with_client_auth_cert(own.chain(), own.private_key()).unwrap(),
        None => builder.with_no_client_auth(),
    };
    tls.alpn_protocols = vec![options.protocol.into()];
    tls.enable_early_data = true;
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(options.stream_window))
        .receive_window(VarInt::from_u32(options.window))
        .keep_alive_interval(options.pings);
    config.transport_config(Arc::new(transport));
    config
}

impl Exchange<'_> {
    pub fn write(&mut self, bytes: &[u8]) {
        let _ = self.client.runtime.block_on(async { timeout(WAIT_MAX, self.send.write_all(bytes)).await });
    }

    pub fn finish(&mut self) {
        let _ = self.send.finish();
    }

    /// Reads so many bytes of the response.
    #[track_caller]
    pub fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let read = async { timeout(WAIT_MAX, self.receive.read_exact(&mut bytes)).await };
        self.client.runtime.block_on(read).expect("bytes of the response").unwrap();
        bytes
    }

    /// Reads what is left of the response. The error names the code with which the stream or the connection ended.
    pub fn rest(&mut self) -> Result<Vec<u8>, String> {
        let all = self.client.runtime.block_on(async { timeout(WAIT_MAX, self.receive.read_to_end(usize::MAX)).await });
        all.map_err(|_| "no end".to_owned())?.map_err(|error| format!("{error:?}"))
    }

    /// Reads the response to its end. The error names the code with which the stream or the connection ended.
    pub fn response(&mut self) -> Result<H3Response, String> {
        self.rest().map(|bytes| read_response(&bytes))
    }

    /// Waits until the gateway resets the response. Returns its code.
    #[track_caller]
    pub fn reset_code(&mut self) -> u64 {
        let all = self.client.runtime.block_on(async { timeout(WAIT_MAX, self.receive.read_to_end(usize::MAX)).await });
        match all.expect("the gateway resets the stream") {
            Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(code))) => code.into_inner(),
            result => panic!("the stream ends otherwise: {result:?}"),
        }
    }

    /// Waits until the gateway wants no more of the request. Returns its code.
    #[track_caller]
    pub fn stop_code(&mut self) -> u64 {
        let stopped = self.client.runtime.block_on(async { timeout(WAIT_MAX, self.send.stopped()).await });
        stopped.unwrap().unwrap().expect("the gateway stops the stream").into_inner()
    }
}

pub fn varint(value: u64) -> Vec<u8> {
    match value {
        0..=0x3f => vec![value as u8],
        0x40..=0x3fff => (value as u16 | 0x4000).to_be_bytes().to_vec(),
        0x4000..=0x3fff_ffff => (value as u32 | 0x8000_0000).to_be_bytes().to_vec(),
        _ => (value | 0xc000_0000_0000_0000).to_be_bytes().to_vec(),
    }
}

pub fn read_varint(bytes: &mut &[u8]) -> u64 {
    let length = 1 << (bytes[0] >> 6);
    let (number, rest) = bytes.split_at(length);
    *bytes = rest;
    number[1..].iter().fold(u64::from(number[0] & 0x3f), |value, byte| value << 8 | u64::from(*byte))
}

pub fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    [&varint(kind)[..], &varint(payload.len() as u64), payload].concat()
}

/// Encodes fields as literals.
pub fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut section = vec![0, 0];
    for (name, value) in fields {
        integer(0x20, 3, name.len(), &mut section);
        section.extend(name.bytes());
        integer(0, 7, value.len(), &mut section);
        section.extend(value.bytes());
    }
    section
}

fn integer(mark: u8, bits: u8, value: usize, out: &mut Vec<u8>) {
    let most = (1_usize << bits) - 1;
    if value < most {
        return out.push(mark | value as u8);
    }
    out.push(mark | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(0x80 | (rest & 0x7f) as u8);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The HEADERS frame of a request.
pub fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, &section(fields))
}

pub fn get(path: &str) -> [(&str, &str); 4] {
    [(":method", "GET"), (":scheme", "https"), (":authority", "a.test"), (":path", path)]
}

pub fn read_response(mut bytes: &[u8]) -> H3Response {
    let mut response = H3Response { fields: Vec::new(), body: Vec::new(), trailers: Vec::new() };
    let mut heads = 0;
    while !bytes.is_empty() {
        let (kind, length) = (read_varint(&mut bytes), read_varint(&mut bytes));
        let (payload, rest) = bytes.split_at(length as usize);
        bytes = rest;
        match (kind, heads) {
            (DATA, 1) => response.body.extend_from_slice(payload),
            (HEADERS, 0) => response.fields = read_section(payload),
            (HEADERS, 1) => response.trailers = read_section(payload),
            other => panic!("an unexpected frame: {other:?}"),
        }
        heads += usize::from(kind == HEADERS);
    }
    response
}

/// Decodes what the gateway encodes: entries of the static table, and literals that are not compressed.
fn read_section(mut bytes: &[u8]) -> Vec<(String, String)> {
    assert_eq!(bytes[..2], [0, 0]);
    bytes = &bytes[2..];
    let mut fields = Vec::new();
    let string = |bytes: &mut &[u8], bits| {
        let length = read_integer(bytes, bits);
        let (text, rest) = bytes.split_at(length);
        *bytes = rest;
        String::from_utf8(text.to_vec()).unwrap()
    };
    while let Some(first) = bytes.first().copied() {
        let (name, value) = match first {
            0xc0.. => {
                let (name, value) = static_table::STATIC_TABLE[read_integer(&mut bytes, 6)];
                (name.to_owned(), value.to_owned())
            }
            0x50..=0x5f => {
                let (name, _) = static_table::STATIC_TABLE[read_integer(&mut bytes, 4)];
                (name.to_owned(), string(&mut bytes, 7))
            }
            0x20..=0x27 => (string(&mut bytes, 3), string(&mut bytes, 7)),
            _ => panic!("an unexpected instruction: {first:#x}"),
        };
        fields.push((name, value));
    }
    fields
}

fn read_integer(bytes: &mut &[u8], bits: u8) -> usize {
    let most = (1_usize << bits) - 1;
    let mut value = usize::from(bytes[0]) & most;
    *bytes = &bytes[1..];
    let mut shift = 0;
    while value >= most {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value += usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}
