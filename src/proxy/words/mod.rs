//! Names, reasons, waits and log lines that all other directories of the proxy use.
//!
//! - `known_headers`, `trace`: headers that the gateway reads or writes
//! - `refusal`: an end of the table, with what only this request can tell
//! - `delay`: queues for delayed requests; `jitter`: of the waits that refusals state
//! - `failure_log`: sampled log lines about upstream failures and rejected clients
//! - `spelling`: header names in the case in which they came
//! - `shown_keys`: the keys of limits that the log shows
//!
//! Nothing here knows connections, routes or requests as a whole; what does belongs to a higher directory.

pub(crate) mod delay;
pub(crate) mod failure_log;
pub(crate) mod jitter;
pub(crate) mod known_headers;
pub(crate) mod refusal;
pub(crate) mod shown_keys;
pub(crate) mod spelling;
pub(crate) mod trace;
