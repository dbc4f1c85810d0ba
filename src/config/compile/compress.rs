//! `compress` of `[server]` and of routes: a boolean, or a table. Called by `server` and `routes`.

use crate::config::reader::{At, Section};
use crate::config::schema::Schema;
use crate::config::schema::row::ConfigOption;
use crate::config::schema::server;
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::route::compress::{CompressSettings, CompressionAlgorithm, MediaTypeFault, MediaTypePattern};

/// The `compress` of one section. The settings exist even if compression is off, because routes inherit them.
#[derive(Clone, Default)]
pub struct CompressOption {
    pub is_enabled: bool,
    pub settings: CompressSettings,
}

/// Compiles the option. Keys that are missing have the values of `inherited`.
pub fn compile_compress(section: &Section, schema: &'static Schema, inherited: &CompressOption) -> CompressOption {
    let settings = inherited.settings.clone();
    match section.node(&server::COMPRESS) {
        None => inherited.clone(),
        Some(Node { value: Value::Bool(is_enabled), .. }) => CompressOption { is_enabled: *is_enabled, settings },
        Some(Node { value: Value::Table(table), .. }) => {
            let table = Section::new(section.sources, schema, "`compress`", table);
            let settings = CompressSettings {
                types: read_list(&table, &server::compress::TYPES, parse_type).unwrap_or(settings.types),
                min_size: table.read(&server::compress::MIN_SIZE).unwrap_or(settings.min_size),
                algorithms: read_list(&table, &server::compress::ALGORITHMS, parse_algorithm)
                    .unwrap_or(settings.algorithms),
            };
            table.report_unread_keys();
            CompressOption { is_enabled: true, settings }
        }
        Some(node) => section
            .report_wrong_type(server::COMPRESS.name, "true, false or a table", node)
            .unwrap_or_else(|| inherited.clone()),
    }
}

/// Reads a list, which must not be empty or repeat an item.
fn read_list<T: PartialEq>(
    table: &Section,
    option: &ConfigOption,
    parse: impl Fn(&str) -> Result<T, TextFault>,
) -> Option<Vec<T>> {
    let items = table.read_strings(option, parse)?;
    if items.is_empty() {
        let node = table.node(option)?;
        let help = "write compress = false to turn compression off, or leave the key out";
        return table.report_fault(option.name, node, "an empty list compresses nothing", help);
    }
    for (at, At { place, value }) in items.iter().enumerate() {
        if items[..at].iter().any(|earlier| earlier.value == *value) {
            return table.report_fault_at(option.name, *place, "this item occurs twice", "remove one of the two");
        }
    }
    Some(items.into_iter().map(|at| at.value).collect())
}

fn parse_type(text: &str) -> Result<MediaTypePattern, TextFault> {
    MediaTypePattern::parse(text).or_else(|fault| match fault {
        MediaTypeFault::Malformed => invalid_text(
            format!("`{text}` is not a media type"),
            "write \"text/html\", \"text/*\", \"application/*+json\" or \"*/*\"",
        ),
        MediaTypeFault::Parameters => {
            invalid_text(format!("`{text}` has parameters"), "write the media type alone; it matches any parameters")
        }
        MediaTypeFault::Grpc => {
            invalid_text("gRPC is never compressed here", "gRPC clients and servers compress their messages themselves")
        }
    })
}

fn parse_algorithm(text: &str) -> Result<CompressionAlgorithm, TextFault> {
    let all = CompressionAlgorithm::ALL.iter();
    match all.into_iter().find(|algorithm| algorithm.label() == text) {
        Some(algorithm) => Ok(*algorithm),
        None => {
            let help = match text {
                "brotli" => "write \"br\", its name in HTTP",
                "zstandard" => "write \"zstd\", its name in HTTP",
                _ => "one of zstd, br, gzip",
            };
            invalid_text(format!("unknown algorithm `{text}`"), help)
        }
    }
}
