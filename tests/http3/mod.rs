//! HTTP/3: good and hostile clients over QUIC.

mod alt_svc;
mod connections;
mod equality;
mod floods;
mod frames;
mod lifecycle;
mod malformed;
mod migration;
mod network;
mod priorities;
mod requests;
mod tunnels;
mod unread_bodies;

use std::net::SocketAddr;

use crate::support::ca::Ca;
use crate::support::gateway::{Gateway, config_arguments};

/// A CA, and a gateway with HTTP/3 on its first listener.
struct Http3Gateway {
    ca: Ca,
    gateway: Gateway,
}

impl Http3Gateway {
    /// `server`: lines of `[server]`. `listener`: lines of the listener. `rest`: everything else.
    fn start(server: &str, listener: &str, rest: &str) -> Http3Gateway {
        let ca = Ca::new("test");
        let gateway = Gateway::launch(&[], |dir| {
            ca.issue(&["a.test"], "gateway").save(dir, "a");
            config_arguments(dir, &config(server, listener, rest))
        });
        let has_http3 = listener.contains("http3");
        crate::support::wait_until("HTTP/3 is open", || !has_http3 || gateway.log_lines(&["HTTP/3 is open"]) > 0);
        Http3Gateway { ca, gateway }
    }

    /// A gateway that echoes bodies at `/echo`, and answers elsewhere.
    fn echo(server: &str) -> Http3Gateway {
        Http3Gateway::start(server, "http3 = true", ECHO)
    }

    /// Open connections of HTTP/3.
    fn open_connections(&self) -> Option<f64> {
        self.gateway.metric("connections", &[("listener", "127.0.0.1:0"), ("protocol", "h3")])
    }

    fn addr(&self) -> SocketAddr {
        self.gateway.addr
    }

    fn connect(&self) -> crate::support::h3::H3Client {
        crate::support::h3::H3Client::connect(self.addr(), &self.ca)
    }
}

const ECHO: &str = "[[route]]\nname = \"echo\"\npath = \"/echo\"\nupstream = \"echo:\"\n[[route]]\nname = \"all\"\npath = \
                    \"/\"\nrespond = { status = 200, body = \"hello\\n\" }\n";

fn config(server: &str, listener: &str, rest: &str) -> String {
    let workers = if server.contains("workers") { "" } else { "workers = 1\n" };
    format!(
        "[server]\n{workers}{server}\n[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\ntls = {{ \
         certificates = [{{ cert = \"a.pem\", key = \"a.key\" }}] }}\n{listener}\n{rest}"
    )
}
