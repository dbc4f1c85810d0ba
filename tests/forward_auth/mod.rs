//! Forward authentication: the exchange with the auth server, what a client cannot forge, and auth servers that fail.

mod attacks;
mod exchange;
mod failures;
mod pair;
mod transports;
