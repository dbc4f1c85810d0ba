//! Reads a file with test cases of a config: requests at given times, and what is expected of them. `explain::cases`
//! runs them. Mistakes are reported like those of a config.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;

use crate::config::diagnostics::report::{Diagnostic, MistakeKind, Place, Report};
use crate::config::reader::{At, Section};
use crate::config::schema::cases;
use crate::config::schema::row::ConfigOption;
use crate::config::source::SourceTexts;
use crate::config::tree::{Node, Value, parse_file};
use crate::config::values::{TextFault, invalid_text, parse_duration};

/// A file with test cases.
pub struct CaseFile {
    pub cases: Vec<TestCase>,
    /// The wall clock of the first case, in ms since 1970.
    pub start_ms: i64,
    sources: SourceTexts,
}

/// Maximum number of requests in all cases of a file.
const REQUESTS_MAX: u64 = 1_000_000;

/// A request, or several equal ones, and what is expected.
pub struct TestCase {
    /// Byte range of the start of the case, for reports.
    place: Place,
    /// Line and column of the start, from 1.
    pub line: usize,
    pub column: usize,
    pub name: Option<String>,
    pub method: String,
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<String>,
    pub from: Option<IpAddr>,
    pub certificate_subject: Option<String>,
    pub user: Option<String>,
    pub at: CaseTime,
    pub repeat: u32,
    /// Status of the upstream server's response.
    pub response: u16,
    /// How long each request takes.
    pub duration: Duration,
    pub expect: Expectation,
}

/// When a case happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseTime {
    /// Time since the first case.
    SinceStart(Duration),
    /// Time since the case before.
    SincePrevious(Duration),
}

/// Expected results of every request of a case. `None` accepts any result.
#[derive(Default)]
pub struct Expectation {
    pub route: Option<At<String>>,
    pub client: Option<At<String>>,
    pub decision: Option<At<String>>,
    pub limit: Option<At<String>>,
    pub retry_after_ms: Option<At<i64>>,
    pub status: Option<At<i64>>,
    pub reason: Option<At<String>>,
}

/// The words of `decision`.
pub type DecisionWords<'w> = &'w [&'static str];

/// Start of the first case: a Thursday, the first day of a month and a year.
const START: &str = "2026-01-01T00:00:00Z";
/// Longest time between two cases.
const TIME_MAX: Duration = Duration::from_secs(366 * 86_400);
const REQUEST_HELP: &str = "write request = \"GET https://example.com/path\"";

/// Reads the cases in the file at `path`. `decisions`: the words of `decision`.
///
/// # Errors
/// A report of every mistake.
pub fn load_cases(path: &Path, decisions: DecisionWords) -> Result<CaseFile, Report> {
    let sources = SourceTexts::default();
    let text = sources.read_file(path);
    let dir = path.parent().map(Path::to_owned).unwrap_or_default();
    let file =
        sources.add_source(path.display().to_string(), dir, text.as_ref().map(String::clone).unwrap_or_default());
    let place = Place { file, start: 0, end: 0 };
    let unread = |message: String| Diagnostic::new(place, message).with_kind(MistakeKind::Unread);
    let tree = match text {
        Ok(_) => parse_file(&sources, file),
        Err(error) => {
            sources.add_mistake(unread(format!("cannot read the test cases: {error}")).with_help(error.help()));
            return Err(sources.into_report());
        }
    };
    let root = Section::new(&sources, &cases::case_file::TABLE, "the top level", &tree);
    let start_ms = read_start(&root);
    let cases = read_cases(&root, decisions);
    root.report_unread_keys();
    match (start_ms, cases) {
        (Some(start_ms), Some(mut cases)) if !sources.has_mistakes() => {
            locate_cases(&sources.source(file).text, &mut cases);
            Ok(CaseFile { cases, start_ms, sources })
        }
        _ => Err(sources.into_report()),
    }
}

impl CaseFile {
    /// Reports what cases expected and did not find, each at its place.
    pub fn report_failures(self, failures: Vec<(Place, String, String)>) -> Report {
        for (place, message, help) in failures {
            self.sources.add_mistake(Diagnostic::new(place, message).with_help(help));
        }
        self.sources.into_report()
    }
}

/// Sets the lines and columns of all cases, in one pass over the text.
fn locate_cases(text: &str, cases: &mut [TestCase]) {
    let (mut read, mut line) = (0, 1);
    for case in cases {
        let before = text.get(..case.place.start).unwrap_or(text);
        line += before.get(read..).unwrap_or_default().bytes().filter(|byte| *byte == b'\n').count();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (case.line, case.column) = (line, before[line_start..].chars().count() + 1);
        read = before.len();
    }
}

fn read_start(root: &Section) -> Option<i64> {
    let parse = |text: &str| match text.parse::<Timestamp>() {
        Ok(start) => Ok(start.as_millisecond()),
        Err(_) => invalid_text(format!("`{text}` is not a time"), format!("write start = \"{START}\"")),
    };
    match root.node(&cases::case_file::START) {
        Some(_) => root.parse_string(&cases::case_file::START, parse),
        None => parse(START).ok(),
    }
}

fn read_cases(root: &Section, decisions: DecisionWords) -> Option<Vec<TestCase>> {
    let help =
        format!("[[case]]\nrequest = \"GET https://example.com/\"\nexpect = {{ decision = \"{}\" }}", decisions[0]);
    let Some(node) = root.node(&cases::case_file::CASE) else {
        return root.report_missing("there is no [[case]]", &help);
    };
    let Value::Array(items) = &node.value else {
        return root.report_wrong_type(cases::case_file::CASE.name, "a list of tables", node);
    };
    let read = |item: &Node| match &item.value {
        Value::Table(table) => read_case(Section::new(root.sources, &cases::case::TABLE, "[[case]]", table), decisions),
        _ => root.report_wrong_type(cases::case_file::CASE.name, "a list of tables", item),
    };
    // Every case is read, to find all mistakes.
    let cases: Vec<_> = items.iter().map(read).collect();
    let cases: Vec<TestCase> = cases.into_iter().collect::<Option<_>>()?;
    let mut count = 0;
    let is_beyond = |case: &&TestCase| {
        count += u64::from(case.repeat);
        count > REQUESTS_MAX
    };
    if let Some(place) = cases.iter().find(is_beyond).map(|case| case.place) {
        let what = format!("the cases up to this one send more than {REQUESTS_MAX} requests");
        root.sources.add_mistake(Diagnostic::new(place, what).with_help("lower `repeat`, or split the file"));
    }
    Some(cases)
}

fn read_case(section: Section, decisions: DecisionWords) -> Option<TestCase> {
    let request = match section.node(&cases::case::REQUEST) {
        Some(_) => section.parse_string(&cases::case::REQUEST, parse_request_line),
        None => section.report_missing("`request` is missing in [[case]]", REQUEST_HELP),
    };
    let from = section.parse_string(&cases::case::FROM, |text| {
        text.parse::<IpAddr>().or_else(|_| invalid_text(format!("`{text}` is not an IP address"), "like \"192.0.2.1\""))
    });
    let at = section.parse_string(&cases::case::AT, parse_time).unwrap_or(CaseTime::SincePrevious(Duration::ZERO));
    let case = TestCase {
        place: section.place,
        line: 0,
        column: 0,
        name: section.read_string(&cases::case::NAME),
        method: String::new(),
        url: String::new(),
        headers: read_headers(&section).unwrap_or_default(),
        body: section.read_string(&cases::case::BODY),
        from,
        certificate_subject: section.read_string(&cases::case::CERTIFICATE_SUBJECT),
        user: section.read_string(&cases::case::USER),
        at,
        repeat: section.get(&cases::case::REPEAT),
        response: section.get(&cases::case::RESPONSE),
        duration: section.get(&cases::case::DURATION),
        expect: read_expectation(&section, decisions),
    };
    section.report_unread_keys();
    let (method, url) = request?;
    Some(TestCase { method, url, ..case })
}

/// Parses `GET https://host/path`.
fn parse_request_line(text: &str) -> Result<(String, String), TextFault> {
    match text.split_once(' ') {
        Some((method, url)) if !method.is_empty() && url.contains("://") => Ok((method.to_owned(), url.to_owned())),
        _ => invalid_text(format!("`{text}` is not a method and a URL"), REQUEST_HELP),
    }
}

/// Parses `+2s`, the time since the case before, or `2s`, the time since the first case.
fn parse_time(text: &str) -> Result<CaseTime, TextFault> {
    let (digits, time): (_, fn(Duration) -> CaseTime) = match text.strip_prefix('+') {
        Some(digits) => (digits, CaseTime::SincePrevious),
        None => (text, CaseTime::SinceStart),
    };
    let duration = parse_duration(digits)?;
    match duration <= TIME_MAX {
        true => Ok(time(duration)),
        false => invalid_text(format!("`{text}` is longer than a year"), "write a shorter time"),
    }
}

/// Reads headers, each with one value or a list of values.
fn read_headers(section: &Section) -> Option<Vec<(String, String)>> {
    let table = section.read_table(&cases::case::HEADERS)?;
    let mut headers = Vec::new();
    for entry in &table.entries {
        let values = match &entry.node.value {
            Value::Array(items) => items.as_slice(),
            _ => std::slice::from_ref(&entry.node),
        };
        for node in values {
            let value = section.parse_node(&entry.key, node, |text| Ok(text.to_owned()))?;
            headers.push((entry.key.clone(), value));
        }
    }
    Some(headers)
}

fn read_expectation(section: &Section, decisions: DecisionWords) -> Expectation {
    let Some(expect) = section.read_section(&cases::case::EXPECT) else {
        if section.node(&cases::case::EXPECT).is_none() {
            section.report_missing::<()>("`expect` is missing in [[case]]", "write expect = { decision = \"admit\" }");
        }
        return Expectation::default();
    };
    let text = |option: &ConfigOption| expect.parse_at(option, |text| Ok(text.to_owned()));
    let words: Vec<(&str, &str)> = decisions.iter().map(|word| (*word, *word)).collect();
    let decision = expect.node(&cases::expect::DECISION).zip(expect.read_choice(&cases::expect::DECISION, &words));
    let expectation = Expectation {
        route: text(&cases::expect::ROUTE),
        client: text(&cases::expect::CLIENT),
        decision: decision.map(|(node, word)| At { place: node.place, value: word.to_owned() }),
        limit: text(&cases::expect::LIMIT),
        retry_after_ms: expect.read_at(&cases::expect::RETRY_AFTER_MS),
        status: expect.read_at(&cases::expect::STATUS),
        reason: text(&cases::expect::REASON),
    };
    expect.report_unread_keys();
    expectation
}
