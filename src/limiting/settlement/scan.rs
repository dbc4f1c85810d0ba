//! The scanner of one response: reads the usage that limits settle by from a copy of the body.

use std::sync::Arc;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};

use crate::limiting::integers::integer;
use crate::limiting::settlement::byte_order::{MarkSkipper, UnreadText};
use crate::limiting::settlement::events::EventScanner;
use crate::limiting::settlement::gzip::Gunzip;
use crate::limiting::settlement::json::JsonScanner;
use crate::limiting::settlement::lines::LineScanner;
use crate::limiting::settlement::readings::{NUMBER_MAX, UsageReadings};
use crate::limiting::settlement::sources::UsageSources;
use crate::telemetry::metrics::ScanFault;

/// Scanner of one response, for all limits that settle by it. Limits with equal sources share a parser. The state is
/// at most 64 KiB: about 50 KiB to decode gzip, and below 1 KiB for each of the at most 16 parsers.
#[derive(Debug)]
pub struct UsageScan {
    groups: Vec<SourceGroup>,
    decoder: Option<Gunzip>,
    /// The rest of the body is not read.
    is_stopped: bool,
    /// What the body delivers is output, even if the response reports no usage.
    counts_content: bool,
    /// Encoded bytes that arrived.
    encoded: u64,
    /// The encoded bytes that were decoded before the decoder gave up. The rest is taken to be like them.
    given_up_at: Option<u64>,
    /// Only the end of the connection ends the body.
    ends_by_close: bool,
}

/// Limits with the same sources.
#[derive(Debug)]
struct SourceGroup {
    sources: Arc<UsageSources>,
    parser: Parser,
    /// The first bytes, until it is known whether the body is compressed. `None` afterwards.
    start: Option<Vec<u8>>,
    mark: MarkSkipper,
    /// What the parser could not read.
    unread: UnreadText,
    readings: UsageReadings,
}

#[derive(Debug)]
enum Parser {
    Json(JsonScanner),
    Lines(LineScanner),
    Events(EventScanner),
    /// The body is only counted: it is a text of another format.
    Text,
    /// The body has no stated type. It is counted only if it begins like text.
    Untyped,
    /// The body is only counted: it has a content coding that is not decoded.
    Encoded,
    /// The body is not read.
    None,
}

/// Format of a body.
#[derive(Clone, Copy, PartialEq)]
enum BodyFormat {
    Json,
    /// A sequence of JSON documents.
    Lines,
    Events,
}

impl UsageScan {
    /// Prepares to scan a response with this head. `has_body` is false for responses that never have one, and
    /// `ends_by_close` is true for those that only the end of the connection ends.
    pub fn start<'s>(
        sources: impl Iterator<Item = &'s Arc<UsageSources>>,
        status: StatusCode,
        headers: &HeaderMap,
        has_body: bool,
        ends_by_close: bool,
    ) -> UsageScan {
        let (format, encoding) = (find_format(headers), find_coding(headers));
        // An error page is no API response that lost its usage.
        let fault = match (format, encoding) {
            _ if !has_body => None,
            _ if status == StatusCode::PARTIAL_CONTENT => Some(ScanFault::Partial),
            (None, _) => status.is_success().then_some(ScanFault::ContentType),
            (Some(_), None) => Some(ScanFault::Encoding),
            _ => None,
        };
        let content = find_content(headers);
        let counts_content = has_body && status.is_success() && content != ContentKind::Other;
        let format = format.filter(|_| has_body && fault.is_none());
        let count_only = || match encoding {
            _ if !counts_content => Parser::None,
            Some(Coding::Identity) if content == ContentKind::Untyped => Parser::Untyped,
            _ if content == ContentKind::Untyped => Parser::None,
            Some(Coding::Identity) => Parser::Text,
            Some(Coding::Gzip) | None => Parser::Encoded,
        };
        let mut groups: Vec<SourceGroup> = Vec::new();
        for sources in sources {
            if groups.iter().all(|group| group.sources != *sources) {
                groups.push(SourceGroup::start(sources.clone(), (format, count_only()), headers, fault));
            }
        }
        let is_stopped = groups.iter().all(|group| matches!(group.parser, Parser::None));
        let is_decoded =
            groups.iter().any(|group| matches!(group.parser, Parser::Json(_) | Parser::Lines(_) | Parser::Events(_)));
        let decoder = (is_decoded && encoding == Some(Coding::Gzip)).then(Gunzip::default);
        UsageScan { groups, decoder, is_stopped, counts_content, encoded: 0, given_up_at: None, ends_by_close }
    }

    /// Reads a copy of the next piece of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.is_stopped {
            return;
        }
        self.encoded = self.encoded.saturating_add(bytes.len() as u64);
        if self.given_up_at.is_some() {
            return;
        }
        let groups = &mut self.groups;
        let Some(decoder) = &mut self.decoder else {
            groups.iter_mut().for_each(|group| group.push(bytes));
            return;
        };
        // A part of the body that is only counted is counted as it was sent.
        groups.iter_mut().filter(|group| matches!(group.parser, Parser::Encoded)).for_each(|group| group.push(bytes));
        let outcome = decoder.push(bytes, |decoded| {
            let decoding = groups.iter_mut().filter(|group| !matches!(group.parser, Parser::Encoded));
            decoding.for_each(|group| group.push(decoded));
        });
        if let Err(fault) = outcome {
            groups.iter_mut().for_each(|group| group.readings.add_fault(fault));
            // Damaged data say nothing about the rest.
            let is_damaged = fault == ScanFault::Gzip;
            self.given_up_at = Some(if is_damaged { 0 } else { decoder.decoded_from() });
            (self.decoder, self.is_stopped) = (None, !self.counts_content);
        }
    }

    /// Returns the least number of tokens that the content of a response without known usage has.
    pub fn least_tokens(&self, readings: &UsageReadings, bytes_per_token: u64) -> u64 {
        if !self.counts_content {
            return 0;
        }
        let tokens = readings.delivered().least_tokens(bytes_per_token);
        match self.given_up_at {
            None => tokens,
            Some(0) => tokens.max(self.encoded),
            // Bytes that were not decoded count as many tokens per byte as the decoded ones.
            Some(decoded) => {
                let whole = u128::from(tokens) * u128::from(self.encoded.max(decoded)) / u128::from(decoded);
                u64::try_from(whole).unwrap_or(u64::MAX)
            }
        }
    }

    /// Records the end of the response. `is_whole`: the server completed it.
    pub fn end(&mut self, is_whole: bool) {
        let has_failed = self.given_up_at.is_some();
        let is_decoded = !has_failed && self.decoder.as_ref().is_none_or(Gunzip::has_ended);
        if is_whole && !is_decoded && !has_failed {
            self.groups.iter_mut().for_each(|group| group.readings.add_fault(ScanFault::Gzip));
        }
        // Where a lost server looks like one that has finished, only the document itself or gzip proves the end.
        let has_end = !self.ends_by_close || self.decoder.is_some();
        let is_whole = is_whole && is_decoded && has_end && !self.is_stopped;
        self.groups.iter_mut().for_each(|group| group.end(is_whole));
        (self.decoder, self.is_stopped) = (None, true);
    }

    /// Returns whether nothing more is read.
    pub fn is_over(&self) -> bool {
        self.is_stopped
    }

    /// Returns whether all usage is known, or can no longer become known.
    pub fn is_proven(&self) -> bool {
        self.is_stopped || self.groups.iter().all(|group| group.readings.is_proven())
    }

    /// Returns what was read of `sources`.
    pub fn readings(&self, sources: &UsageSources) -> Option<&UsageReadings> {
        self.groups.iter().find(|group| *group.sources == *sources).map(|group| &group.readings)
    }

    /// Returns the faults of all parsers, each at most once.
    pub fn faults(&self) -> Vec<ScanFault> {
        let has = |fault: &ScanFault| self.groups.iter().any(|group| group.readings.faults().any(|one| one == *fault));
        ScanFault::ALL.iter().copied().filter(has).collect()
    }
}

impl SourceGroup {
    fn start(
        sources: Arc<UsageSources>,
        (format, otherwise): (Option<BodyFormat>, Parser),
        headers: &HeaderMap,
        fault: Option<ScanFault>,
    ) -> SourceGroup {
        let mut readings = UsageReadings::new(sources.knows_content);
        let mut has_headers = false;
        for (name, field) in &sources.headers {
            let lines = headers.get_all(name).iter();
            for number in lines.map(|line| integer(line.as_bytes()).and_then(|number| u64::try_from(number).ok())) {
                match number.filter(|number| *number <= NUMBER_MAX) {
                    Some(number) => readings.add_number(*field, field.is_whole_part(), number),
                    None => readings.add_fault(ScanFault::NotInteger),
                }
                has_headers = true;
            }
        }
        if has_headers {
            // The head of a response reports its usage completely or not at all.
            readings.set_ended();
            readings.end_document();
        } else if let Some(fault) = fault {
            readings.add_fault(fault);
        }
        let parser = match format {
            Some(BodyFormat::Json) if !sources.json.is_empty() => Parser::Json(JsonScanner::default()),
            Some(BodyFormat::Lines) if !sources.json.is_empty() => Parser::Lines(LineScanner::default()),
            Some(BodyFormat::Events) if !sources.events.is_empty() => Parser::Events(EventScanner::default()),
            _ if has_headers => Parser::None,
            _ => otherwise,
        };
        let (mark, unread) = (MarkSkipper::default(), UnreadText::default());
        SourceGroup { sources, parser, start: Some(Vec::new()), mark, unread, readings }
    }

    fn push(&mut self, bytes: &[u8]) {
        let Some(mut start) = self.start.take() else { return self.read(bytes) };
        let is_compressed = if start.is_empty() {
            is_compressed(bytes)
        } else {
            start.extend_from_slice(bytes);
            is_compressed(&start)
        };
        let Some(is_compressed) = is_compressed else {
            if start.is_empty() {
                start.extend_from_slice(bytes);
            }
            self.start = Some(start);
            return;
        };
        if is_compressed && matches!(self.parser, Parser::Json(_) | Parser::Lines(_) | Parser::Events(_) | Parser::Text)
        {
            // The server does not say that it compresses.
            self.readings.add_fault(ScanFault::Encoding);
            self.parser = Parser::Encoded;
        }
        self.read(if start.is_empty() { bytes } else { &start });
    }

    /// Reads bytes, once it is known whether the body is compressed.
    fn read(&mut self, bytes: &[u8]) {
        let bytes = match self.parser {
            Parser::Json(_) | Parser::Lines(_) | Parser::Events(_) => self.mark.skip(bytes),
            _ => bytes,
        };
        match &mut self.parser {
            Parser::Json(scanner) => {
                let unread = scanner.push(bytes, &self.sources.json, &mut self.readings);
                if scanner.is_done() {
                    self.readings.set_ended();
                    self.readings.end_document();
                } else if let Some(fault) = scanner.fault() {
                    self.readings.add_fault(fault);
                }
                // Content after the document, or content of a document that cannot be read.
                self.readings.add_content(self.unread.count(&bytes[bytes.len() - unread..]));
            }
            Parser::Lines(scanner) => scanner.push(bytes, &self.sources.json, &mut self.readings),
            Parser::Events(scanner) => scanner.push(bytes, &self.sources.events, &mut self.readings),
            Parser::Untyped => {
                self.parser = if begins_as_text(bytes) { Parser::Text } else { Parser::None };
                self.read(bytes);
            }
            Parser::Text => self.readings.add_content(self.unread.count(bytes)),
            Parser::Encoded => self.readings.add_parts(bytes.len() as u64),
            Parser::None => {}
        }
    }

    fn end(&mut self, is_whole: bool) {
        if let Some(start) = self.start.take().filter(|start| !start.is_empty()) {
            self.read(&start);
        }
        match &mut self.parser {
            Parser::Json(scanner) if is_whole && !scanner.is_done() => {
                self.readings.add_fault(scanner.fault().unwrap_or(ScanFault::Malformed));
            }
            Parser::Lines(scanner) if is_whole => scanner.end(&mut self.readings),
            Parser::Events(scanner) if is_whole => scanner.end(&mut self.readings),
            Parser::Json(_) | Parser::Lines(_) | Parser::Events(_) => {}
            Parser::Text | Parser::Untyped | Parser::Encoded | Parser::None => {}
        }
    }
}

/// Content types of JSON documents in lines.
const LINES: [&str; 7] = [
    "application/stream+json",
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/x-jsonl",
    "application/jsonlines",
    "application/x-jsonlines",
];

/// Determines the format from the content type; `None` if it is neither JSON, nor a sequence of JSON documents, nor an
/// event stream.
fn find_format(headers: &HeaderMap) -> Option<BodyFormat> {
    let text = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let media_type = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media_type.as_str() {
        "text/event-stream" => Some(BodyFormat::Events),
        "application/json" => Some(BodyFormat::Json),
        lines if LINES.contains(&lines) => Some(BodyFormat::Lines),
        other if other.ends_with("+json") => Some(BodyFormat::Json),
        _ => None,
    }
}

/// The contents of a body, by its content type.
#[derive(Clone, Copy, PartialEq)]
enum ContentKind {
    Text,
    /// The type says nothing.
    Untyped,
    /// The length of such bodies, for example sounds and archives, says nothing about their tokens.
    Other,
}

/// Determines what the body contains.
fn find_content(headers: &HeaderMap) -> ContentKind {
    const OTHERS: [&str; 8] =
        ["audio/", "image/", "video/", "font/", "multipart/", "application/zip", "application/gzip", "application/pdf"];
    let kind = headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes().to_ascii_lowercase()).unwrap_or_default();
    if kind.starts_with(b"application/octet-stream") {
        ContentKind::Untyped
    } else if OTHERS.iter().any(|other| kind.starts_with(other.as_bytes())) {
        ContentKind::Other
    } else {
        ContentKind::Text
    }
}

/// Returns whether the first piece of a body is UTF-8 without control characters.
fn begins_as_text(piece: &[u8]) -> bool {
    // The piece may end within a character.
    let is_utf8 = str::from_utf8(piece).map_or_else(|error| error.error_len().is_none(), |_| true);
    is_utf8 && !piece.iter().any(|byte| byte.is_ascii_control() && !byte.is_ascii_whitespace())
}

/// Returns whether a body begins as gzip or Zstandard does, and no text. `None` if further bytes decide that.
fn is_compressed(start: &[u8]) -> Option<bool> {
    const STARTS: [&[u8]; 2] = [&[0x1f, 0x8b], &[0x28, 0xb5, 0x2f, 0xfd]];
    if STARTS.iter().any(|of_coding| start.starts_with(of_coding)) {
        return Some(true);
    }
    let is_open = STARTS.iter().any(|of_coding| of_coding.starts_with(start));
    (!is_open).then_some(false)
}

/// A content coding that the scanner reads.
#[derive(Clone, Copy, PartialEq)]
enum Coding {
    Identity,
    Gzip,
}

/// Determines the content coding; `None` if it is another or there are several.
fn find_coding(headers: &HeaderMap) -> Option<Coding> {
    let lines = headers.get_all(CONTENT_ENCODING).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let mut last_coding = Coding::Identity;
    for coding in lines.map(<[u8]>::trim_ascii).filter(|coding| !coding.is_empty()) {
        if coding.eq_ignore_ascii_case(b"identity") {
            continue;
        }
        let is_gzip = [&b"gzip"[..], b"x-gzip"].iter().any(|name| coding.eq_ignore_ascii_case(name));
        if !is_gzip || last_coding == Coding::Gzip {
            return None;
        }
        last_coding = Coding::Gzip;
    }
    Some(last_coding)
}
