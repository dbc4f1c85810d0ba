//! `sluicegate replay`: reports what the limits of a config would have done to the requests of access logs.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::cli::check::ReportFormat;
use crate::cli::report::{is_json, report_bad_config, report_error};
use crate::cli::{BAD_CONFIG, ConfigFile, RUNTIME};
use crate::config::find_closest;
use crate::limiting::algorithm::{SPECS, Spec};
use crate::replay::ReplayRequest;
use crate::replay::report::plot::draw_outcome;
use crate::{config, replay};

const HELP: &str = "\
Logs: the common and combined formats of nginx and Apache, also with the virtual host in front, and with nginx's
$request_time and $msec at the end, or [$msec] for the time. JSON lines of Sluicegate, Caddy, Traefik and nginx
(escape=json). Logs of HAProxy (httplog), Nginx Proxy Manager, AWS load balancers and CloudFront. The gateway
recognizes the format by the start of each line. Logs may be compressed with gzip. Several logs are merged by
time.

Not in the log: most logs contain no cookies, tokens, certificates or bodies, and *** in place of some query
values. Of the headers, most contain only User-Agent and Referer; the common format and HAProxy contain none,
Caddy all, Traefik and nginx those in their JSON. If a limit reads such a value, in its key or in `when`, it is
not evaluated for these requests, and neither are limits before or `after` it. A request counts as \"not
evaluated\" unless another limit refuses it. If a log has no host, see --host.

Time: limits decide when a request starts. Our own log has start and duration. nginx logs the end, so the start
is $request_time earlier, or the same without it. Apache logs the start. Lines that are up to 1 min out of order
are sorted by their starts; later ones count at the time reached. If a log has whole seconds, all requests of
one second count as simultaneous, so fewer would be refused live.

Precision: to replay limits on requests in progress (concurrency), a log needs starts and ends in milliseconds,
as in our own log, or with $msec and $request_time of nginx. With whole seconds, such a limit does not see
requests that took less than a second. If these are more than a tenth, it is not judged.

End: when a request ends, charge_on and refund_on refund its charge by the logged status (499: the client
disconnected), and its slot of a concurrency limit is released. Without durations, requests end at once. A
charge stays if the log does not have what decides about it: settle, and connect_error. A request that waits in
the queue of a leaky_bucket ends as much later. max_delayed is not applied.

Tightest numbers: the smallest with which a limit would have refused nobody, if it were the only limit of its
routes. Requests that other limits refused count too.
{numbers}Keys with overrides do not count for them.

Exit codes: 0 ok; 1 a log cannot be read, or the logs have no valid line, no request, none that a route matches, or
none that can be evaluated; 2 bad config or usage.";

fn replay_help() -> String {
    let mut numbers: Vec<(&str, Vec<&str>)> = Vec::new();
    for Spec { name, number, .. } in SPECS {
        match numbers.iter_mut().find(|(words, _)| *words == number.words) {
            Some((_, names)) => names.push(name),
            None => numbers.push((number.words, vec![name])),
        }
    }
    let lines = numbers.iter().map(|(words, names)| format!("  {:<60}{words}\n", names.join(", ")));
    HELP.replace("{numbers}", &lines.collect::<String>())
}

#[derive(Args)]
#[command(after_help = replay_help())]
pub struct ReplayOptions {
    #[command(flatten)]
    config: ConfigFile,
    /// Access logs; - is standard input
    #[arg(required = true, value_name = "ACCESS_LOG")]
    logs: Vec<PathBuf>,
    /// Draw admitted and refused requests over time into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Write each request that was refused, delayed or not evaluated to this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    verdicts: Option<PathBuf>,
    /// Number of keys to list per limit, those with the most refusals
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1000))]
    top: u16,
    /// Report this limit only; by default all, and of more than 20 those that refused something
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Host of requests whose log line has none
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Format of the report
    #[arg(long, default_value = "text")]
    format: ReportFormat,
}

pub fn run_replay(args: &ReplayOptions) -> ExitCode {
    let config = match config::load_config(&args.config.config) {
        Ok(config) => config,
        Err(report) => return report_bad_config(&report),
    };
    let host = match args.host.as_deref().map(|host| replay::canonical_host(host.as_bytes())) {
        Some(None) => {
            report_error("--host: not a host name");
            return ExitCode::from(BAD_CONFIG);
        }
        other => other.flatten(),
    };
    if let Some(name) = &args.limit
        && config.limits.find(name).is_none()
    {
        let close = find_closest(name, config.limits.iter().map(|limit| limit.name.as_str()));
        let help = close.map(|close| format!("; did you mean `{close}`?")).unwrap_or_default();
        report_error(format_args!("--limit: there is no limit `{name}`{help}"));
        return ExitCode::from(BAD_CONFIG);
    }
    let options = ReplayRequest {
        top: usize::from(args.top),
        host,
        verdicts: args.verdicts.clone(),
        progress: std::io::stderr().is_terminal() && !is_json(),
    };
    let outcome = match replay::run_replay(&config, &args.logs, &options) {
        Ok(outcome) => outcome,
        Err(error) => {
            report_error(error);
            return ExitCode::from(RUNTIME);
        }
    };
    if let Some(path) = &args.plot
        && let Err(error) = std::fs::write(path, draw_outcome(&outcome))
    {
        report_error(format_args!("cannot write {}: {error}", path.display()));
        return ExitCode::from(RUNTIME);
    }
    let answer = match args.format {
        ReportFormat::Text => outcome.to_text(args.limit.as_deref()),
        ReportFormat::Json => format!("{}\n", outcome.to_json()),
    };
    // The reader may have closed the pipe.
    let _ = std::io::stdout().write_all(answer.as_bytes());
    match outcome.why_nothing_evaluated() {
        None => ExitCode::SUCCESS,
        Some(why) => {
            report_error(why);
            ExitCode::from(RUNTIME)
        }
    }
}
