//! What the fuzz targets ask of modules that are nobody else's: there for them alone, with the feature `fuzzing`.

pub use crate::http::downstream::canonical::{Authority, authority, path};
pub use crate::http::downstream::identity::{Identity, identify};
pub use crate::http::downstream::reject::Judge;
pub use crate::worker::{Introduction, header, introduction};
