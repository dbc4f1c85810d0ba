//! What the client gets, whoever made it: our own answers, the fields added to every answer, the body
//! on its way, and the account that counts each request once.

pub(crate) mod access_log;
pub(crate) mod account;
pub(crate) mod body;
pub(crate) mod cause;
pub(crate) mod challenge;
pub(crate) mod echo;
pub(crate) mod grpc;
pub mod problem;
pub(crate) mod ratelimit;
pub(crate) mod redirect;
pub(crate) mod refusal;
pub(crate) mod unread;
