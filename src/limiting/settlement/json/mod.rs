//! A push parser of JSON that reads only the values of some paths. It gets the document in pieces of any size, collects
//! no text off its paths, and keeps a state of a few hundred bytes.
//!
//! Input: the pieces of a document, and the paths to read. Output: the values there, or that the document is malformed.
//! `tests.rs` compares it with a parser of whole documents.

#[cfg(test)]
mod tests;

use memchr::memchr2;

use crate::limiting::settlement::path_tree::{NodeId, PathTree};
use crate::limiting::settlement::readings::{NUMBER_MAX, TEXT_MAX, Target, TextGroup, UsageReadings};
use crate::limiting::source::parse_json_integer;
use crate::telemetry::metrics::ScanFault;

/// Deepest nesting of arrays and objects that is read. Deeper parts are skipped, because no path leads there.
const DEPTH_MAX: u8 = 128;

/// Parser of one JSON document.
#[derive(Debug, Default)]
pub struct JsonScanner {
    state: ScanState,
    /// One bit for each open container: 1 for an array. The innermost is the lowest.
    arrays: u128,
    depth: u8,
    /// The open containers that a path leads through, from the root.
    path: Vec<PathLevel>,
    /// Node of the value that comes next or is being read; `None` off the paths.
    node: Option<NodeId>,
    /// The outermost container whose texts are content.
    content: Option<ContentContainer>,
    /// Depth of the outermost container whose texts are no content unless a path says so.
    no_text_depth: Option<u8>,
    /// The output that the text being read belongs to.
    text_group: Option<TextGroup>,
    /// Open containers below the deepest one that is read.
    skipped: u64,
    text: TextBuffer,
    fault: Option<ScanFault>,
}

/// An open container on a path.
#[derive(Debug)]
struct PathLevel {
    node: NodeId,
    /// Index of the current item of an array.
    index: u64,
}

/// A container whose texts are content.
#[derive(Clone, Copy, Debug)]
struct ContentContainer {
    depth: u8,
    group: TextGroup,
}

/// The next input that the parser expects, or the value that it is inside of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum ScanState {
    /// A value.
    #[default]
    Value,
    /// The first item of an array, or its end.
    FirstItem,
    /// The first member of an object, or its end.
    FirstMember,
    /// Another member.
    Member,
    /// The colon after a name.
    Colon,
    /// A comma, or the end of the container.
    Next,
    Text(TextRole),
    /// After a backslash in a text.
    Escape(TextRole),
    /// Inside `\uXXXX`; the digits read so far, and their value.
    Unicode(TextRole, u8, u32),
    Number,
    /// The place is in a container that is nested too deep.
    Skipped,
    SkippedText,
    SkippedEscape,
    /// Inside `true`, `false` or `null`; the rest of the word. `null` may stand for any value.
    Literal {
        rest: &'static [u8],
        is_null: bool,
    },
    /// After the document.
    Done,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum TextRole {
    Name,
    Value,
}

/// A name, a string or a number on a path, decoded. Off the paths nothing is collected.
#[derive(Debug, Default)]
struct TextBuffer {
    bytes: Vec<u8>,
    is_collected: bool,
    /// First half of a surrogate pair.
    high: Option<u32>,
}

impl TextBuffer {
    fn start(&mut self, is_collected: bool) {
        self.bytes.clear();
        self.high = None;
        self.is_collected = is_collected;
    }

    /// Appends bytes, if they are collected, and keeps one more than the longest text that counts.
    fn push(&mut self, bytes: &[u8]) {
        if !self.is_collected {
            return;
        }
        let free = (TEXT_MAX + 1).saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(free)]);
    }

    fn push_unit(&mut self, unit: u32) {
        let code = match (self.high.take(), unit) {
            (Some(high), 0xdc00..0xe000) => 0x10000 + ((high - 0xd800) << 10) + (unit - 0xdc00),
            (_, 0xd800..0xdc00) => {
                self.high = Some(unit);
                return;
            }
            (_, unit) => unit,
        };
        let mut utf8 = [0; 4];
        self.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut utf8).as_bytes());
    }
}

impl JsonScanner {
    /// Starts with another document.
    pub fn reset(&mut self) {
        self.path.clear();
        (self.state, self.arrays, self.depth, self.node) = (ScanState::Value, 0, 0, None);
        (self.content, self.no_text_depth, self.text_group) = (None, None, None);
        (self.skipped, self.fault) = (0, None);
    }

    /// Returns whether the document is complete.
    pub fn is_done(&self) -> bool {
        self.state == ScanState::Done
    }

    /// Returns why the document cannot be read further.
    pub fn fault(&self) -> Option<ScanFault> {
        self.fault
    }

    /// Reads the next piece of the document. Values on the paths of `tree` go to `readings`. Returns how many bytes
    /// were not read, because the document is over or cannot be read.
    pub fn push(&mut self, mut bytes: &[u8], tree: &PathTree, readings: &mut UsageReadings) -> usize {
        while let Some((&byte, rest)) = bytes.split_first() {
            let mut taken = 1;
            match self.state {
                // Bytes after the document are not read.
                ScanState::Failed | ScanState::Done => return bytes.len(),
                ScanState::Skipped => taken = self.skip(bytes),
                ScanState::SkippedText => taken = self.skip_text(bytes, readings),
                ScanState::SkippedEscape => self.state = ScanState::SkippedText,
                ScanState::Text(role) => taken = self.read_text(role, bytes, tree, readings),
                ScanState::Number if is_number_byte(byte) => self.text.push(&[byte]),
                ScanState::Number => {
                    self.end_number(tree, readings);
                    taken = 0;
                }
                ScanState::Escape(role) => {
                    self.count_content(role, 1, readings);
                    self.read_escape(role, byte);
                }
                ScanState::Unicode(role, digits, unit) => self.read_unicode(role, digits, unit, byte),
                ScanState::Literal { rest: [next], is_null } if *next == byte => {
                    if !is_null {
                        self.report_other_type(tree, readings);
                    }
                    self.end_value();
                }
                ScanState::Literal { rest: [next, rest @ ..], is_null } if *next == byte => {
                    self.state = ScanState::Literal { rest, is_null };
                }
                _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => {
                    let spaces = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
                    taken += spaces.count();
                }
                ScanState::Value => self.start_value(byte, tree, readings),
                ScanState::FirstItem if byte == b']' => self.close(),
                ScanState::FirstItem => self.start_value(byte, tree, readings),
                ScanState::FirstMember if byte == b'}' => self.close(),
                ScanState::FirstMember | ScanState::Member if byte == b'"' => {
                    let on_path = self.level().is_some();
                    self.text.start(on_path);
                    self.state = ScanState::Text(TextRole::Name);
                }
                ScanState::Colon if byte == b':' => self.state = ScanState::Value,
                ScanState::Next => self.read_separator(byte, tree),
                _ => self.fail(ScanFault::Malformed),
            }
            bytes = &bytes[taken..];
        }
        0
    }

    /// Skips a container that is nested too deep, up to the next text or its end. Returns how many bytes were skipped.
    fn skip(&mut self, bytes: &[u8]) -> usize {
        for (index, byte) in bytes.iter().enumerate() {
            match byte {
                b'"' => self.state = ScanState::SkippedText,
                b'{' | b'[' => self.skipped = self.skipped.saturating_add(1),
                b'}' | b']' => self.skipped = self.skipped.saturating_sub(1),
                _ => continue,
            }
            if self.skipped == 0 {
                self.end_value();
            }
            if self.state != ScanState::Skipped {
                return index + 1;
            }
        }
        bytes.len()
    }

    fn skip_text(&mut self, bytes: &[u8], readings: &mut UsageReadings) -> usize {
        let end = memchr2(b'"', b'\\', bytes);
        if let Some(group) = self.group_of_container() {
            readings.add_text(group, end.unwrap_or(bytes.len()));
        }
        let Some(end) = end else { return bytes.len() };
        self.state = if bytes[end] == b'"' { ScanState::Skipped } else { ScanState::SkippedEscape };
        end + 1
    }

    /// Counts bytes of a text that may be content.
    fn count_content(&self, role: TextRole, bytes: usize, readings: &mut UsageReadings) {
        if let Some(group) = self.text_group.filter(|_| role == TextRole::Value) {
            readings.add_text(group, bytes);
        }
    }

    /// Returns the output that texts off the paths belong to.
    fn group_of_container(&self) -> Option<TextGroup> {
        match self.content {
            Some(container) => Some(container.group),
            None => self.no_text_depth.is_none().then_some(TextGroup::Unlisted),
        }
    }

    /// Returns the output that the current text belongs to.
    fn group_of_text(&self, tree: &PathTree) -> Option<TextGroup> {
        if self.content.is_some() {
            return self.group_of_container();
        }
        let targets = self.targets(tree);
        let listed = targets.iter().find_map(|target| match target {
            Target::Content(group) | Target::ContentText(group) => Some(*group),
            _ => None,
        });
        listed.or_else(|| self.group_of_container().filter(|_| targets.is_empty()))
    }

    fn fail(&mut self, fault: ScanFault) {
        self.state = ScanState::Failed;
        self.fault = Some(fault);
    }

    /// Returns the innermost container if a path leads through it.
    fn level(&mut self) -> Option<&mut PathLevel> {
        if self.path.len() == usize::from(self.depth) { self.path.last_mut() } else { None }
    }

    fn start_value(&mut self, byte: u8, tree: &PathTree, readings: &mut UsageReadings) {
        if self.depth == 0 {
            self.node = Some(PathTree::ROOT);
        }
        match byte {
            b'{' | b'[' => {
                self.report_other_type(tree, readings);
                self.open(byte == b'[', tree);
            }
            b'"' => {
                let is_target = self.node.is_some_and(|node| !tree.targets(node).is_empty());
                self.text_group = self.group_of_text(tree);
                self.text.start(is_target);
                self.state = ScanState::Text(TextRole::Value);
            }
            b'-' | b'0'..=b'9' => {
                let is_target = self.targets(tree).iter().any(|target| matches!(target, Target::Number { .. }));
                self.text.start(is_target);
                self.text.push(&[byte]);
                self.state = ScanState::Number;
            }
            b't' if self.targets(tree).contains(&Target::IsLast) => {
                readings.set_ended();
                self.state = ScanState::Literal { rest: b"rue", is_null: false };
            }
            b't' => self.state = ScanState::Literal { rest: b"rue", is_null: false },
            b'f' => self.state = ScanState::Literal { rest: b"alse", is_null: false },
            b'n' => self.state = ScanState::Literal { rest: b"ull", is_null: true },
            _ => self.fail(ScanFault::Malformed),
        }
    }

    fn open(&mut self, is_array: bool, tree: &PathTree) {
        if self.depth == DEPTH_MAX {
            (self.state, self.skipped) = (ScanState::Skipped, 1);
            return;
        }
        let depth = self.depth + 1;
        let group = self.targets(tree).iter().find_map(|target| match target {
            Target::Content(group) => Some(*group),
            _ => None,
        });
        self.content = self.content.or_else(|| group.map(|group| ContentContainer { depth, group }));
        if self.no_text_depth.is_none() && self.targets(tree).contains(&Target::NoText) {
            self.no_text_depth = Some(depth);
        }
        let on_path = self.node.take().filter(|node| tree.continues(*node));
        self.depth = depth;
        self.arrays = self.arrays << 1 | u128::from(is_array);
        if let Some(node) = on_path {
            self.path.push(PathLevel { node, index: 0 });
        }
        if is_array {
            self.node = on_path.and_then(|node| tree.item(node, 0));
            self.state = ScanState::FirstItem;
        } else {
            self.state = ScanState::FirstMember;
        }
    }

    fn close(&mut self) {
        if self.path.len() == usize::from(self.depth) {
            self.path.pop();
        }
        self.content = self.content.filter(|container| container.depth != self.depth);
        self.no_text_depth = self.no_text_depth.filter(|depth| *depth != self.depth);
        self.depth = self.depth.saturating_sub(1);
        self.arrays >>= 1;
        self.end_value();
    }

    fn end_value(&mut self) {
        self.node = None;
        self.state = if self.depth == 0 { ScanState::Done } else { ScanState::Next };
    }

    /// Reads what follows a value in a container.
    fn read_separator(&mut self, byte: u8, tree: &PathTree) {
        let is_array = self.arrays & 1 == 1;
        match (byte, is_array) {
            (b']', true) | (b'}', false) => self.close(),
            (b',', false) => self.state = ScanState::Member,
            (b',', true) => {
                let next = self.level().map(|level| {
                    level.index += 1;
                    (level.node, level.index)
                });
                self.node = next.and_then(|(node, index)| tree.item(node, index));
                self.state = ScanState::Value;
            }
            _ => self.fail(ScanFault::Malformed),
        }
    }

    /// Reads a text up to its end or its next escape. Returns how many bytes were read.
    fn read_text(&mut self, role: TextRole, bytes: &[u8], tree: &PathTree, readings: &mut UsageReadings) -> usize {
        let end = memchr2(b'"', b'\\', bytes);
        self.count_content(role, end.unwrap_or(bytes.len()), readings);
        self.text.push(&bytes[..end.unwrap_or(bytes.len())]);
        let Some(end) = end else { return bytes.len() };
        match (bytes[end], role) {
            (b'\\', _) => self.state = ScanState::Escape(role),
            (_, TextRole::Name) => {
                let node = self.level().map(|level| level.node);
                self.node = node.and_then(|node| tree.member(node, &self.text.bytes));
                self.state = ScanState::Colon;
            }
            (_, TextRole::Value) => {
                self.report_text(tree, readings);
                self.end_value();
            }
        }
        end + 1
    }

    fn read_escape(&mut self, role: TextRole, byte: u8) {
        let plain = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.state = ScanState::Unicode(role, 0, 0);
                return;
            }
            _ => return self.fail(ScanFault::Malformed),
        };
        self.text.push(&[plain]);
        self.state = ScanState::Text(role);
    }

    fn read_unicode(&mut self, role: TextRole, digits: u8, unit: u32, byte: u8) {
        let Some(digit) = char::from(byte).to_digit(16) else { return self.fail(ScanFault::Malformed) };
        let unit = unit << 4 | digit;
        if digits < 3 {
            self.state = ScanState::Unicode(role, digits + 1, unit);
            return;
        }
        if self.text.is_collected {
            self.text.push_unit(unit);
        }
        self.state = ScanState::Text(role);
    }

    fn end_number(&mut self, tree: &PathTree, readings: &mut UsageReadings) {
        for target in self.targets(tree) {
            if let Target::Number { field, is_final } = *target {
                match self.read_number() {
                    Some(number) => readings.add_number(field, is_final, number),
                    None => readings.add_fault(ScanFault::NotInteger),
                }
            }
        }
        self.end_value();
    }

    /// Returns the number that was read, if it is an integer that all parsers read alike.
    fn read_number(&self) -> Option<u64> {
        let text = Some(&*self.text.bytes).filter(|text| text.len() <= TEXT_MAX);
        let number = text.and_then(parse_json_integer).and_then(|number| u64::try_from(number).ok());
        number.filter(|number| *number <= NUMBER_MAX)
    }

    fn report_text(&self, tree: &PathTree, readings: &mut UsageReadings) {
        for target in self.targets(tree) {
            match target {
                Target::Model => readings.set_model(&self.text.bytes),
                Target::EventType => readings.add_event_type(&self.text.bytes),
                Target::Number { .. } => readings.add_fault(ScanFault::NotInteger),
                Target::Content(_) | Target::ContentText(_) | Target::NoText | Target::IsLast => {}
            }
        }
    }

    /// Reports a value that can be neither a number nor a text.
    fn report_other_type(&self, tree: &PathTree, readings: &mut UsageReadings) {
        if self.targets(tree).iter().any(|target| matches!(target, Target::Number { .. })) {
            readings.add_fault(ScanFault::NotInteger);
        }
    }

    /// Returns the meaning of the current value.
    fn targets<'t>(&self, tree: &'t PathTree) -> &'t [Target] {
        self.node.map_or(&[], |node| tree.targets(node))
    }
}

fn is_number_byte(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')
}
