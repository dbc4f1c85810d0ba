//! The gateway and its upstream servers: balancing, health checks, ejection, retries, DNS, capacity, and the
//! protocols that are used to reach a server.

mod adaptive;
mod balance;
mod breaker;
mod capacity;
mod dns;
mod dns_failures;
mod eject;
mod failures;
mod fleet;
mod health;
mod http2;
mod http2_floods;
mod http2_messages;
mod http2_tunnels;
mod not_to_blame;
mod process_overload;
mod proxy_protocol;
mod resend;
mod response_heads;
mod retry;
mod services;
mod split;
mod split_metrics;
pub mod tls;
mod unix_sockets;
