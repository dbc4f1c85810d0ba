//! Settings of the access log. `config` compiles them; each record holds them until it is written.

use std::path::PathBuf;

use crate::telemetry::access_log::{Masks, Template};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessLogSettings {
    pub format: LineFormat,
    pub to: LogTarget,
    /// Query parameters whose values are masked.
    pub mask: Masks,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum LineFormat {
    #[default]
    Json,
    /// The format that nginx and Apache call "combined".
    Combined,
    Template(Template),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTarget {
    #[default]
    Stdout,
    File(PathBuf),
}
