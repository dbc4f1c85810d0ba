//! Names and contents of config files, as the admin listener shows them. Its reads run on the loader's thread.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use serde_json::{Value, json};

use crate::config;
use crate::reload::history::{entity_tag, hash_text};

/// Returns the name of a config file: its path, relative to the directory of the main file if it is inside.
pub fn name_file(main: &Path, path: &Path) -> String {
    let dir = main.parent().unwrap_or(Path::new(""));
    path.strip_prefix(dir).unwrap_or(path).display().to_string()
}

/// Returns the path of the file with this name. A name is only compared with those that exist, so no name leads to
/// another file.
pub fn find_file<'p>(paths: &'p [PathBuf], name: &str) -> Option<&'p PathBuf> {
    let main = paths.first()?;
    paths.iter().find(|path| name_file(main, path) == name)
}

/// Reads a config file.
///
/// # Errors
/// The system's error, or that it is not a regular file or too large.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let other = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    // Opening a pipe without a writer would block.
    if !path.metadata()?.is_file() {
        return other("it is not a regular file");
    }
    let mut bytes = Vec::new();
    config::open_file(path)?.take(config::FILE_SIZE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > config::FILE_SIZE_MAX {
        return other("it is too large for a config file");
    }
    Ok(bytes)
}

/// Lists config files. `size` and `etag` are null for a file that cannot be read.
pub fn list_files(paths: &[PathBuf], generation: u64, is_editable: bool) -> Value {
    let Some(main) = paths.first() else { return json!([]) };
    let describe = |path: &PathBuf| {
        let bytes = read_file(path).ok();
        json!({
            "name": name_file(main, path),
            "size": bytes.as_ref().map(Vec::len),
            "writable": is_editable && is_replaceable(path),
            "etag": bytes.map(|bytes| entity_tag(generation, &hash_text(&bytes))),
        })
    };
    paths.iter().map(describe).collect()
}

/// Returns whether this process may create files in the directory that really holds `path`.
fn is_replaceable(path: &Path) -> bool {
    let real = path.canonicalize().ok();
    real.as_deref().and_then(Path::parent).is_some_and(|dir| {
        rustix::fs::accessat(rustix::fs::CWD, dir, Access::WRITE_OK | Access::EXEC_OK, rustix::fs::AtFlags::EACCESS)
            .is_ok()
    })
}
