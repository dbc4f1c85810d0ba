//! Upstream servers that run a script for each connection and keep the requests that they received.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::http::{Framing, Message, Reader, framing};
use super::{WAIT_MAX, wait_until};

pub struct Upstream {
    pub addr: SocketAddr,
    requests: Receiver<Message>,
    shared: Arc<Shared>,
    wake: Box<dyn Fn()>,
}

#[derive(Default)]
struct Shared {
    connections: AtomicUsize,
    ended: AtomicUsize,
    stopped: AtomicBool,
}

/// The server's end of one connection.
pub struct Peer {
    /// Number of the connection from 0, in the order of accepting.
    pub connection: usize,
    reader: Reader<Box<dyn Duplex>>,
    requests: Sender<Message>,
}

/// The transport of a connection.
pub trait Duplex: Read + Write + Send {
    /// Shuts down the sending side.
    fn finish(&mut self) -> io::Result<()>;
}

impl Duplex for TcpStream {
    fn finish(&mut self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Duplex for UnixStream {
    fn finish(&mut self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// Waits for the next connection.
type Accept = Box<dyn Fn() -> io::Result<Box<dyn Duplex>> + Send>;

impl Upstream {
    /// Runs `script` in a thread for every connection. The connection ends when the script returns.
    pub fn start(script: impl Fn(&mut Peer) -> io::Result<()> + Send + Sync + 'static) -> Upstream {
        Upstream::wrapped(|stream| Ok(Box::new(stream)), script)
    }

    /// Runs `script` for the connections of `listener`.
    pub fn on(listener: TcpListener, script: impl Fn(&mut Peer) -> io::Result<()> + Send + Sync + 'static) -> Upstream {
        Upstream::listening(listener, |stream| Ok(Box::new(stream)), script)
    }

    /// Runs `script` on what `wrap` makes of each connection, such as TLS.
    pub fn wrapped(
        wrap: impl Fn(TcpStream) -> io::Result<Box<dyn Duplex>> + Send + 'static,
        script: impl Fn(&mut Peer) -> io::Result<()> + Send + Sync + 'static,
    ) -> Upstream {
        Upstream::listening(TcpListener::bind("127.0.0.1:0").unwrap(), wrap, script)
    }

    fn listening(
        listener: TcpListener,
        wrap: impl Fn(TcpStream) -> io::Result<Box<dyn Duplex>> + Send + 'static,
        script: impl Fn(&mut Peer) -> io::Result<()> + Send + Sync + 'static,
    ) -> Upstream {
        let addr = listener.local_addr().unwrap();
        let accept: Accept = Box::new(move || {
            let (stream, _) = listener.accept()?;
            let _ = stream.set_nodelay(true);
            wrap(stream)
        });
        Upstream::run(addr, accept, script, move || drop(TcpStream::connect(addr)))
    }

    /// Listens on a Unix socket.
    pub fn at(path: &Path, script: impl Fn(&mut Peer) -> io::Result<()> + Send + Sync + 'static) -> Upstream {
        let listener = UnixListener::bind(path).unwrap();
        let (nowhere, path) = (SocketAddr::from(([0, 0, 0, 0], 0)), path.to_owned());
        let accept: Accept = Box::new(move || Ok(Box::new(listener.accept()?.0)));
        Upstream::run(nowhere, accept, script, move || drop(UnixStream::connect(&path)))
    }

    /// Accepts connections; `wake` connects to the server itself, to end it.
    fn run(
        addr: SocketAddr,
        accept: Accept,
        script: impl Fn(&mut Peer) -> io::Result<()> + Send + Sync + 'static,
        wake: impl Fn() + 'static,
    ) -> Upstream {
        let (sender, requests) = channel();
        let shared = Arc::<Shared>::default();
        let upstream = Upstream { addr, requests, shared: shared.clone(), wake: Box::new(wake) };
        let (script, sender) = (Arc::new(script), Mutex::new(sender));
        std::thread::spawn(move || {
            loop {
                let stream = accept();
                if shared.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let connection = shared.connections.fetch_add(1, Ordering::SeqCst);
                let requests = sender.lock().unwrap().clone();
                let mut peer = Peer { connection, reader: Reader::new(stream), requests };
                let (script, shared) = (script.clone(), shared.clone());
                std::thread::spawn(move || {
                    let _ = script(&mut peer);
                    drop(peer);
                    shared.ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        upstream
    }

    /// Responds to every request with these bytes.
    pub fn fixed(response: impl Into<Vec<u8>>) -> Upstream {
        let response = response.into();
        Upstream::start(move |peer| {
            while peer.request()?.is_some() {
                peer.send(&response)?;
            }
            Ok(())
        })
    }

    /// Responds to every request with status 200 and `text`.
    pub fn text(text: &str) -> Upstream {
        Upstream::fixed(ok(text))
    }

    /// Reads requests and never responds.
    pub fn silent() -> Upstream {
        Upstream::start(|peer| {
            while peer.request()?.is_some() {}
            Ok(())
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Waits for the next request.
    #[track_caller]
    pub fn request(&self) -> Message {
        self.requests.recv_timeout(WAIT_MAX).expect("the upstream received no request")
    }

    /// The requests that were received and not read yet.
    pub fn requests(&self) -> Vec<Message> {
        self.requests.try_iter().collect()
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Waits until all connections are closed, so that no request is in flight.
    #[track_caller]
    pub fn wait_for_close(&self) {
        wait_until("all connections to the upstream are closed", || self.ended() == self.connections());
    }

    /// Number of connections that are closed on this side.
    pub fn ended(&self) -> usize {
        self.shared.ended.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then closes the socket.
        (self.wake)();
    }
}

impl Peer {
    /// Reads the next complete request. `None` when the gateway closed the connection.
    pub fn request(&mut self) -> io::Result<Option<Message>> {
        let Some(head) = self.reader.head()? else { return Ok(None) };
        let mut message = Message { head, body: Vec::new() };
        message.body = self.reader.body(&framing(&message, None))?;
        let _ = self.requests.send(message.clone());
        Ok(Some(message))
    }

    /// Reads the next head.
    pub fn head(&mut self) -> io::Result<Option<Message>> {
        let Some(head) = self.reader.head()? else { return Ok(None) };
        let message = Message { head, body: Vec::new() };
        let _ = self.requests.send(message.clone());
        Ok(Some(message))
    }

    /// Reads the body after `head`.
    pub fn body(&mut self, head: &Message) -> io::Result<Vec<u8>> {
        self.reader.body(&framing(head, None))
    }

    /// The lines of the trailers of the last body.
    pub fn trailers(&self) -> &[String] {
        &self.reader.trailers
    }

    /// Reads exactly this many bytes.
    pub fn exactly(&mut self, bytes: u64) -> io::Result<Vec<u8>> {
        self.reader.body(&Framing::Length(bytes))
    }

    /// Reads until the gateway shuts down its side.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        self.reader.body(&Framing::Close)
    }

    /// Shuts down the sending side.
    pub fn finish(&mut self) -> io::Result<()> {
        self.reader.stream.finish()
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.reader.stream.write_all(bytes.as_ref())
    }

    /// Reports an event to the test, as a request with this head.
    pub fn note(&mut self, head: &str) {
        let _ = self.requests.send(Message { head: head.to_owned(), body: Vec::new() });
    }

    /// Waits until the gateway closes the connection.
    pub fn wait_for_end(&mut self) -> io::Result<()> {
        self.reader.discard_rest()
    }
}

/// Counts the requests that a server is processing.
#[derive(Default)]
pub struct Running {
    begun: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
    ended: AtomicUsize,
}

impl Running {
    /// Counts one request for `time`, even if the connection ends.
    pub fn work(&self, time: Duration) {
        self.begin();
        std::thread::sleep(time);
        self.end();
    }

    pub fn begin(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    pub fn end(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    pub fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    pub fn now(&self) -> usize {
        self.now.load(Ordering::SeqCst)
    }

    /// Returns the largest number of concurrent requests so far.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    pub fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }
}

/// A response with status 200.
pub fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// The response to the key of a WebSocket handshake.
pub fn accept(request: &Message) -> String {
    let mut hash = sha1_smol::Sha1::from(request.get("sec-websocket-key").unwrap_or_default());
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let bits: String = hash.digest().bytes().iter().map(|byte| format!("{byte:08b}")).collect::<String>() + "00";
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |at| char::from(digits[usize::from_str_radix(&bits[at..at + 6], 2).unwrap()]);
    (0..bits.len()).step_by(6).map(digit).chain(['=']).collect()
}
