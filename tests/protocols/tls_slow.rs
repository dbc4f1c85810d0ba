//! Clients that read late, over TLS.

use std::net::TcpStream;
use std::time::Duration;

use super::tls::gateway;
use crate::support::ca::Ca;
use crate::support::client::get;
use crate::support::tls::Trust;
use crate::support::upstream::{Upstream, ok};

#[test]
fn the_end_of_an_answer_comes_to_whoever_reads_late() {
    const STEP: usize = 60 * 1024;
    let ca = Ca::new("test");
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            peer.send(ok(&"x".repeat(request.target()[1..].parse().unwrap_or(0))))?;
        }
        Ok(())
    });
    let route = format!("[[route]]\nupstream = \"{}\"\n", upstream.url());
    let gateway = gateway(&ca, &["a.test"], "", "keepalive_timeout = \"60s\"", &route);
    let trust = Trust::in_ca(&ca);
    // What the kernel takes beyond `max_unsent` is not known; of one of these the end waits in the gateway, all of the rest being sent.
    let mut clients: Vec<_> = (1..16)
        .map(|size| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            socket.connect(&gateway.addr.into()).unwrap();
            let mut client = trust.over(TcpStream::from(socket), "a.test");
            client.send(get(&format!("/{}", size * STEP), ""));
            (size * STEP, client)
        })
        .collect();
    // Longer than a connection waits before it rests.
    std::thread::sleep(Duration::from_millis(1200));
    for (size, client) in &mut clients {
        let answer = client.try_answer("GET").unwrap_or_else(|error| panic!("{size} bytes: {error}"));
        assert_eq!(answer.body.len(), *size);
    }
}
