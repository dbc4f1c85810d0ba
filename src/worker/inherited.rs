//! Listening sockets that were open before this process: systemd's, with socket activation. They keep their
//! clients waiting while the gateway starts anew, and need no right to a port below 1024. Taken over by
//! the control thread.

use std::net::SocketAddr;

use listenfd::ListenFd;

use super::listener::Listener;
use crate::net::ListenAddr;

/// What was handed over, kept for the life of the process: an address that goes and comes again with the
/// config cannot be bound while whoever handed it over has it, too.
pub struct Inherited(Vec<Listener>);

impl Inherited {
    /// Of `LISTEN_FDS`. To be called once, before there are other threads.
    pub fn from_environment() -> Inherited {
        let mut handed = ListenFd::from_env();
        let mut listeners = Vec::new();
        for place in 0..handed.len() {
            let tcp = handed.take_tcp_listener(place).ok().flatten().map(Listener::of_tcp);
            match tcp.or_else(|| handed.take_unix_listener(place).ok().flatten().map(Listener::of_unix)) {
                Some(Ok(listener)) => listeners.push(listener),
                Some(Err(error)) => tracing::warn!(place, %error, "a socket that was handed over cannot be used"),
                None => tracing::warn!(place, "a socket that was handed over is no listener for TCP or a Unix socket"),
            }
        }
        Inherited(listeners)
    }

    /// The socket for `addr`, if there is one. It answers to the name of `addr`.
    pub fn listener(&self, addr: &ListenAddr) -> Option<Listener> {
        let handed = self.0.iter().find(|handed| serves(handed.addr(), addr))?;
        match handed.try_clone() {
            Ok(listener) => Some(listener.called(addr)),
            Err(error) => {
                tracing::warn!(%addr, %error, "the socket that was handed over cannot be used");
                None
            }
        }
    }

    /// Whether the file of a Unix socket is somebody else's, who goes on listening there.
    pub fn has(&self, addr: &ListenAddr) -> bool {
        self.0.iter().any(|handed| serves(handed.addr(), addr))
    }

    /// Those that none of `addrs` asks for.
    pub fn unused(&self, addrs: &[&ListenAddr]) -> impl Iterator<Item = &ListenAddr> {
        self.0.iter().map(Listener::addr).filter(|handed| !addrs.iter().any(|addr| serves(handed, addr)))
    }
}

/// `[::]` is what `ListenStream=PORT` opens, and takes IPv4 clients as well.
fn serves(handed: &ListenAddr, asked: &ListenAddr) -> bool {
    match (handed, asked) {
        (ListenAddr::Tcp(SocketAddr::V6(handed)), ListenAddr::Tcp(SocketAddr::V4(asked))) => {
            handed.ip().is_unspecified() && asked.ip().is_unspecified() && handed.port() == asked.port()
        }
        (handed, asked) => handed == asked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_of_ipv6_serves_every_address_of_ipv4() {
        let addr = |text: &str| ListenAddr::Tcp(text.parse().unwrap());
        for (handed, asked, serving) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("[::]:80", "0.0.0.0:80", true),
            ("[::]:80", "0.0.0.0:81", false),
            ("[::]:80", "127.0.0.1:80", false),
            ("0.0.0.0:80", "[::]:80", false),
        ] {
            assert_eq!(serves(&addr(handed), &addr(asked)), serving, "{handed} {asked}");
        }
    }
}
