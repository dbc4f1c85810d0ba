//! The admin listener: metrics, probes, status, reload, and limits over HTTP. It runs on the control thread, so it
//! responds however busy the workers are.
//!
//! Input: requests on TCP or a Unix socket; at most a bounded number of connections, bytes and seconds (`slots`,
//! `serve`, `cached`). `access` authorizes requests and records changes; `inspected_stream` rejects ambiguous framing.
//! Output: the pages of the table in `pages`, each group in one file, there or here: `status` shows the process,
//! `pages::limits` decides, shows, resets and refunds without a proxied request (`limits`), `peers` lists all gateways
//! of the store, and so on. `verdict` lists what is wrong. `lifecycle` holds the state that the control thread reports,
//! and `store_link` its connection to the store.
//!
//! To add a page, write an async function of a `PageRequest` (`page_request`) that returns a response (`response`) or a
//! problem (`problem`), add a row with its access level to the table in `pages`, describe it for programs in
//! `openapi/operations/`, and for people in `docs/reference/admin-api.md` and `admin-api-traffic.md`.

pub(crate) mod access;
mod cached;
mod config;
mod context;
mod dashboard;
mod history;
mod inspected_stream;
pub(crate) mod ledger;
pub(crate) mod lifecycle;
mod limits;
mod live_hub;
pub(crate) mod live_overrides;
mod metrics_text;
mod openapi;
mod page_request;
mod pages;
mod peers;
mod problem;
mod response;
mod runbook;
mod serve;
mod slots;
mod status;
pub(crate) mod store_link;
mod streams;
mod upstreams;
mod verdict;

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_local};

use crate::admin::access::Peer;
pub use crate::admin::config::ConfigApi;
pub use crate::admin::context::AdminContext;
pub use crate::admin::history::record_history;
pub use crate::admin::limits::LimitsApi;
use crate::admin::serve::serve_connection;
use crate::admin::slots::AdminSlots;
use crate::limiting::supervise::restart_on_panic;
use crate::net::ListenAddr;
use crate::telemetry::sampled::LogSampler;
use crate::worker::{Accepted, Acceptor, Listener};

/// The listener and the data of its pages.
pub struct AdminServer {
    context: Rc<AdminContext>,
    slots: Rc<AdminSlots>,
    open: Option<(ListenAddr, JoinHandle<()>)>,
}

/// Pause after an accept failed for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// Send buffer of a connection in bytes. The kernel's default would cost megabytes for each of many clients that do
/// not read.
const SEND_BUFFER: usize = 128 * 1024;

impl AdminServer {
    pub fn new(context: AdminContext) -> AdminServer {
        pages::create_series(&context.metrics);
        let server = AdminServer { context: Rc::new(context), slots: Rc::default(), open: None };
        server.open_audit_log();
        let (context, restarts) = (server.context.clone(), server.context.metrics.store.task_restarts.clone());
        spawn_local(restart_on_panic(restarts, move || peers::write_summaries(context.clone())));
        server
    }

    /// Opens the audit log that the current config sets.
    pub fn open_audit_log(&self) {
        if let Some(file) = &self.context.current.load().config.admin.audit {
            self.context.access.audit.open_file(file);
        }
    }

    /// Opens the audit log again after it was renamed.
    pub fn reopen_audit_log(&self) {
        self.context.access.audit.reopen_file();
    }

    /// Accepts from `listener` instead of the previous one.
    pub fn listen_on(&mut self, listener: Listener) -> io::Result<()> {
        let (addr, bound) = (listener.addr().clone(), listener.bound_addr());
        listener.set_send_buffer(SEND_BUFFER)?;
        let task = spawn_local(accept_connections(listener.into_acceptor()?, self.context.clone(), self.slots.clone()));
        if let Some((_, before)) = self.open.replace((addr, task)) {
            before.abort();
        }
        self.context.limits.store_link().gateways().set_display_name(&bound);
        self.context.shared.set_admin_addr(bound);
        Ok(())
    }

    pub fn addr(&self) -> Option<&ListenAddr> {
        self.open.as_ref().map(|(addr, _)| addr)
    }

    /// Stops accepting; the address is free when this returns.
    pub async fn close(&mut self) {
        if let Some((_, task)) = self.open.take() {
            task.abort();
            // The task ends as cancelled.
            let _ = task.await;
        }
    }

    /// Ends the listener with the process, and writes the last lines of the audit log and the usage of limits.
    pub async fn shut_down(self) {
        if let Some((_, task)) = self.open {
            task.abort();
        }
        self.context.limits.save_usage().await;
        self.context.write_summaries();
        self.context.access.audit.close().await;
    }
}

async fn accept_connections(acceptor: Acceptor, context: Rc<AdminContext>, slots: Rc<AdminSlots>) {
    let line = LogSampler::default();
    loop {
        match acceptor.accept_next().await {
            // The permissions of a Unix socket decide who may connect.
            Ok(Accepted { stream, peer, local_addr }) => {
                let peer = if local_addr.is_some() { Peer::Tcp(peer.ip()) } else { Peer::Unix };
                spawn_local(serve_connection(stream, peer, context.clone(), AdminSlots::take_slot(&slots)));
            }
            Err(error) => {
                if let Some(left_out) = line.take_turn() {
                    tracing::warn!(%error, left_out, "the admin listener cannot accept a connection, pausing");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
