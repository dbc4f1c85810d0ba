//! Lists the paths at which each API puts the output of the model, and those whose texts are not output. The paths are
//! the same in every framing: some servers send a whole message as an event, or the documents of a stream as lines.

use crate::limiting::settlement::path_tree::{PathTree, steps};
use crate::limiting::settlement::readings::{Target, TextGroup};

/// An object, and its members whose texts are output.
type TextPaths = (TextGroup, &'static str, &'static [&'static str]);

/// The paths of one API.
pub struct ApiTexts {
    /// All texts of these values are output.
    values: &'static [TextPaths],
    /// These values are output only if they are texts.
    texts: &'static [(TextGroup, &'static [&'static str])],
    /// Names, states, and data whose length says nothing about their tokens, such as pictures and sounds.
    others: &'static [&'static str],
}

/// Members of messages and deltas.
const MESSAGE: &[&str] =
    &["content", "text", "refusal", "reasoning", "reasoning_content", "thinking", "tool_calls", "function_call"];
/// Members of the items of a response.
const ITEM: &[&str] = &["content", "summary", "arguments", "input", "code", "action"];

/// Chat completions and responses of OpenAI, and Ollama's own API.
pub const OPENAI: ApiTexts = ApiTexts {
    values: &[
        (TextGroup::Piece, "choices/*/delta", MESSAGE),
        (TextGroup::Piece, "choices/*/delta/audio", &["transcript"]),
        (TextGroup::Piece, "choices/*", &["text"]),
        (TextGroup::Piece, "message", &["content", "thinking", "tool_calls"]),
        (TextGroup::Message, "choices/*/message", MESSAGE),
        (TextGroup::Message, "choices/*/message/audio", &["transcript"]),
        (TextGroup::Message, "output/*", ITEM),
        (TextGroup::Message, "output/*/operation", &["diff"]),
        (TextGroup::Part, "part", &["text", "refusal", "transcript"]),
        (TextGroup::Item, "item", ITEM),
        (TextGroup::Item, "item/operation", &["diff"]),
        (TextGroup::Response, "response/output/*", ITEM),
        (TextGroup::Response, "response/output/*/operation", &["diff"]),
    ],
    texts: &[
        (TextGroup::Piece, &["delta", "response", "thinking"]),
        // Also of transcriptions.
        (TextGroup::Finished, &["text", "refusal", "arguments", "input", "code", "diff", "transcript"]),
    ],
    others: &[
        "id",
        "object",
        "system_fingerprint",
        "service_tier",
        "provider",
        "created_at",
        "done_reason",
        "event_id",
        "item_id",
        "response_id",
        "previous_response_id",
        "obfuscation",
        "status",
        "error",
        "usage",
        "audio",
        "b64_json",
        "partial_image_b64",
        "prompt_filter_results",
        "message/role",
        "choices/*/finish_reason",
        "choices/*/native_finish_reason",
        "choices/*/content_filter_results",
        "choices/*/logprobs",
        "choices/*/delta/role",
        "choices/*/delta/audio",
        "choices/*/message/role",
        "choices/*/message/audio",
        "choices/*/message/images",
        "data/*/id",
        "data/*/object",
        "data/*/owned_by",
        "data/*/b64_json",
        "data/*/url",
        "data/*/embedding",
        "output/*/id",
        "output/*/type",
        "output/*/status",
        "output/*/role",
        "output/*/result",
        "output/*/encrypted_content",
        // What a response repeats of its request, and events that announce what follows.
        "response",
        "item",
        "part",
        "instructions",
        "tools",
        "tool_choice",
        "metadata",
        "reasoning",
        "text",
        "truncation",
        "prompt_cache_key",
        "safety_identifier",
    ],
};
pub const ANTHROPIC: ApiTexts = ApiTexts {
    values: &[
        (TextGroup::Piece, "delta", &["text", "thinking", "partial_json"]),
        // Thoughts that are encrypted arrive at once.
        (TextGroup::Piece, "content_block", &["data"]),
        (TextGroup::Item, "content_block", &["text", "thinking", "input"]),
        (TextGroup::Message, "content/*", &["text", "thinking", "input", "data"]),
        (TextGroup::Response, "message/content/*", &["text", "thinking", "input", "data"]),
    ],
    texts: &[],
    others: &[
        "id",
        "role",
        "stop_reason",
        "stop_sequence",
        "error",
        "usage",
        "container",
        "message",
        "content_block",
        "delta/type",
        "delta/signature",
        "delta/stop_reason",
        "delta/stop_sequence",
        "content/*/type",
        "content/*/id",
        "content/*/signature",
        "content/*/tool_use_id",
    ],
};
const GEMINI_PARTS: &[&str] = &["text", "functionCall", "executableCode"];
pub const GEMINI: ApiTexts = ApiTexts {
    values: &[
        (TextGroup::Piece, "candidates/*/content/parts/*", GEMINI_PARTS),
        (TextGroup::Piece, "*/candidates/*/content/parts/*", GEMINI_PARTS),
    ],
    texts: &[],
    others: &[
        "responseId",
        "createTime",
        "promptFeedback",
        "usageMetadata",
        "candidates/*/finishReason",
        "candidates/*/safetyRatings",
        "candidates/*/groundingMetadata",
        "candidates/*/citationMetadata",
        "candidates/*/content/role",
        "candidates/*/content/parts/*/inlineData",
        "candidates/*/content/parts/*/thoughtSignature",
        "*/responseId",
        "*/createTime",
        "*/promptFeedback",
        "*/usageMetadata",
        "*/candidates/*/finishReason",
        "*/candidates/*/safetyRatings",
        "*/candidates/*/groundingMetadata",
        "*/candidates/*/citationMetadata",
        "*/candidates/*/content/role",
        "*/candidates/*/content/parts/*/inlineData",
        "*/candidates/*/content/parts/*/thoughtSignature",
    ],
};
const BEDROCK_PARTS: &[&str] = &["text", "toolUse", "reasoningContent"];
pub const BEDROCK: ApiTexts = ApiTexts {
    values: &[
        (TextGroup::Message, "output/message/content/*", BEDROCK_PARTS),
        (TextGroup::Piece, "contentBlockDelta/delta", BEDROCK_PARTS),
        (TextGroup::Piece, "delta", BEDROCK_PARTS),
    ],
    texts: &[],
    others: &[
        "p",
        "role",
        "stopReason",
        "usage",
        "metadata",
        "metrics",
        "trace",
        "messageStart",
        "messageStop",
        "contentBlockStart",
        "output/message/role",
        "output/message/content/*/image",
    ],
};

impl ApiTexts {
    /// Adds the paths to a tree.
    pub fn add_to(&self, tree: &mut PathTree) {
        for (group, parent, members) in self.values {
            let paths = members.iter().map(|member| steps(parent).chain(steps(member)));
            paths.for_each(|path| tree.add_path(path, Target::Content(*group)));
        }
        for (group, members) in self.texts {
            members.iter().for_each(|member| tree.add_path(steps(member), Target::ContentText(*group)));
        }
        self.others.iter().for_each(|path| tree.add_path(steps(path), Target::NoText));
    }
}
