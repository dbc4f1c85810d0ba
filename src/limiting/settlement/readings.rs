//! The numbers that a scanner has read in a response.

use crate::telemetry::metrics::ScanFault;

/// A number of a usage report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageField {
    /// All tokens, or any other total.
    Total,
    Input,
    /// Input that is not part of [`UsageField::Input`], such as the results of tools.
    MoreInput,
    /// The part of [`UsageField::Input`] that was read from a cache.
    CachedInput,
    /// Input read from a cache that is not part of [`UsageField::Input`].
    CacheRead,
    /// Input written to a cache that is not part of [`UsageField::Input`].
    CacheWrite,
    Output,
    /// Output that is not part of [`UsageField::Output`], such as thoughts.
    MoreOutput,
}

const FIELDS: usize = 8;

impl UsageField {
    /// Returns whether the field states a whole part of the usage, and not just a share of another field or an addition
    /// to it. Only such fields prove usage.
    pub fn is_whole_part(self) -> bool {
        matches!(self, UsageField::Total | UsageField::Input | UsageField::Output)
    }
}

/// Meaning of a value of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A number. `is_final`: the server reports it only at the end of its work, or updates it until then.
    Number { field: UsageField, is_final: bool },
    /// The model that responded.
    Model,
    /// The type of an event; some types end the response.
    EventType,
    /// `true` says that the document is the last one of the response.
    IsLast,
    /// Output of the model: all texts in this value.
    Content(TextGroup),
    /// Output of the model, if this value is a text.
    ContentText(TextGroup),
    /// Texts here are no output, such as names and pictures, unless a path below says otherwise.
    NoText,
}

/// The texts of a response that together are its output once. A stream may deliver pieces, and then repeat them as a
/// whole in other places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextGroup {
    /// What a document adds to the one before.
    Piece,
    /// The output of a document that may be the whole response.
    Message,
    /// A text that is complete.
    Finished,
    /// A part of an item that is complete.
    Part,
    /// An item of the output that is complete.
    Item,
    /// The output of the response in the event that ends a stream.
    Response,
    /// A text that no path lists. It counts only in a document without any other.
    Unlisted,
}

const GROUPS: usize = TextGroup::Unlisted as usize + 1;

/// Bytes of text that may pass although nothing was used, such as the `[DONE]` that ends a stream.
const NOTHING_MAX: u64 = 8;
/// Largest number of a report. JSON parsers with doubles read larger ones differently.
pub const NUMBER_MAX: u64 = 1 << 53;
/// Longest text that is kept, such as the name of a model. Longer ones count as unknown.
pub const TEXT_MAX: usize = 128;

/// Types of events that end a response.
const END_TYPES: [&[u8]; 4] = [b"response.completed", b"response.incomplete", b"response.failed", b"message_stop"];

/// Values read of a response so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageReadings {
    /// The largest value of each field.
    numbers: [Option<u64>; FIELDS],
    model: Option<Box<[u8]>>,
    /// A final number was read.
    has_final_number: bool,
    /// The server reported the end of its work, or its document is complete.
    has_ended: bool,
    /// Both were true at the end of a document, so all of its numbers count, in any order.
    is_proven: bool,
    /// The current document has a final number.
    is_report: bool,
    /// Which texts are output is known, and not only which numbers are usage.
    knows_content: bool,
    /// Bytes of content that have passed since the last document with a final number. That report does not include them.
    unreported: u64,
    /// The faults that occurred, by their bits.
    faults: u16,
    /// The output that the response delivered outside of the texts of documents.
    delivered: DeliveredContent,
    texts: DeliveredTexts,
}

/// Bytes of the texts in documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DeliveredTexts {
    /// Bytes of the documents before the current one, by group.
    sums: [u64; GROUPS],
    /// Bytes of the current document, by group.
    document: [u64; GROUPS],
    /// The most that a document repeats beside its pieces.
    repeated: u64,
    /// The current document reports usage.
    has_report: bool,
}

impl DeliveredTexts {
    fn add(&mut self, group: TextGroup, bytes: u64) {
        let slot = &mut self.document[group as usize];
        *slot = slot.saturating_add(bytes);
    }

    /// Adds the current document to those before.
    fn end_document(&mut self) {
        let mut document = std::mem::take(&mut self.document);
        let (unlisted, listed) = (TextGroup::Unlisted as usize, ..TextGroup::Unlisted as usize);
        // A report is about the texts beside it, whatever they are.
        if std::mem::take(&mut self.has_report) || document[listed].iter().any(|bytes| *bytes > 0) {
            document[unlisted] = 0;
        }
        let (pieces, wholes) = document.split_at_mut(1);
        if pieces[0] > 0 {
            // Some servers send all text so far beside each piece.
            self.repeated = self.repeated.max(wholes.iter().copied().max().unwrap_or(0));
            wholes.fill(0);
        }
        for (sum, bytes) in self.sums.iter_mut().zip(document) {
            *sum = sum.saturating_add(bytes);
        }
    }

    /// Returns the bytes of all documents: of the groups, the one with most text.
    fn bytes(mut self) -> u64 {
        self.end_document();
        self.sums.into_iter().fold(self.repeated, u64::max)
    }
}

/// The content of a response that has passed: a floor for the output of a response whose usage is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveredContent {
    /// Bytes of texts.
    pub bytes: u64,
    /// Number of parts that count as at least one token each, such as events.
    pub parts: u64,
}

impl DeliveredContent {
    /// Returns the least number of tokens of the content.
    pub fn least_tokens(self, bytes_per_token: u64) -> u64 {
        self.bytes.div_ceil(bytes_per_token.max(1)).max(self.parts)
    }
}

impl UsageReadings {
    /// Starts to read a response. `knows_content`: it is known which of its texts are output.
    pub fn new(knows_content: bool) -> UsageReadings {
        UsageReadings { knows_content, ..UsageReadings::default() }
    }

    /// Adds a number. Of several values of a field, the largest counts: reports of a stream are cumulative.
    pub fn add_number(&mut self, field: UsageField, is_final: bool, number: u64) {
        let slot = &mut self.numbers[field as usize];
        *slot = (*slot).max(Some(number));
        self.has_final_number |= is_final;
        self.texts.has_report |= is_final && number > 0;
        self.is_report |= is_final;
    }

    pub fn set_model(&mut self, name: &[u8]) {
        self.model = Some(name[..name.len().min(TEXT_MAX + 1)].into());
    }

    /// Reads the type of an event.
    pub fn add_event_type(&mut self, name: &[u8]) {
        self.has_ended |= END_TYPES.contains(&name);
    }

    /// Counts bytes of content outside of documents.
    pub fn add_content(&mut self, bytes: usize) {
        self.delivered.bytes = self.delivered.bytes.saturating_add(bytes as u64);
        self.unreported = self.unreported.saturating_add(bytes as u64);
    }

    /// Counts bytes of a text in a document.
    pub fn add_text(&mut self, group: TextGroup, bytes: usize) {
        self.texts.add(group, bytes as u64);
        if group != TextGroup::Unlisted {
            self.unreported = self.unreported.saturating_add(bytes as u64);
        }
    }

    /// Counts parts of the content that are at least a token each.
    pub fn add_parts(&mut self, parts: u64) {
        self.delivered.parts = self.delivered.parts.saturating_add(parts);
    }

    /// Returns the output that the response delivered, whether it reports usage or not.
    pub fn delivered(&self) -> DeliveredContent {
        let DeliveredContent { bytes, parts } = self.delivered;
        DeliveredContent { bytes: bytes.saturating_add(self.texts.bytes()), parts }
    }

    /// Returns the sum of the input in reports, by its kinds.
    fn input(&self) -> u64 {
        let fields = [UsageField::Input, UsageField::MoreInput, UsageField::CacheRead, UsageField::CacheWrite];
        fields.iter().map(|field| self.number(*field)).fold(0, u64::saturating_add)
    }

    fn output(&self) -> u64 {
        self.number(UsageField::Output).saturating_add(self.number(UsageField::MoreOutput))
    }

    /// Returns whether a report contains the input, or a total that includes it. Zeros are not a report.
    pub fn has_input(&self) -> bool {
        self.input() > 0 || self.number(UsageField::Total) > self.output()
    }

    /// Returns whether a report contains output.
    pub fn has_output(&self) -> bool {
        self.output() > 0
    }

    /// Returns whether a report says that nothing was used, or states no output, although text has passed. A total
    /// of 0 may be the price of a free response.
    pub fn denies_content(&self) -> bool {
        const PARTS: [UsageField; 5] = [
            UsageField::Input,
            UsageField::MoreInput,
            UsageField::CacheRead,
            UsageField::CacheWrite,
            UsageField::Output,
        ];
        let has_parts = PARTS.iter().any(|field| self.numbers[*field as usize].is_some());
        let has_no_output = self.output() == 0 && self.number(UsageField::Total) <= self.input();
        self.delivered().bytes > NOTHING_MAX && has_parts && has_no_output
    }

    /// Raises a number to at least `tokens`.
    pub fn raise(&mut self, field: UsageField, tokens: u64) {
        let slot = &mut self.numbers[field as usize];
        *slot = (*slot).max(Some(tokens));
    }

    /// Records that nothing follows: the server reported the end of its work, or the response is complete.
    pub fn set_ended(&mut self) {
        self.has_ended = true;
    }

    pub fn add_fault(&mut self, fault: ScanFault) {
        self.faults |= bit(fault);
    }

    pub fn faults(&self) -> impl Iterator<Item = ScanFault> {
        ScanFault::ALL.iter().copied().filter(|fault| self.faults & bit(*fault) != 0)
    }

    /// Returns the value of a field, 0 if it was not reported.
    pub fn number(&self, field: UsageField) -> u64 {
        self.numbers[field as usize].unwrap_or(0)
    }

    pub fn model(&self) -> Option<&[u8]> {
        self.model.as_deref()
    }

    /// Records the end of a document, an event or the whole response. A number that cannot be read may be the largest
    /// one, so the others prove nothing. Nor does a report before the content.
    pub fn end_document(&mut self) {
        self.texts.end_document();
        self.end_report();
        let is_readable = self.faults & bit(ScanFault::NotInteger) == 0;
        let is_complete = !self.knows_content || self.unreported <= NOTHING_MAX;
        self.is_proven |= self.has_final_number && self.has_ended && is_readable && is_complete;
    }

    /// Records that what follows is not part of a report. If there was one, it is about all content before.
    pub fn end_report(&mut self) {
        if std::mem::take(&mut self.is_report) {
            self.unreported = 0;
        }
    }

    /// Returns whether the usage is known completely.
    pub fn is_proven(&self) -> bool {
        self.is_proven
    }
}

/// Returns the bit of a fault.
fn bit(fault: ScanFault) -> u16 {
    1 << fault as u16
}
