//! The QUIC endpoint of one worker: its socket, the library's state of all its connections, and the queues through which
//! packets reach their connections.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Instant;

use bytes::BytesMut;
use quinn_proto::crypto::HandshakeTokenKey;
use quinn_proto::{
    Connection, ConnectionError, ConnectionEvent, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint,
    EndpointEvent, Incoming, ServerConfig, Transmit,
};
use tokio::sync::mpsc;

use crate::proxy::server::quic::cid::CidKey;
use crate::proxy::server::quic::settings;
use crate::proxy::server::quic::socket::QuicSocket;

/// The state that the workers of one listener share.
pub struct QuicGroup {
    pub cids: CidKey,
    pub token_key: Arc<dyn HandshakeTokenKey>,
    /// Passes packets to the worker that has their connection, by the number of the worker.
    pub relay: Vec<mpsc::Sender<Datagram>>,
    /// Handshakes under way, over all workers.
    pub handshakes: Arc<AtomicUsize>,
}

/// A packet as it came from the network.
pub struct Datagram {
    pub remote: SocketAddr,
    pub local_ip: Option<IpAddr>,
    pub ecn: Option<EcnCodepoint>,
    pub bytes: BytesMut,
}

/// One handshake, until it is dropped.
pub struct HandshakeSlot(Arc<AtomicUsize>);

impl HandshakeSlot {
    pub fn take(count: &Arc<AtomicUsize>) -> HandshakeSlot {
        count.fetch_add(1, Ordering::Relaxed);
        HandshakeSlot(count.clone())
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The state that the endpoint shares with the task of a connection.
#[derive(Default)]
pub struct ConnectionQueue {
    events: RefCell<VecDeque<ConnectionEvent>>,
    task: RefCell<Option<Waker>>,
}

impl ConnectionQueue {
    pub fn push(&self, event: ConnectionEvent) {
        self.events.borrow_mut().push_back(event);
        self.wake();
    }

    pub fn pop(&self) -> Option<ConnectionEvent> {
        self.events.borrow_mut().pop_front()
    }

    /// Frees the room for events, if there are none.
    pub fn release_room(&self) {
        let mut events = self.events.borrow_mut();
        if events.is_empty() {
            *events = VecDeque::new();
        }
    }

    pub fn register(&self, waker: &Waker) {
        let mut task = self.task.borrow_mut();
        if !task.as_ref().is_some_and(|registered| registered.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }

    /// Wakes the task of the connection.
    pub fn wake(&self) {
        if let Some(task) = &*self.task.borrow() {
            task.wake_by_ref();
        }
    }
}

/// A connection of the library, with its name at the endpoint and its queue.
pub type AcceptedConnection = (ConnectionHandle, Connection, Rc<ConnectionQueue>);

/// The endpoint of one worker.
pub struct QuicEndpoint {
    pub socket: QuicSocket,
    pub group: Arc<QuicGroup>,
    /// Number of the worker.
    worker: usize,
    library: RefCell<Endpoint>,
    queues: RefCell<HashMap<ConnectionHandle, Rc<ConnectionQueue>>>,
    /// The listener is closing, so its connections end.
    is_stopping: Cell<bool>,
    /// Packets of the connection that sends. One buffer serves all of them.
    pub send_buffer: RefCell<Vec<u8>>,
    /// Packets of the library that belong to no connection.
    scratch: RefCell<Vec<u8>>,
    task: RefCell<Option<Waker>>,
}

impl QuicEndpoint {
    pub fn new(socket: QuicSocket, group: Arc<QuicGroup>, worker: usize) -> Rc<QuicEndpoint> {
        let config = Arc::new(settings::endpoint_config(&group.cids, worker));
        // Connections bring the settings of their listener.
        let library = Endpoint::new(config, None, true, None);
        Rc::new(QuicEndpoint {
            socket,
            group,
            worker,
            library: RefCell::new(library),
            queues: RefCell::default(),
            is_stopping: Cell::new(false),
            send_buffer: RefCell::default(),
            scratch: RefCell::default(),
            task: RefCell::default(),
        })
    }

    /// Has the library accept connections with these settings, or none.
    pub fn set_server_config(&self, config: Option<Arc<ServerConfig>>) {
        self.library.borrow_mut().set_server_config(config);
    }

    /// Handles a packet, unless it belongs to another worker, which gets it. Returns the new connection that it begins.
    pub fn receive(&self, datagram: Datagram) -> Option<Incoming> {
        if let Some(other) = self.group.cids.find_other_worker(&datagram.bytes, self.worker) {
            // A worker that is behind loses packets, as it does when its socket is full.
            self.group.relay.get(other).map(|relay| relay.try_send(datagram));
            return None;
        }
        let Datagram { remote, local_ip, ecn, bytes } = datagram;
        let mut response = self.scratch.borrow_mut();
        response.clear();
        let event = self.library.borrow_mut().handle(Instant::now(), remote, local_ip, ecn, bytes, &mut response)?;
        match event {
            DatagramEvent::NewConnection(incoming) => return Some(incoming),
            DatagramEvent::ConnectionEvent(handle, event) => {
                if let Some(queue) = self.queues.borrow().get(&handle) {
                    queue.push(event);
                }
            }
            DatagramEvent::Response(transmit) => self.send_response(&transmit, &response),
        }
        None
    }

    /// Sends a packet that belongs to no connection, or loses it.
    fn send_response(&self, transmit: &Transmit, bytes: &[u8]) {
        self.socket.send(transmit, &bytes[..transmit.size]);
    }

    /// Sends a packet of a connection. Returns false if the kernel has no room: `waker` is woken when it has.
    pub fn send(&self, transmit: &Transmit, bytes: &[u8], waker: &Waker) -> bool {
        if self.socket.send(transmit, &bytes[..transmit.size]) {
            return true;
        }
        self.socket.add_blocked(waker);
        // The task that receives is the one that waits for room.
        self.wake();
        false
    }

    /// Tells a client that the gateway does not accept its connection.
    pub fn refuse(&self, incoming: Incoming) {
        let mut response = Vec::new();
        let transmit = self.library.borrow_mut().refuse(incoming, &mut response);
        self.send_response(&transmit, &response);
    }

    /// Has a client prove that it receives what is sent to its address. A client that cannot is refused.
    pub fn request_proof(&self, incoming: Incoming) {
        let mut response = Vec::new();
        let retry = self.library.borrow_mut().retry(incoming, &mut response);
        match retry {
            Ok(transmit) => self.send_response(&transmit, &response),
            Err(error) => self.refuse(error.into_incoming()),
        }
    }

    /// Forgets a client that wants to connect.
    pub fn ignore(&self, incoming: Incoming) {
        self.library.borrow_mut().ignore(incoming);
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// Its first packets were invalid, or begin no handshake that could succeed. The client has been informed.
    pub fn accept(&self, incoming: Incoming, config: Arc<ServerConfig>) -> Result<AcceptedConnection, ConnectionError> {
        let mut response = Vec::new();
        let accepted = self.library.borrow_mut().accept(incoming, Instant::now(), &mut response, Some(config));
        match accepted {
            Ok((handle, connection)) => {
                let queue = Rc::<ConnectionQueue>::default();
                self.queues.borrow_mut().insert(handle, queue.clone());
                Ok((handle, connection, queue))
            }
            Err(error) => {
                error.response.iter().for_each(|transmit| self.send_response(transmit, &response));
                Err(error.cause)
            }
        }
    }

    /// Handles what a connection has for the endpoint. Returns what the endpoint has for the connection in turn.
    pub fn handle_event(&self, handle: ConnectionHandle, event: EndpointEvent) -> Option<ConnectionEvent> {
        self.library.borrow_mut().handle_event(handle, event)
    }

    /// Removes a connection. The library already knows that it has ended.
    pub fn remove(&self, handle: ConnectionHandle) {
        self.queues.borrow_mut().remove(&handle);
        self.wake();
    }

    pub fn has_connections(&self) -> bool {
        !self.queues.borrow().is_empty()
    }

    /// Has all connections end after their requests.
    pub fn stop(&self) {
        self.is_stopping.set(true);
        self.queues.borrow().values().for_each(|queue| queue.wake());
        self.wake();
    }

    pub fn is_stopping(&self) -> bool {
        self.is_stopping.get()
    }

    /// Registers the task that receives.
    pub fn register(&self, waker: &Waker) {
        *self.task.borrow_mut() = Some(waker.clone());
    }

    fn wake(&self) {
        if let Some(task) = &*self.task.borrow() {
            task.wake_by_ref();
        }
    }
}
