//! Reading a request strictly: what the client sent, who it is, what is refused as unclear.

pub mod canonical;
pub mod connect;
pub mod gate;
pub mod h2;
pub mod hop;
pub mod identity;
pub mod inspect;
pub mod offer;
pub mod reject;
pub mod upload;
