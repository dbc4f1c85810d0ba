//! One encoder interface for gzip, brotli and zstd. Levels and windows are chosen for speed and bounded memory.
//!
//! Every call consumes its whole input. Its output is at most about the size of that input and of the block that the
//! encoder holds back, so callers bound it by the size of the input.

use std::cell::RefCell;

use brotli::enc::StandardAlloc;
use brotli::enc::encode::{BrotliEncoderOperation, BrotliEncoderParameter, BrotliEncoderStateStruct};
use flate2::{Compress, Compression, FlushCompress, Status};
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective};

use crate::route::compress::CompressionAlgorithm;

/// gzip: higher levels save 1 % at a quarter more CPU.
const GZIP_LEVEL: u32 = 5;
/// The largest window of deflate, 32 KiB.
const GZIP_WINDOW_BITS: u8 = 15;
/// brotli: 5 and above need up to 34 MiB per response.
const BROTLI_QUALITY: u32 = 4;
/// Window of brotli, 256 KiB.
const BROTLI_WINDOW_BITS: u32 = 18;
const ZSTD_LEVEL: i32 = 3;
/// Window of zstd, 256 KiB. Clients of HTTP must support 8 MiB (RFC 9659).
const ZSTD_WINDOW_BITS: u32 = 18;
/// Least free space of the output buffer before each call of a library.
const SPARE_MIN: usize = 1024;
const GROWTH: usize = 16 * 1024;

/// The encoder failed, most likely because no memory is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderFault;

/// An encoder of one body.
pub enum BodyEncoder {
    Gzip(Box<Compress>),
    Zstd(CCtx<'static>),
    Br(Box<BrotliEncoderStateStruct<StandardAlloc>>),
}

/// An unused zstd encoder of one worker. Using it again saves setting up its tables, which for a small body takes
/// longer than compressing it.
#[derive(Default)]
pub struct EncoderCache(RefCell<Option<CCtx<'static>>>);

/// Tells a library how to treat the data that it holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EncoderStep {
    Continue,
    Flush,
    Finish,
}

impl EncoderCache {
    fn take_zstd(&self) -> Result<CCtx<'static>, EncoderFault> {
        if let Some(context) = self.0.take() {
            return Ok(context);
        }
        let mut context = CCtx::try_create().ok_or(EncoderFault)?;
        for parameter in [CParameter::CompressionLevel(ZSTD_LEVEL), CParameter::WindowLog(ZSTD_WINDOW_BITS)] {
            context.set_parameter(parameter).map_err(|_| EncoderFault)?;
        }
        Ok(context)
    }
}

impl BodyEncoder {
    /// # Errors
    /// No memory is left.
    pub fn new(algorithm: CompressionAlgorithm, cache: &EncoderCache) -> Result<BodyEncoder, EncoderFault> {
        Ok(match algorithm {
            CompressionAlgorithm::Gzip => {
                BodyEncoder::Gzip(Box::new(Compress::new_gzip(Compression::new(GZIP_LEVEL), GZIP_WINDOW_BITS)))
            }
            CompressionAlgorithm::Zstd => BodyEncoder::Zstd(cache.take_zstd()?),
            CompressionAlgorithm::Br => {
                let mut state = BrotliEncoderStateStruct::new(StandardAlloc::default());
                state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_QUALITY, BROTLI_QUALITY);
                state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_LGWIN, BROTLI_WINDOW_BITS);
                BodyEncoder::Br(Box::new(state))
            }
        })
    }

    /// Compresses `input` and appends to `output` what the encoder does not hold back.
    ///
    /// # Errors
    /// The encoder failed and cannot be used again; so for the other functions.
    pub fn encode(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<(), EncoderFault> {
        self.step(EncoderStep::Continue, input, output)
    }

    /// Appends everything that the encoder holds back, so that the client can decode all input up to here.
    pub fn flush(&mut self, output: &mut Vec<u8>) -> Result<(), EncoderFault> {
        self.step(EncoderStep::Flush, &[], output)
    }

    /// Appends the end of the compressed body, and puts the encoder into the cache if it can be used again.
    pub fn finish(mut self, output: &mut Vec<u8>, cache: &EncoderCache) -> Result<(), EncoderFault> {
        self.step(EncoderStep::Finish, &[], output)?;
        if let BodyEncoder::Zstd(mut context) = self
            && context.reset(ResetDirective::SessionOnly).is_ok()
        {
            cache.0.replace(Some(context));
        }
        Ok(())
    }

    fn step(&mut self, step: EncoderStep, input: &[u8], output: &mut Vec<u8>) -> Result<(), EncoderFault> {
        match self {
            BodyEncoder::Gzip(encoder) => step_gzip(encoder, step, input, output),
            BodyEncoder::Zstd(encoder) => step_zstd(encoder, step, input, output),
            BodyEncoder::Br(encoder) => step_brotli(encoder, step, input, output),
        }
    }
}

fn reserve_output(output: &mut Vec<u8>) {
    if output.capacity() - output.len() < SPARE_MIN {
        output.reserve(GROWTH);
    }
}

fn step_gzip(
    encoder: &mut Compress,
    step: EncoderStep,
    mut input: &[u8],
    output: &mut Vec<u8>,
) -> Result<(), EncoderFault> {
    let flush = match step {
        EncoderStep::Continue => FlushCompress::None,
        EncoderStep::Flush => FlushCompress::Sync,
        EncoderStep::Finish => FlushCompress::Finish,
    };
    loop {
        reserve_output(output);
        let before = encoder.total_in();
        let status = encoder.compress_vec(input, output, flush).map_err(|_| EncoderFault)?;
        let consumed = usize::try_from(encoder.total_in() - before).map_err(|_| EncoderFault)?;
        input = input.get(consumed..).ok_or(EncoderFault)?;
        let is_done = match step {
            EncoderStep::Finish => status == Status::StreamEnd,
            // The encoder has written everything once it leaves space unused.
            EncoderStep::Continue | EncoderStep::Flush => input.is_empty() && output.len() < output.capacity(),
        };
        if is_done {
            return Ok(());
        }
        if status == Status::BufError && output.len() < output.capacity() {
            return Err(EncoderFault);
        }
    }
}

fn step_zstd(
    encoder: &mut CCtx<'static>,
    step: EncoderStep,
    input: &[u8],
    output: &mut Vec<u8>,
) -> Result<(), EncoderFault> {
    let mut source = InBuffer::around(input);
    loop {
        reserve_output(output);
        let start = output.len();
        let mut target = OutBuffer::around_pos(output, start);
        let held_back = match step {
            EncoderStep::Continue => encoder.compress_stream(&mut target, &mut source),
            EncoderStep::Flush => encoder.flush_stream(&mut target),
            EncoderStep::Finish => encoder.end_stream(&mut target),
        }
        .map_err(|_| EncoderFault)?;
        let is_done = match step {
            EncoderStep::Continue => source.pos() == input.len(),
            EncoderStep::Flush | EncoderStep::Finish => held_back == 0,
        };
        if is_done {
            return Ok(());
        }
    }
}

fn step_brotli(
    encoder: &mut BrotliEncoderStateStruct<StandardAlloc>,
    step: EncoderStep,
    input: &[u8],
    output: &mut Vec<u8>,
) -> Result<(), EncoderFault> {
    let operation = match step {
        EncoderStep::Continue => BrotliEncoderOperation::BROTLI_OPERATION_PROCESS,
        EncoderStep::Flush => BrotliEncoderOperation::BROTLI_OPERATION_FLUSH,
        EncoderStep::Finish => BrotliEncoderOperation::BROTLI_OPERATION_FINISH,
    };
    let (mut left, mut consumed) = (input.len(), 0);
    loop {
        reserve_output(output);
        let start = output.len();
        // The library writes into initialized memory only.
        output.resize(output.capacity(), 0);
        let (mut space, mut written) = (output.len() - start, 0);
        let is_ok = encoder.compress_stream(
            operation,
            &mut left,
            input,
            &mut consumed,
            &mut space,
            &mut output[start..],
            &mut written,
            &mut None,
            &mut |_, _, _, _| (),
        );
        output.truncate(start + written);
        if !is_ok {
            return Err(EncoderFault);
        }
        if left == 0 && !encoder.has_more_output() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::MultiGzDecoder;
    use proptest::prelude::*;

    use super::*;

    /// Decodes what has arrived so far; the end may be missing.
    fn decode(algorithm: CompressionAlgorithm, bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        match algorithm {
            CompressionAlgorithm::Gzip => drop(MultiGzDecoder::new(bytes).read_to_end(&mut text)),
            CompressionAlgorithm::Br => drop(brotli::Decompressor::new(bytes, 4096).read_to_end(&mut text)),
            CompressionAlgorithm::Zstd => {
                let mut decoder = zstd_safe::DCtx::create();
                let mut source = InBuffer::around(bytes);
                while source.pos() < bytes.len() {
                    let start = text.len();
                    text.reserve(1024 * 1024);
                    let mut target = OutBuffer::around_pos(&mut text, start);
                    decoder.decompress_stream(&mut target, &mut source).unwrap();
                }
            }
        }
        text
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn clients_decode_every_flushed_byte(
            pieces in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..3000), 1..30usize, any::<bool>()), 0..8),
        ) {
            let cache = EncoderCache::default();
            for algorithm in CompressionAlgorithm::ALL {
                let mut encoder = BodyEncoder::new(*algorithm, &cache).unwrap();
                let (mut plain, mut output) = (Vec::new(), Vec::new());
                for (piece, times, flushes) in &pieces {
                    let piece = piece.repeat(*times);
                    plain.extend_from_slice(&piece);
                    encoder.encode(&piece, &mut output).unwrap();
                    if *flushes {
                        encoder.flush(&mut output).unwrap();
                        prop_assert!(decode(*algorithm, &output) == plain, "{} after a flush", algorithm.label());
                    }
                }
                encoder.finish(&mut output, &cache).unwrap();
                prop_assert!(decode(*algorithm, &output) == plain, "{} at the end", algorithm.label());
            }
        }
    }

    #[test]
    fn repeated_flushes_add_no_more_than_a_marker() {
        let cache = EncoderCache::default();
        for algorithm in CompressionAlgorithm::ALL {
            let mut encoder = BodyEncoder::new(*algorithm, &cache).unwrap();
            let mut output = Vec::new();
            encoder.encode(b"text", &mut output).unwrap();
            encoder.flush(&mut output).unwrap();
            let once = output.len();
            (0..100).for_each(|_| encoder.flush(&mut output).unwrap());
            assert!(output.len() <= once + 600, "{}: {} bytes", algorithm.label(), output.len());
            encoder.finish(&mut output, &cache).unwrap();
            assert_eq!(decode(*algorithm, &output), b"text");
        }
    }

    #[test]
    fn a_zstd_encoder_is_used_again_without_a_trace_of_the_last_body() {
        let cache = EncoderCache::default();
        let mut first = Vec::new();
        for secret in ["a secret of the first body", "another body"] {
            let mut encoder = BodyEncoder::new(CompressionAlgorithm::Zstd, &cache).unwrap();
            let mut output = Vec::new();
            encoder.encode(secret.as_bytes(), &mut output).unwrap();
            encoder.finish(&mut output, &cache).unwrap();
            assert!(cache.0.borrow().is_some());
            assert_eq!(decode(CompressionAlgorithm::Zstd, &output), secret.as_bytes());
            first.push(output);
        }
        // A new encoder gives the same bytes: nothing refers to the first body.
        let mut output = Vec::new();
        let mut encoder = BodyEncoder::new(CompressionAlgorithm::Zstd, &EncoderCache::default()).unwrap();
        encoder.encode(b"another body", &mut output).unwrap();
        encoder.finish(&mut output, &EncoderCache::default()).unwrap();
        assert_eq!(output, first[1]);
    }

    #[test]
    fn the_window_of_zstd_fits_every_client() {
        let cache = EncoderCache::default();
        let mut encoder = BodyEncoder::new(CompressionAlgorithm::Zstd, &cache).unwrap();
        let mut output = Vec::new();
        encoder.encode(&vec![b'x'; 1 << 20], &mut output).unwrap();
        encoder.finish(&mut output, &cache).unwrap();
        // RFC 8878, section 3.1.1.1.2: the exponent of the window is in the upper five bits.
        assert_eq!(10 + u32::from(output[5] >> 3), ZSTD_WINDOW_BITS);
    }
}
