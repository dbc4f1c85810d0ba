//! Files of a folder that a route serves (`files`).
//!
//! Input: the compiled option, the path of a request and its headers. Output: an open file, and which bytes of it the
//! response has. Nothing here knows routes or responses: `proxy::steps::serve_file` joins the parts.
//!
//! - `name`: from the path of a request to the names of candidates
//! - `open`: opens the first candidate that exists, beneath the folder
//! - `conditions`: `If-None-Match` and its like; `ranges`: which bytes a client asks for
//! - `media_type`: the `Content-Type` by the extension
//! - `body`: reads the file while the client takes it; `job`: work that may wait for the file system
//!
//! The file system may be slow, so `open` and most reads run on threads of their own, of which each worker has
//! [`THREADS`].

pub mod body;
pub mod conditions;
pub mod job;
pub mod media_type;
pub mod name;
pub mod open;
pub mod ranges;

use std::path::PathBuf;

use http::HeaderValue;

use crate::files::name::Candidate;
use crate::template::TextTemplate;

/// Threads of a worker that wait for the file system. Requests beyond them wait for their turn.
pub const THREADS: usize = 16;

/// A compiled `files`.
#[derive(Debug, PartialEq, Eq)]
pub struct FileFolder {
    /// The absolute path of the folder.
    pub path: PathBuf,
    /// The names to try, in order. Literal texts are percent-encoded, as the path is.
    pub candidates: Vec<TextTemplate<RequestPath>>,
    /// `Cache-Control` of all files but HTML.
    pub cache_control: HeaderValue,
}

/// The placeholder `{path}`: the path of the request, as `rewrite` leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestPath;

impl FileFolder {
    /// Returns the names to try for a canonical path. Omits names that no served file may have.
    pub fn find_candidates(&self, path: &str) -> Vec<Candidate> {
        let parse = |template: &TextTemplate<RequestPath>| {
            let name = template.render(|RequestPath, text| text.push_str(path));
            Candidate::parse(&name, template.placeholders().next().is_some())
        };
        self.candidates.iter().filter_map(parse).collect()
    }
}
