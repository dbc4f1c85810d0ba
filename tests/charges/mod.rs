//! Changes of a charge after the decision: refunds by outcome, leases of running requests, and queues.

mod abandoned_requests;
mod abandoned_streams;
mod abandoned_tunnels;
mod bytes;
mod clears;
mod cluster_reservations;
mod costs;
mod costs_later;
mod delivered;
mod grpc_ends;
mod key_overrides;
mod large_bodies;
mod late_refunds;
mod leases;
mod money;
mod outcomes;
mod overload_refunds;
mod prices;
mod queue_floods;
mod queue_leavers;
mod queues;
mod reloads;
mod request_ends;
mod usage_attacks;
mod usage_ends;
mod usage_requests;
