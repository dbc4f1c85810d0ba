//! Reads a file while the client takes it, one piece at a time.
//!
//! The response has as many bytes as its head says, whatever happens to the file in the meantime: of a longer file
//! nothing more is sent, and a shorter one is an error, which the client sees as a response that is cut off.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use rustix::io::{ReadWriteFlags, preadv2};

use crate::descriptors::DescriptorPermit;
use crate::files::job::FileJob;

/// The most bytes that are read at once, and the most that a response holds.
const PIECE: usize = 64 * 1024;

/// A part of a body.
pub enum BodyPart {
    /// The text between two ranges.
    Text(Bytes),
    /// Bytes of the file.
    File(Range<u64>),
}

/// The body of a response with bytes of a file.
pub struct FileBody {
    file: Arc<File>,
    parts: VecDeque<BodyPart>,
    remaining: u64,
    reading: Option<FileJob<io::Result<Bytes>>>,
    _descriptor: DescriptorPermit,
}

impl FileBody {
    /// `descriptor`: the right to keep the file open.
    pub fn new(file: File, parts: Vec<BodyPart>, descriptor: DescriptorPermit) -> FileBody {
        let length = |part: &BodyPart| match part {
            BodyPart::Text(text) => text.len() as u64,
            BodyPart::File(range) => range.end - range.start,
        };
        let remaining = parts.iter().map(length).sum();
        FileBody { file: Arc::new(file), parts: parts.into(), remaining, reading: None, _descriptor: descriptor }
    }

    /// Returns the number of bytes that are still to be sent.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns the next piece, or `None` at the end. After an error, the body is over.
    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let piece = match self.parts.pop_front() {
            None => return Poll::Ready(None),
            Some(BodyPart::Text(text)) => text,
            Some(BodyPart::File(Range { start, end })) => match self.poll_read(start, end, cx) {
                Poll::Pending => {
                    self.parts.push_front(BodyPart::File(start..end));
                    return Poll::Pending;
                }
                Poll::Ready(Ok(piece)) => {
                    let start = start + piece.len() as u64;
                    if start < end {
                        self.parts.push_front(BodyPart::File(start..end));
                    }
                    piece
                }
                Poll::Ready(Err(error)) => {
                    self.parts.clear();
                    return Poll::Ready(Some(Err(error)));
                }
            },
        };
        self.remaining -= piece.len() as u64;
        Poll::Ready(Some(Ok(piece)))
    }

    /// Reads the next piece: immediately if the kernel has it in memory, otherwise on a thread that may wait for the
    /// disk.
    fn poll_read(&mut self, start: u64, end: u64, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        let mut reading = match self.reading.take() {
            Some(reading) => reading,
            None => {
                let length = usize::try_from(end - start).unwrap_or(PIECE).min(PIECE);
                if let Some(piece) = read_cached(&self.file, start, length) {
                    return Poll::Ready(Ok(piece));
                }
                let file = self.file.clone();
                FileJob::start(move || read_piece(&file, start, length))
            }
        };
        match Pin::new(&mut reading).poll(cx) {
            Poll::Ready(read) => Poll::Ready(read.and_then(|read| read)),
            Poll::Pending => {
                self.reading = Some(reading);
                Poll::Pending
            }
        }
    }
}

/// Reads what the kernel has in memory. `None` if that is nothing, or if the file system cannot tell.
fn read_cached(file: &File, offset: u64, length: usize) -> Option<Bytes> {
    let mut piece = vec![0; length];
    let read = preadv2(file, &mut [IoSliceMut::new(&mut piece)], offset, ReadWriteFlags::NOWAIT).ok()?;
    piece.truncate(read);
    (read > 0).then(|| Bytes::from(piece))
}

fn read_piece(file: &File, offset: u64, length: usize) -> io::Result<Bytes> {
    let mut piece = vec![0; length];
    loop {
        match file.read_at(&mut piece, offset) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter")),
            Ok(read) => {
                piece.truncate(read);
                return Ok(Bytes::from(piece));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
