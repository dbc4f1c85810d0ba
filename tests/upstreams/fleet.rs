//! Servers whose behaviour a test changes while they run, and a gateway in front of them. A helper.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;

/// A server whose status the test can change, and whose body is its name. Its responses to `/status/NNN` have that
/// status.
pub struct ControlledServer {
    pub upstream: Upstream,
    status: Arc<AtomicU16>,
    requests: Arc<AtomicUsize>,
}

impl ControlledServer {
    pub fn start(name: &'static str) -> ControlledServer {
        let (status, requests) = (Arc::new(AtomicU16::new(200)), Arc::<AtomicUsize>::default());
        let (now, count) = (status.clone(), requests.clone());
        let upstream = Upstream::start(move |peer| {
            while let Some(request) = peer.request()? {
                count.fetch_add(1, Ordering::SeqCst);
                let wanted = request.target().strip_prefix("/status/").and_then(|status| status.parse().ok());
                match wanted.unwrap_or(now.load(Ordering::SeqCst)) {
                    // The server aborts the response.
                    0 => return Ok(()),
                    status => peer.send(response(status, name))?,
                }
            }
            Ok(())
        });
        ControlledServer { upstream, status, requests }
    }

    /// Responds with this status from now on; 0 closes the connection without a response.
    pub fn set_status(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    /// Number of requests so far.
    pub fn request_count(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    pub fn url(&self) -> String {
        self.upstream.url()
    }

    /// Returns the server's name in metrics and logs.
    pub fn name(&self) -> String {
        self.upstream.addr.to_string()
    }
}

fn response(status: u16, body: &str) -> String {
    format!("HTTP/1.1 {status} It\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// The config of an upstream `app` with these servers, and further lines of it.
pub fn app(urls: &[String], more: &str) -> String {
    let urls: Vec<String> = urls.iter().map(|url| format!("\"{url}\"")).collect();
    format!("[[route]]\nname = \"app\"\nupstream = \"app\"\n[upstream.app]\nservers = [{}]\n{more}\n", urls.join(", "))
}

/// The labels of a server of `app`.
pub fn of(server: &str) -> [(&'static str, &str); 2] {
    [("upstream", "app"), ("server", server)]
}

/// The server as the admin listener shows it.
pub fn shown(gateway: &Gateway, server: &str) -> serde_json::Value {
    let page = gateway.admin("/-/upstreams").json();
    let servers = page["upstreams"][0]["servers"].as_array().unwrap();
    servers.iter().find(|shown| shown["server"] == server).unwrap_or_else(|| panic!("no {server} in {page}")).clone()
}
