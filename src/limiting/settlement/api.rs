//! The LLM APIs that the path of a request tells apart: which members of its body announce its largest output, whether its
//! streams report their usage only if the request asks for it, and which operations report none or generate nothing.

use std::borrow::Cow;

use http::HeaderMap;
use percent_encoding::percent_decode_str;

use crate::limiting::source::{JsonPointer, Source};

/// An operation of an API that generates text. Servers of other makers have the same paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LlmApi {
    ChatCompletions,
    Completions,
    Responses,
    Messages,
    Gemini,
    Converse,
    Ollama,
    /// An interaction with Gemini. Its usage is not read.
    Interactions,
    /// A run of an assistant or an agent over a thread that the server keeps.
    Runs,
}

/// The end of a path, the operation, and the members that announce its output.
type ApiRow = (&'static str, LlmApi, &'static [&'static str]);

/// The first row whose path fits counts.
const APIS: &[ApiRow] = &[
    ("/chat/completions", LlmApi::ChatCompletions, &["/max_tokens", "/max_completion_tokens"]),
    ("/completions", LlmApi::Completions, &["/max_tokens"]),
    ("/responses", LlmApi::Responses, &["/max_output_tokens"]),
    ("/messages", LlmApi::Messages, &["/max_tokens"]),
    (":generatecontent", LlmApi::Gemini, GEMINI),
    (":streamgeneratecontent", LlmApi::Gemini, GEMINI),
    ("/converse", LlmApi::Converse, &["/inferenceConfig/maxTokens"]),
    ("/converse-stream", LlmApi::Converse, &["/inferenceConfig/maxTokens"]),
    ("/api/chat", LlmApi::Ollama, &["/options/num_predict"]),
    ("/api/generate", LlmApi::Ollama, &["/options/num_predict"]),
    ("/interactions", LlmApi::Interactions, &["/generation_config/max_output_tokens"]),
    ("/runs", LlmApi::Runs, &["/max_completion_tokens"]),
    ("/submit_tool_outputs", LlmApi::Runs, &[]),
];
/// Both spellings of Protocol Buffers in JSON.
const GEMINI: &[&str] = &["/generationConfig/maxOutputTokens", "/generation_config/max_output_tokens"];

/// The ends of paths that start work whose cost is in no response to the request: a batch, a job, or a session that the
/// client has with another server.
const UNREPORTED: &[&str] = &[
    "/batches",
    "/batch/jobs",
    ":batchgeneratecontent",
    ":asyncbatchembedcontent",
    "/batchpredictionjobs",
    "/model-invocation-job",
    "/async-invoke",
    "/fine_tuning/jobs",
    "/realtime/calls",
    "/realtime/client_secrets",
    "/realtime/sessions",
    "/realtime/transcription_sessions",
];

/// The ends of paths that count the tokens of a request and generate nothing.
const COUNTING: &[&str] = &["/count_tokens", "/count-tokens", "/responses/input_tokens", ":counttokens"];

/// Returns whether a request starts work whose cost no response to it reports.
pub fn starts_unreported_work(method: &str, path: &str) -> bool {
    const READING: [&str; 4] = ["GET", "HEAD", "OPTIONS", "DELETE"];
    !READING.contains(&method) && UNREPORTED.iter().any(|end| ends_with(path, end))
}

/// Returns whether a request only counts tokens, however the server reads the path.
pub fn only_counts_tokens(path: &str) -> bool {
    let counts = |path: &str| COUNTING.iter().any(|end| has_end(path, end));
    counts(path) && counts(&remove_parameters(path))
}

/// Returns whether a canonical path may have this end for a server: some ignore the parameters of segments.
fn ends_with(path: &str, end: &str) -> bool {
    has_end(path, end) || path.contains(';') && has_end(&remove_parameters(path), end)
}

/// Returns whether a path has this end. Servers may ignore the case of a path and a slash at its end.
fn has_end(path: &str, end: &str) -> bool {
    let path = path.trim_end_matches('/').as_bytes();
    let start = path.len().checked_sub(end.len());
    start.is_some_and(|start| path[start..].eq_ignore_ascii_case(end.as_bytes()))
}

/// Returns a path without the parameters of its segments, such as `;v=1`.
fn remove_parameters(path: &str) -> Cow<'_, str> {
    if !path.contains(';') {
        return path.into();
    }
    let segments: Vec<&str> = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default()).collect();
    segments.join("/").into()
}

impl LlmApi {
    /// Finds the operation by a canonical path.
    pub fn find(path: &str) -> Option<LlmApi> {
        APIS.iter().find(|(end, ..)| ends_with(path, end)).map(|(_, api, _)| *api)
    }

    /// Returns whether the operation may read the largest output there. Members that no known API has may be of the
    /// server at hand.
    pub fn may_announce(self, source: &Source) -> bool {
        let Some(pointer) = pointer_of(source) else { return true };
        let mut apis = APIS.iter().filter(|(_, _, members)| members.contains(&pointer.text())).peekable();
        apis.peek().is_none() || apis.any(|(_, api, _)| *api == self)
    }

    /// Returns whether no single API reads all of these members. Of a request with an unknown path, the server then
    /// reads some of them and ignores others.
    pub fn is_mixture(sources: &[Source]) -> bool {
        !APIS.iter().any(|(_, api, _)| sources.iter().all(|source| api.may_announce(source)))
    }

    /// Returns whether the operation can continue in the background.
    pub fn has_background(self) -> bool {
        matches!(self, LlmApi::Responses | LlmApi::Interactions | LlmApi::Runs)
    }

    /// Returns whether a request asks for that, so that the client looks later whether it is complete.
    /// `states`: whether a member of the body may be true.
    pub fn may_be_in_background(self, states: impl Fn(&str) -> bool) -> bool {
        match self {
            LlmApi::Responses | LlmApi::Interactions => states("background"),
            // A stream that the client leaves does not end the run.
            LlmApi::Runs => true,
            _ => false,
        }
    }

    /// Returns whether a request asks for a part of the response, or for another form of it, so that the usage may be
    /// missing.
    pub fn may_omit_usage(self, query: Option<&str>, headers: &HeaderMap) -> bool {
        let is_filter = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = percent_decode_str(name).decode_utf8_lossy().to_ascii_lowercase();
            match name.trim_start_matches('$') {
                "fields" | "callback" => true,
                "alt" => !matches!(value, "json" | "sse"),
                _ => false,
            }
        };
        let has_filter = || query.is_some_and(|query| query.split('&').any(is_filter));
        let is_of_google = matches!(self, LlmApi::Gemini | LlmApi::Interactions);
        is_of_google && (headers.contains_key("x-goog-fieldmask") || has_filter())
    }

    /// Returns whether a stream reports its usage only if the request asks for it.
    pub fn needs_include_usage(self) -> bool {
        matches!(self, LlmApi::ChatCompletions | LlmApi::Completions)
    }
}

fn pointer_of(source: &Source) -> Option<&JsonPointer> {
    match source {
        Source::Json(pointer) => Some(pointer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiting::source::SourceKind;

    fn sources(pointers: &[&str]) -> Vec<Source> {
        let parse = |pointer: &&str| Source::parse(&format!("json:{pointer}"), SourceKind::ALL).unwrap().unwrap();
        pointers.iter().map(parse).collect()
    }

    #[test]
    fn an_operation_is_found_by_its_path() {
        for (path, api) in [
            ("/v1/chat/completions", Some(LlmApi::ChatCompletions)),
            ("/openai/deployments/x/Chat/Completions/", Some(LlmApi::ChatCompletions)),
            ("/v1/completions", Some(LlmApi::Completions)),
            ("/v1/responses", Some(LlmApi::Responses)),
            ("/v1/responses/resp_1", None),
            ("/v1/messages", Some(LlmApi::Messages)),
            ("/v1/messages/count_tokens", None),
            ("/v1beta/models/gemini:streamGenerateContent", Some(LlmApi::Gemini)),
            ("/model/nova/converse", Some(LlmApi::Converse)),
            ("/api/chat", Some(LlmApi::Ollama)),
            ("/v1/threads/t1/runs", Some(LlmApi::Runs)),
            ("/v1/threads/t1/runs/r1", None),
            ("/v1/chat/completions;v=2", Some(LlmApi::ChatCompletions)),
            ("/v1/chat;v=2/completions", Some(LlmApi::ChatCompletions)),
            ("/v1/threads/t1/runs/r1/submit_tool_outputs", Some(LlmApi::Runs)),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(LlmApi::find(path), api, "{path}");
        }
    }

    #[test]
    fn unreported_work_is_found_by_its_path() {
        for (method, path, is_unreported) in [
            ("POST", "/v1/batches", true),
            ("POST", "/V1/Messages/Batches/", true),
            ("PUT", "/v1/batch/jobs", true),
            ("POST", "/v1beta/models/gemini:batchGenerateContent", true),
            ("GET", "/v1/batches", false),
            ("GET", "/v1/messages/batches/b1/results", false),
            ("POST", "/v1/batches/b1/cancel", false),
            ("POST", "/v1/chat/completions", false),
            ("POST", "/v1/batches;x=1", true),
            ("POST", "/v1/batches;x=1;y/", true),
            ("POST", "/v1;x=1/batches", true),
            ("POST", "/v1/files;/batches", true),
            ("POST", "/v1/files;a=batches", false),
            ("POST", "/v1/fine_tuning;x/jobs", true),
            ("POST", "/v1/realtime;x=1/client_secrets;y", true),
            ("POST", "/models/a;b:batchGenerateContent", true),
            ("POST", "/v1/realtime/client_secrets", true),
            ("POST", "/v1/realtime/calls", true),
            ("POST", "/async-invoke", true),
            ("POST", "/v1/fine_tuning/jobs", true),
            ("POST", "/v1/fine_tuning/jobs/j1/cancel", false),
        ] {
            assert_eq!(starts_unreported_work(method, path), is_unreported, "{method} {path}");
        }
        for (path, counts) in [
            ("/v1/messages/count_tokens", true),
            ("/v1/responses/input_tokens/", true),
            ("/v1beta/models/gemini:countTokens", true),
            ("/model/nova/count-tokens", true),
            ("/v1/messages", false),
            ("/v1/input_tokens", false),
            ("/v1/messages;/count_tokens", true),
            ("/models/a;b:countTokens", false),
        ] {
            assert_eq!(only_counts_tokens(path), counts, "{path}");
        }
    }

    #[test]
    fn only_members_of_the_api_announce() {
        let listed = sources(&["/max_tokens", "/max_completion_tokens", "/max_output_tokens", "/meta/most"]);
        let of = |api: LlmApi| listed.iter().map(|source| api.may_announce(source)).collect::<Vec<_>>();
        assert_eq!(of(LlmApi::ChatCompletions), [true, true, false, true]);
        assert_eq!(of(LlmApi::Completions), [true, false, false, true]);
        assert_eq!(of(LlmApi::Responses), [false, false, true, true]);
        assert_eq!(of(LlmApi::Gemini), [false, false, false, true]);
        assert!(LlmApi::is_mixture(&listed) && !LlmApi::is_mixture(&listed[..2]) && !LlmApi::is_mixture(&[]));
    }
}
