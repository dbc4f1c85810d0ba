//! Reads an event stream of the admin listener: the head of the response, then its events. Called by `tap`.

use std::io::{self, BufRead, BufReader, Read};

use crate::cli::gateway::AdminConnection;

/// The events of a response.
pub struct EventStream<R = AdminConnection>(BufReader<R>);

/// One event.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StreamEvent {
    /// Empty for an event without a name.
    pub name: String,
    pub data: String,
}

/// The response to the request for a stream.
pub enum StreamReply<R = AdminConnection> {
    Events(EventStream<R>),
    Refused { status: u16, body: String },
}

/// Maximum length of a line in bytes. The longest event has the head of a request, escaped.
const LINE_MAX: u64 = 4 * 1024 * 1024;
const HEAD_LINES_MAX: usize = 100;
/// Maximum length of the body of a refusal that is read, in bytes.
const BODY_MAX: u64 = 64 * 1024;

impl<R: Read> EventStream<R> {
    /// Reads the head of the response on `connection`.
    pub fn read_head(connection: R) -> io::Result<StreamReply<R>> {
        let mut stream = EventStream(BufReader::new(connection));
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let line = stream.read_line()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        let status = status.ok_or_else(|| invalid("the response is not HTTP"))?;
        for _ in 0..HEAD_LINES_MAX {
            match stream.read_line()?.as_deref() {
                Some("") if status == 200 => return Ok(StreamReply::Events(stream)),
                Some("") => {
                    let mut body = Vec::new();
                    stream.0.take(BODY_MAX).read_to_end(&mut body)?;
                    return Ok(StreamReply::Refused { status, body: String::from_utf8_lossy(&body).into_owned() });
                }
                Some(line) if line.to_ascii_lowercase().starts_with("transfer-encoding:") => {
                    return Err(invalid("a proxy in between changed the stream"));
                }
                Some(_) => {}
                None => break,
            }
        }
        Err(invalid("the response has no end of its head"))
    }

    /// Waits for the next event; `None` if the stream has ended.
    pub fn next_event(&mut self) -> io::Result<Option<StreamEvent>> {
        let mut event = StreamEvent::default();
        while let Some(line) = self.read_line()? {
            match line.split_once(": ") {
                _ if line.is_empty() && event.data.is_empty() => event = StreamEvent::default(),
                _ if line.is_empty() => return Ok(Some(event)),
                Some(("event", name)) => name.clone_into(&mut event.name),
                Some(("data", data)) => data.clone_into(&mut event.data),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Reads a line, without its end; `None` if there is no whole line left.
    fn read_line(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        self.0.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Ok(None);
        }
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        Ok(Some(String::from_utf8_lossy(line).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str) -> EventStream<&[u8]> {
        match EventStream::read_head(text.as_bytes()).unwrap() {
            StreamReply::Events(events) => events,
            StreamReply::Refused { status, body } => panic!("{status} {body}"),
        }
    }

    #[test]
    fn events_have_a_name_and_data() {
        let text =
            "HTTP/1.0 200 OK\r\nx: y\r\n\r\n: comment\n\ndata: {}\n\nevent: counts\ndata: {\"a\": 1}\n\ndata: cut";
        let mut events = events(text);
        let event = |name: &str, data: &str| StreamEvent { name: name.to_owned(), data: data.to_owned() };
        assert_eq!(events.next_event().unwrap(), Some(event("", "{}")));
        assert_eq!(events.next_event().unwrap(), Some(event("counts", "{\"a\": 1}")));
        assert_eq!(events.next_event().unwrap(), None, "what is cut off is not shown");
    }

    #[test]
    fn other_responses_are_not_read_as_events() {
        let refused = EventStream::read_head(&b"HTTP/1.1 401 Unauthorized\r\n\r\n{}"[..]);
        assert!(matches!(refused, Ok(StreamReply::Refused { status: 401, body }) if body == "{}"));
        for wrong in
            ["", "SSH-2.0-OpenSSH\r\n", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]
        {
            assert!(EventStream::read_head(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
