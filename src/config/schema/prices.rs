//! The options of a file with prices of models, which a limit names with `prices`. It is not part of the config itself.

use crate::config::schema::row::DefaultValue::{Described, Required};
use crate::config::schema::row::{Row, option, rows, table};
use crate::config::schema::value_type::ValueType::{Map, Table, Text};

/// The top level of the file.
pub mod file {
    use super::*;

    rows! {
        table("prices");

        DATE = option("date", Text("day"), Required, "the day of these prices");
        MODELS = option("models", Map(&Table(&model::TABLE)), Required, "prices by model");
    }
}

/// Options of a model. A price is for a million tokens.
pub mod model {
    use super::*;

    rows! {
        table("prices.models");

        INPUT = option("input", Text("price"), Required, "price of input tokens");
        CACHED = option("cached", Text("price"), Described("that of `input`"), "price of input tokens read from a cache");
        CACHE_WRITE = option("cache_write", Text("price"), Described("that of `input`"), "price of input tokens written to a cache");
        OUTPUT = option("output", Text("price"), Required, "price of output tokens");
    }
}
