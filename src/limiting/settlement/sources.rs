//! Places where responses report their usage: JSON pointers in a document or in events, headers, and the dialects of
//! LLM APIs.

use std::fmt;

use http::HeaderName;

use crate::labels::labels;
use crate::limiting::settlement::path_tree::{PathStep, PathTree};
use crate::limiting::settlement::readings::{ContentPlace, Target, UsageField};
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

/// Format in which an API has output in a place.
#[derive(Clone, Copy)]
enum Format {
    /// Documents, alone or in lines.
    Document,
    Events,
    Any,
}

impl Format {
    /// Returns what the place is in documents and in events.
    fn places(self) -> [ContentPlace; 2] {
        match self {
            Format::Document => [ContentPlace::Usual, ContentPlace::OtherFormat],
            Format::Events => [ContentPlace::OtherFormat, ContentPlace::Usual],
            Format::Any => [ContentPlace::Usual; 2],
        }
    }
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
/// Members of messages and deltas whose texts are output. Images and sounds are none: their length says nothing about
/// their tokens.
const OPENAI_TEXTS: &[&str] = &[
    "content",
    "text",
    "refusal",
    "reasoning",
    "reasoning_content",
    "thinking",
    "tool_calls",
    "function_call",
    "audio/transcript",
];
/// The same of the items of the responses API.
const OPENAI_ITEM_TEXTS: &[&str] = &["content", "summary", "arguments", "input", "code", "action", "operation"];
const GEMINI_TEXTS: &[&str] = &["text", "functionCall", "executableCode"];
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
                UsageSource::Dialect(dialect) => sources.add_dialect(*dialect),
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
                tree.add_path([], Target::Content(ContentPlace::Usual));
            }
        }
        sources.listed = listed;
        sources
    }

    pub fn listed(&self) -> &[UsageSource] {
        &self.listed
    }

    fn add_dialect(&mut self, dialect: UsageDialect) {
        match dialect {
            UsageDialect::OpenAi => {
                add_fields(&mut self.json, "usage", OPENAI, |_| true);
                for parent in ["usage", "response/usage"] {
                    add_fields(&mut self.events, parent, OPENAI, |field| field != INPUT);
                }
                self.events.add_path(steps("response/model"), Target::Model);
                self.events.add_path(steps("type"), Target::EventType);
                for (path, field) in OLLAMA {
                    self.json.add_path(steps(path), Target::Number { field: *field, is_final: true });
                }
                self.json.add_path(steps("done"), Target::IsLast);
                self.add_content(Format::Document, "message", &["content", "thinking", "tool_calls"]);
                ["response", "thinking"].iter().for_each(|name| self.add_content_text(Format::Document, name));
                self.add_content(Format::Document, "choices/*/message", OPENAI_TEXTS);
                self.add_content(Format::Events, "choices/*/delta", OPENAI_TEXTS);
                self.add_content(Format::Any, "choices/*", &["text"]);
                self.add_content(Format::Document, "output/*", OPENAI_ITEM_TEXTS);
                // Of transcriptions. Events of the responses API repeat their texts in a member of this name.
                self.json.add_path(steps("text"), Target::ContentText(ContentPlace::Usual));
                // Of the responses API. Its later events repeat the text.
                self.add_content_text(Format::Events, "delta");
            }
            UsageDialect::Anthropic => {
                add_fields(&mut self.json, "usage", ANTHROPIC, |_| true);
                // The first event reports the input. Only the last reports all output.
                add_fields(&mut self.events, "message/usage", ANTHROPIC, |_| false);
                add_fields(&mut self.events, "usage", ANTHROPIC, |field| field == OUTPUT);
                self.events.add_path(steps("message/model"), Target::Model);
                self.events.add_path(steps("type"), Target::EventType);
                self.add_content(Format::Document, "content/*", &["text", "thinking", "input", "data"]);
                self.add_content(Format::Events, "delta", &["text", "thinking", "partial_json"]);
                // Thoughts that are not shown arrive as a whole.
                self.add_content(Format::Events, "content_block", &["data"]);
            }
            UsageDialect::Gemini => {
                // Without `alt=sse`, a stream is one JSON array.
                for (parent, model) in [("usageMetadata", "modelVersion"), ("*/usageMetadata", "*/modelVersion")] {
                    add_fields(&mut self.json, parent, GEMINI, |field| field == TOTAL);
                    self.json.add_path(steps(model), Target::Model);
                }
                add_fields(&mut self.events, "usageMetadata", GEMINI, |field| field == TOTAL);
                self.events.add_path(steps("modelVersion"), Target::Model);
                self.add_content(Format::Any, "candidates/*/content/parts/*", GEMINI_TEXTS);
                self.add_content(Format::Document, "*/candidates/*/content/parts/*", GEMINI_TEXTS);
            }
            UsageDialect::Bedrock => {
                add_fields(&mut self.json, "usage", BEDROCK, |_| true);
                let texts = ["text", "toolUse", "reasoningContent"];
                add_content(&mut self.json, ContentPlace::Usual, "output/message/content/*", &texts);
                self.headers.extend(BEDROCK_HEADERS);
            }
        }
    }

    /// Adds members of an object whose texts are output in responses of this format.
    fn add_content(&mut self, format: Format, parent: &str, members: &[&str]) {
        let [json, events] = format.places();
        add_content(&mut self.json, json, parent, members);
        add_content(&mut self.events, events, parent, members);
    }

    /// Adds a member whose value is output in responses of this format, if it is a text.
    fn add_content_text(&mut self, format: Format, member: &str) {
        let [json, events] = format.places();
        self.json.add_path(steps(member), Target::ContentText(json));
        self.events.add_path(steps(member), Target::ContentText(events));
    }
}

fn add_pointer(tree: &mut PathTree, pointer: &JsonPointer) {
    tree.add_path(
        pointer.tokens().iter().map(|token| PathStep::Named(token)),
        Target::Number { field: TOTAL, is_final: true },
    );
}

/// Adds members of an object whose texts are output.
fn add_content(tree: &mut PathTree, place: ContentPlace, parent: &str, members: &[&str]) {
    members.iter().for_each(|member| tree.add_path(steps(parent).chain(steps(member)), Target::Content(place)));
}

/// Adds the fields of an object. `is_final`: which of their whole parts prove the usage.
fn add_fields(tree: &mut PathTree, parent: &str, fields: &[FieldPath], is_final: impl Fn(UsageField) -> bool) {
    for (path, field) in fields {
        let target = Target::Number { field: *field, is_final: field.is_whole_part() && is_final(*field) };
        tree.add_path(steps(parent).chain(steps(path)), target);
    }
}

fn steps(path: &str) -> impl Iterator<Item = PathStep<'_>> {
    path.split('/').map(|name| if name == "*" { PathStep::AnyItem } else { PathStep::Named(name) })
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
