//! Redis fails, is full, is slow, or moves to another server: decisions, fallbacks and recovery.

mod cluster;
mod cluster_connections;
mod fallback;
mod fallback_shares;
mod far_redis;
mod flood;
mod full_redis;
mod login;
mod recovery;
mod redis;
mod sentinel;
mod tls;
