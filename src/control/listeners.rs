//! The sockets: bound before anything else changes, handed to the workers and the admin server,
//! exchanged on reload without a moment in which nobody listens. Owned by the reloader.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::admin;
use crate::access_log::AccessLog;
use crate::config::Config;
use crate::limit::store::settings::StoreSettings;
use crate::net::ListenAddr;
use crate::worker::{BindError, Inherited, Listener, Workers};

pub struct Listeners {
    workers: Workers,
    inherited: Inherited,
    /// With a handle of each, for a process that takes over.
    open: Vec<Listener>,
    admin: admin::AdminServer,
    admin_socket: Option<Listener>,
    /// Another process has every socket, too: their files may be its own by now.
    handed_over: bool,
}

/// Sockets of a config that is not in force yet; dropping them changes nothing.
pub struct Prepared {
    listeners: Vec<Listener>,
    admin: Option<Listener>,
}

/// Where the process ends: what is left to be closed.
pub struct LastListeners {
    workers: Workers,
    admin: admin::AdminServer,
    inherited: Inherited,
    admin_socket: Option<Listener>,
    handed_over: bool,
}

/// How long an address in use by one of our own listeners may take to become free.
const HANDOVER: Duration = Duration::from_secs(2);
const HANDOVER_STEP: Duration = Duration::from_millis(5);

/// Binds every address of a config at the start, unless its socket was handed over, by `earlier` sockets of the
/// process that ran before or by systemd.
pub fn bind_all(config: &Config, inherited: &Inherited, mut earlier: Vec<Listener>) -> Result<Prepared, BindError> {
    let mut bind = |addr: &ListenAddr| match earlier.iter().position(|listener| listener.addr() == addr) {
        Some(place) => Ok(earlier.swap_remove(place)),
        None => bind(addr, inherited),
    };
    let mut listeners = Vec::with_capacity(config.listeners.len());
    for listener in &config.listeners {
        listeners.push(bind(&listener.address)?.bounded(listener.max_unsent));
    }
    let admin = bind(&config.admin.listen)?;
    let addresses = config.listeners.iter().map(|listener| &listener.address);
    let asked: Vec<&ListenAddr> = addresses.chain([&config.admin.listen]).collect();
    for addr in inherited.unused(&asked) {
        tracing::warn!(%addr, "a socket was handed over for an address that the config does not name: add it to `listen`");
    }
    Ok(Prepared { listeners, admin: Some(admin) })
}

fn bind(addr: &ListenAddr, inherited: &Inherited) -> Result<Listener, BindError> {
    inherited.listener(addr).map_or_else(|| Listener::bind(addr), Ok)
}

impl Prepared {
    /// The bound addresses, for the log: a port written as 0 is known now.
    pub fn addresses(&self) -> (Vec<String>, String) {
        let name = |listener: &Listener| listener.bound_addr().to_string();
        (self.listeners.iter().map(name).collect(), self.admin.as_ref().map(name).unwrap_or_default())
    }
}

impl Listeners {
    /// Serves what `bind_all` bound.
    pub fn open(
        workers: Workers,
        prepared: Prepared,
        inherited: Inherited,
        context: admin::AdminContext,
    ) -> io::Result<Listeners> {
        let mut listeners = Listeners {
            workers,
            inherited,
            open: Vec::new(),
            admin: admin::AdminServer::new(context),
            admin_socket: None,
            handed_over: false,
        };
        for listener in prepared.listeners {
            listeners.workers.listen(&listener)?;
            listeners.open.push(listener);
        }
        if let Some(listener) = prepared.admin {
            listeners.listen_as_admin(listener)?;
        }
        Ok(listeners)
    }

    fn listen_as_admin(&mut self, listener: Listener) -> io::Result<()> {
        let kept = listener.try_clone()?;
        self.admin.listen(listener)?;
        self.admin_socket = Some(kept);
        Ok(())
    }

    /// All sockets, for a process that takes over, which serves them before it says so.
    pub fn sockets(&mut self) -> io::Result<Vec<Listener>> {
        let sockets = self.open.iter().chain(&self.admin_socket).map(Listener::try_clone).collect::<io::Result<_>>()?;
        self.handed_over = true;
        Ok(sockets)
    }

    /// Another process serves them, and is asked as admin.
    pub async fn hand_over(&mut self) {
        self.admin_socket = None;
        self.admin.close().await;
    }

    fn is_open(&self, addr: &ListenAddr) -> bool {
        self.open.iter().any(|listener| listener.addr() == addr)
    }

    /// Lets the workers connect to the store of `settings` in advance.
    pub async fn reach(&self, settings: &StoreSettings) {
        self.workers.reach(settings).await;
    }

    /// Binds what `config` adds. On an error everything is as before.
    pub async fn prepare(&mut self, config: &Config) -> Result<Prepared, BindError> {
        let mut prepared = Prepared { listeners: Vec::new(), admin: None };
        let mut displaced = Vec::new();
        let result = self.bind_added(config, &mut prepared, &mut displaced).await;
        if let Err(error) = result {
            prepared.listeners.iter().for_each(|listener| self.remove_file(listener));
            drop(prepared);
            self.restore(displaced).await;
            return Err(error);
        }
        Ok(prepared)
    }

    async fn bind_added(
        &mut self,
        config: &Config,
        prepared: &mut Prepared,
        displaced: &mut Vec<ListenAddr>,
    ) -> Result<(), BindError> {
        for settings in config.listeners.iter().filter(|listener| !self.is_open(&listener.address)).collect::<Vec<_>>()
        {
            let addr = &settings.address;
            // One that was handed over stays open here, whoever accepts from it.
            let goes = |open: &&ListenAddr| config.listener(open).is_none() && !self.inherited.has(open);
            let outgoing = |open: &&ListenAddr| goes(open) && overlap(open, addr);
            let rival = self.open.iter().map(Listener::addr).find(outgoing).cloned();
            let listener = match (bind(addr, &self.inherited), rival) {
                // `127.0.0.1:80` and `0.0.0.0:80` exclude each other: the old one has to go first.
                (Err(refused), Some(rival)) if refused.in_use() => {
                    self.workers.unlisten(&rival);
                    self.open.retain(|listener| *listener.addr() != rival);
                    displaced.push(rival);
                    bind_soon(addr).await?
                }
                (result, _) => result?,
            };
            prepared.listeners.push(listener.bounded(settings.max_unsent));
        }
        let addr = &config.admin.listen;
        if Some(addr) != self.admin.addr() {
            let rival = self.admin.addr().filter(|old| overlap(old, addr) && !self.inherited.has(old)).cloned();
            let listener = match (bind(addr, &self.inherited), rival) {
                (Err(refused), Some(rival)) if refused.in_use() => {
                    self.admin_socket = None;
                    self.admin.close().await;
                    let bound = bind_soon(addr).await;
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

    async fn restore(&mut self, displaced: Vec<ListenAddr>) {
        for addr in displaced {
            let reopened = bind_soon(&addr).await.and_then(|listener| {
                let listening = self.workers.listen(&listener);
                listening.map(|()| listener).map_err(|error| BindError { addr: addr.clone(), error })
            });
            match reopened {
                Ok(listener) => self.open.push(listener),
                Err(error) => tracing::error!("{error}; it was open before the reload that failed"),
            }
        }
    }

    async fn reopen_admin(&mut self, addr: ListenAddr) {
        let reopened = bind_soon(&addr)
            .await
            .and_then(|listener| self.listen_as_admin(listener).map_err(|error| BindError { addr, error }));
        if let Err(error) = reopened {
            tracing::error!("{error}; the admin listener was open there before the reload that failed");
        }
    }

    /// Serves the prepared sockets, then closes those that `config`, now in force, does not name.
    pub fn exchange(&mut self, prepared: Prepared, config: &Config) {
        for listener in prepared.listeners {
            let addr = listener.addr().clone();
            match self.workers.listen(&listener) {
                Ok(()) => self.open.push(listener),
                Err(error) => tracing::error!("{}", BindError { addr, error }),
            }
        }
        let (kept, closed) =
            std::mem::take(&mut self.open).into_iter().partition(|open| config.listener(open.addr()).is_some());
        self.open = kept;
        let closed: Vec<Listener> = closed;
        closed.iter().for_each(|listener| self.close(listener));
        if let Some(listener) = prepared.admin {
            let (addr, old) = (listener.addr().clone(), self.admin_socket.take());
            match self.listen_as_admin(listener) {
                Ok(()) => old.iter().for_each(|old| self.remove_file(old)),
                Err(error) => {
                    self.admin_socket = old;
                    tracing::error!("{}", BindError { addr, error });
                }
            }
        }
    }

    /// Of the workers.
    pub fn access_log(&self) -> &AccessLog {
        &self.workers.access_log
    }

    /// Answers close their connections from now on.
    pub fn leave(&self) {
        self.workers.leave();
    }

    /// Stops accepting. The admin server goes on, to answer probes; the workers come back to be
    /// drained.
    pub fn close_all(mut self) -> LastListeners {
        std::mem::take(&mut self.open).iter().for_each(|listener| self.close(listener));
        let Listeners { workers, admin, inherited, admin_socket, handed_over, .. } = self;
        LastListeners { workers, admin, inherited, admin_socket, handed_over }
    }

    fn close(&self, listener: &Listener) {
        self.workers.unlisten(listener.addr());
        self.remove_file(listener);
    }

    fn remove_file(&self, listener: &Listener) {
        if !self.handed_over {
            remove_file(listener, &self.inherited);
        }
    }
}

impl LastListeners {
    /// Lets requests end within `timeout`, then stops the admin listener too. True when none was cut.
    pub async fn drain(self, timeout: Duration) -> bool {
        let is_whole = self.workers.drain(timeout).await;
        self.admin.end();
        if let Some(listener) = self.admin_socket.filter(|_| !self.handed_over) {
            remove_file(&listener, &self.inherited);
        }
        is_whole
    }
}

fn remove_file(listener: &Listener, inherited: &Inherited) {
    if !inherited.has(listener.addr()) {
        listener.remove_file();
    }
}

async fn bind_soon(addr: &ListenAddr) -> Result<Listener, BindError> {
    let until = Instant::now() + HANDOVER;
    loop {
        match Listener::bind(addr) {
            Err(refused) if refused.in_use() && Instant::now() < until => tokio::time::sleep(HANDOVER_STEP).await,
            result => return result,
        }
    }
}

/// True when the system may refuse one address while the other is open.
fn overlap(a: &ListenAddr, b: &ListenAddr) -> bool {
    let any = |addr: &SocketAddr| addr.ip().is_unspecified();
    match (a, b) {
        (ListenAddr::Tcp(a), ListenAddr::Tcp(b)) => a.port() == b.port() && (any(a) || any(b) || a.ip() == b.ip()),
        _ => false,
    }
}
