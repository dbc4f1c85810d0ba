//! Reasons why a file cannot be read, each with its remedy. Called by `source`.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::string::FromUtf8Error;

use rustix::fs::OFlags;

/// Maximum size of a file, in bytes.
pub const FILE_SIZE_MAX: u64 = 16 * 1024 * 1024;

/// Maximum size of a file with overrides, in bytes: 256 for each of a million.
const ROWS_SIZE_MAX: u64 = 256 * 1024 * 1024;

/// Why a file has no text; displays as a clause: "it is a directory".
#[derive(Debug, PartialEq)]
pub struct Unreadable {
    what: String,
    /// Remedy that applies wherever the config names the file.
    help: String,
    pub kind: UnreadableKind,
}

/// Reasons for which the caller may know a better remedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UnreadableKind {
    Missing,
    Directory,
    /// The content is not text, or is too large.
    Content,
    Other,
}

impl Unreadable {
    pub fn help(&self) -> &str {
        &self.help
    }

    /// Returns whether the content is at fault, so that reading the same content again would fail again.
    pub fn is_of_content(&self) -> bool {
        self.kind == UnreadableKind::Content
    }

    fn not_utf8(path: &Path, error: &FromUtf8Error) -> Unreadable {
        let bytes = error.as_bytes();
        if let [0xff, 0xfe, ..] | [0xfe, 0xff, ..] = bytes {
            let help = format!("save it as UTF-8: iconv -f UTF-16 -t UTF-8 {}", path.display());
            return Unreadable { what: "it is UTF-16, not UTF-8".to_owned(), help, kind: UnreadableKind::Content };
        }
        let at = error.utf8_error().valid_up_to();
        let line = bytes[..at].iter().filter(|b| **b == b'\n').count() + 1;
        let help = format!("save it as UTF-8; if it is Latin-1: iconv -f LATIN1 -t UTF-8 {}", path.display());
        let what = format!("it is not UTF-8 at byte {at} (line {line})");
        Unreadable { what, help, kind: UnreadableKind::Content }
    }

    fn from_error(path: &Path, error: &std::io::Error) -> Unreadable {
        match error.kind() {
            ErrorKind::NotFound => Unreadable {
                what: "the file does not exist".to_owned(),
                help: "create the file, or correct its path (relative to this file)".to_owned(),
                kind: UnreadableKind::Missing,
            },
            ErrorKind::PermissionDenied => other_reason("permission denied", permission_remedy(path)),
            _ => other_reason(error.to_string(), String::new()),
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

fn other_reason(what: impl Into<String>, help: String) -> Unreadable {
    Unreadable { what: what.into(), help, kind: UnreadableKind::Other }
}

/// Returns which user needs permission to read the file.
fn permission_remedy(path: &Path) -> String {
    let user = Path::new("/proc/self").metadata().map(|process| format!(" {}", process.uid())).unwrap_or_default();
    let path = path.display();
    format!(
        "sluicegate runs as user{user}: let that user read the file (chmod a+r {path}, or chown) and enter its \
         directories (chmod a+x)"
    )
}

/// Opens a file without blocking. A named pipe that replaced the file since it was checked reads as empty.
pub fn open_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)
}

/// Reads a file with the overrides of a limit.
///
/// # Errors
/// Why it cannot be read.
pub fn read_rows(path: &Path) -> Result<String, Unreadable> {
    decode_text(path, read_bytes(path, ROWS_SIZE_MAX)?)
}

/// Decodes a file that is text. The mark that some editors write before a text is left out, because it would become a
/// part of the first item.
///
/// # Errors
/// The file is not UTF-8.
pub fn decode_text(path: &Path, bytes: Vec<u8>) -> Result<String, Unreadable> {
    let text = String::from_utf8(bytes).map_err(|error| Unreadable::not_utf8(path, &error))?;
    Ok(without_mark(text))
}

/// Removes the byte order mark from a text.
pub fn without_mark(text: String) -> String {
    text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text)
}

/// Decodes a file in PEM, without a byte order mark.
///
/// # Errors
/// The file is not text, and has no PEM in it.
pub fn decode_pem(path: &Path, bytes: Vec<u8>) -> Result<String, Unreadable> {
    const BEGIN: &[u8] = b"-----BEGIN ";
    let text = String::from_utf8(bytes).or_else(|error| {
        match error.as_bytes().windows(BEGIN.len()).any(|window| window == BEGIN) {
            true => Ok(String::from_utf8_lossy(error.as_bytes()).into_owned()),
            false => Err(Unreadable {
                what: "it is not in PEM, which is text".to_owned(),
                help: format!(
                    "if it is DER, convert it: openssl x509 -inform der -in {path} for a certificate, openssl pkey \
                     -inform der -in {path} for a key",
                    path = path.display()
                ),
                kind: UnreadableKind::Content,
            }),
        }
    })?;
    Ok(without_mark(text))
}

/// Reads a regular file of at most `max` bytes.
pub fn read_bytes(path: &Path, max: u64) -> Result<Vec<u8>, Unreadable> {
    let plain = |error: std::io::Error| Unreadable::from_error(path, &error);
    // Opening a pipe without a writer would block forever.
    let kind = path.metadata().map_err(plain)?;
    if kind.is_dir() {
        let help = "name a file in it".to_owned();
        return Err(Unreadable { what: "it is a directory".to_owned(), help, kind: UnreadableKind::Directory });
    }
    if !kind.is_file() {
        return Err(other_reason("it is not a regular file", "name a file of text".to_owned()));
    }
    let mut bytes = Vec::new();
    open_file(path).and_then(|file| file.take(max + 1).read_to_end(&mut bytes)).map_err(plain)?;
    if bytes.len() as u64 > max {
        let help = "split it with `include`, or put long lists into files of [set.NAME]".to_owned();
        let what = format!("it is larger than {} MiB", max / 1024 / 1024);
        return Err(Unreadable { what, help, kind: UnreadableKind::Content });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_in_pem_may_have_any_encoding() {
        let decode = |bytes: &[u8]| decode_pem(Path::new("/etc/a.pem"), bytes.to_vec());
        let pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
        assert_eq!(decode(pem.as_bytes()).unwrap(), pem);
        assert_eq!(decode(&[b"\xef\xbb\xbf", pem.as_bytes()].concat()).unwrap(), pem);
        let latin1 = decode(&[b"# Z\xfcrich\n", pem.as_bytes()].concat()).unwrap();
        assert!(latin1.ends_with(pem), "{latin1}");
        let der = decode(b"\x30\x82\x03\xff").unwrap_err();
        assert!(der.help().contains("openssl x509 -inform der -in /etc/a.pem"), "{der:?}");
    }

    /// Root can read every file, so a test of the whole program would need another user.
    #[test]
    fn an_unreadable_file_is_reported_with_its_user() {
        let refused = Unreadable::from_error(Path::new("/etc/x.toml"), &ErrorKind::PermissionDenied.into());
        assert_eq!(refused.to_string(), "permission denied");
        assert!(refused.help().contains("as user ") && refused.help().contains("chmod a+r /etc/x.toml"), "{refused:?}");
    }
}
