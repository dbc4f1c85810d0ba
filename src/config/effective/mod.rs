//! The effective config: what all files of a config say together, option by option, with the place of each. Shown by
//! `sluicegate config` and `GET /-/config`, and compared by the diff of two configs.
//!
//! Input: the trees that a config was compiled from. `options` divides them into sections and options, `secrets` knows
//! which values no output may contain, `defaults` what is not written, `paths` which ones are files, `render` writes
//! TOML and JSON, `readers` knows which values only editors see, `matchers` shows the conditions of routes and
//! `budgets` the numbers of limits, and `anonymize` replaces what identifies the operator.

mod anonymize;
pub mod budgets;
mod canonical;
mod defaults;
mod matchers;
mod options;
mod paths;
mod readers;
mod render;
mod secrets;

use std::fmt;
use std::sync::Arc;

use crate::config::diagnostics::report::{Place, SourceText};
pub use crate::config::effective::canonical::{ListItem, default_text, unset_items};
pub use crate::config::effective::matchers::WrittenMatcher;
pub use crate::config::effective::options::{ListedLimit, WrittenOption, WrittenSection};
pub use crate::config::effective::render::EffectiveFormat;
use crate::config::tree::Table;

/// The trees of all files of a config, with their texts.
#[derive(Clone, Default)]
pub struct WrittenConfig {
    documents: Arc<[Table]>,
    texts: Vec<Arc<SourceText>>,
}

impl WrittenConfig {
    pub fn new(documents: Arc<[Table]>, texts: Vec<Arc<SourceText>>) -> WrittenConfig {
        WrittenConfig { documents, texts }
    }

    /// Returns `FILE:LINE` of a place.
    fn describe_place(&self, place: Place) -> Option<String> {
        let source = self.texts.get(place.file)?;
        Some(format!("{}:{}", source.name, source.line_and_column(place.start).0))
    }
}

/// Shows nothing, because the trees contain secrets, and because two configs with the same effect may be written
/// differently.
impl fmt::Debug for WrittenConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WrittenConfig")
    }
}
