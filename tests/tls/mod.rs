//! TLS between the client and the gateway. TLS to upstream servers is in `upstreams`.

mod certificate_files;
mod client_certificates;
mod development;
mod hostile_clients;
mod key_exchange;
pub mod listeners;
mod slow_readers;
