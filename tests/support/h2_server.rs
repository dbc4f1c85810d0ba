//! An HTTP/2 server that responds as a test defines.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{LocalSet, spawn_local};

use super::WAIT_MAX;

pub struct Http2Server {
    pub addr: SocketAddr,
    requests: Receiver<http::request::Parts>,
    connections: Arc<AtomicUsize>,
}

/// One request at the server.
pub struct IncomingRequest {
    pub request: Request<RecvStream>,
    pub respond: SendResponse<Bytes>,
    /// Set to end the connection gracefully.
    pub leave: Rc<std::cell::Cell<bool>>,
    /// Set to close the connection at once, without GOAWAY.
    pub crash: Rc<std::cell::Cell<bool>>,
    /// Number of the connection, from 0.
    pub number: usize,
    sender: Sender<http::request::Parts>,
}

type Answering = Pin<Box<dyn Future<Output = Result<(), h2::Error>>>>;

impl Http2Server {
    pub fn start<F>(handler: impl Fn(IncomingRequest) -> F + Send + 'static) -> Http2Server
    where
        F: Future<Output = Result<(), h2::Error>> + 'static,
    {
        Http2Server::with(None, |_| {}, handler)
    }

    pub fn with<F>(
        tls: Option<Arc<ServerConfig>>,
        settings: impl Fn(&mut Builder) + Send + 'static,
        handler: impl Fn(IncomingRequest) -> F + Send + 'static,
    ) -> Http2Server
    where
        F: Future<Output = Result<(), h2::Error>> + 'static,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let (sender, requests) = channel();
        let connections = Arc::<AtomicUsize>::default();
        let server = Http2Server { addr, requests, connections: connections.clone() };
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let handler = Rc::new(move |incoming| Box::pin(handler(incoming)) as Answering);
            let serve = async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let number = Rc::new(std::cell::Cell::new(0));
                while let Ok((tcp, _)) = listener.accept().await {
                    tcp.set_nodelay(true).unwrap();
                    connections.fetch_add(1, Ordering::SeqCst);
                    let mut builder = Builder::new();
                    settings(&mut builder);
                    let (handler, number, sender, tls) = (handler.clone(), number.clone(), sender.clone(), tls.clone());
                    spawn_local(async move {
                        match tls {
                            None => serve(builder.handshake(tcp).await, handler, number, sender).await,
                            Some(tls) => {
                                let Ok(tls) = tokio_rustls::TlsAcceptor::from(tls).accept(tcp).await else { return };
                                serve(builder.handshake(tls).await, handler, number, sender).await;
                            }
                        }
                    });
                }
            };
            LocalSet::new().block_on(&runtime, serve);
        });
        server
    }

    /// Waits for the next request.
    #[track_caller]
    pub fn request(&self) -> http::request::Parts {
        self.requests.recv_timeout(WAIT_MAX).expect("the server received no request")
    }

    /// The next request, if one has arrived.
    pub fn try_request(&self) -> Option<http::request::Parts> {
        self.requests.try_recv().ok()
    }

    /// Number of requests that the test has not read yet.
    pub fn count(&self) -> usize {
        self.requests.try_iter().count()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    connection: Result<Connection<S, Bytes>, h2::Error>,
    handler: Rc<impl Fn(IncomingRequest) -> Answering + 'static>,
    number: Rc<std::cell::Cell<usize>>,
    sender: Sender<http::request::Parts>,
) {
    let Ok(mut connection) = connection else { return };
    let (leave, crash) = (Rc::new(std::cell::Cell::new(false)), Rc::new(std::cell::Cell::new(false)));
    while !crash.get() {
        if leave.replace(false) {
            connection.graceful_shutdown();
        }
        let next = tokio::select! {
            next = connection.accept() => next,
            () = tokio::time::sleep(Duration::from_millis(5)) => continue,
        };
        let Some(Ok((request, respond))) = next else { return };
        let (parts, body) = request.into_parts();
        let _ = sender.send(parts.clone());
        let request = Request::from_parts(parts, body);
        let (leave, crash) = (leave.clone(), crash.clone());
        let incoming = IncomingRequest { request, respond, leave, crash, number: number.get(), sender: sender.clone() };
        number.set(number.get() + 1);
        spawn_local(handler(incoming));
    }
}

impl IncomingRequest {
    /// Reads the whole body of the request, and its trailers.
    pub async fn body(&mut self) -> Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
        let body = self.request.body_mut();
        let mut whole = Vec::new();
        while let Some(data) = body.data().await {
            let data = data?;
            whole.extend_from_slice(&data);
            body.flow_control().release_capacity(data.len())?;
        }
        Ok((whole, body.trailers().await?))
    }

    pub fn head(&mut self, response: Response<()>, end: bool) -> Result<SendStream<Bytes>, h2::Error> {
        self.respond.send_response(response, end)
    }

    /// Sends a complete response.
    pub async fn send_response(&mut self, body: impl Into<Bytes>) -> Result<(), h2::Error> {
        let mut stream = self.head(Response::new(()), false)?;
        send_all(&mut stream, body.into()).await?;
        stream.send_data(Bytes::new(), true)
    }

    /// Reports an event to the test, as a request with this URI.
    pub fn note(&self, uri: &'static str) {
        let _ = self.sender.send(Request::get(uri).body(()).unwrap().into_parts().0);
    }
}

/// Sends `bytes` as fast as flow control permits.
pub async fn send_all(stream: &mut SendStream<Bytes>, mut bytes: Bytes) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        if stream.capacity() == 0 {
            match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(result) => drop(result?),
                None => return Ok(()),
            }
        }
        let count = stream.capacity().min(bytes.len());
        stream.send_data(bytes.split_to(count), false)?;
    }
    Ok(())
}
