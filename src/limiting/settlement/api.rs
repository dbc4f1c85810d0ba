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
    /// Chat of Cohere, which refuses members that it does not know.
    Cohere,
    /// A model of another maker on Vertex AI, in that maker's own format. Those of Anthropic and Mistral refuse members
    /// that they do not know, and always report their usage.
    RawPredict,
    /// An interaction with Gemini. Its usage is not read.
    Interactions,
    /// A run of an assistant or an agent over a thread that the server keeps.
    Runs,
}

/// The end of a path, the operation, and the members that announce its output.
type ApiRow = (&'static str, LlmApi, &'static [&'static str]);

/// The first row whose path fits counts.
const APIS: &[ApiRow] = &[
    ("/chat/completions", LlmApi::ChatCompletions, CHAT),
    ("/completions", LlmApi::Completions, &["/max_tokens"]),
    ("/responses", LlmApi::Responses, &["/max_output_tokens"]),
    ("/messages", LlmApi::Messages, &["/max_tokens"]),
    (":generatecontent", LlmApi::Gemini, GEMINI),
    (":streamgeneratecontent", LlmApi::Gemini, GEMINI),
    ("/converse", LlmApi::Converse, &["/inferenceConfig/maxTokens"]),
    ("/converse-stream", LlmApi::Converse, &["/inferenceConfig/maxTokens"]),
    ("/api/chat", LlmApi::Ollama, &["/options/num_predict"]),
    ("/api/generate", LlmApi::Ollama, &["/options/num_predict"]),
    ("/v2/chat", LlmApi::Cohere, &["/max_tokens"]),
    (":rawpredict", LlmApi::RawPredict, CHAT),
    (":streamrawpredict", LlmApi::RawPredict, CHAT),
    ("/interactions", LlmApi::Interactions, &["/generation_config/max_output_tokens"]),
    ("/runs", LlmApi::Runs, &["/max_completion_tokens"]),
    ("/submit_tool_outputs", LlmApi::Runs, &[]),
];
const CHAT: &[&str] = &["/max_tokens", "/max_completion_tokens"];
/// Both spellings of Protocol Buffers in JSON.
const GEMINI: &[&str] = &["/generationConfig/maxOutputTokens", "/generation_config/max_output_tokens"];

/// The ends of paths that start work whose cost is in no response to the request: a batch, a job, or a session that the
/// client has with another server.
const UNREPORTED: &[&str] = &[
    "/batches",
    "/batch/jobs",
    ":batchgeneratecontent",
    "/batchpredictionjobs",
    "/batchinferencejobs",
    "/model-invocation-job",
    "/model-customization-jobs",
    "/embed-jobs",
    ":predictlongrunning",
    "/predictions",
    "/trainings",
    "/videos",
    "/videos/generations",
    "/video/generations/jobs",
    "/generations/tasks",
    "/fine_tuning/jobs",
    "/fine-tuning/jobs",
    "/fine-tunes",
    "/finetuning/finetuned-models",
    "/supervisedfinetuningjobs",
    "/reinforcementfinetuningjobs",
    "/tuningjobs",
    "/tunedmodels",
    "/realtime/calls",
    "/realtime/client_secrets",
    "/realtime/sessions",
    "/realtime/transcription_sessions",
];

/// The ends of paths that count the tokens of a request and generate nothing.
const COUNTING: &[&str] = &["/count_tokens", "/count-tokens", "/responses/input_tokens", ":counttokens"];

/// Returns whether a request starts work whose cost no response to it reports.
pub fn starts_unreported_work(method: &str, path: &str, headers: &HeaderMap) -> bool {
    const READING: [&str; 4] = ["GET", "HEAD", "OPTIONS", "DELETE"];
    let starts = |path: &str| {
        UNREPORTED.iter().any(|end| has_end(path, end))
            || is_asynchronous(path)
            || adds_to_batch(path)
            || queues_job(path)
    };
    !READING.contains(&method) && (starts(path) || starts(&remove_parameters(path)) || prefers_asynchronous(headers))
}

/// Returns whether a path says that the server works on the request later: `/async/chat/completions`, `/async-invoke`,
/// `/text_async`, `:asyncBatchEmbedContent`.
fn is_asynchronous(path: &str) -> bool {
    const WORD: &[u8] = b"async";
    let path = path.trim_end_matches('/').as_bytes();
    let mut segments = path.split(|byte| *byte == b'/');
    let operation = segments.next_back().unwrap_or_default();
    let verb = operation.rsplit(|byte| *byte == b':').next().filter(|verb| verb.len() < operation.len());
    // The name before a verb may be that of a model.
    let mut words = verb.unwrap_or(operation).split(|byte| matches!(byte, b'-' | b'_'));
    let has_verb = verb.and_then(|verb| verb.get(..WORD.len())).is_some_and(|start| start.eq_ignore_ascii_case(WORD));
    has_verb || words.any(|word| word.eq_ignore_ascii_case(WORD)) || segments.any(|one| one.eq_ignore_ascii_case(WORD))
}

/// Returns whether a path adds requests to a batch: `/batches/ID/requests`.
fn adds_to_batch(path: &str) -> bool {
    let mut segments = path.trim_end_matches('/').rsplit('/');
    let is_requests = segments.next().is_some_and(|one| one.eq_ignore_ascii_case("requests"));
    is_requests && segments.nth(1).is_some_and(|one| one.eq_ignore_ascii_case("batches"))
}

/// Returns whether a path puts a job into a queue, as that of RunPod: `/v2/ENDPOINT/run`.
fn queues_job(path: &str) -> bool {
    let mut segments = path.trim_end_matches('/').rsplit('/');
    let is_run = segments.next().is_some_and(|one| one.eq_ignore_ascii_case("run"));
    is_run && segments.nth(1).is_some_and(|one| one.eq_ignore_ascii_case("v2"))
}

/// Returns whether the client asks for a response before the work is done (RFC 7240, section 4.1).
fn prefers_asynchronous(headers: &HeaderMap) -> bool {
    let preferences = headers.get_all("prefer").iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let names = preferences.map(|one| one.split(|byte| matches!(byte, b';' | b'=')).next().unwrap_or_default());
    let is_preferred = names.map(<[u8]>::trim_ascii).any(|name| name.eq_ignore_ascii_case(b"respond-async"));
    is_preferred
        || headers.get_all("x-dashscope-async").iter().any(|value| value.as_bytes().eq_ignore_ascii_case(b"enable"))
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
        matches!(self, LlmApi::ChatCompletions | LlmApi::Responses | LlmApi::Interactions | LlmApi::Runs)
    }

    /// Returns whether a request asks for that, so that the client looks later whether it is complete.
    /// `states`: whether a member of the body may be true.
    pub fn may_be_in_background(self, states: impl Fn(&str) -> bool) -> bool {
        match self {
            LlmApi::Responses | LlmApi::Interactions => states("background"),
            // Of xAI.
            LlmApi::ChatCompletions => states("deferred"),
            // The run continues if the client disconnects from its stream.
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
    use http::{HeaderName, HeaderValue};

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
            ("/v2/chat", Some(LlmApi::Cohere)),
            ("/v1/projects/p/publishers/anthropic/models/claude:streamRawPredict", Some(LlmApi::RawPredict)),
            ("/v1/projects/p/publishers/mistralai/models/m:rawPredict", Some(LlmApi::RawPredict)),
            ("/v1/chat", None),
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
            ("POST", "/async/chat/completions", true),
            ("POST", "/v1/Async/sonar", true),
            ("POST", "/v1/async;x=1/sonar", true),
            ("GET", "/async/chat/completions/r1", false),
            ("POST", "/endpoints/e1/async-invocations", true),
            ("POST", "/production/async_predict/", true),
            ("POST", "/v1/t2a_async_v2", true),
            ("POST", "/v1beta/models/gemini:asyncBatchEmbedContent", true),
            ("POST", "/v1/models/veo:predictLongRunning", true),
            ("POST", "/v1/asynchronous/chat/completions", false),
            ("POST", "/openai/deployments/async-gpt/chat/completions", false),
            ("POST", "/v1/batches/b1/requests", true),
            ("POST", "/v1/requests", false),
            ("POST", "/v1/predictions", true),
            ("POST", "/v1/models/o/m/predictions/", true),
            ("POST", "/v1/predictions/p1/cancel", false),
            ("GET", "/v1/predictions", false),
            ("POST", "/v2/e1/run", true),
            ("POST", "/V2/e1/Run;x=1/", true),
            ("POST", "/v2/e1/runsync", false),
            ("POST", "/v2/run", false),
            ("POST", "/v1/workflows/run", false),
            ("POST", "/openai/v1/video/generations/jobs", true),
            ("", "/", false),
            ("POST", "", false),
        ] {
            assert_eq!(starts_unreported_work(method, path, &HeaderMap::new()), is_unreported, "{method} {path}");
        }
        for (name, value, is_unreported) in [
            ("prefer", "respond-async", true),
            ("prefer", "wait=10, Respond-Async;x=1", true),
            ("prefer", "wait", false),
            ("prefer", "return=respond-async", false),
            ("x-dashscope-async", "Enable", true),
            ("x-dashscope-async", "disable", false),
        ] {
            let headers = HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
            let starts = |method: &str| starts_unreported_work(method, "/v1/chat/completions", &headers);
            assert_eq!((starts("POST"), starts("GET")), (is_unreported, false), "{name}: {value}");
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
