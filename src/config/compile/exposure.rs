//! Finds private files that a folder with `files` would serve: the config itself, keys, passwords and state. All
//! folders and files are collected first, because the private ones are known only when the entire config has been read.

use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::schema::route;
use crate::config::source::{PrivateFile, SourceTexts};

const HELP: &str =
    "serve a folder that has only public files: move these into a folder of their own, such as \"public\"";

impl PrivateFile {
    fn describe(self) -> &'static str {
        match self {
            PrivateFile::Config => "a file of this configuration",
            PrivateFile::Secret => "whose content the config uses (`${file:...}`)",
            PrivateFile::Key => "which contains a private key",
            PrivateFile::Passwords => "which contains passwords",
            PrivateFile::State => "where the gateway stores its state",
        }
    }
}

impl SourceTexts {
    /// Reports folders that contain a private file, and warns of those that are not made to be served. A file that
    /// `${file:...}` names may be a public page, so it causes only a warning.
    pub fn report_exposed_files(&self) {
        let (mut files, folders) = (self.private_files.take(), self.served_folders.take());
        files.extend(self.list_config_files().iter().map(|file| (file.path.clone(), PrivateFile::Config)));
        for (place, folder) in folders {
            let folder = resolve(&folder);
            let exposed = files.iter().filter(|(path, _)| is_served(&folder, &resolve(path)));
            if let Some((path, kind)) = exposed.min_by_key(|(_, kind)| *kind == PrivateFile::Secret) {
                let what = format!(
                    "`{}` in [[route]]: clients could fetch `{}`, {}",
                    route::FILES.name,
                    path.display(),
                    kind.describe()
                );
                let diagnostic = Diagnostic::new(place, what).with_help(HELP);
                match kind {
                    PrivateFile::Secret => self.add_warning(DiagnosticCode::ExposedFolder, diagnostic),
                    _ => self.add_mistake(diagnostic.with_option(route::TABLE.path_of(route::FILES.name))),
                }
            } else if folder.is_dir() && is_unfit(&folder) {
                let what = format!("the route serves the whole folder `{}`", folder.display());
                self.add_warning(DiagnosticCode::ExposedFolder, Diagnostic::new(place, what).with_help(HELP));
            }
        }
    }
}

/// Returns the path without links. Of a path that does not exist yet, the part that does is resolved.
fn resolve(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for ancestor in path.ancestors() {
        if let (Ok(resolved), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            return resolved.join(rest);
        }
    }
    path
}

/// Returns whether a route that reaches `folder`, which may be a single file, would serve a file, or what is below it.
/// Names that begin with a dot are not served, except for `.well-known` at the start.
fn is_served(folder: &Path, file: &Path) -> bool {
    let Ok(name) = file.strip_prefix(folder) else {
        // All of the state directory is served if the folder is within it.
        return folder.starts_with(file);
    };
    name.components().enumerate().all(|(index, part)| match part {
        Component::Normal(part) => {
            !part.as_bytes().starts_with(b".") || index == 0 && part == OsStr::new(".well-known")
        }
        _ => true,
    })
}

/// Returns whether a folder is the root or somebody's home, which contain files that nobody meant to serve.
fn is_unfit(folder: &Path) -> bool {
    let is_home =
        env::var_os("HOME").is_some_and(|home| Path::new(&home).canonicalize().is_ok_and(|home| home == folder));
    let is_of_user = folder == Path::new("/home") || folder.parent() == Some(Path::new("/home"));
    is_home || is_of_user || folder == Path::new("/") || folder == Path::new("/root")
}
