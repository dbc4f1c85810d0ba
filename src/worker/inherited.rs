//! Listening sockets that systemd has opened (socket activation). Clients wait in them while the gateway restarts, and
//! the gateway needs no privilege for ports below 1024.

use std::net::SocketAddr;

use listenfd::ListenFd;

use crate::net::ListenAddr;
use crate::worker::listener::Listener;

/// Inherited sockets. They stay open for the life of the process: systemd has them open, too, so the gateway could not
/// bind their addresses again if these leave the config and return.
pub struct InheritedSockets(Vec<Listener>);

impl InheritedSockets {
    /// Takes over the sockets of `LISTEN_FDS`. Called once, before there are other threads.
    pub fn from_environment() -> InheritedSockets {
        let mut fds = ListenFd::from_env();
        let mut listeners = Vec::new();
        for place in 0..fds.len() {
            let tcp = fds.take_tcp_listener(place).ok().flatten().map(Listener::from_tcp);
            match tcp.or_else(|| fds.take_unix_listener(place).ok().flatten().map(Listener::from_unix)) {
                Some(Ok(listener)) => listeners.push(listener),
                Some(Err(error)) => tracing::warn!(place, %error, "cannot use an inherited socket (LISTEN_FDS)"),
                None => tracing::warn!(place, "an inherited socket (LISTEN_FDS) is not a TCP or Unix listener"),
            }
        }
        InheritedSockets(listeners)
    }

    /// Returns the socket for `addr`, under that name, if there is one.
    pub fn listener(&self, addr: &ListenAddr) -> Option<Listener> {
        let listener = self.0.iter().find(|listener| covers_addr(listener.addr(), addr))?;
        match listener.try_clone() {
            Ok(listener) => Some(listener.with_addr(addr)),
            Err(error) => {
                tracing::warn!(%addr, %error, "cannot use the inherited socket (LISTEN_FDS)");
                None
            }
        }
    }

    /// Returns whether there is an inherited socket for `addr`. The file of such a Unix socket belongs to systemd.
    pub fn has(&self, addr: &ListenAddr) -> bool {
        self.0.iter().any(|handed| covers_addr(handed.addr(), addr))
    }

    /// Returns the addresses of the sockets that serve none of `addrs`.
    pub fn unused(&self, addrs: &[&ListenAddr]) -> impl Iterator<Item = &ListenAddr> {
        self.0.iter().map(Listener::addr).filter(|handed| !addrs.iter().any(|addr| covers_addr(handed, addr)))
    }
}

/// Returns whether a socket at `handed` serves the address `asked`. A socket at `[::]`, which `ListenStream=PORT`
/// opens, accepts IPv4 clients as well.
fn covers_addr(handed: &ListenAddr, asked: &ListenAddr) -> bool {
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
    fn the_unspecified_ipv6_address_serves_the_unspecified_ipv4_address() {
        let addr = |text: &str| ListenAddr::Tcp(text.parse().unwrap());
        for (handed, asked, serving) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("[::]:80", "0.0.0.0:80", true),
            ("[::]:80", "0.0.0.0:81", false),
            ("[::]:80", "127.0.0.1:80", false),
            ("0.0.0.0:80", "[::]:80", false),
        ] {
            assert_eq!(covers_addr(&addr(handed), &addr(asked)), serving, "{handed} {asked}");
        }
    }
}
