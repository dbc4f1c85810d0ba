//! What the config says of the access log. Compiled by `config`, held by each line in the making.

use std::path::PathBuf;

use super::{Masks, Template};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessLogSettings {
    pub format: LineFormat,
    pub to: LogTarget,
    /// Whose values in queries are not logged.
    pub mask: Masks,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum LineFormat {
    #[default]
    Json,
    /// As nginx and Apache call it.
    Combined,
    Template(Template),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTarget {
    #[default]
    Stdout,
    File(PathBuf),
}
