//! Re-exports private functions for the fuzz targets. Compiled only with the feature `fuzzing`.

pub use crate::proxy::connection::proxy_protocol::{ProxyHeaderResult, parse_header, read_bytes};
pub use crate::proxy::inbound::canonical::{Authority, canonicalize_path, parse_authority};
pub use crate::proxy::inbound::identity::{ClientAddress, identify};
pub use crate::proxy::inbound::reject::Judge;
