//! One exchange with an upstream server, over HTTP/1.1 of our own: [`connect`] opens connections,
//! [`pool`] keeps them, [`h1`] is the wire form, [`exchange`] moves one request and its answer. Used by
//! `forward`.

pub mod connect;
pub mod exchange;
pub mod forward;
pub mod forwarding;
pub mod h1;
pub mod linger;
pub mod pool;
pub mod sender;
