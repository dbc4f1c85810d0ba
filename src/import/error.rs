//! The error that stops an import, with the file and the line.

use std::fmt;

/// An error in a file that cannot be imported. `line` is 0 if the error concerns the whole file.
#[derive(Clone, Debug)]
pub struct ImportError {
    pub file: String,
    pub line: usize,
    pub message: String,
}

impl ImportError {
    /// Creates an error at a line of a file.
    pub fn new(file: &str, line: usize, message: impl Into<String>) -> ImportError {
        ImportError { file: file.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message),
            line => write!(f, "{}:{line}: {}", self.file, self.message),
        }
    }
}

/// A result whose error is an [`ImportError`].
pub type Result<T> = std::result::Result<T, ImportError>;
