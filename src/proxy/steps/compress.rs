//! Response compression (`compress`): gzip, brotli and zstd, as the client accepts them.
//!
//! Input: a response whose headers are final, and the algorithm that the request negotiated. Output: the response with
//! a compressed body and the headers that belong to it, or the response unchanged.
//!
//! - `negotiate`: selects the algorithm from `Accept-Encoding`
//! - `headers`: decides which responses are compressed, and changes their heads
//! - `stage`: compresses a body while it streams; `encoder`: one interface for the three libraries
//! - `memory`: bounds the memory of all encoders; `worker`: what the responses of a worker share
//!
//! To add an algorithm: add it to `CompressionAlgorithm`, and fill in the matches that the compiler reports.

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Method, Response, StatusCode};
use http_body::Body as _;

use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::RequestContext;
use crate::proxy::render::compress::encoder::{BodyEncoder, EncoderFault};
use crate::proxy::render::compress::headers;
use crate::proxy::render::compress::stage::{CompressionStage, SLICE};
use crate::proxy::render::compress::worker::WorkerCompression;
use crate::route::compress::{CompressSettings, CompressionAlgorithm};

/// Compresses the response if its route and its client want that and its head allows it.
pub fn compress_response(
    request: &mut RequestContext<'_>,
    settings: &CompressSettings,
    response: &mut Response<ResponseBody>,
) {
    let parts = &request.received.parts;
    if response.status() == StatusCode::NOT_MODIFIED {
        return headers::revalidate(response.headers_mut(), &parts.headers, settings);
    }
    let is_head = parts.method == Method::HEAD;
    let length = find_length(response, is_head);
    if response.body().is_tunnel() || !headers::is_compressible(response.status(), response.headers(), length, settings)
    {
        return;
    }
    headers::add_vary(response.headers_mut());
    let Some(algorithm) = request.compression else { return };
    if is_head {
        // The head is that of the response to GET. Its length is not known before the body is compressed.
        if response.body_mut().take_full().is_none() {
            response.body_mut().forget_length();
        }
    } else if !compress_body(request, algorithm, response.body_mut()) {
        return request.client.worker.process.metrics.compression.skipped.inc();
    }
    headers::mark_compressed(response.headers_mut(), algorithm);
}

/// Returns the length of the body, if it is known. The response to HEAD has no body, but may state the length.
fn find_length(response: &Response<ResponseBody>, is_head: bool) -> Option<u64> {
    let content_length = || response.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
    response.body().size_hint().exact().filter(|length| !is_head || *length > 0).or_else(content_length)
}

/// Replaces the body by a compressed one. Returns false if the memory for that is used up; the body is unchanged then.
fn compress_body(request: &mut RequestContext<'_>, algorithm: CompressionAlgorithm, body: &mut ResponseBody) -> bool {
    let worker = &request.client.worker;
    if body.full_length().is_some_and(|length| length <= SLICE)
        && let Some(plain) = body.take_full()
    {
        let Ok(compressed) = compress_at_once(&worker.compression, algorithm, &plain) else {
            *body = ResponseBody::full(plain);
            return false;
        };
        let counters = worker.compression.counters(algorithm);
        counters.add_in(plain.len());
        counters.add_out(compressed.len());
        if let Some(entry) = request.account.log_entry() {
            entry.record_uncompressed(plain.len() as u64);
        }
        *body = ResponseBody::full(compressed);
        return true;
    }
    let max = request.view.snapshot.config.server.max_compress_memory;
    let permit = worker.process.compression_memory.reserve(algorithm, max);
    let stage = permit.and_then(|permit| CompressionStage::new(algorithm, permit, &worker.compression).ok());
    stage.map(|stage| body.compress_with(stage)).is_some()
}

/// Compresses a small body that has arrived completely, so that its compressed length is known.
fn compress_at_once(
    worker: &WorkerCompression,
    algorithm: CompressionAlgorithm,
    plain: &[u8],
) -> Result<Bytes, EncoderFault> {
    let mut output = worker.output.borrow_mut();
    output.clear();
    let mut encoder = BodyEncoder::new(algorithm, &worker.cache)?;
    encoder.encode(plain, &mut output)?;
    encoder.finish(&mut output, &worker.cache)?;
    let bytes = Bytes::copy_from_slice(&output);
    worker.shrink_output(&mut output);
    Ok(bytes)
}
