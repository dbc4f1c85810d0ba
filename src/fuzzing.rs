//! What the fuzz targets ask of modules that are nobody else's: there for `cargo fuzz` alone.

pub use crate::http::downstream::canonical::{Authority, authority, path};
pub use crate::http::downstream::identity::{Identity, identify};
pub use crate::http::downstream::inspect::Inspector;
pub use crate::http::downstream::reject::{Judge, Reject};
