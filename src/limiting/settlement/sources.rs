//! Places where responses report their usage: JSON pointers in a document or in events, headers, and the dialects of
//! LLM APIs.

use std::fmt;

use http::HeaderName;

use crate::labels::labels;
use crate::limiting::settlement::path_tree::{PathStep, PathTree, steps};
use crate::limiting::settlement::readings::{Target, TextGroup, UsageField};
use crate::limiting::settlement::texts;
use crate::limiting::source::JsonPointer;

labels! {
    /// An API whose reports of usage are known.
    UsageDialect:
    /// OpenAI chat completions, embeddings and responses, and servers that speak like them. Also Ollama's own API.
    OpenAi = "openai",
    /// Anthropic messages.
    Anthropic = "anthropic",
    /// Gemini `generateContent` and `streamGenerateContent`.
    Gemini = "gemini",
    /// Amazon Bedrock `Converse`, and the headers of `InvokeModel`.
    Bedrock = "bedrock",
}

/// Place where a number is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageSource {
    /// A total at a pointer of the JSON document.
    Json(JsonPointer),
    /// A total at a pointer of the JSON documents in events.
    Events(JsonPointer),
    Dialect(UsageDialect),
}

/// All places in a response from which a limit reads usage.
#[derive(Clone, Debug, Default)]
pub struct UsageSources {
    /// The places as the config lists them.
    listed: Vec<UsageSource>,
    /// Paths in a JSON document.
    pub json: PathTree,
    /// Paths in the JSON documents of events.
    pub events: PathTree,
    pub headers: Vec<(HeaderName, UsageField)>,
    /// The paths of content are known. Without an API, any text may be content.
    pub knows_content: bool,
}

/// Path of a value, by the names of its members. `*` is any item of an array.
type FieldPath = (&'static str, UsageField);

const TOTAL: UsageField = UsageField::Total;
const INPUT: UsageField = UsageField::Input;
const OUTPUT: UsageField = UsageField::Output;

/// Fields of the `usage` object of OpenAI: chat completions, then responses.
const OPENAI: &[FieldPath] = &[
    ("total_tokens", TOTAL),
    ("prompt_tokens", INPUT),
    ("prompt_tokens_details/cached_tokens", UsageField::CachedInput),
    ("completion_tokens", OUTPUT),
    ("input_tokens", INPUT),
    ("input_tokens_details/cached_tokens", UsageField::CachedInput),
    ("output_tokens", OUTPUT),
];
/// Fields of the last document of a response of Ollama's own API.
const OLLAMA: &[FieldPath] = &[("prompt_eval_count", INPUT), ("eval_count", OUTPUT)];
const ANTHROPIC: &[FieldPath] = &[
    ("input_tokens", INPUT),
    ("cache_read_input_tokens", UsageField::CacheRead),
    ("cache_creation_input_tokens", UsageField::CacheWrite),
    ("output_tokens", OUTPUT),
];
const GEMINI: &[FieldPath] = &[
    ("totalTokenCount", TOTAL),
    ("promptTokenCount", INPUT),
    ("toolUsePromptTokenCount", UsageField::MoreInput),
    ("cachedContentTokenCount", UsageField::CachedInput),
    ("candidatesTokenCount", OUTPUT),
    ("thoughtsTokenCount", UsageField::MoreOutput),
];
const BEDROCK: &[FieldPath] = &[
    ("totalTokens", TOTAL),
    ("inputTokens", INPUT),
    ("cacheReadInputTokens", UsageField::CacheRead),
    ("cacheWriteInputTokens", UsageField::CacheWrite),
    ("outputTokens", OUTPUT),
];
/// How the documents of a response arrive.
#[derive(Clone, Copy, PartialEq)]
enum Framing {
    /// As a body, or as a sequence of documents.
    Plain,
    Events,
}

const BEDROCK_HEADERS: [(HeaderName, UsageField); 4] = [
    (HeaderName::from_static("x-amzn-bedrock-input-token-count"), INPUT),
    (HeaderName::from_static("x-amzn-bedrock-cache-read-input-token-count"), UsageField::CacheRead),
    (HeaderName::from_static("x-amzn-bedrock-cache-write-input-token-count"), UsageField::CacheWrite),
    (HeaderName::from_static("x-amzn-bedrock-output-token-count"), OUTPUT),
];

impl UsageSources {
    pub fn new(listed: Vec<UsageSource>) -> UsageSources {
        let mut sources = UsageSources::default();
        for source in &listed {
            match source {
                UsageSource::Json(pointer) => add_pointer(&mut sources.json, pointer),
                UsageSource::Events(pointer) => add_pointer(&mut sources.events, pointer),
                UsageSource::Dialect(dialect) => {
                    add_dialect(&mut sources.json, *dialect, Framing::Plain);
                    add_dialect(&mut sources.events, *dialect, Framing::Events);
                    if *dialect == UsageDialect::Bedrock {
                        sources.headers.extend(BEDROCK_HEADERS);
                    }
                }
            }
        }
        // A document of a single total may state its model, too.
        for tree in [&mut sources.json, &mut sources.events] {
            if !tree.is_empty() {
                tree.add_path(steps("model"), Target::Model);
            }
        }
        sources.knows_content = listed.iter().any(|source| matches!(source, UsageSource::Dialect(_)));
        if !sources.knows_content {
            for tree in [&mut sources.json, &mut sources.events] {
                tree.add_path([], Target::Content(TextGroup::Piece));
            }
        }
        sources.listed = listed;
        sources
    }

    pub fn listed(&self) -> &[UsageSource] {
        &self.listed
    }
}

/// All places follow from the list.
impl PartialEq for UsageSources {
    fn eq(&self, other: &UsageSources) -> bool {
        self.listed == other.listed
    }
}

impl Eq for UsageSources {}

/// Adds the places of a dialect. A server may send the documents of a stream in any framing, and a whole document as an
/// event, so the framing only decides which numbers are final.
fn add_dialect(tree: &mut PathTree, dialect: UsageDialect, framing: Framing) {
    let is_plain = framing == Framing::Plain;
    let texts = match dialect {
        UsageDialect::OpenAi => {
            add_fields(tree, "usage", OPENAI, |field| is_plain || field != INPUT);
            add_fields(tree, "response/usage", OPENAI, |field| field != INPUT);
            tree.add_path(steps("response/model"), Target::Model);
            tree.add_path(steps("type"), Target::EventType);
            for (path, field) in OLLAMA {
                tree.add_path(steps(path), Target::Number { field: *field, is_final: true });
            }
            tree.add_path(steps("done"), Target::IsLast);
            texts::OPENAI
        }
        UsageDialect::Anthropic => {
            // The first event reports the input. Only the last reports all output.
            add_fields(tree, "message/usage", ANTHROPIC, |_| false);
            add_fields(tree, "usage", ANTHROPIC, |field| is_plain || field == OUTPUT);
            tree.add_path(steps("message/model"), Target::Model);
            tree.add_path(steps("type"), Target::EventType);
            texts::ANTHROPIC
        }
        UsageDialect::Gemini => {
            // Without `alt=sse`, a stream is one JSON array.
            for (parent, model) in [("usageMetadata", "modelVersion"), ("*/usageMetadata", "*/modelVersion")] {
                add_fields(tree, parent, GEMINI, |field| field == TOTAL);
                tree.add_path(steps(model), Target::Model);
            }
            texts::GEMINI
        }
        UsageDialect::Bedrock => {
            ["usage", "metadata/usage"].iter().for_each(|parent| add_fields(tree, parent, BEDROCK, |_| true));
            texts::BEDROCK
        }
    };
    texts.add_to(tree);
}

fn add_pointer(tree: &mut PathTree, pointer: &JsonPointer) {
    tree.add_path(
        pointer.tokens().iter().map(|token| PathStep::Named(token)),
        Target::Number { field: TOTAL, is_final: true },
    );
}

/// Adds the fields of an object. `is_final`: which of their whole parts prove the usage.
fn add_fields(tree: &mut PathTree, parent: &str, fields: &[FieldPath], is_final: impl Fn(UsageField) -> bool) {
    for (path, field) in fields {
        let target = Target::Number { field: *field, is_final: field.is_whole_part() && is_final(*field) };
        tree.add_path(steps(parent).chain(steps(path)), target);
    }
}

/// Formats the source as in the config.
impl fmt::Display for UsageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UsageSource::Json(pointer) => write!(f, "json:{}", pointer.text()),
            UsageSource::Events(pointer) => write!(f, "sse:{}", pointer.text()),
            UsageSource::Dialect(dialect) => f.write_str(dialect.label()),
        }
    }
}
