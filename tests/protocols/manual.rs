//! The configs of docs/routing.md, run as they stand there.

use crate::support::client::get;
use crate::support::manual::Page;
use crate::support::until;
use crate::support::upstream::{Upstream, ok};

fn page() -> Page {
    Page::read("docs/routing.md")
}

#[test]
fn websocket() {
    let app = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            match request.get("upgrade") {
                Some(protocol) => {
                    peer.send(format!("HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n\r\n"))?;
                    return peer.wait_for_end();
                }
                None => peer.send(ok("plain"))?,
            }
        }
        Ok(())
    });
    let gateway = page().under("WebSocket")[0].start(&app, None);
    let ask = |protocol: &str| {
        let mut client = gateway.client();
        client.send(get("/chat", &format!("connection: upgrade\r\nupgrade: {protocol}\r\n")));
        let status = client.try_head().unwrap().status();
        (status, client)
    };
    assert_eq!(ask("tcp").0, 200);
    let mut chats: Vec<_> = (0..5).map(|_| ask("websocket")).collect();
    assert!(chats.iter().all(|(status, _)| *status == 101));
    assert_eq!(ask("websocket").0, 429);
    gateway.assert_metric("tunnels", &[], 5.0);
    chats.pop();
    until("a place is free again", || ask("websocket").0 == 101);
}
