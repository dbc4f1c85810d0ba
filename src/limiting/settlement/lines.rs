//! A push parser of a sequence of JSON documents, usually one in each line, as some APIs stream them. It keeps no
//! document: the JSON parser reads them while they arrive.

use memchr::memchr;

use crate::limiting::settlement::json::JsonScanner;
use crate::limiting::settlement::path_tree::PathTree;
use crate::limiting::settlement::readings::UsageReadings;
use crate::telemetry::metrics::ScanFault;

/// Parser of one sequence.
#[derive(Debug, Default)]
pub struct LineScanner {
    json: JsonScanner,
    position: Position,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Position {
    #[default]
    BetweenDocuments,
    Document,
    /// The scanner is in the rest of a line that is not JSON.
    BrokenLine,
}

impl LineScanner {
    /// Reads the next piece of the sequence. Values on the paths of `tree` go to `readings`.
    pub fn push(&mut self, mut bytes: &[u8], tree: &PathTree, readings: &mut UsageReadings) {
        loop {
            match self.position {
                Position::BetweenDocuments => {
                    bytes = bytes.trim_ascii_start();
                    if bytes.is_empty() {
                        return;
                    }
                    self.json.reset();
                    // Even a document that is cut off is one.
                    readings.add_parts(1);
                    self.position = Position::Document;
                }
                Position::Document => {
                    let unread = self.json.push(bytes, tree, readings);
                    bytes = &bytes[bytes.len() - unread..];
                    if self.json.is_done() {
                        readings.end_document();
                        self.position = Position::BetweenDocuments;
                    } else if let Some(fault) = self.json.fault() {
                        readings.add_fault(fault);
                        self.position = Position::BrokenLine;
                    } else {
                        return;
                    }
                }
                Position::BrokenLine => {
                    // A line that cannot be read as JSON may still be content.
                    let end = memchr(b'\n', bytes);
                    readings.add_content(end.unwrap_or(bytes.len()));
                    let Some(end) = end else { return };
                    bytes = &bytes[end..];
                    self.position = Position::BetweenDocuments;
                }
            }
        }
    }

    /// Reads the end of a complete response. A sequence that ends within a document was cut off.
    pub fn end(&self, readings: &mut UsageReadings) {
        match self.position {
            Position::Document => readings.add_fault(ScanFault::Malformed),
            Position::BetweenDocuments | Position::BrokenLine => {
                readings.set_ended();
                readings.end_document();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limiting::settlement::readings::UsageField;
    use crate::limiting::settlement::sources::{UsageDialect, UsageSource, UsageSources};

    const CHAT: &str = "{\"model\":\"m\",\"created_at\":\"2026-01-01T00:00:00Z\",\"message\":{\"role\":\"assistant\",\"content\":\"Hi you\"},\"done\":false}\n";
    const LAST: &str =
        "{\"model\":\"m\",\"message\":{\"content\":\"\"},\"done\":true,\"prompt_eval_count\":5,\"eval_count\":3}\n";

    /// Reads a sequence in pieces of `size` bytes, to its end if `is_whole`.
    fn read(text: &str, size: usize, is_whole: bool) -> UsageReadings {
        let sources = Arc::new(UsageSources::new(vec![UsageSource::Dialect(UsageDialect::OpenAi)]));
        let (mut scanner, mut readings) = (LineScanner::default(), UsageReadings::default());
        text.as_bytes().chunks(size).for_each(|piece| scanner.push(piece, &sources.json, &mut readings));
        if is_whole {
            scanner.end(&mut readings);
        }
        readings
    }

    #[test]
    fn each_document_is_read_wherever_the_pieces_end() {
        let broken = "{\"message\":{\"content\":\"abc\"}} {\"a\": nonsense}\n";
        for (text, [input, output, bytes, parts], is_proven, is_fine) in [
            ([CHAT, CHAT, LAST].concat(), [5, 3, 12, 3], true, true),
            ([CHAT, CHAT].concat(), [0, 0, 12, 2], false, true),
            // Without a line feed, pretty-printed, with CRLF, and for completions.
            ([CHAT.trim(), LAST.trim()].concat(), [5, 3, 6, 2], true, true),
            (LAST.replace(',', ",\r\n"), [5, 3, 0, 1], true, true),
            (
                "\n{\"response\":\"abcd\",\"done\":false}\n{\"response\":\"\",\"done\":true,\"eval_count\":9}"
                    .to_owned(),
                [0, 9, 4, 2],
                true,
                true,
            ),
            // A broken line is content, and does not hide the next one.
            ([broken, LAST].concat(), [5, 3, 3 + 7, 3], true, false),
            // A report that is not the last one, or that is cut off, proves nothing.
            (LAST.replace("true", "false"), [5, 3, 0, 1], false, true),
            (LAST.replace("}\n", ""), [5, 0, 0, 1], false, true),
        ] {
            for size in [1, 2, 5, 1000] {
                let readings = read(&text, size, false);
                let found = [readings.number(UsageField::Input), readings.number(UsageField::Output)];
                assert_eq!(found, [input, output], "{text} by {size}");
                let delivered = readings.delivered();
                assert_eq!([delivered.bytes, delivered.parts], [bytes, parts], "{text} by {size}");
                assert_eq!(readings.is_proven(), is_proven, "{text} by {size}");
                assert_eq!(readings.faults().next().is_none(), is_fine, "{text} by {size}");
            }
        }
    }

    #[test]
    fn the_end_of_a_complete_response_proves_its_numbers() {
        let unmarked = "{\"usage\":{\"total_tokens\":7}}\n";
        assert!(!read(unmarked, 9, false).is_proven());
        assert!(read(unmarked, 9, true).is_proven());
        let cut = read(&unmarked.replace("}}", "}"), 9, true);
        assert!(!cut.is_proven() && cut.faults().eq([ScanFault::Malformed]));
    }
}
