//! What the client gets, whoever made it: our own answers, the fields added to every answer, the body
//! on its way, and the account that counts each request once.

pub mod access_log;
pub mod account;
pub mod body;
pub mod echo;
pub mod grpc;
pub mod problem;
pub mod ratelimit;
pub mod unread;
