//! The admin listener: its API, keys given by the hash of a log, live overrides of limits, the most refused keys,
//! malformed requests, and floods.

mod api;
mod floods;
mod hashed_keys;
mod malformed_requests;
mod overrides;
mod refused_requests;
mod top;
