//! Answers a request with a file of the route's folder (`files`).
//!
//! Input: an admitted request. Output: the response with the file or a part of it, or what the client's conditions make
//! of that. `crate::files` has the rules; this is their order, and the head of the response.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, LAST_MODIFIED,
    LOCATION, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use tokio::time::timeout;

use crate::descriptors::{self, DescriptorPermit};
use crate::ends::End;
use crate::files::FileFolder;
use crate::files::body::{BodyPart, FileBody};
use crate::files::conditions::{Judgement, Validators};
use crate::files::job::FileJob;
use crate::files::media_type::{find_media_type, is_html};
use crate::files::name::Candidate;
use crate::files::open::{Found, OpenFault, OpenedFile, find_file};
use crate::files::ranges::Selection;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{RequestContext, RoutedRequest};
use crate::proxy::render::compress::negotiate::rank_algorithms;
use crate::proxy::words::failure_log::FailureLog;
use crate::proxy::words::refusal::Refusal;
use crate::route::compress::{CompressSettings, CompressionAlgorithm};
use crate::route::redirect::add_slash;

/// The coding of a compressed copy, and the end of its name.
type CompressedCopy = (CompressionAlgorithm, &'static str);

/// The copies of a file that are looked for, the smallest first, with the end of their names.
const COPIES: [CompressedCopy; 3] =
    [(CompressionAlgorithm::Br, "br"), (CompressionAlgorithm::Zstd, "zst"), (CompressionAlgorithm::Gzip, "gz")];

/// The types of files that may have compressed copies.
static COMPRESSIBLE: LazyLock<CompressSettings> = LazyLock::new(CompressSettings::default);

/// Which file a request asks for.
pub struct FileQuestion {
    pub candidates: Vec<Candidate>,
    /// A folder is served by its index. Otherwise the client is first led to the path with a slash at its end, so that
    /// the relative links of the page lead into the folder.
    pub has_slash: bool,
}

impl FileQuestion {
    /// # Errors
    /// The method is not one for files, or no file may have such a name.
    pub fn new(folder: &FileFolder, routed: RoutedRequest<'_>) -> Result<FileQuestion, Refusal> {
        let RoutedRequest { route, head, .. } = routed;
        if !matches!(*head.method(), Method::GET | Method::HEAD) {
            return Err(End::FileMethod.into());
        }
        let target = head.server_target();
        let candidates = folder.find_candidates(target.split('?').next().unwrap_or_default());
        if candidates.is_empty() {
            return Err(End::NoFile.into());
        }
        // With a slash, the path might belong to another route.
        let can_redirect = route.matcher.path.matches(&add_slash(head.matched_path(), None));
        Ok(FileQuestion { candidates, has_slash: !can_redirect || head.sent_path().ends_with('/') })
    }
}

/// The search for the file of a request, which may wait for the file system.
struct FileSearch {
    folder: Arc<FileFolder>,
    question: FileQuestion,
    /// The compressed copies that the client accepts, the preferred one first.
    copies: Vec<CompressedCopy>,
}

impl FileSearch {
    fn new(folder: &Arc<FileFolder>, question: FileQuestion, headers: &HeaderMap) -> FileSearch {
        let ranked = rank_algorithms(headers, &COPIES.map(|(algorithm, _)| algorithm));
        let copies =
            ranked.iter().filter_map(|ranked| COPIES.iter().find(|(copy, _)| copy == ranked)).copied().collect();
        FileSearch { folder: folder.clone(), question, copies }
    }

    fn run(self) -> Result<FoundFile, OpenFault> {
        let FileQuestion { candidates, has_slash } = &self.question;
        let suffixes = |name: &Path| match has_copies(&find_media_type(name)) {
            true => self.copies.iter().map(|(_, suffix)| *suffix).collect(),
            false => Vec::new(),
        };
        Ok(match find_file(&self.folder.path, candidates, *has_slash, suffixes)? {
            Found::FolderWithoutSlash => FoundFile::FolderWithoutSlash,
            Found::File(file) => {
                let copy = file.suffix.and_then(|index| self.copies.get(index)).copied();
                FoundFile::File(Box::new(FileResponse::new(&self.folder, file, copy)))
            }
        })
    }
}

/// The result of a search.
enum FoundFile {
    FolderWithoutSlash,
    File(Box<FileResponse>),
}

/// Returns the response with the file that the request asks for.
///
/// # Errors
/// There is no such file, or it cannot be opened.
pub async fn serve_file(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    folder: &Arc<FileFolder>,
) -> Result<Response<ResponseBody>, Refusal> {
    let question = FileQuestion::new(folder, routed)?;
    let headers = &request.received.parts.headers;
    let failure_log = &request.client.worker.process.failure_log;
    let Some(descriptor) = descriptors::acquire_server_descriptor() else {
        failure_log.log_descriptor_shortage("requests for files are refused");
        return Err(End::FileShortage.into());
    };
    let search = FileSearch::new(folder, question, headers);
    let job = FileJob::start(move || (search.run(), descriptor));
    match timeout(routed.route.timeouts.response, job).await {
        Ok(Ok((Ok(FoundFile::FolderWithoutSlash), _))) => Ok(redirect_to_folder(routed)),
        Ok(Ok((Ok(FoundFile::File(file)), descriptor))) => Ok(file.build(headers, routed.head.method(), descriptor)),
        Ok(Ok((Err(fault), _))) => {
            log_fault(failure_log, folder, &fault);
            Err(end_of_fault(&fault).into())
        }
        Ok(Err(_)) | Err(_) => {
            failure_log.log_file_failure(&folder.path, format_args!("the file system does not respond"));
            Err(End::FileFailed.into())
        }
    }
}

/// The response that a request would get, for explanations.
pub struct FilePreview {
    pub status: StatusCode,
    pub location: Option<HeaderValue>,
    /// The file that was opened.
    pub file: Option<PathBuf>,
}

/// Looks for the file that a request with these headers asks for. `Ok(None)`: the folder cannot be opened here.
/// `may_block`: the caller may wait for the file system, as a command may. A gateway has other things to do in the
/// meantime.
///
/// # Errors
/// There is no such file, or it cannot be opened.
pub async fn preview_file(
    folder: &Arc<FileFolder>,
    routed: RoutedRequest<'_>,
    headers: &HeaderMap,
    may_block: bool,
) -> Result<Option<FilePreview>, Refusal> {
    let search = FileSearch::new(folder, FileQuestion::new(folder, routed)?, headers);
    let descriptor = descriptors::acquire_server_descriptor().ok_or(End::FileShortage)?;
    let work = move || (search.run(), descriptor);
    let (found, descriptor) = match may_block {
        true => work(),
        false => match timeout(routed.route.timeouts.response, FileJob::start(work)).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) | Err(_) => return Err(End::FileFailed.into()),
        },
    };
    let (response, file) = match found {
        Ok(FoundFile::FolderWithoutSlash) => (redirect_to_folder(routed), None),
        Ok(FoundFile::File(file)) => {
            let path = folder.path.join(file.opened_name());
            (file.build(headers, routed.head.method(), descriptor), Some(path))
        }
        Err(OpenFault::Folder(_)) => return Ok(None),
        Err(fault) => return Err(end_of_fault(&fault).into()),
    };
    Ok(Some(FilePreview { status: response.status(), location: response.headers().get(LOCATION).cloned(), file }))
}

fn log_fault(failure_log: &FailureLog, folder: &FileFolder, fault: &OpenFault) {
    match fault {
        OpenFault::Absent(None) => {}
        OpenFault::Absent(Some(link)) => {
            let what = format_args!("{} is or is behind a link that leads out of it", link.display());
            failure_log.log_file_failure(&folder.path, what);
        }
        OpenFault::Folder(error) | OpenFault::File(_, error) if descriptors::is_shortage(error) => {
            failure_log.log_descriptor_shortage("requests for files are refused");
        }
        OpenFault::Folder(error) => {
            failure_log.log_file_failure(&folder.path, format_args!("the folder cannot be opened: {error}"));
        }
        OpenFault::File(name, error) => {
            let what = format_args!("{} cannot be opened: {error}", name.display());
            failure_log.log_file_failure(&folder.path, what);
        }
    }
}

fn end_of_fault(fault: &OpenFault) -> End {
    match fault {
        OpenFault::Absent(_) => End::NoFile,
        OpenFault::Folder(error) | OpenFault::File(_, error) if descriptors::is_shortage(error) => End::FileShortage,
        OpenFault::Folder(_) | OpenFault::File(..) => End::FileFailed,
    }
}

fn has_copies(media_type: &HeaderValue) -> bool {
    COMPRESSIBLE.has_type(media_type.as_bytes())
}

fn redirect_to_folder(routed: RoutedRequest<'_>) -> Response<ResponseBody> {
    let location = add_slash(routed.head.sent_path(), routed.head.query());
    let mut response = Response::new(ResponseBody::full(""));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

/// A file with what its response says about it.
struct FileResponse {
    file: OpenedFile,
    media_type: HeaderValue,
    cache_control: HeaderValue,
    copy: Option<CompressedCopy>,
    validators: Validators,
}

impl FileResponse {
    fn new(folder: &FileFolder, file: OpenedFile, copy: Option<CompressedCopy>) -> FileResponse {
        let media_type = find_media_type(&file.name);
        // A page names the files that belong to it, so an old page must not outlive them.
        let cache_control =
            if is_html(&media_type) { HeaderValue::from_static("no-cache") } else { folder.cache_control.clone() };
        let coding = copy.map_or("", |(algorithm, _)| algorithm.label());
        let validators = Validators::new(file.modified, file.length, coding, SystemTime::now());
        FileResponse { file, media_type, cache_control, copy, validators }
    }

    /// Returns the name of the opened file in the folder.
    fn opened_name(&self) -> PathBuf {
        let mut name = self.file.name.clone().into_os_string();
        if let Some((_, suffix)) = self.copy {
            name.push(format!(".{suffix}"));
        }
        name.into()
    }

    /// Builds the response to a request with these headers.
    fn build(self, headers: &HeaderMap, method: &Method, descriptor: DescriptorPermit) -> Response<ResponseBody> {
        match self.validators.judge(headers) {
            Judgement::Send => {}
            Judgement::NotModified => return self.without_body(StatusCode::NOT_MODIFIED),
            Judgement::Failed => return self.without_body(StatusCode::PRECONDITION_FAILED),
        }
        let length = self.file.length;
        // Only GET has ranges (RFC 9110, section 14.2).
        let has_range = *method == Method::GET && self.validators.may_send_range(headers);
        let selection = if has_range { Selection::from_headers(headers, length) } else { Selection::Whole };
        let (parts, content_range, content_type) = match selection {
            Selection::Whole => (vec![BodyPart::File(0..length)], None, self.media_type.clone()),
            Selection::One(range) => {
                let content_range = format!("bytes {}-{}/{length}", range.start, range.end - 1);
                (vec![BodyPart::File(range)], Some(content_range), self.media_type.clone())
            }
            Selection::Several(ranges) => {
                let (parts, content_type) = self.build_multipart(ranges);
                (parts, None, content_type)
            }
            Selection::None => {
                let mut response = self.without_body(StatusCode::RANGE_NOT_SATISFIABLE);
                insert_text(response.headers_mut(), CONTENT_RANGE, format!("bytes */{length}"));
                return response;
            }
        };
        let is_partial = content_range.is_some() || parts.len() > 1;
        let mut response = self.without_body(if is_partial { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK });
        let out = response.headers_mut();
        out.insert(CONTENT_TYPE, content_type);
        out.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        out.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        if let Some((algorithm, _)) = self.copy {
            out.insert(CONTENT_ENCODING, HeaderValue::from_static(algorithm.label()));
        }
        if let Some(content_range) = content_range {
            insert_text(out, CONTENT_RANGE, content_range);
        }
        if *method == Method::HEAD {
            out.insert(CONTENT_LENGTH, HeaderValue::from(length));
        } else if length > 0 {
            *response.body_mut() = ResponseBody::file(FileBody::new(self.file.file, parts, descriptor));
        }
        response
    }

    /// Builds a response without a body. Its headers are also those of a 304 (RFC 9110, section 15.4.5).
    fn without_body(&self, status: StatusCode) -> Response<ResponseBody> {
        let mut response = Response::new(ResponseBody::full(""));
        *response.status_mut() = status;
        let out = response.headers_mut();
        if has_copies(&self.media_type) {
            out.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        if status.is_client_error() {
            return response;
        }
        out.insert(CACHE_CONTROL, self.cache_control.clone());
        if let Some(etag) = &self.validators.etag {
            out.insert(ETAG, etag.clone());
        }
        if let Some(modified) = self.validators.modified {
            insert_text(out, LAST_MODIFIED, httpdate::fmt_http_date(modified));
        }
        response
    }

    /// Returns the parts of a response with several ranges, and its type (RFC 9110, section 14.6).
    fn build_multipart(&self, ranges: Vec<std::ops::Range<u64>>) -> (Vec<BodyPart>, HeaderValue) {
        let boundary = format!("{:032x}", rand::random::<u128>());
        let media_type = String::from_utf8_lossy(self.media_type.as_bytes());
        let mut parts = Vec::with_capacity(2 * ranges.len() + 1);
        for range in ranges {
            let (start, last, length) = (range.start, range.end - 1, self.file.length);
            let head = format!(
                "\r\n--{boundary}\r\ncontent-type: {media_type}\r\ncontent-range: bytes {start}-{last}/{length}\r\n\r\n"
            );
            parts.extend([BodyPart::Text(head.into()), BodyPart::File(range)]);
        }
        parts.push(BodyPart::Text(format!("\r\n--{boundary}--\r\n").into()));
        let content_type = format!("multipart/byteranges; boundary={boundary}");
        (parts, HeaderValue::try_from(content_type).unwrap_or(HeaderValue::from_static("multipart/byteranges")))
    }
}

/// Sets a header to a text of visible ASCII.
fn insert_text(headers: &mut HeaderMap, name: http::HeaderName, text: String) {
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(name, value);
    }
}
