//! A client of `/-/tap`.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::support::WAIT_MAX;
use crate::support::gateway::Gateway;

pub struct Tap {
    lines: BufReader<TcpStream>,
}

/// One event: its name, empty for a request, and its data.
pub type Event = (String, Value);

impl Tap {
    /// Opens a tap and waits until it is open: from then on, no request is missed.
    #[track_caller]
    pub fn open(gateway: &Gateway, query: &str) -> Tap {
        let (status, mut tap) = Tap::request(gateway, query, "");
        assert_eq!(status, 200);
        let (name, counts) = tap.event().unwrap();
        assert_eq!((name.as_str(), &counts["matched"]), ("counts", &0.into()));
        tap
    }

    /// Sends the request for a tap; returns the status. Each line of `fields` ends with CRLF.
    #[track_caller]
    pub fn request(gateway: &Gateway, query: &str, fields: &str) -> (u16, Tap) {
        let mut stream = TcpStream::connect(gateway.admin).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        write!(stream, "GET /-/tap{query} HTTP/1.0\r\nhost: localhost\r\n{fields}\r\n").unwrap();
        let mut tap = Tap { lines: BufReader::new(stream) };
        let status = tap.line().unwrap();
        let status = status.split(' ').nth(1).unwrap_or_else(|| panic!("{status}")).parse().unwrap();
        while tap.line().is_some_and(|line| !line.is_empty()) {}
        (status, tap)
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.trim_end().to_owned()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The rest of a response that is no stream.
    pub fn rest(mut self) -> String {
        std::iter::from_fn(|| self.line()).collect()
    }

    /// Reads one byte, if there still is one.
    pub fn trickle(&mut self) {
        let _ = self.lines.get_mut().read(&mut [0]);
    }

    /// The next event; `None` at the end of the stream.
    pub fn event(&mut self) -> Option<Event> {
        let (mut name, mut data) = (String::new(), Value::Null);
        loop {
            let line = self.line()?;
            match line.split_once(": ") {
                Some(("event", found)) => name = found.to_owned(),
                Some(("data", found)) => data = serde_json::from_str(found).unwrap(),
                _ if line.is_empty() => return Some((name, data)),
                _ => panic!("{line}"),
            }
        }
    }

    /// The next request.
    #[track_caller]
    pub fn next(&mut self) -> Value {
        loop {
            let (name, data) = self.event().expect("the stream ended");
            if name.is_empty() {
                return data;
            }
            assert_eq!(name, "counts", "{data}");
        }
    }

    /// Returns the next counts that include all of `matched` requests.
    #[track_caller]
    pub fn counts(&mut self, matched: u64) -> Value {
        loop {
            let (name, data) = self.event().expect("the stream ended");
            if name == "counts" && data["matched"].as_u64().unwrap() >= matched {
                return data;
            }
        }
    }

    /// The reason why the stream ends, after which it ends.
    #[track_caller]
    pub fn end(&mut self) -> String {
        loop {
            let (name, data) = self.event().expect("no reason for the end");
            if name == "end" {
                assert_eq!(self.event(), None, "more events after the end");
                return data["reason"].as_str().unwrap().to_owned();
            }
        }
    }
}
