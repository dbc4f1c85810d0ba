//! An auth server and an application behind one gateway. A helper.

use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::upstream::{Upstream, ok};

pub struct Pair {
    pub auth: Upstream,
    pub app: Upstream,
    pub gateway: Gateway,
}

/// Options of `auth` in most tests.
pub const COPIED: &str = "copy_headers = [\"remote-user\", \"x-role\"]";

impl Pair {
    /// Starts an auth server that responds as `response` defines, and an application that responds to everything.
    /// `options` follow `forward` in `auth`.
    pub fn start(options: &str, response: impl Fn(&Message) -> String + Send + Sync + 'static) -> Pair {
        let auth = responding(response);
        Pair::with("", options, "", auth, Upstream::text("the application"))
    }

    /// `server` adds lines to `[server]`, and `rest` to the route and after it.
    pub fn with(server: &str, options: &str, rest: &str, auth: Upstream, app: Upstream) -> Pair {
        let route = format!(
            "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n\
             auth = {{ forward = \"{}/verify?from=gateway\", {options} }}\n{rest}\n",
            app.url(),
            auth.url()
        );
        let gateway = Gateway::with(&format!("access_log = true\n{server}"), &route);
        Pair { auth, app, gateway }
    }
}

/// A server that responds to each request as `response` defines.
pub fn responding(response: impl Fn(&Message) -> String + Send + Sync + 'static) -> Upstream {
    Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            peer.send(response(&request))?;
        }
        Ok(())
    })
}

/// A response that lets a request of `user` pass.
pub fn admit(user: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nremote-user: {user}\r\nx-role: admin\r\ncontent-length: 2\r\n\r\nok")
}

/// Admits every request as alice.
pub fn admitting() -> Upstream {
    responding(|_| admit("alice"))
}

/// An application that switches to WebSocket and sends back what it gets.
pub fn echoing_socket() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            if request.get("upgrade").is_some() {
                let accept = crate::support::upstream::accept(&request);
                peer.send(format!(
                    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                     sec-websocket-accept: {accept}\r\n\r\n"
                ))?;
                while let Ok(byte) = peer.exactly(1) {
                    peer.send(byte)?;
                }
                return peer.finish();
            }
            peer.send(ok("plain"))?;
        }
        Ok(())
    })
}
