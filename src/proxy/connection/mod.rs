//! The state of a client connection and of its requests: phases, timeouts, minimum rates, bodies and counts. `server`
//! drives it from the accepted socket to its close; the steps of a request see it as a `RequestDeadline`.
//!
//! How long a client can stay in each `Phase`. Times and rates are defaults:
//!
//! | phase | bounded by | what ends it |
//! |---|---|---|
//! | `Handshake` | `handshake_timeout` (5 s), for the PROXY header and again for TLS | close |
//! | `Head` | `header_timeout` (10 s) | close; 408 in the access log |
//! | `Requests`: body | `body_timeout` (30 s) for a pause, `min_body_rate` (256 B/s) | 408 or close |
//! | `Requests`: server | `response_timeout` (60 s), and the delays of limits and queues | 504; the connection continues |
//! | `Requests`: response | `stream_timeout` (60 s) for a pause, `min_response_rate` (1 KiB/s) | reset |
//! | `Requests`, half-closed | `half_close_timeout` (1 s); 0 if a request needs the client (HTTP/1.1) | close |
//! | `Idle`, `Resting` | `keepalive_timeout` (75 s); less if descriptors are short, or at `max_connections` | close, or GOAWAY and 5 s |
//! | `Upgraded` | `tunnel_timeout` (1 h); `stream_timeout` once half-open; `min_response_rate` | close |
//! | unread body after the response | 2 s for a pause, 10 s and 32 MiB in all (`body::discard`) | close, or RST_STREAM |
//! | `Closed` | `linger` of the limit, for an exchange without its client; the drain timeout | end of the exchange |
//!
//! How much of the gateway's memory a client can use in each phase, besides the kernel's socket buffers (`max_unsent`):
//!
//! | phase | HTTP/1.1 | HTTP/2 |
//! |---|---|---|
//! | `Handshake` | a PROXY header of 2 KiB, 4 KiB of a ClientHello that waits, the TLS session | the same |
//! | `Head` | `max_header_bytes`, a parser of 20 kB | one head of up to 150 KiB; decoding tables, twice 10 KiB |
//! | `Requests`: body | the parser's buffer | 256 KiB a stream, 1 MiB in all |
//! | `Requests`: server | the head, twice | the head, twice, for each stream |
//! | `Requests`: response | 128 KiB, over TLS 192 KiB | 85 KiB a stream |
//! | `Requests`: fast response | 1 MiB more, but at most 16 MiB over all responses of a worker | the same |
//! | `Idle` | a parser of 20 kB | 23 KiB, over TLS 32 KiB, and 2 KiB for each stream of its maximum so far |
//! | `Resting` | 2 kB, over TLS 10 kB | the same, but at most 16 MiB over all connections of a worker |
//! | `Upgraded` | 64 KiB, nothing while it is silent | the same |
//!
//! HTTP/3 has the bounds of HTTP/2, with 1 MiB for the responses of a connection (`server::quic::settings`), and no
//! phase `Head`.
//!
//! `max_connections`, `max_connections_per_ip` and `max_streams` multiply these.
//!
//! - `phase`: the phases with their legal transitions, and the reasons for an end
//! - `state`, `request_state`: state of a connection and of each of its requests
//! - `request_deadline`: a request's handle on its own state and that of its connection
//! - `timeouts`: the coarse clock and its timers; `min_rate`: minimum rates of bodies and responses
//! - `stream`: the byte stream; `upgrade`: upgraded connections
//! - `body`: request bodies that the HTTP library receives, and their rest after the response; `upload`: their way to
//!   the action of the route; `body_memory`: memory of large ones
//! - `registry`: all connections of a worker; `connection_count`: their number over all workers; `client_counts`: what
//!   each client has of something that all share
//! - `settings`: the settings of a connection
//!
//! To add a phase, add it to `Phase` with its transitions, enter it with `ConnectionState::enter_phase`, and describe
//! it here and in docs/guarantees/threat-model.md.

pub(crate) mod body;
pub(crate) mod body_copy;
pub(crate) mod body_memory;
pub(crate) mod client_counts;
pub(crate) mod connection_count;
pub(crate) mod min_rate;
pub(crate) mod phase;
pub(crate) mod registry;
pub(crate) mod request_deadline;
pub(crate) mod request_state;
pub(crate) mod settings;
pub(crate) mod state;
pub(crate) mod stream;
pub(crate) mod timeouts;
pub(crate) mod upgrade;
pub(crate) mod upload;
