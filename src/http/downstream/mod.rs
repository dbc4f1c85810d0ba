//! Reading a request strictly: what the client sent, who it is, what is refused as unclear.

pub(crate) mod canonical;
pub(crate) mod connect;
pub(crate) mod gate;
pub(crate) mod h2;
pub(crate) mod hop;
pub(crate) mod identity;
pub mod inspect;
pub(crate) mod method;
pub(crate) mod offer;
pub mod reject;
pub(crate) mod upload;
