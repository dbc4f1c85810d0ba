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
use crate::worker::{BindError, Inherited, Listener, Workers, remove_socket_file};

pub struct Listeners {
    workers: Workers,
    inherited: Inherited,
    open: Vec<ListenAddr>,
    admin: admin::AdminServer,
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
}

/// How long an address in use by one of our own listeners may take to become free.
const HANDOVER: Duration = Duration::from_secs(2);
const HANDOVER_STEP: Duration = Duration::from_millis(5);

/// Binds every address of a config at the start, unless its socket was handed over.
pub fn bind_all(config: &Config, inherited: &Inherited) -> Result<Prepared, BindError> {
    let mut listeners = Vec::with_capacity(config.listeners.len());
    for listener in &config.listeners {
        listeners.push(bind(&listener.address, inherited)?.bounded(listener.max_unsent));
    }
    let admin = bind(&config.admin.listen, inherited)?;
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
        let mut listeners = Listeners { workers, inherited, open: Vec::new(), admin: admin::AdminServer::new(context) };
        for listener in prepared.listeners {
            listeners.workers.listen(&listener)?;
            listeners.open.push(listener.addr().clone());
        }
        if let Some(listener) = prepared.admin {
            listeners.admin.listen(listener)?;
        }
        Ok(listeners)
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
        for settings in config.listeners.iter().filter(|listener| !self.open.contains(&listener.address)) {
            let addr = &settings.address;
            let outgoing = |open: &&ListenAddr| config.listener(open).is_none() && overlap(open, addr);
            let rival = self.open.iter().find(outgoing).cloned();
            let listener = match (bind(addr, &self.inherited), rival) {
                // `127.0.0.1:80` and `0.0.0.0:80` exclude each other: the old one has to go first.
                (Err(refused), Some(rival)) if refused.in_use() => {
                    self.workers.unlisten(&rival);
                    displaced.push(rival);
                    bind_soon(addr).await?
                }
                (result, _) => result?,
            };
            prepared.listeners.push(listener.bounded(settings.max_unsent));
        }
        let addr = &config.admin.listen;
        if Some(addr) != self.admin.addr() {
            let rival = self.admin.addr().filter(|old| overlap(old, addr)).cloned();
            let listener = match (bind(addr, &self.inherited), rival) {
                (Err(refused), Some(rival)) if refused.in_use() => {
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
                self.workers.listen(&listener).map_err(|error| BindError { addr: addr.clone(), error })
            });
            if let Err(error) = reopened {
                tracing::error!("{error}; it was open before the reload that failed");
            }
        }
    }

    async fn reopen_admin(&mut self, addr: ListenAddr) {
        let reopened = bind_soon(&addr)
            .await
            .and_then(|listener| self.admin.listen(listener).map_err(|error| BindError { addr, error }));
        if let Err(error) = reopened {
            tracing::error!("{error}; the admin listener was open there before the reload that failed");
        }
    }

    /// Serves the prepared sockets, then closes those that `config`, now in force, does not name.
    pub fn exchange(&mut self, prepared: Prepared, config: &Config) {
        for listener in prepared.listeners {
            let addr = listener.addr().clone();
            match self.workers.listen(&listener) {
                Ok(()) => self.open.push(addr),
                Err(error) => tracing::error!("{}", BindError { addr, error }),
            }
        }
        let (kept, closed) = std::mem::take(&mut self.open).into_iter().partition(|a| config.listener(a).is_some());
        self.open = kept;
        closed.iter().for_each(|addr| self.close(addr));
        if let Some(listener) = prepared.admin {
            let (addr, old) = (listener.addr().clone(), self.admin.addr().cloned());
            match self.admin.listen(listener) {
                Ok(()) => old.iter().for_each(|old| remove_file(old, &self.inherited)),
                Err(error) => tracing::error!("{}", BindError { addr, error }),
            }
        }
    }

    /// Of the workers.
    pub fn access_log(&self) -> &AccessLog {
        &self.workers.access_log
    }

    /// Stops accepting. The admin server goes on, to answer probes; the workers come back to be
    /// drained.
    pub fn close_all(mut self) -> LastListeners {
        std::mem::take(&mut self.open).iter().for_each(|addr| self.close(addr));
        LastListeners { workers: self.workers, admin: self.admin, inherited: self.inherited }
    }

    fn close(&self, addr: &ListenAddr) {
        self.workers.unlisten(addr);
        remove_file(addr, &self.inherited);
    }
}

impl LastListeners {
    /// Lets requests end within `timeout`, then stops the admin listener too. True when none was cut.
    pub async fn drain(self, timeout: Duration) -> bool {
        let is_whole = self.workers.drain(timeout).await;
        if let Some(addr) = self.admin.end() {
            remove_file(&addr, &self.inherited);
        }
        is_whole
    }
}

fn remove_file(addr: &ListenAddr, inherited: &Inherited) {
    if !inherited.has(addr) {
        remove_socket_file(addr);
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
