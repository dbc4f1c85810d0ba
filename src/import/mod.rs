//! Translates configs of other proxies to TOML for Sluicegate. Called by `sluicegate import`.
//!
//! Input: files of nginx, Kubernetes manifests with Ingresses for ingress-nginx, or configs of envoyproxy/ratelimit.
//! They may be hostile, so size, depth and number are bounded. Output: an [`Imported`] config, or an [`ImportError`]
//! with file and line. A setting that cannot be translated becomes a numbered comment. A route that would lose its
//! protection is closed: it answers 501.
//!
//! - `nginx`, `ingress`, `ratelimit`: the formats.
//! - `input`: reads files within bounds, and expands the wildcards of `include`.
//! - `yaml`: parses YAML and JSON to a tree with line numbers.
//! - `syntax`: parses nginx's syntax to a tree of directives.
//! - `model`: collects the routes, limits and upstreams, and writes the config.
//! - `paths`: turns the locations of a host into route paths in nginx's order.
//! - `encoding`: writes paths for the canonical spelling of paths; `expressions`: translates regular expressions.
//! - `access`: turns a list of `allow` and `deny` into networks.
//! - `verdict`: what an import does with a setting; `remarks`: the numbered comments.
//! - `text`: formats TOML values; `unseen`: headers that limits do not see.
//! - `error`: [`ImportError`].
//!
//! To add a proxy, create a directory beside `nginx` that fills a `model::ImportedConfig`. Call it from a function
//! here, and add its name to `Format` in `cli::import` and a sample to `tests/import`.

mod access;
mod encoding;
mod error;
mod expressions;
mod ingress;
mod input;
mod model;
mod nginx;
mod paths;
mod ratelimit;
mod remarks;
mod syntax;
mod text;
mod unseen;
mod verdict;
mod yaml;

use std::path::PathBuf;

pub use error::ImportError;
pub use ingress::write_table as write_ingress_annotations;
pub use nginx::write_table as write_nginx_directives;

use crate::import::input::Input;
use crate::import::model::ImportedConfig;

/// The result of an import.
#[derive(Debug)]
pub struct Imported {
    /// The config in TOML.
    pub text: String,
    /// The number of numbered comments in the config.
    pub remarks: usize,
}

/// Imports configs of nginx and the files that they include.
pub fn import_nginx(files: &[PathBuf]) -> Result<Imported, ImportError> {
    let mut input = Input::default();
    let mut directives = Vec::new();
    for file in files {
        directives.extend(syntax::parse_file(&mut input, file)?);
    }
    let mut out = ImportedConfig::default();
    nginx::translate_directives(directives, &mut out)?;
    Ok(finish_import(out, files))
}

/// Imports Kubernetes manifests with Ingresses for ingress-nginx, in YAML or JSON.
pub fn import_ingress_nginx(files: &[PathBuf]) -> Result<Imported, ImportError> {
    let mut input = Input::default();
    let mut documents = Vec::new();
    for file in files {
        documents.extend(yaml::parse_documents(&mut input, file)?);
    }
    let mut out = ImportedConfig::default();
    ingress::translate_ingresses(&documents, &mut out)?;
    Ok(finish_import(out, files))
}

/// Imports configs of envoyproxy/ratelimit, in YAML.
pub fn import_ratelimit(files: &[PathBuf]) -> Result<Imported, ImportError> {
    let mut input = Input::default();
    let mut documents = Vec::new();
    for file in files {
        documents.extend(yaml::parse_documents(&mut input, file)?);
    }
    let mut out = ImportedConfig::default();
    ratelimit::translate_domains(&documents, &mut out)?;
    Ok(finish_import(out, files))
}

fn finish_import(out: ImportedConfig, files: &[PathBuf]) -> Imported {
    let names: Vec<String> = files.iter().take(3).map(|file| syntax::shorten(&file.display().to_string())).collect();
    let more = if files.len() > names.len() { " and others" } else { "" };
    let (text, remarks) = out.write_config(&format!("{}{more}", names.join(", ")));
    Imported { text, remarks }
}
