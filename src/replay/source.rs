//! Access logs as one stream of lines: files, standard input, gzip, merged by time. Called by
//! the replay.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use super::line::{self, Entry, Format};

/// Longer lines are bad, and read past without being kept.
const LINE_MAX: usize = 64 * 1024;
/// Bad lines shown of each log.
const SHOWN_MAX: usize = 3;
const BUFFER: usize = 256 * 1024;

/// One log.
pub struct Source {
    pub name: String,
    /// Of the first good line.
    pub format: Option<Format>,
    pub lines: u64,
    pub bad: u64,
    /// The first bad lines: number and what is wrong.
    pub shown: Vec<(u64, &'static str)>,
    reader: Box<dyn BufRead>,
    buffer: Vec<u8>,
    next: Option<Entry>,
}

/// All logs.
pub struct Sources {
    pub all: Vec<Source>,
    /// Bytes of the files, and bytes read of them, both as they are on disk.
    pub total: u64,
    pub read: Rc<Cell<u64>>,
}

impl Sources {
    /// `-` is standard input.
    ///
    /// # Errors
    /// Which log cannot be read, and why.
    pub fn open(paths: &[PathBuf]) -> Result<Sources, String> {
        let mut sources = Sources { all: Vec::new(), total: 0, read: Rc::default() };
        for path in paths {
            let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
            let reader = sources.reader(path).map_err(|error| format!("cannot read {name}: {error}"))?;
            let (shown, buffer) = (Vec::new(), Vec::new());
            let mut source = Source { name, format: None, lines: 0, bad: 0, shown, reader, buffer, next: None };
            source.advance()?;
            sources.all.push(source);
        }
        Ok(sources)
    }

    fn reader(&mut self, path: &Path) -> io::Result<Box<dyn BufRead>> {
        let raw: Box<dyn Read> = if path == Path::new("-") {
            Box::new(io::stdin())
        } else {
            let file = File::open(path)?;
            self.total += file.metadata()?.len();
            Box::new(file)
        };
        let mut plain = BufReader::with_capacity(BUFFER, Counted { raw, read: self.read.clone() });
        if plain.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
            return Ok(Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(plain))));
        }
        Ok(Box::new(plain))
    }

    /// The next request of all logs by time; each log is taken in its own order.
    ///
    /// # Errors
    /// Which log cannot be read on, and why.
    pub fn next(&mut self) -> Result<Option<Entry>, String> {
        let waiting = self.all.iter_mut().filter(|source| source.next.is_some());
        match waiting.min_by_key(|source| source.next.as_ref().map(|entry| entry.time_ms)) {
            Some(source) => {
                let entry = source.next.take();
                source.advance()?;
                Ok(entry)
            }
            None => Ok(None),
        }
    }

    pub fn lines(&self) -> u64 {
        self.all.iter().map(|source| source.lines).sum()
    }
}

impl Source {
    fn advance(&mut self) -> Result<(), String> {
        loop {
            let whole = read_line(&mut self.reader, &mut self.buffer)
                .map_err(|error| format!("cannot read {} after line {}: {error}", self.name, self.lines))?;
            let Some(whole) = whole else { return Ok(()) };
            self.lines += 1;
            if self.buffer.trim_ascii().is_empty() && whole {
                continue;
            }
            match if whole { line::parse(&self.buffer) } else { Err("longer than 64 KiB") } {
                Ok(entry) => {
                    self.format.get_or_insert(entry.format);
                    self.next = Some(entry);
                    return Ok(());
                }
                Err(wrong) => {
                    self.bad += 1;
                    if self.shown.len() < SHOWN_MAX {
                        self.shown.push((self.lines, wrong));
                    }
                }
            }
        }
    }
}

/// Reads a line without its end into `line`; false when it was too long, `None` at the end.
fn read_line(reader: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    let (mut any, mut whole) = (false, true);
    loop {
        let chunk = match reader.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if chunk.is_empty() {
            return Ok(any.then_some(whole));
        }
        any = true;
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let part = &chunk[..end.unwrap_or(chunk.len())];
        whole &= line.len() + part.len() <= LINE_MAX;
        if whole {
            line.extend_from_slice(part);
        }
        let used = part.len() + usize::from(end.is_some());
        reader.consume(used);
        if end.is_some() {
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            return Ok(Some(whole));
        }
    }
}

struct Counted {
    raw: Box<dyn Read>,
    read: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.raw.read(buffer)?;
        self.read.set(self.read.get() + count as u64);
        Ok(count)
    }
}
