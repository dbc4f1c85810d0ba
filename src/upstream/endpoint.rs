//! One place that connections of a server go to. A server that is written with a name has as many as the name
//! has addresses. Made by `roster`, connected to by `http::upstream::connect`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::{Origin, Scheme};

/// Connections to equal endpoints serve alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub origin: Origin,
    /// Written or found; a Unix socket has none.
    pub address: Option<SocketAddr>,
}

/// What the config says of where a server is.
#[derive(Debug, PartialEq, Eq)]
pub enum Whereabouts<'o> {
    Address(SocketAddr),
    /// Its addresses are to be found, the port is known.
    Name(&'o str, u16),
    Socket,
}

impl Origin {
    pub fn whereabouts(&self) -> Whereabouts<'_> {
        if let Scheme::Unix(_) = self.scheme {
            return Whereabouts::Socket;
        }
        match self.authority.parse() {
            Ok(address) => Whereabouts::Address(address),
            Err(_) => {
                let port = self.authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
                Whereabouts::Name(self.name(), port.unwrap_or(0))
            }
        }
    }

    /// The name to be looked up, if it has one.
    pub fn host_name(&self) -> Option<&str> {
        match self.whereabouts() {
            Whereabouts::Name(name, _) => Some(name),
            Whereabouts::Address(_) | Whereabouts::Socket => None,
        }
    }
}

impl Endpoint {
    /// Of a server without a name.
    pub fn written(origin: &Origin) -> Endpoint {
        let address = match origin.whereabouts() {
            Whereabouts::Address(address) => Some(address),
            Whereabouts::Name(..) | Whereabouts::Socket => None,
        };
        Endpoint { origin: origin.clone(), address }
    }

    pub fn found(origin: &Origin, ip: IpAddr, port: u16) -> Endpoint {
        Endpoint { origin: origin.clone(), address: Some(SocketAddr::new(ip, port)) }
    }

    /// What the access log calls it: `address:port`, or the path of a socket.
    pub fn label(&self) -> String {
        self.address.map_or_else(|| self.origin.authority.clone(), |address| address.to_string())
    }
}

/// The server, and where a name stands for several, which of them: `app:3000 (10.0.0.7)`.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.origin.host_name(), self.address) {
            (Some(_), Some(address)) => write!(f, "{} ({})", self.origin, address.ip()),
            _ => self.origin.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SocketProtocol;
    use super::*;

    fn origin(scheme: Scheme, authority: &str) -> Origin {
        Origin { scheme, authority: authority.to_owned() }
    }

    #[test]
    fn where_servers_are() {
        let http = |authority| origin(Scheme::Http, authority);
        for authority in ["10.0.0.7:80", "[::1]:3000"] {
            let written = Endpoint::written(&http(authority));
            assert_eq!((written.label().as_str(), written.to_string().as_str()), (authority, authority));
        }
        let app = http("app.local:3000");
        assert_eq!(app.whereabouts(), Whereabouts::Name("app.local", 3000));
        let found = Endpoint::found(&app, IpAddr::from([10, 0, 0, 7]), 3000);
        assert_eq!((found.label(), found.to_string()), ("10.0.0.7:3000".into(), "app.local:3000 (10.0.0.7)".into()));
        let socket = origin(Scheme::Unix(SocketProtocol::Http1), "/run/app.sock");
        assert_eq!(Endpoint::written(&socket).label(), "/run/app.sock");
        assert_eq!(socket.host_name(), None);
    }
}
