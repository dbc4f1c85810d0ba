//! Listening sockets: bound before anything else changes, passed to the workers and the admin server, and exchanged on
//! reload without a moment in which nobody listens. Owned by the reloader.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::admin;
use crate::config::Config;
use crate::limiting::store::settings::StoreSettings;
use crate::net::{ListenAddr, SocketAccess};
use crate::telemetry::access_log::AccessLog;
use crate::worker::{BindError, FileAccess, InheritedSockets, Listener, QuicOpener, Workers};

pub struct Listeners {
    workers: Workers,
    inherited: InheritedSockets,
    /// Open listeners; each keeps a handle for a process that takes over.
    open: Vec<Listener>,
    admin: admin::AdminServer,
    admin_socket: Option<Listener>,
    /// Open or opening UDP sockets of HTTP/3.
    quic: Vec<QuicOpener>,
    /// Another process has all sockets and may own their files by now.
    handed_over: bool,
}

/// Bound sockets of a config that is not active yet; dropping them changes nothing.
pub struct Prepared {
    listeners: Vec<Listener>,
    admin: Option<Listener>,
}

/// Listeners that remain to be closed at the end of the process.
pub struct LastListeners {
    workers: Workers,
    admin: admin::AdminServer,
    inherited: InheritedSockets,
    admin_socket: Option<Listener>,
    handed_over: bool,
}

/// How long to wait for an address that one of our own listeners still uses.
const RETRY_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Binds every address of a config at the start, except sockets inherited from systemd or received from the old
/// process (`received`).
pub fn bind_all(
    config: &Config,
    inherited: &InheritedSockets,
    mut received: Vec<Listener>,
) -> Result<Prepared, BindError> {
    let mut bind =
        |addr: &ListenAddr, access: &SocketAccess| match received.iter().position(|listener| listener.addr() == addr) {
            // The config of the old process may have had another mode, owner or group.
            Some(place) if !inherited.has(addr) => {
                let listener = received.swap_remove(place);
                listener.set_access(access).map(|()| listener)
            }
            Some(place) => Ok(received.swap_remove(place)),
            None => bind_listener(addr, access, inherited),
        };
    let mut listeners = Vec::with_capacity(config.listeners.len());
    for listener in &config.listeners {
        listeners.push(bind(&listener.address, &listener.access)?.with_max_unsent(listener.max_unsent));
    }
    let admin = bind(&config.admin.listen, &SocketAccess::OWN_USER)?;
    let addresses = config.listeners.iter().map(|listener| &listener.address);
    let addresses: Vec<&ListenAddr> = addresses.chain([&config.admin.listen]).collect();
    for addr in inherited.unused(&addresses) {
        tracing::warn!(%addr, "a socket was handed over for an address that the config does not name: add it to `listen`");
    }
    Ok(Prepared { listeners, admin: Some(admin) })
}

fn bind_listener(
    addr: &ListenAddr,
    access: &SocketAccess,
    inherited: &InheritedSockets,
) -> Result<Listener, BindError> {
    inherited.listener(addr).map_or_else(|| Listener::bind(addr, access), Ok)
}

impl Prepared {
    /// Returns the bound addresses for the log, with the real port where the config has 0.
    pub fn bound_addresses(&self) -> (Vec<String>, String) {
        let name = |listener: &Listener| listener.bound_addr().to_string();
        (self.listeners.iter().map(name).collect(), self.admin.as_ref().map(name).unwrap_or_default())
    }
}

impl Listeners {
    /// Serves what `bind_all` bound.
    pub fn open_prepared(
        workers: Workers,
        prepared: Prepared,
        inherited: InheritedSockets,
        context: admin::AdminContext,
        config: &Config,
    ) -> io::Result<Listeners> {
        let mut listeners = Listeners {
            workers,
            inherited,
            open: Vec::new(),
            admin: admin::AdminServer::new(context),
            admin_socket: None,
            quic: Vec::new(),
            handed_over: false,
        };
        for listener in prepared.listeners {
            listeners.workers.add_listener(&listener)?;
            listeners.open.push(listener);
        }
        if let Some(listener) = prepared.admin {
            listeners.open_admin(listener)?;
        }
        listeners.exchange_quic(config);
        Ok(listeners)
    }

    /// Opens and closes the UDP sockets of HTTP/3, as `config` wants.
    fn exchange_quic(&mut self, config: &Config) {
        let has_http3 = |addr: &ListenAddr| config.listener(addr).is_some_and(|settings| settings.http3.is_some());
        let quic = std::mem::take(&mut self.quic).into_iter();
        let (kept, closed): (Vec<_>, Vec<_>) = quic.partition(|opener| has_http3(&opener.addr));
        self.quic = kept;
        for QuicOpener { addr, .. } in &closed {
            self.workers.close_quic(addr);
        }
        for listener in &self.open {
            let is_open = self.quic.iter().any(|opener| opener.addr == *listener.addr());
            if has_http3(listener.addr()) && !is_open {
                self.quic.extend(self.workers.open_quic(listener));
            }
        }
    }

    fn open_admin(&mut self, listener: Listener) -> io::Result<()> {
        let copy = listener.try_clone()?;
        self.admin.listen_on(listener)?;
        self.admin_socket = Some(copy);
        Ok(())
    }

    /// Returns all sockets for a new process, which serves them before it reports so.
    pub fn clone_sockets(&mut self) -> io::Result<Vec<Listener>> {
        let sockets = self.open.iter().chain(&self.admin_socket).map(Listener::try_clone).collect::<io::Result<_>>()?;
        self.handed_over = true;
        Ok(sockets)
    }

    /// Marks the sockets as served by another process, which also answers admin requests now.
    pub async fn mark_handed_over(&mut self) {
        self.admin_socket = None;
        self.admin.close().await;
    }

    fn is_open(&self, addr: &ListenAddr) -> bool {
        self.open.iter().any(|listener| listener.addr() == addr)
    }

    /// Lets the workers connect to the store of `settings` in advance.
    pub async fn connect_store(&self, settings: &StoreSettings) {
        self.workers.connect_store(settings).await;
    }

    /// Binds the addresses that `config` adds, and takes the right to connect to the Unix sockets that stay from those
    /// who do not have it in `config`, if `old` lets others connect. On an error nothing changes.
    pub async fn prepare_added(&mut self, config: &Config, old: &Config) -> Result<Prepared, BindError> {
        let mut bindings = Prepared { listeners: Vec::new(), admin: None };
        let mut old_addresses = Vec::new();
        let result = self.bind_added_listeners(config, &mut bindings, &mut old_addresses).await;
        let result = result.and_then(|()| self.narrow_access(config, old));
        if let Err(error) = result {
            bindings.listeners.iter().for_each(|listener| self.remove_socket_file(listener));
            drop(bindings);
            self.restore_closed(old_addresses).await;
            return Err(error);
        }
        Ok(bindings)
    }

    async fn bind_added_listeners(
        &mut self,
        config: &Config,
        prepared: &mut Prepared,
        displaced: &mut Vec<ListenAddr>,
    ) -> Result<(), BindError> {
        for settings in config.listeners.iter().filter(|listener| !self.is_open(&listener.address)).collect::<Vec<_>>()
        {
            let addr = &settings.address;
            // An inherited socket stays open here, whoever accepts from it.
            let is_removed = |open: &&ListenAddr| config.listener(open).is_none() && !self.inherited.has(open);
            let outgoing = |open: &&ListenAddr| is_removed(open) && addresses_overlap(open, addr);
            let rival = self.open.iter().map(Listener::addr).find(outgoing).cloned();
            let listener = match (bind_listener(addr, &settings.access, &self.inherited), rival) {
                // `127.0.0.1:80` and `0.0.0.0:80` exclude each other: the old one must be closed first.
                (Err(refused), Some(rival)) if refused.in_use() => {
                    self.workers.remove_listener(&rival);
                    self.open.retain(|listener| *listener.addr() != rival);
                    displaced.push(rival);
                    bind_with_retry(addr).await?
                }
                (result, _) => result?,
            };
            prepared.listeners.push(listener.with_max_unsent(settings.max_unsent));
        }
        let addr = &config.admin.listen;
        if Some(addr) != self.admin.addr() {
            let rival =
                self.admin.addr().filter(|old| addresses_overlap(old, addr) && !self.inherited.has(old)).cloned();
            let listener = match (bind_listener(addr, &SocketAccess::OWN_USER, &self.inherited), rival) {
                (Err(refused), Some(rival)) if refused.in_use() => {
                    self.admin_socket = None;
                    self.admin.close().await;
                    let bound = bind_with_retry(addr).await;
                    if bound.is_err() {
                        self.reopen_admin(rival).await;
                    }
                    bound?
                }
                (result, _) => result?,
            };
            prepared.admin = Some(listener);
        }
        Ok(())
    }

    /// Narrows the access to every Unix socket for which it changes, or to none.
    fn narrow_access(&self, config: &Config, old: &Config) -> Result<(), BindError> {
        let mut narrowed: Vec<(&Listener, FileAccess)> = Vec::new();
        let is_new =
            |addr: &ListenAddr, access: &SocketAccess| old.listener(addr).is_none_or(|before| before.access != *access);
        for (listener, access) in self.kept_listeners(config).filter(|(open, access)| is_new(open.addr(), access)) {
            match listener.narrow_access(access) {
                Ok(before) => narrowed.extend(before.map(|before| (listener, before))),
                Err(error) => {
                    narrowed.into_iter().for_each(|(listener, before)| listener.restore_access(before));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Returns the open listeners that `config` keeps, with who may connect, but not inherited ones.
    fn kept_listeners<'l>(&'l self, config: &'l Config) -> impl Iterator<Item = (&'l Listener, &'l SocketAccess)> {
        let own = self.open.iter().filter(move |open| !self.inherited.has(open.addr()));
        own.filter_map(move |open| Some((open, &config.listener(open.addr())?.access)))
    }

    async fn restore_closed(&mut self, displaced: Vec<ListenAddr>) {
        for addr in displaced {
            let result = bind_with_retry(&addr).await.and_then(|listener| {
                let listening = self.workers.add_listener(&listener);
                listening.map(|()| listener).map_err(|error| BindError { addr: addr.clone(), error })
            });
            match result {
                Ok(listener) => self.open.push(listener),
                Err(error) => tracing::error!("{error}; it was open before the reload that failed"),
            }
        }
    }

    async fn reopen_admin(&mut self, addr: ListenAddr) {
        let result = bind_with_retry(&addr)
            .await
            .and_then(|listener| self.open_admin(listener).map_err(|error| BindError { addr, error }));
        if let Err(error) = result {
            tracing::error!("{error}; the admin listener was open there before the reload that failed");
        }
    }

    /// Serves the prepared sockets, then closes those that `config`, now active, does not name. Returns what failed,
    /// which is not active.
    pub fn exchange_listeners(&mut self, prepared: Prepared, config: &Config) -> Vec<BindError> {
        let mut failures = Vec::new();
        for listener in prepared.listeners {
            let addr = listener.addr().clone();
            match self.workers.add_listener(&listener) {
                Ok(()) => self.open.push(listener),
                Err(error) => failures.push(BindError { addr, error }),
            }
        }
        let open = std::mem::take(&mut self.open).into_iter();
        let (open, unused): (Vec<_>, Vec<_>) = open.partition(|open| config.listener(open.addr()).is_some());
        self.open = open;
        unused.iter().for_each(|listener| self.close(listener));
        failures.extend(self.kept_listeners(config).filter_map(|(open, access)| open.set_access(access).err()));
        self.exchange_quic(config);
        if let Some(listener) = prepared.admin {
            let (addr, old) = (listener.addr().clone(), self.admin_socket.take());
            match self.open_admin(listener) {
                Ok(()) => old.iter().for_each(|old| self.remove_socket_file(old)),
                Err(error) => {
                    self.admin_socket = old;
                    failures.push(BindError { addr, error });
                }
            }
        }
        failures
    }

    /// Returns the workers' access log.
    pub fn access_log(&self) -> &AccessLog {
        &self.workers.access_log
    }

    /// Opens the audit log that the current config sets.
    pub fn open_audit_log(&self) {
        self.admin.open_audit_log();
    }

    /// Closes the logs, whose files may have been renamed, and opens them again.
    pub fn reopen_logs(&self) {
        self.workers.access_log.reopen_file();
        self.admin.reopen_audit_log();
    }

    /// Makes every response close its connection from now on.
    pub fn close_after_responses(&self) {
        self.workers.begin_leaving();
    }

    /// Stops accepting. The admin server continues, to answer probes; the workers are returned for draining.
    pub fn close_all(mut self) -> LastListeners {
        std::mem::take(&mut self.open).iter().for_each(|listener| self.close(listener));
        let Listeners { workers, admin, inherited, admin_socket, handed_over, .. } = self;
        LastListeners { workers, admin, inherited, admin_socket, handed_over }
    }

    fn close(&self, listener: &Listener) {
        self.workers.remove_listener(listener.addr());
        self.remove_socket_file(listener);
    }

    fn remove_socket_file(&self, listener: &Listener) {
        if !self.handed_over {
            remove_file(listener, &self.inherited);
        }
    }
}

impl LastListeners {
    /// Lets requests finish within `timeout`, then closes the admin listener. Returns whether no request was cut.
    pub async fn drain_requests(self, timeout: Duration) -> bool {
        let is_whole = self.workers.drain(timeout).await;
        self.admin.shut_down().await;
        if let Some(listener) = self.admin_socket.filter(|_| !self.handed_over) {
            remove_file(&listener, &self.inherited);
        }
        is_whole
    }
}

fn remove_file(listener: &Listener, inherited: &InheritedSockets) {
    if !inherited.has(listener.addr()) {
        listener.remove_file();
    }
}

async fn bind_with_retry(addr: &ListenAddr) -> Result<Listener, BindError> {
    let until = Instant::now() + RETRY_TIMEOUT;
    loop {
        // Only TCP addresses exclude each other.
        match Listener::bind(addr, &SocketAccess::OWN_USER) {
            Err(refused) if refused.in_use() && Instant::now() < until => tokio::time::sleep(RETRY_INTERVAL).await,
            result => return result,
        }
    }
}

/// Returns whether the system may refuse one address while the other is open.
fn addresses_overlap(a: &ListenAddr, b: &ListenAddr) -> bool {
    let any = |addr: &SocketAddr| addr.ip().is_unspecified();
    match (a, b) {
        (ListenAddr::Tcp(a), ListenAddr::Tcp(b)) => a.port() == b.port() && (any(a) || any(b) || a.ip() == b.ip()),
        _ => false,
    }
}
