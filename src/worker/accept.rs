//! Accepting: one loop per listener and worker on a socket that all workers share, so that a
//! worker that is free takes the next connection and closing one handle resets nothing.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::listener::{Accepted, Acceptor, Listener, canonical};
use super::proxy_protocol::{self, Introduction};
use super::stream::Stream;
use super::tls::{self, Failed, Shaken};
use super::{Worker, connection};
use crate::config::ListenerSettings;
use crate::descriptors;
use crate::http::connections::Ticket;
use crate::http::context::Client;
use crate::http::downstream::gate::LastHost;
use crate::http::downstream::hop::Hop;
use crate::http::untrusted::UntrustedForwarding;
use crate::metrics::{Cutoff, HandshakeCounters, HandshakeResult, Protocol};
use crate::tls::{Alpn, TlsPeer};

/// Pause after an accept failed for want of file descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two looks whether there is room for another client.
const ROOM_PAUSE: Duration = Duration::from_millis(10);
/// The ports that the client of a Unix socket is said to have asked: those that the schemes imply.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// A listener as it labels its connections in the metrics.
struct Door {
    name: Rc<str>,
    untrusted: Rc<UntrustedForwarding>,
    /// As the config in force says, or, for the moment until it is closed, said.
    settings: Arc<ListenerSettings>,
    handshakes: Option<HandshakeCounters>,
}

/// A connection that has its place among the others.
struct Entered {
    ticket: Ticket,
    peer: SocketAddr,
    /// The address that the client has asked.
    asked: Option<SocketAddr>,
}

impl Door {
    fn new(
        name: Rc<str>,
        untrusted: Rc<UntrustedForwarding>,
        settings: Arc<ListenerSettings>,
        worker: &Worker,
    ) -> Door {
        let handshakes = settings.tls.is_some().then(|| worker.local.common.metrics.tls.handshakes(&name));
        let begins_otherwise = settings.tls.is_some() || settings.proxy_protocol;
        for protocol in Protocol::ALL.iter().filter(|protocol| **protocol != Protocol::Handshake || begins_otherwise) {
            // The series exists from now on.
            drop(worker.gauge(&name, *protocol));
        }
        Door { name, untrusted, settings, handshakes }
    }

    fn count(&self, result: HandshakeResult) {
        if let Some(handshakes) = &self.handshakes {
            handshakes.count(result);
        }
    }
}

/// Accepts until it is `stopped`, and then what waits already: those clients are connected.
pub async fn accept(worker: Rc<Worker>, listener: Listener, mut stopped: oneshot::Receiver<()>) {
    let addr = listener.addr().clone();
    let name: Rc<str> = addr.to_string().into();
    let Some(settings) = worker.listener(&addr) else { return };
    let acceptor = match listener.accept() {
        Ok(acceptor) => acceptor,
        Err(error) => return tracing::error!(listener = &*name, %error, "a worker cannot accept connections"),
    };
    let common = &worker.local.common;
    let untrusted = Rc::new(UntrustedForwarding::new(&name, &common.complaints, &common.metrics));
    let mut door = Rc::new(Door::new(name, untrusted, settings, &worker));
    loop {
        let next = tokio::select! {
            biased;
            _ = &mut stopped => break,
            next = async {
                room(&worker).await;
                acceptor.next().await
            } => next,
        };
        match next {
            Ok(accepted) => {
                follow(&mut door, &acceptor, worker.listener(&addr), &worker);
                admit(&worker, accepted, &door);
            }
            Err(error) => pause(&worker, &door.name, &error).await,
        }
    }
    let is_room = || descriptors::has_room_for_client(worker.connections.of_all());
    acceptor.rest(is_room, |accepted| admit(&worker, accepted, &door));
}

/// Changed settings count from the next connection on.
fn follow(door: &mut Rc<Door>, acceptor: &Acceptor, now: Option<Arc<ListenerSettings>>, worker: &Worker) {
    if let Some(settings) = now.filter(|now| !Arc::ptr_eq(now, &door.settings)) {
        if settings.max_unsent != door.settings.max_unsent {
            acceptor.bound_unsent(settings.max_unsent);
        }
        *door = Rc::new(Door::new(door.name.clone(), door.untrusted.clone(), settings, worker));
    }
}

/// Spawns the connection, or drops it when a cap is reached.
fn admit(worker: &Rc<Worker>, Accepted { stream, peer, asked }: Accepted, door: &Rc<Door>) {
    let Some(ticket) = worker.enter(peer.ip(), &door.name) else { return };
    let entered = Entered { ticket, peer, asked };
    let (worker, door) = (worker.clone(), door.clone());
    if door.settings.proxy_protocol {
        tokio::task::spawn_local(async move { introduced(stream, entered, &worker, &door).await });
        return;
    }
    match &door.settings.tls {
        None => {
            drop(tokio::task::spawn_local(async move { serve(stream, entered, &worker, &door, (None, None)).await }))
        }
        Some(_) => drop(tokio::task::spawn_local(async move { secure(stream, entered, &worker, &door).await })),
    }
}

/// A connection that begins with a PROXY header.
async fn introduced(mut stream: Stream, mut entered: Entered, worker: &Rc<Worker>, door: &Door) {
    let open = worker.open(&door.name, Protocol::Handshake);
    let introduction = proxy_protocol::read(&mut stream, entered.ticket.deadline(), worker).await;
    drop(open);
    match introduction {
        Introduction::Client(named) if worker.trusts(entered.peer.ip()) => {
            let client = canonical(named.source);
            if !worker.count_for(&mut entered.ticket, client.ip(), &door.name) {
                return;
            }
            (entered.peer, entered.asked) = (client, Some(canonical(named.destination)));
        }
        Introduction::Client(_) | Introduction::Itself => {}
        Introduction::Missing if worker.draining() => return,
        Introduction::Missing => return worker.local.common.metrics.http_rejected(Cutoff::ProxyHeader).inc(),
    }
    match &door.settings.tls {
        None => Box::pin(serve(stream, entered, worker, door, (None, None))).await,
        Some(_) => Box::pin(secure(stream, entered, worker, door)).await,
    }
}

/// A connection over TLS.
async fn secure(stream: Stream, entered: Entered, worker: &Rc<Worker>, door: &Door) {
    let Some(tls) = &door.settings.tls else { return };
    let open = worker.open(&door.name, Protocol::Handshake);
    let handshake = Box::pin(tls::handshake(stream, tls, entered.ticket.deadline(), worker));
    let result = handshake.await;
    drop(open);
    let (listener, peer) = (&*door.name, entered.peer.ip());
    match result {
        Ok(Shaken { stream, result, told }) => {
            door.count(result);
            let agreed = match Alpn::agreed(stream.get_ref().1.alpn_protocol()) {
                Alpn::Http2 => Protocol::Http2,
                Alpn::Http11 => Protocol::Http11,
            };
            serve(Stream::Tls(Box::new(stream)), entered, worker, door, (Some(agreed), Some(told))).await;
        }
        Err(Failed { result, error }) => {
            door.count(result);
            worker.local.common.complaints.handshake(result, listener, peer, error.as_ref());
        }
    }
}

/// A connection from its first byte on: what is spoken on it, which else its first bytes tell, and what a
/// handshake has told before.
async fn serve(
    stream: Stream,
    entered: Entered,
    worker: &Rc<Worker>,
    door: &Door,
    (agreed, tls): (Option<Protocol>, Option<Box<TlsPeer>>),
) {
    let Entered { ticket, peer, asked } = entered;
    let implied = if tls.is_some() { HTTPS_PORT } else { HTTP_PORT };
    let asked = asked.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), implied));
    let client = Rc::new(Client {
        local: worker.local.clone(),
        ticket,
        listener: door.name.clone(),
        untrusted: door.untrusted.clone(),
        forwards: Cell::default(),
        peer: peer.ip(),
        port: peer.port(),
        asked,
        hop: Hop::new(peer.ip(), tls.is_some(), asked.port()),
        tls,
        redirect_port: door.settings.redirect_port,
        last_host: LastHost::default(),
        inspector: worker.inspector(),
        early: RefCell::default(),
        tunnel: Cell::default(),
        tls_version: stream.tls_version(),
    });
    connection::serve(stream, agreed, client, worker).await;
}

/// Waits until there are file descriptors for another client. Those that come meanwhile wait where they are,
/// and whoever is idle makes room for them.
async fn room(worker: &Worker) {
    while !descriptors::has_room_for_client(worker.connections.of_all()) {
        worker.local.common.complaints.short_of_descriptors("new clients wait until others leave");
        worker.connections.make_room();
        tokio::time::sleep(ROOM_PAUSE).await;
    }
}

async fn pause(worker: &Worker, name: &str, error: &io::Error) {
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        return;
    }
    if descriptors::are_short(error) {
        worker.local.common.complaints.short_of_descriptors("new clients wait");
        worker.connections.make_room();
    } else {
        tracing::warn!(listener = name, %error, "cannot accept a connection, pausing");
    }
    tokio::time::sleep(PAUSE).await;
}
