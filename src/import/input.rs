//! Reads the files to import. The files may be hostile, so their size and number are bounded, and only regular files
//! are read.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::import::error::{ImportError, Result};

/// Maximum number of bytes of all files together.
const BYTES_MAX: usize = 8 << 20;
/// Maximum number of files of one import, including the included ones.
const FILES_MAX: usize = 1000;

/// Reads files and counts their number and bytes.
#[derive(Default)]
pub struct Input {
    bytes: usize,
    files: usize,
}

impl Input {
    /// Reads a regular file, or standard input where the path is `-`.
    pub fn read_file(&mut self, path: &Path) -> Result<String> {
        let name = path.display().to_string();
        let fault = |message: String| ImportError::new(&name, 0, message);
        self.files += 1;
        if self.files > FILES_MAX {
            return Err(fault(format!("there are more than {FILES_MAX} files; import fewer at once")));
        }
        let mut bytes = Vec::new();
        let room = BYTES_MAX - self.bytes;
        let limit = room as u64 + 1;
        let read = if path == Path::new("-") {
            std::io::stdin().take(limit).read_to_end(&mut bytes)
        } else {
            // A pipe would block, and a device may never end.
            let kind = std::fs::metadata(path).map_err(|error| fault(format!("cannot read it: {error}")))?;
            if !kind.is_file() {
                return Err(fault("not a regular file; write - for standard input".to_owned()));
            }
            File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes))
        };
        read.map_err(|error| fault(format!("cannot read it: {error}")))?;
        if bytes.len() > room {
            return Err(fault(format!(
                "all files together are larger than {} MiB; import fewer at once",
                BYTES_MAX >> 20
            )));
        }
        self.bytes += bytes.len();
        let line_of = |at: usize, bytes: &[u8]| 1 + bytes[..at].iter().filter(|byte| **byte == b'\n').count();
        match String::from_utf8(bytes) {
            Ok(text) => match text.bytes().position(|byte| byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r')) {
                Some(at) => {
                    let line = line_of(at, text.as_bytes());
                    Err(ImportError::new(&name, line, "the file has control characters, so it is not a config"))
                }
                None => Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text)),
            },
            Err(error) => {
                let line = line_of(error.utf8_error().valid_up_to(), error.as_bytes());
                Err(ImportError::new(&name, line, "the file is not UTF-8; convert it with iconv first"))
            }
        }
    }
}

/// Finds the files that the path of an `include` matches, sorted as in nginx. Every part of the path may have `*` and
/// `?`.
pub fn find_files(pattern: &Path) -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::new()];
    for part in pattern {
        let text = part.to_string_lossy();
        if !text.contains(['*', '?']) {
            for path in &mut paths {
                path.push(part);
            }
            continue;
        }
        let mut next = Vec::new();
        for dir in &paths {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().take(100 * FILES_MAX);
            let names = entries.map(|entry| entry.file_name());
            let fits = |name: &str| {
                text.starts_with('.') == name.starts_with('.') && is_match(text.as_bytes(), name.as_bytes())
            };
            next.extend(names.filter(|name| name.to_str().is_some_and(fits)).map(|name| dir.join(name)));
        }
        next.sort();
        next.truncate(FILES_MAX + 1);
        paths = next;
    }
    paths.retain(|path| path.exists());
    paths
}

/// Matches a name against a pattern with `*` and `?`. The time is at most proportional to the product of both lengths.
fn is_match(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut back = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            back = Some((p + 1, t));
            p += 1;
        } else if pattern.get(p).is_some_and(|byte| *byte == b'?' || *byte == text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((after, from)) = back {
            back = Some((after, from + 1));
            (p, t) = (after, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::is_match;

    #[test]
    fn wildcards_match_names() {
        for (pattern, text, expected) in [
            ("*.conf", "a.conf", true),
            ("*.conf", "a.con", false),
            ("a?c*", "abcd", true),
            ("*a*b", "xaxb", true),
            ("a", "b", false),
        ] {
            assert_eq!(is_match(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
