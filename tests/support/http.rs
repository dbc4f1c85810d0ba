//! HTTP/1 messages as bytes from a socket, without any repair. Used by `client` and `upstream`.

use std::io::{self, Read};

/// A head and its body.
#[derive(Clone, Debug)]
pub struct Message {
    /// The head as received, from the request or status line to the empty line.
    pub head: String,
    pub body: Vec<u8>,
}

impl Message {
    pub fn start_line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    pub fn status(&self) -> u16 {
        let word = self.start_line().split(' ').nth(1);
        word.and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("no status line: {:?}", self.head))
    }

    /// The target of a request.
    pub fn target(&self) -> &str {
        self.start_line().split(' ').nth(1).unwrap_or_default()
    }

    /// All values of a header, in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.fields().filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }

    /// The value of a header that must occur at most once.
    #[track_caller]
    pub fn get(&self, name: &str) -> Option<&str> {
        let values = self.all(name);
        assert!(values.len() < 2, "{name} is repeated:\n{}", self.head);
        values.first().copied()
    }

    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.head.lines().skip(1).filter_map(|line| line.split_once(':')).map(|(name, value)| (name, value.trim()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }
}

/// How the end of a body is found.
pub enum Framing {
    None,
    Length(u64),
    Chunked,
    /// The body ends with the connection.
    Close,
}

/// Bytes of a peer. Those after a message are kept for the next one.
pub struct Reader<S> {
    pub stream: S,
    buffer: Vec<u8>,
    /// The lines of the trailers of the last body.
    pub trailers: Vec<String>,
}

impl<S: Read> Reader<S> {
    pub fn new(stream: S) -> Reader<S> {
        Reader { stream, buffer: Vec::new(), trailers: Vec::new() }
    }

    /// Reads a head. `None` if the connection ends before its first byte.
    pub fn head(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let head = self.buffer.drain(..end + 4).collect();
                return String::from_utf8(head).map(Some).map_err(io::Error::other);
            }
            if self.fill()? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    pub fn body(&mut self, framing: &Framing) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        self.stream_body(framing, |piece| body.extend_from_slice(piece))?;
        Ok(body)
    }

    /// Passes the body to `sink` piece by piece.
    pub fn stream_body(&mut self, framing: &Framing, mut sink: impl FnMut(&[u8])) -> io::Result<()> {
        self.trailers.clear();
        match framing {
            Framing::None => Ok(()),
            Framing::Length(length) => self.exactly(*length, &mut sink),
            Framing::Chunked => loop {
                let line = self.line()?;
                let size = u64::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16);
                let size = size.map_err(|error| io::Error::other(format!("{error} in chunk size {line:?}")))?;
                if size == 0 {
                    loop {
                        match self.line()? {
                            line if line.is_empty() => return Ok(()),
                            line => self.trailers.push(line),
                        }
                    }
                }
                self.exactly(size, &mut sink)?;
                self.line()?;
            },
            Framing::Close => loop {
                sink(&self.buffer);
                self.buffer.clear();
                if self.fill()? == 0 {
                    return Ok(());
                }
            },
        }
    }

    /// Waits for the end of the stream. Returns whether nothing else arrived.
    pub fn ended(&mut self) -> io::Result<bool> {
        match self.fill() {
            Ok(more) => Ok(more == 0 && self.buffer.is_empty()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(self.buffer.is_empty()),
            Err(error) => Err(error),
        }
    }

    /// Reads on until the stream ends, and drops what arrives.
    pub fn discard_rest(&mut self) -> io::Result<()> {
        loop {
            self.buffer.clear();
            match self.fill() {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                read => read?,
            };
        }
    }

    fn exactly(&mut self, mut left: u64, sink: &mut impl FnMut(&[u8])) -> io::Result<()> {
        while left > 0 {
            if self.buffer.is_empty() && self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let take = self.buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            sink(&self.buffer[..take]);
            self.buffer.drain(..take);
            left -= take as u64;
        }
        Ok(())
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut piece = [0; 64 * 1024];
        let count = read_some(&mut self.stream, &mut piece)?;
        self.buffer.extend_from_slice(&piece[..count]);
        Ok(count)
    }
}

/// Reads once. The kernel interrupts a read that has a timeout when the machine freezes and continues the process.
pub fn read_some(stream: &mut impl Read, piece: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// How the body after a head ends. For a response, `request_method` is the method of the request.
pub fn framing(head: &Message, response_to: Option<&str>) -> Framing {
    if let Some(method) = response_to {
        let status = head.status();
        if method == "HEAD" || status < 200 || matches!(status, 204 | 304) {
            return Framing::None;
        }
    }
    if head.get("transfer-encoding").is_some() {
        return Framing::Chunked;
    }
    match head.get("content-length") {
        Some(length) => Framing::Length(length.parse().unwrap_or_else(|_| panic!("content-length: {length:?}"))),
        None if response_to.is_some() => Framing::Close,
        None => Framing::None,
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
