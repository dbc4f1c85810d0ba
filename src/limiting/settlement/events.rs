//! A push parser of server-sent events (HTML, section 9.2) whose data are JSON documents. It keeps no event: the JSON
//! parser reads the data while they arrive.

use memchr::memchr2;

use crate::limiting::settlement::json::JsonScanner;
use crate::limiting::settlement::path_tree::PathTree;
use crate::limiting::settlement::readings::UsageReadings;
use crate::telemetry::metrics::ScanFault;

/// The data of the event that ends a stream of the OpenAI API.
const DONE: &[u8] = b"[DONE]";
/// Fields that are not content.
const OTHER_FIELDS: [&[u8]; 3] = [b"event", b"id", b"retry"];
/// Length of the longest name of a field.
const NAME_MAX: usize = 5;

/// Parser of one event stream.
#[derive(Debug, Default)]
pub struct EventScanner {
    line: Line,
    /// The part of the line's field name that was read so far.
    name: [u8; NAME_MAX],
    /// A document that began without the name of a field is not complete.
    is_bare: bool,
    /// The last byte was a carriage return, so a line feed belongs to it.
    is_after_cr: bool,
    json: JsonScanner,
    data: EventData,
    /// The first bytes of the data, one more than [`DONE`] has.
    start: [u8; DONE.len() + 1],
    start_length: usize,
}

/// Position in the current line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Line {
    #[default]
    Start,
    /// The name of the field is being read. Contains its length so far.
    Name(usize),
    /// After the colon of `data`; one space is not data.
    Colon,
    Data,
    /// A line of a document without the names of fields. The document ends with a line.
    Bare,
    /// Another field or a comment is being skipped.
    Other,
    /// A line that no event stream has: the server sends text under the type of one. Its bytes are content.
    Text,
}

/// Data of the current event.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum EventData {
    #[default]
    None,
    /// Only white space so far.
    Blank,
    Json,
    Other,
}

impl EventScanner {
    /// Reads the next piece of the stream. Values on the paths of `tree` go to `readings`.
    pub fn push(&mut self, mut bytes: &[u8], tree: &PathTree, readings: &mut UsageReadings) {
        // Events after the final report are not read, wherever the pieces end.
        while let Some(&byte) = bytes.first().filter(|_| !readings.is_proven()) {
            let is_second_half = std::mem::take(&mut self.is_after_cr) && byte == b'\n';
            if is_second_half {
                bytes = &bytes[1..];
                continue;
            }
            let taken = match self.line {
                _ if matches!(byte, b'\r' | b'\n') => {
                    self.end_line(readings);
                    self.is_after_cr = byte == b'\r';
                    1
                }
                Line::Start | Line::Name(_) => self.read_name(byte, readings),
                Line::Colon => {
                    self.line = Line::Data;
                    usize::from(byte == b' ')
                }
                Line::Data | Line::Bare => {
                    let end = memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len());
                    self.read_data(&bytes[..end], tree, readings);
                    end
                }
                Line::Other => memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len()),
                Line::Text => {
                    let end = memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len());
                    readings.add_content(end);
                    end
                }
            };
            bytes = &bytes[taken..];
        }
    }

    /// Reads the end of a complete response, which may omit the empty line after the last event. A stream that ends
    /// within an event was cut off.
    pub fn end(&mut self, readings: &mut UsageReadings) {
        let is_cut = match self.data {
            _ if self.is_done_event() => false,
            EventData::None => self.line != Line::Start,
            EventData::Json => !self.json.is_done(),
            EventData::Blank | EventData::Other => true,
        };
        if is_cut {
            readings.add_fault(self.json.fault().unwrap_or(ScanFault::Malformed));
            return;
        }
        readings.set_ended();
        readings.end_document();
    }

    fn read_name(&mut self, byte: u8, readings: &mut UsageReadings) -> usize {
        let length = if let Line::Name(length) = self.line { length } else { 0 };
        if length == 0 && (matches!(byte, b'{' | b'[') || self.is_bare) {
            // A server that sends its documents without the name of the field.
            self.is_bare = true;
            self.start_data_line();
            self.line = Line::Bare;
            return 0;
        }
        self.line = match self.name.get_mut(length) {
            _ if byte == b':' => self.find_field(length),
            Some(slot) => {
                *slot = byte;
                Line::Name(length + 1)
            }
            None => Line::Text,
        };
        match self.line {
            Line::Colon => self.start_data_line(),
            Line::Text => readings.add_content(length + 1),
            _ => {}
        }
        1
    }

    /// Returns what the line contains after a name of this length.
    fn find_field(&self, length: usize) -> Line {
        match &self.name[..length] {
            b"data" => Line::Colon,
            name if name.is_empty() || OTHER_FIELDS.contains(&name) => Line::Other,
            _ => Line::Text,
        }
    }

    /// Starts a line of data. The lines of an event are joined by line feeds, which are white space in JSON.
    fn start_data_line(&mut self) {
        match self.data {
            EventData::None => self.data = EventData::Blank,
            _ => self.keep_start(b"\n"),
        }
    }

    fn read_data(&mut self, mut bytes: &[u8], tree: &PathTree, readings: &mut UsageReadings) {
        self.keep_start(bytes);
        if self.data == EventData::Blank {
            // White space before the data is neither read nor counted, wherever the pieces end.
            bytes = bytes.trim_ascii_start();
            self.data = match bytes.first() {
                None => EventData::Blank,
                Some(b'{' | b'[') => EventData::Json,
                Some(_) => EventData::Other,
            };
        }
        let unread = match self.data {
            EventData::Json => self.json.push(bytes, tree, readings),
            EventData::Other => bytes.len(),
            EventData::None | EventData::Blank => 0,
        };
        if unread > 0 && self.json.is_done() {
            // A report before it says nothing about it.
            readings.end_report();
        }
        // Data that cannot be read as JSON may still be content.
        readings.add_content(unread);
    }

    fn keep_start(&mut self, bytes: &[u8]) {
        let free = &mut self.start[self.start_length..];
        let length = free.len().min(bytes.len());
        free[..length].copy_from_slice(&bytes[..length]);
        self.start_length += length;
    }

    /// Returns whether the data of the event are those that end a stream.
    fn is_done_event(&self) -> bool {
        &self.start[..self.start_length] == DONE
    }

    fn end_line(&mut self, readings: &mut UsageReadings) {
        match self.line {
            Line::Start => self.end_event(readings),
            Line::Bare if self.json.is_done() || self.is_done_event() => self.end_event(readings),
            // A short line of text without a colon.
            Line::Name(length) if self.find_field(length) == Line::Text => readings.add_content(length),
            _ => {}
        }
        self.line = Line::Start;
    }

    fn end_event(&mut self, readings: &mut UsageReadings) {
        if self.is_done_event() {
            readings.set_ended();
        } else if self.data == EventData::Json && !self.json.is_done() {
            readings.add_fault(self.json.fault().unwrap_or(ScanFault::Malformed));
        }
        if self.data != EventData::None && !self.is_done_event() {
            readings.add_parts(1);
        }
        readings.end_document();
        self.json.reset();
        (self.data, self.start_length, self.is_bare) = (EventData::None, 0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiting::settlement::path_tree::PathStep;
    use crate::limiting::settlement::readings::{Target, UsageField};

    fn read(stream: &str, size: usize) -> UsageReadings {
        let mut tree = PathTree::default();
        let total = Target::Number { field: UsageField::Total, is_final: true };
        tree.add_path([PathStep::Named("usage"), PathStep::Named("total")], total);
        tree.add_path([PathStep::Named("type")], Target::EventType);
        let (mut scanner, mut readings) = (EventScanner::default(), UsageReadings::default());
        for piece in stream.as_bytes().chunks(size) {
            scanner.push(piece, &tree, &mut readings);
        }
        readings
    }

    #[test]
    fn events_are_read_in_every_spelling() {
        for (stream, total, is_proven) in [
            ("data: {\"usage\":{\"total\":7}}\n\ndata: [DONE]\n\n", 7, true),
            ("data:{\"usage\":{\"total\":7}}\r\n\r\ndata:[DONE]\r\n\r\n", 7, true),
            ("data:{\"usage\":{\"total\":7}}\r\rdata: [DONE]\r\r", 7, true),
            ("data: {\"usage\":\ndata:  {\"total\":7}}\n\ndata: [DONE]\n\n", 7, true),
            (": ping\nid: 1\nevent: x\ndata\ndata: {\"usage\":{\"total\":7}}\nretry: 1\n\ndata: [DONE]\n\n", 7, true),
            ("data: {\"usage\":{\"total\":3}}\n\ndata: {\"usage\":{\"total\":9}}\n\ndata: [DONE]\n\n", 9, true),
            ("data: {\"usage\":{\"total\":3},\"type\":\"message_stop\"}\n\n", 3, true),
            ("data: {\"type\":\"message_stop\",\"usage\":{\"total\":3,\"total\":9}}\n\n", 9, true),
            ("data: {\"usage\":{\"total\":3},\"type\":\"message_stop\"}\n", 3, false),
            (
                "data: [DONE]\n\ndata: {\"usage\":{\"total\":3,\"total\":4}}\n\ndata: {\"usage\":{\"total\":9}}\n\n",
                4,
                true,
            ),
            ("data: {\"usage\":{\"total\":3},\"type\":\"message_delta\"}\n\n", 3, false),
            ("data: {\"usage\":{\"total\":7}}\n\ndata: [DONE\n\n", 7, false),
            ("data: {\"usage\":{\"total\":7}}\n\ndata: [DONE]]\n\n", 7, false),
            ("data: {\"usage\":{\"total\":7}}\n\n: [DONE]\n\nx[DONE]\n\n", 7, false),
            ("dataset: {\"usage\":{\"total\":7}}\n\ndat: {\"usage\":{\"total\":7}}\n\ndata: [DONE]\n\n", 0, false),
            ("data: [DONE]\n\n", 0, false),
            ("{\"usage\":{\"total\":7}}\n[DONE]\n", 7, true),
        ] {
            for size in [1, 2, 5, 1000] {
                let readings = read(stream, size);
                assert_eq!(readings.number(UsageField::Total), total, "{stream} by {size}");
                assert_eq!(readings.is_proven(), is_proven, "{stream} by {size}");
            }
        }
    }

    #[test]
    fn what_an_event_delivers_is_the_same_wherever_the_pieces_end() {
        for stream in
            ["data:  \t hello you\n\n", "data: \u{c} {\"usage\":{\"total\":7}}\n\n", "data:\ndata:   {a: 1}\n\n"]
        {
            let whole = read(stream, 1000);
            for size in [1, 2, 3, 7] {
                assert_eq!(read(stream, size), whole, "{stream} by {size}");
            }
        }
    }

    /// Servers send plain text, or JSON in lines, under the type of event streams.
    #[test]
    fn lines_that_no_event_stream_has_are_content() {
        for (stream, bytes) in [
            ("hello you\n\nhi\n", 11),
            ("{\"a\": 1}\n{oh}\n", 2),
            ("Data: {\"a\":1}\n\n", 13),
            ("datas: hello\n", 12),
            ("dat: hi\r\n", 7),
            ("da", 0),
            (": comment\nevent: x\nid: 1\nretry: 3\nevent\ndata\n\n", 0),
        ] {
            for size in [1, 2, 5, 1000] {
                assert_eq!(read(stream, size).delivered().bytes, bytes, "{stream} by {size}");
            }
        }
    }

    #[test]
    fn each_document_of_a_line_is_an_event() {
        let line = |total: u32| format!("{{\"usage\":{{\"total\":{total}}}}}\n");
        for (stream, total, parts) in [
            (line(6) + &line(105) + &line(505), 505, 3),
            (line(505) + &line(6), 505, 2),
            ("[1]\n".to_owned() + &line(6) + "[DONE]\n", 6, 2),
            ("{\"usage\":\n{\"total\":7}\n}\n".to_owned() + &line(9), 9, 2),
            // Events with the name of the field may follow.
            (line(6) + "data: " + &line(9) + "\n", 9, 2),
        ] {
            for size in [1, 2, 5, 1000] {
                let readings = read(&stream, size);
                let delivered = readings.delivered();
                let found = (readings.number(UsageField::Total), delivered.parts);
                assert_eq!(found, (total, parts), "{stream} by {size}");
                assert!(delivered.bytes < DONE.len() as u64, "{stream} by {size}: {}", delivered.bytes);
            }
        }
    }

    #[test]
    fn a_broken_event_does_not_hide_the_next() {
        let readings = read("data: {\"usage\":\n\ndata: {\"usage\":{\"total\":7}}\n\ndata: [DONE]\n\n", 4);
        assert!(readings.is_proven() && readings.number(UsageField::Total) == 7);
        assert_eq!(readings.faults().collect::<Vec<_>>(), [ScanFault::Malformed]);
        let fine = read("data: hello\n\ndata: [DONE]\n\n", 4);
        assert_eq!(fine.faults().next(), None, "text is no broken document");
    }
}
