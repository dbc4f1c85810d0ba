//! Reads access logs: `source` merges files, gzip and standard input into one stream of lines, `line` and the files of
//! the formats parse a line into an `entry`, and `order` sorts requests by their starts.
//!
//! - `common`: the common and combined formats; `json`: JSON of Caddy, Traefik and nginx
//! - `proxies`: HAProxy, Nginx Proxy Manager, AWS load balancers and CloudFront
//!
//! Input: bytes of any origin, never trusted. Output: requests in the order of their starts, and counts of lines that
//! could not be read. To add a format, parse it in a file of its own and try it in `line`.

pub(crate) mod common;
pub(crate) mod entry;
pub(crate) mod json;
pub(crate) mod line;
pub(crate) mod order;
pub(crate) mod proxies;
pub(crate) mod source;
