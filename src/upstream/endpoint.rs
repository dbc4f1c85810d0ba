//! The destination of connections to a server: an address or a Unix socket. A server with a hostname has one endpoint
//! per address of the name. Made by `roster`, connected to by `proxy::outbound::dial`.

use std::fmt;
use std::net::SocketAddr;

use crate::upstream::hostname::NamedAddress;
use crate::upstream::{Origin, Scheme};

/// One address or socket of a server. Connections to equal endpoints are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub origin: Origin,
    /// The address, from the config or from DNS. `None` for a Unix socket.
    pub address: Option<SocketAddr>,
}

/// The location of a server as the config has it.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerLocation<'o> {
    Address(SocketAddr),
    /// A name, whose addresses come from DNS, and a port. Those of a service have their own ports.
    Name(&'o str, u16),
    Socket,
}

impl Origin {
    /// Returns the location of the server.
    pub fn location(&self) -> ServerLocation<'_> {
        if let Scheme::Unix(_) = self.scheme {
            return ServerLocation::Socket;
        }
        if self.is_service {
            return ServerLocation::Name(&self.authority, 0);
        }
        match self.authority.parse() {
            Ok(address) => ServerLocation::Address(address),
            Err(_) => {
                let port = self.authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
                ServerLocation::Name(self.bare_host(), port.unwrap_or(0))
            }
        }
    }

    /// Returns the name to look up, if the server has one: a hostname, or a service with its prefix.
    pub fn hostname(&self) -> Option<&str> {
        match self.location() {
            ServerLocation::Name(name, _) => Some(name),
            ServerLocation::Address(_) | ServerLocation::Socket => None,
        }
    }
}

impl Endpoint {
    /// Returns the endpoint of a server without a hostname.
    pub fn from_config(origin: &Origin) -> Endpoint {
        let address = match origin.location() {
            ServerLocation::Address(address) => Some(address),
            ServerLocation::Name(..) | ServerLocation::Socket => None,
        };
        Endpoint { origin: origin.clone(), address }
    }

    /// Returns the endpoint for an address of the server's name. `port` is the port in the config.
    pub fn from_dns(origin: &Origin, found: &NamedAddress, port: u16) -> Endpoint {
        Endpoint { origin: origin.clone(), address: Some(SocketAddr::new(found.ip, found.port.unwrap_or(port))) }
    }

    /// Returns the name in the access log: `address:port`, or the path of a socket.
    pub fn label(&self) -> String {
        self.address.map_or_else(|| self.origin.authority.clone(), |address| address.to_string())
    }
}

/// Writes the server and, for one of several addresses of a hostname, the address: `app:3000 (10.0.0.7)`.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.origin.hostname(), self.address) {
            (Some(_), Some(address)) if self.origin.is_service => write!(f, "{} ({address})", self.origin),
            (Some(_), Some(address)) => write!(f, "{} ({})", self.origin, address.ip()),
            _ => self.origin.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::upstream::{HeadBounds, SocketProtocol};

    fn origin(scheme: Scheme, authority: &str) -> Origin {
        Origin { scheme, authority: authority.to_owned(), is_service: false, head_bounds: HeadBounds::DEFAULT }
    }

    #[test]
    fn where_servers_are() {
        let http = |authority| origin(Scheme::Http, authority);
        for authority in ["10.0.0.7:80", "[::1]:3000"] {
            let written = Endpoint::from_config(&http(authority));
            assert_eq!((written.label().as_str(), written.to_string().as_str()), (authority, authority));
        }
        let app = http("app.local:3000");
        assert_eq!(app.location(), ServerLocation::Name("app.local", 3000));
        let found = Endpoint::from_dns(&app, &IpAddr::from([10, 0, 0, 7]).into(), 3000);
        assert_eq!((found.label(), found.to_string()), ("10.0.0.7:3000".into(), "app.local:3000 (10.0.0.7)".into()));
        let socket = origin(Scheme::Unix(SocketProtocol::Http1), "/run/app.sock");
        assert_eq!(Endpoint::from_config(&socket).label(), "/run/app.sock");
        assert_eq!(socket.hostname(), None);
    }
}
