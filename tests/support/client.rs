//! An HTTP/1.1 client that sends exactly the bytes that a test gives it.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use super::WAIT_MAX;
use super::http::{Framing, Message, Reader, framing};

/// One connection to the gateway.
pub struct Client {
    reader: Reader<TcpStream>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Client {
        Client::from(Ipv4Addr::LOCALHOST, addr)
    }

    /// Connects from `source`, any address in 127.0.0.0/8, as a client with that address.
    pub fn from(source: Ipv4Addr, addr: SocketAddr) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(IpAddr::V4(source), 0).into()).unwrap();
        socket.connect(&addr.into()).unwrap();
        Client::of(TcpStream::from(socket))
    }

    /// Creates a client that uses an open connection.
    pub fn of(stream: TcpStream) -> Client {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
        Client { reader: Reader::new(stream) }
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.reader.stream
    }

    pub fn into_stream(self) -> TcpStream {
        self.reader.stream
    }

    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).unwrap();
    }

    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream().write_all(bytes.as_ref())
    }

    /// Sends a request and reads its response. The method is the first word of `head`.
    #[track_caller]
    pub fn fetch(&mut self, head: &str, body: impl AsRef<[u8]>) -> Message {
        self.send([head.as_bytes(), body.as_ref()].concat());
        self.read_response(head.split(' ').next().unwrap_or_default())
    }

    /// Reads the final response to a request with `method`. Fails on interim responses.
    #[track_caller]
    pub fn read_response(&mut self, method: &str) -> Message {
        let message = self.try_read_response(method).unwrap_or_else(|error| panic!("no response: {error}"));
        assert!(message.status() >= 200, "an interim response:\n{}", message.head);
        message
    }

    pub fn try_read_response(&mut self, method: &str) -> io::Result<Message> {
        let mut message = self.try_read_head()?;
        message.body = self.reader.body(&framing(&message, Some(method)))?;
        Ok(message)
    }

    /// Reads the head of a response.
    pub fn try_read_head(&mut self) -> io::Result<Message> {
        let head = self.reader.head()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(Message { head, body: Vec::new() })
    }

    /// Reads a response and passes its body to `sink` piece by piece.
    pub fn stream_response(&mut self, method: &str, sink: impl FnMut(&[u8])) -> io::Result<Message> {
        let message = self.try_read_head()?;
        self.reader.stream_body(&framing(&message, Some(method)), sink)?;
        Ok(message)
    }

    /// Reads the next `count` bytes.
    #[track_caller]
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        self.reader.body(&Framing::Length(count as u64)).unwrap_or_else(|error| panic!("not {count} bytes: {error}"))
    }

    /// Reads until the gateway closes the connection.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        self.reader.body(&Framing::Close)
    }

    /// Shuts down the sending side of the connection.
    pub fn finish(&mut self) {
        self.stream().shutdown(Shutdown::Write).unwrap();
    }

    /// Waits until the gateway closes the connection. Fails if it sends anything before.
    #[track_caller]
    pub fn assert_closed(&mut self) {
        match self.reader.ended() {
            Ok(true) => {}
            Ok(false) => panic!("the gateway sent more bytes before it closed the connection"),
            Err(error) => panic!("the connection was not closed: {error}"),
        }
    }
}

/// Sends one request on a new connection.
#[track_caller]
pub fn fetch(addr: SocketAddr, head: &str) -> Message {
    Client::connect(addr).fetch(head, "")
}

/// The head of `GET target` for `a.test`. Each line of `fields` ends with CRLF.
pub fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nhost: a.test\r\n{fields}\r\n")
}

/// The head of `POST target` for `a.test` with a body of `length` bytes.
pub fn post(target: &str, length: u64, fields: &str) -> String {
    format!("POST {target} HTTP/1.1\r\nhost: a.test\r\ncontent-length: {length}\r\n{fields}\r\n")
}

/// The head of `METHOD target` to the admin listener, with a body of `length` bytes. Each line of `fields` ends with
/// CRLF.
pub fn call(method: &str, target: &str, fields: &str, length: usize) -> String {
    format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{fields}\r\n")
}
