//! A well-behaved HTTP/2 client with one connection.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request, Response};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::WAIT_MAX;

pub struct H2Client {
    runtime: Runtime,
    sender: SendRequest<Bytes>,
}

/// A complete response.
#[derive(Debug)]
pub struct H2Response {
    pub head: Response<()>,
    pub body: Vec<u8>,
    pub trailers: HeaderMap,
}

/// Frames that the client sends after the head of a request.
#[derive(Default)]
pub struct Sent<'a> {
    pub body: &'a [u8],
    pub trailers: Option<HeaderMap>,
}

impl H2Client {
    pub fn connect(addr: SocketAddr) -> H2Client {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let sender = runtime.block_on(async {
            let stream = TcpStream::connect(addr).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let (sender, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            sender
        });
        H2Client { runtime, sender }
    }

    /// Sends a request and reads its response.
    #[track_caller]
    pub fn fetch(&mut self, request: Request<()>, sent: Sent<'_>) -> H2Response {
        self.try_fetch(request, sent).unwrap()
    }

    /// Sends `GET target` for `a.test`.
    #[track_caller]
    pub fn get(&mut self, target: &str) -> H2Response {
        self.fetch(get(target), Sent::default())
    }

    pub fn try_fetch(&mut self, request: Request<()>, sent: Sent<'_>) -> Result<H2Response, h2::Error> {
        let sender = self.sender.clone();
        let Sent { body, trailers } = sent;
        let body = Bytes::copy_from_slice(body);
        self.run(async move {
            let mut sender = sender.ready().await?;
            let (response, mut stream) = sender.send_request(request, body.is_empty() && trailers.is_none())?;
            let upload = tokio::spawn(async move {
                if !body.is_empty() {
                    let mut rest = body;
                    while !rest.is_empty() {
                        stream.reserve_capacity(rest.len());
                        let Some(Ok(room)) = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await else { return };
                        let piece = rest.split_to(room.min(rest.len()));
                        if stream.send_data(piece, rest.is_empty() && trailers.is_none()).is_err() {
                            return;
                        }
                    }
                }
                if let Some(trailers) = trailers {
                    let _ = stream.send_trailers(trailers);
                }
            });
            let response = read(response).await;
            upload.abort();
            response
        })
    }

    /// Runs `work` with the connection, which is not driven meanwhile.
    #[track_caller]
    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { timeout(WAIT_MAX, work).await.expect("the operation took too long") })
    }

    pub fn sender(&self) -> SendRequest<Bytes> {
        self.sender.clone()
    }

    /// Drives the connection for a while.
    pub fn wait(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }
}

/// Reads a response to its end.
pub async fn read(response: ResponseFuture) -> Result<H2Response, h2::Error> {
    let (parts, mut stream) = response.await?.into_parts();
    let mut body = Vec::new();
    while let Some(piece) = stream.data().await {
        let piece = piece?;
        stream.flow_control().release_capacity(piece.len())?;
        body.extend_from_slice(&piece);
    }
    let trailers = stream.trailers().await?.unwrap_or_default();
    Ok(H2Response { head: Response::from_parts(parts, ()), body, trailers })
}

impl H2Response {
    pub fn status(&self) -> u16 {
        self.head.status().as_u16()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.headers().get(name).map(|value| value.to_str().unwrap())
    }
}

pub fn get(target: &str) -> Request<()> {
    Request::get(format!("http://a.test{target}")).body(()).unwrap()
}

pub fn post(target: &str) -> Request<()> {
    Request::post(format!("http://a.test{target}")).body(()).unwrap()
}
