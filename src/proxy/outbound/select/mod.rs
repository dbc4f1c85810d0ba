//! The servers of an upstream in one worker. `steps::select` gets a connection to one of them.
//!
//! - `worker_upstream`: the upstream in this worker, with its selector, pools, retry policy and counters
//! - `retry_state`: what the request has tried so far, and what it needs of its connection
//! - `selector`: selects the server, by the balancer of `crate::upstream::balance`
//! - `place`: the place of a request below the adaptive limit
//! - `endpoint`: one server in one worker, with its connections, and what it reports to the other workers
//!
//! To add a balancer, see `crate::upstream::balance`. To add a reason for a retry, see `retry_policy`.

pub(crate) mod endpoint;
pub(crate) mod place;
pub(crate) mod retry_state;
pub(crate) mod selector;
pub(crate) mod worker_upstream;
