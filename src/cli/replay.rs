//! `sluicegate replay`: reports what the limits of a config would have done to the requests of access logs.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::cli::check::ReportFormat;
use crate::cli::{BAD_CONFIG, ConfigFile, RUNTIME, report_bad_config};
use crate::config::find_closest;
use crate::limiting::algorithm::{SPECS, Spec};
use crate::replay::ReplayRequest;
use crate::replay::report::plot::draw_outcome;
use crate::{config, replay};

const HELP: &str = "\
Logs: the common and combined formats of nginx and Apache (also with the virtual host in front, nginx's
$request_time and $msec at the end, or [$msec] for the time); JSON lines of Sluicegate, Caddy, Traefik and nginx
(escape=json); and logs of HAProxy (httplog), Nginx Proxy Manager, AWS load balancers and CloudFront. The start of each
line says which it is. Plain or gzip. Several logs are merged by time.

Not in the log: most logs hold no header fields but User-Agent and Referer (the common format and HAProxy not even
these; Caddy logs all, Traefik and nginx those in their JSON), no cookies, tokens, certificates and bodies, and masked query values only as ***. A limit that reads one of these, in its key or in
`when`, is not evaluated for the requests that this concerns; so are limits before or `after` it. A request counts as
\"not evaluated\" unless another limit refuses it. A host counts as absent where a log has none; see --host.

Time: limits are asked when a request starts. Our own log tells start and duration. nginx logs at the end,
so with $request_time the start is that much earlier, without it start and end are one; Apache logs the
start, and its end is not known. Lines up to 1 min out of order are put in order by their starts; what
comes later counts at the time reached. Where a log has whole seconds the requests of one second count as
simultaneous: fewer would be refused live.

Precision: what runs at once (concurrency) is told only by starts and ends in milliseconds: our own log, or
nginx's $msec and $request_time. Requests that took less than a second are not shown to such a limit where
stamps are whole seconds; when they are more than a tenth it is not judged.

End: charges of charge_on and refund_on go back at the end of the request by its logged status (499: the
client left); what is in flight for a concurrency limit is given back then too, and a lease never runs out
before. Without durations requests end at once. Charges stay where the log cannot tell: settle, and
connect_error. A request that had to wait for its turn in the queue of a leaky_bucket ends as much later;
max_delayed is not applied.

Tightest numbers: the least with which a limit would have refused nobody, were it the only one of its routes:
requests that other limits refused count, too.
{numbers}Keys with numbers of their own (overrides) do not count for them.

Exit codes: 0 ok, 1 a log cannot be read, or the logs have no good line, no request, none that a route takes, or none
that can be evaluated, 2 bad config or usage.";

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
            eprintln!("error: --host: not a host name");
            return ExitCode::from(BAD_CONFIG);
        }
        other => other.flatten(),
    };
    if let Some(name) = &args.limit
        && config.limits.find(name).is_none()
    {
        let close = find_closest(name, config.limits.iter().map(|limit| limit.name.as_str()));
        let help = close.map(|close| format!("; did you mean `{close}`?")).unwrap_or_default();
        eprintln!("error: --limit: there is no limit `{name}`{help}");
        return ExitCode::from(BAD_CONFIG);
    }
    let options = ReplayRequest {
        top: usize::from(args.top),
        host,
        verdicts: args.verdicts.clone(),
        progress: std::io::stderr().is_terminal(),
    };
    let outcome = match replay::run_replay(&config, &args.logs, &options) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(RUNTIME);
        }
    };
    if let Some(path) = &args.plot
        && let Err(error) = std::fs::write(path, draw_outcome(&outcome))
    {
        eprintln!("error: cannot write {}: {error}", path.display());
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
            eprintln!("error: {why}");
            ExitCode::from(RUNTIME)
        }
    }
}
