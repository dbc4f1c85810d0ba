//! Settings of the access log. `config` compiles them; each record holds them until it is written.

use std::path::{Path, PathBuf};

use crate::telemetry::access_log::template::{LogField, TemplatePiece};
use crate::telemetry::access_log::{Masks, Template};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessLogSettings {
    pub format: LineFormat,
    pub to: LogTarget,
    /// Query parameters whose values are masked.
    pub mask: Masks,
    /// True if JSON lines contain the keys of all limits of the route, beside the key of the limit that decided.
    pub all_keys: bool,
    /// Names of the facts about the client that lines contain besides [`LogField`]s. A JSON line ends with them.
    pub facts: Vec<String>,
}

impl AccessLogSettings {
    /// Returns whether lines contain the key of the limit that decided.
    pub fn shows_key(&self) -> bool {
        match &self.format {
            LineFormat::Json => true,
            LineFormat::Combined => false,
            LineFormat::Template(template) => template.contains_field(LogField::Key),
        }
    }

    /// Returns whether lines contain the country of the client.
    pub fn shows_country(&self) -> bool {
        match &self.format {
            LineFormat::Json => true,
            LineFormat::Combined => false,
            LineFormat::Template(template) => template.contains_field(LogField::Country),
        }
    }

    /// Returns whether lines contain the keys of all limits.
    pub fn shows_all_keys(&self) -> bool {
        match &self.format {
            LineFormat::Json => self.all_keys,
            LineFormat::Combined => false,
            LineFormat::Template(template) => template.contains_field(LogField::Keys),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum LineFormat {
    #[default]
    Json,
    /// The format that nginx and Apache call "combined".
    Combined,
    Template(Template),
}

impl LineFormat {
    /// Returns whether lines contain the request id.
    pub fn shows_request_id(&self) -> bool {
        let is_id = |piece: &TemplatePiece| matches!(piece, TemplatePiece::Field(LogField::RequestId));
        match self {
            LineFormat::Json => true,
            LineFormat::Combined => false,
            LineFormat::Template(template) => template.pieces().iter().any(is_id),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTarget {
    #[default]
    Stdout,
    File(PathBuf),
    /// A file that only its owner may read, if the gateway creates it.
    PrivateFile(PathBuf),
}

impl LogTarget {
    /// Returns the path of a file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            LogTarget::Stdout => None,
            LogTarget::File(path) | LogTarget::PrivateFile(path) => Some(path),
        }
    }
}
