//! `sluicegate explain`: says what happens to one request and why, from a config alone or by a running gateway.

use std::fs::File;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::cli::check::ReportFormat;
use crate::cli::gateway::GatewayOptions;
use crate::cli::report::{report_bad_config, report_error};
use crate::cli::{BAD_CONFIG, RUNTIME};
use crate::config::{self, Config};
use crate::explain::text::render_explanation;
use crate::explain::{
    BODY_MAX, DescriptorInput, ExplainInput, Explanation, RateLimitInput, RequestDecision, explain_offline,
    explain_rate_limit_offline,
};

/// Exit code of a request that is refused.
const REFUSED: u8 = 3;
/// Exit code of a request that no route matches.
const NO_ROUTE: u8 = 4;
const TIMEOUT: Duration = Duration::from_secs(10);

pub const HELP: &str = "\
Examples:
  sluicegate explain -c sluicegate.toml GET https://api.example.com/v1/items -H 'x-api-key: a' --from 192.0.2.7
  sluicegate explain -c sluicegate.toml GET https://api.example.com/v1/items --admin http://127.0.0.1:9900
  sluicegate explain -c sluicegate.toml GET https://api.example.com/v1/items --ext-authz api
  sluicegate explain -c sluicegate.toml --rls edge path=/login remote_address=192.0.2.7 + user=anna --hits 2

With --admin, the gateway with that admin listener explains it, which knows the live state of its limits.
Nothing is sent to any upstream server, and no limit is charged. Exit code: 0 the request passes, 3 it is refused,
4 no route matches, 2 invalid usage or config, 1 the gateway did not respond.";

#[derive(Args)]
pub struct ExplainOptions {
    #[command(flatten)]
    gateway: GatewayOptions,
    /// METHOD and URL: http://HOST/PATH or https://HOST/PATH, as a client writes it. With --rls, the entries of a
    /// descriptor as KEY=VALUE; + begins another descriptor
    #[arg(value_name = "REQUEST", required = true)]
    request: Vec<String>,
    /// Explain a rate limit request of Envoy in this domain
    #[arg(long, value_name = "DOMAIN", conflicts_with_all = ["headers", "from", "body", "cert_subject", "user", "ext_authz"])]
    rls: Option<String>,
    /// Hits of each descriptor; 0 looks, and a negative number refunds [default: 1]
    #[arg(long, value_name = "N", requires = "rls", allow_negative_numbers = true)]
    hits: Option<i64>,
    /// Envoy asks about the request (ext_authz), and names this [decide.NAME] or route
    #[arg(long, value_name = "NAME", conflicts_with_all = ["body", "cert_subject", "user"])]
    ext_authz: Option<String>,
    /// Header, as 'NAME: VALUE'; can be repeated
    #[arg(short = 'H', long = "header", value_name = "HEADER", value_parser = parse_header)]
    headers: Vec<(String, String)>,
    /// Address of the client or proxy that connects [default: 127.0.0.1]
    #[arg(long, value_name = "IP")]
    from: Option<IpAddr>,
    /// File with the request body
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
    /// Subject of the client's certificate, such as 'CN=app,O=Example'
    #[arg(long, value_name = "DN")]
    cert_subject: Option<String>,
    /// Identity that an auth server would state
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Time of the request, such as 2026-11-30T09:00:00Z or 2026-11-30T10:00:00+01:00 [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "admin")]
    at: Option<i64>,
    /// Format of the explanation
    #[arg(long, default_value = "text")]
    format: ReportFormat,
}

/// The request that the command explains.
enum ExplainTopic {
    Request(Box<ExplainInput>),
    RateLimit(RateLimitInput),
}

pub fn run_explain(options: &ExplainOptions) -> ExitCode {
    let topic = match read_topic(options) {
        Ok(topic) => topic,
        Err(why) => return report_usage(&why),
    };
    let result = match &options.gateway.admin {
        Some(_) => ask_gateway(&options.gateway, &topic.to_json()),
        None => match config::load_config(&options.gateway.config.config) {
            Ok(config) => topic.explain_offline(&config, options.at).map_err(|why| (BAD_CONFIG, why)),
            Err(report) => return report_bad_config(&report),
        },
    };
    let explanation = match result {
        Ok(explanation) => explanation,
        Err((code, why)) => {
            report_error(why);
            return ExitCode::from(code);
        }
    };
    let answer = match options.format {
        ReportFormat::Text => render_explanation(&explanation),
        ReportFormat::Json => match serde_json::to_string_pretty(&explanation) {
            Ok(text) => format!("{text}\n"),
            Err(error) => return report_usage(&error.to_string()),
        },
    };
    // The reader may have closed the pipe.
    let _ = std::io::stdout().write_all(answer.as_bytes());
    exit_code(&explanation)
}

fn exit_code(explanation: &Explanation) -> ExitCode {
    let is = |decisions: &[RequestDecision]| {
        decisions.iter().any(|decision| decision.label() == explanation.verdict.decision)
    };
    if is(&[RequestDecision::Admit, RequestDecision::Delay, RequestDecision::Bypass]) {
        ExitCode::SUCCESS
    } else if is(&[RequestDecision::NoRoute]) {
        ExitCode::from(NO_ROUTE)
    } else {
        ExitCode::from(REFUSED)
    }
}

fn report_usage(why: &str) -> ExitCode {
    report_error(why);
    ExitCode::from(BAD_CONFIG)
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Parses a time in ms since 1970.
fn parse_time(text: &str) -> Result<i64, String> {
    let time = text.parse::<jiff::Timestamp>();
    time.map(jiff::Timestamp::as_millisecond)
        .map_err(|_| "write a time with its offset: 2026-11-30T09:00:00Z".to_owned())
}

impl ExplainTopic {
    /// Returns the body of `POST /-/explain`.
    fn to_json(&self) -> Value {
        match self {
            ExplainTopic::Request(input) => input.to_json(),
            ExplainTopic::RateLimit(input) => input.to_json(),
        }
    }

    fn explain_offline(&self, config: &Config, at_ms: Option<i64>) -> Result<Explanation, String> {
        match self {
            ExplainTopic::Request(input) => explain_offline(input, config, at_ms),
            ExplainTopic::RateLimit(input) => explain_rate_limit_offline(input, config, at_ms),
        }
    }
}

fn read_topic(options: &ExplainOptions) -> Result<ExplainTopic, String> {
    match &options.rls {
        Some(domain) => {
            let hits = options.hits.unwrap_or(1);
            let descriptors = options.request.split(|word| word == "+").map(|words| parse_descriptor(words, hits));
            let descriptors = descriptors.collect::<Result<_, _>>()?;
            Ok(ExplainTopic::RateLimit(RateLimitInput { domain: domain.clone(), descriptors }))
        }
        None => read_input(options).map(|input| ExplainTopic::Request(Box::new(input))),
    }
}

fn parse_descriptor(words: &[String], hits: i64) -> Result<DescriptorInput, String> {
    if words.is_empty() {
        return Err("a descriptor has no entries; write KEY=VALUE ..., and + only between descriptors".to_owned());
    }
    let entry = |word: &String| match word.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(format!("`{word}` is not an entry of a descriptor; write KEY=VALUE")),
    };
    Ok(DescriptorInput { entries: words.iter().map(entry).collect::<Result<_, _>>()?, hits })
}

fn read_input(options: &ExplainOptions) -> Result<ExplainInput, String> {
    let [method, url] = options.request.as_slice() else {
        return Err("write a method and a URL, such as GET http://HOST/PATH, or --rls DOMAIN and entries".to_owned());
    };
    let input = ExplainInput {
        method: method.clone(),
        url: url.clone(),
        headers: options.headers.clone(),
        from: options.from,
        body: options.body.as_deref().map(read_body).transpose()?,
        certificate_subject: options.cert_subject.clone(),
        user: options.user.clone(),
        ext_authz: options.ext_authz.clone(),
    };
    input.to_head().map(|_| input)
}

fn read_body(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error| format!("cannot read {}: {error}", path.display());
    let mut body = Vec::new();
    let limit = u64::try_from(BODY_MAX).unwrap_or(u64::MAX) + 1;
    // Before it is opened: that would wait for the other end of a pipe.
    if !path.metadata().map_err(unreadable)?.is_file() {
        return Err(format!("{} is not a regular file; write the body to one", path.display()));
    }
    File::open(path).map_err(unreadable)?.take(limit).read_to_end(&mut body).map_err(unreadable)?;
    if body.len() > BODY_MAX {
        let help = "leave --body out, and state its length with -H 'content-length: N'";
        return Err(format!("{} has more than {BODY_MAX} bytes; {help}", path.display()));
    }
    Ok(body)
}

/// Lets a running gateway, which knows the live state of limits, explain the request. An error is an exit code and a
/// message.
fn ask_gateway(options: &GatewayOptions, body: &Value) -> Result<Explanation, (u8, String)> {
    let gateway = options.find_gateway().map_err(|why| (BAD_CONFIG, why))?;
    let reply = gateway
        .send_within(TIMEOUT, ("POST", "/-/explain"), None, &body.to_string())
        .map_err(|error| (RUNTIME, gateway.describe_failure(&error)))?;
    if reply.status != 200 {
        let code = if reply.status == 422 { BAD_CONFIG } else { RUNTIME };
        return Err((code, gateway.describe_refusal(reply.status, &reply.body, "keys")));
    }
    serde_json::from_str(&reply.body)
        .map_err(|error| (RUNTIME, format!("{} gave no explanation; is its version the same? {error}", gateway.listen)))
}
