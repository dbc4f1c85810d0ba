//! The admin listener: its API, live overrides of limits, malformed requests, and floods.

mod api;
mod floods;
mod malformed_requests;
mod overrides;
mod refused_requests;
