//! Access logs as one stream of lines: files, standard input and gzip, merged by time. Called by the replay.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use crate::replay::input::entry::{AccessLogFormat, ReplayEntry};
use crate::replay::input::line;

/// Maximum length of a line in bytes. Longer lines are invalid and skipped without being stored.
const LINE_MAX: usize = 64 * 1024;
/// Number of invalid lines shown per log.
const SHOWN_MAX: usize = 3;
const BUFFER: usize = 256 * 1024;
/// Magic bytes of other compression formats, and the program that unpacks them.
const PACKED: [(&[u8], &str); 3] =
    [(&[0x28, 0xb5, 0x2f, 0xfd], "zstd"), (b"BZh", "bzip2"), (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz")];

/// One log.
pub struct LogSource {
    pub name: String,
    /// Format of the first valid line.
    pub format: Option<AccessLogFormat>,
    pub lines: u64,
    pub bad: u64,
    /// The first invalid lines, each with its line number and problem.
    pub shown: Vec<(u64, &'static str)>,
    reader: Box<dyn BufRead>,
    gzip: bool,
    headers: bool,
    buffer: Vec<u8>,
    next: Option<ReplayEntry>,
}

/// A request and its place.
pub struct Logged {
    pub entry: ReplayEntry,
    pub place: LogPlace,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPlace {
    /// Index of the log.
    pub source: usize,
    pub line: u64,
}

/// All logs.
pub struct LogSources {
    pub all: Vec<LogSource>,
    /// Bytes of the files, and bytes read so far, both as on disk.
    pub total: u64,
    pub read: Rc<Cell<u64>>,
}

impl LogSources {
    /// Opens the logs; `-` is standard input. `headers` is true if headers are needed.
    ///
    /// # Errors
    /// Which log cannot be read, and why.
    pub fn open_logs(paths: &[PathBuf], headers: bool) -> Result<LogSources, String> {
        let mut sources = LogSources { all: Vec::new(), total: 0, read: Rc::default() };
        for path in paths {
            let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
            let (reader, gzip) = sources.open_reader(path, &name)?;
            let (shown, buffer) = (Vec::new(), Vec::new());
            let mut source =
                LogSource { name, format: None, lines: 0, bad: 0, shown, reader, gzip, headers, buffer, next: None };
            source.read_next()?;
            sources.all.push(source);
        }
        Ok(sources)
    }

    /// Opens a reader; also returns whether it decompresses.
    fn open_reader(&mut self, path: &Path, name: &str) -> Result<(Box<dyn BufRead>, bool), String> {
        let cannot = |error: &io::Error| format!("cannot read {name}: {error}");
        let raw: Box<dyn Read> = if path == Path::new("-") {
            Box::new(io::stdin())
        } else {
            let file = File::open(path).map_err(|error| cannot(&error))?;
            let about = file.metadata().map_err(|error| cannot(&error))?;
            if about.is_dir() {
                return Err(format!("{name} is a directory; name the logs in it, like {name}/access.log*"));
            }
            self.total += about.len();
            Box::new(file)
        };
        let mut plain = BufReader::with_capacity(BUFFER, CountingReader { raw, read: self.read.clone() });
        let start = plain.fill_buf().map_err(|error| cannot(&error))?;
        if start.starts_with(&[0x1f, 0x8b]) {
            return Ok((Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(plain))), true));
        }
        if let Some((_, tool)) = PACKED.iter().find(|(magic, _)| start.starts_with(magic)) {
            return Err(format!(
                "{name} is packed by {tool}; unpack it on the way: {tool} -dc {name} | sluicegate replay ... -"
            ));
        }
        Ok((Box::new(plain), false))
    }

    /// Returns the next request of all logs by time; each log keeps its own order.
    ///
    /// # Errors
    /// Which log can no longer be read, and why.
    pub fn next_request(&mut self) -> Result<Option<Logged>, String> {
        let waiting = self.all.iter_mut().enumerate().filter(|(_, source)| source.next.is_some());
        let first = waiting.min_by_key(|(_, source)| source.next.as_ref().map(|entry| entry.logged_ms));
        let Some((index, source)) = first else { return Ok(None) };
        let place = LogPlace { source: index, line: source.lines };
        let entry = source.next.take();
        source.read_next()?;
        Ok(entry.map(|entry| Logged { entry, place }))
    }

    /// Checks that at least one line is valid.
    ///
    /// # Errors
    /// If there are lines and none is valid.
    pub fn check_readable(&self) -> Result<(), String> {
        let bad = self.all.iter().find(|source| source.bad > 0);
        let Some(bad) = bad.filter(|_| self.all.iter().all(|source| source.format.is_none())) else { return Ok(()) };
        let (number, wrong) = bad.shown.first().copied().unwrap_or((1, ""));
        Err(format!(
            "no line of the logs can be read; {} line {number}: {wrong}. The common and combined formats of nginx and \
             Apache are read, JSON of Sluicegate, Caddy, Traefik and nginx, and logs of HAProxy (httplog), Nginx Proxy \
             Manager, AWS load balancers and CloudFront; write the log in one of them",
            bad.name
        ))
    }

    pub fn count_lines(&self) -> u64 {
        self.all.iter().map(|source| source.lines).sum()
    }
}

impl LogSource {
    fn read_next(&mut self) -> Result<(), String> {
        loop {
            let whole =
                read_line(&mut self.reader, &mut self.buffer).map_err(|error| self.describe_unreadable(&error))?;
            let Some(whole) = whole else { return Ok(()) };
            self.lines += 1;
            // CloudFront starts its logs with two comments.
            let is_comment = self.buffer.starts_with(b"#Version:") || self.buffer.starts_with(b"#Fields:");
            if (self.buffer.trim_ascii().is_empty() || is_comment) && whole {
                continue;
            }
            match if whole { line::parse_line(&self.buffer, self.headers) } else { Err("longer than 64 KiB") } {
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

impl LogSource {
    fn describe_unreadable(&self, error: &io::Error) -> String {
        let LogSource { name, lines, gzip, .. } = self;
        let is_damaged = matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData
        );
        if *gzip && is_damaged {
            let how =
                if error.kind() == io::ErrorKind::UnexpectedEof { "ends in the middle of" } else { "is damaged in" };
            return format!(
                "{name} {how} its gzip data, after line {lines}; for what can be saved of it: \
                 gzip -dc {name} | sluicegate replay ... -"
            );
        }
        format!("cannot read {name} after line {lines}: {error}")
    }
}

/// Reads a line without its end into `line`. Returns false if it was too long, `None` at the end.
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
        let used_bytes = part.len() + usize::from(end.is_some());
        reader.consume(used_bytes);
        if end.is_some() {
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            return Ok(Some(whole));
        }
    }
}

struct CountingReader {
    raw: Box<dyn Read>,
    read: Rc<Cell<u64>>,
}

impl Read for CountingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.raw.read(buffer)?;
        self.read.set(self.read.get() + count as u64);
        Ok(count)
    }
}
