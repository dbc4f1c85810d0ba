//! `sluicegate import`: writes the config of another proxy as one of Sluicegate, on standard output. Called by the
//! command line.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::cli::report::{report_bad_config, report_error, report_note};
use crate::cli::{BAD_CONFIG, RUNTIME};
use crate::{config, import};

/// Some of the input could not be translated.
const INCOMPLETE: u8 = 3;

pub const HELP: &str = "\
The config goes to standard output. What cannot be translated becomes a numbered comment at its top.
A route that would lose its protection answers 501 until you replace it.

Exit codes: 0 all translated, 1 failed, 2 a file cannot be read or parsed, 3 the config has numbered comments.

Examples:
  sluicegate import nginx /etc/nginx/nginx.conf > sluicegate.toml
  kubectl get ingress,service,configmap -A -o yaml | sluicegate import ingress-nginx - > sluicegate.toml
  sluicegate import ratelimit config/*.yaml > sluicegate.toml";

#[derive(Args)]
pub struct ImportOptions {
    /// The proxy that the files configure
    #[arg(value_name = "FORMAT")]
    from: Format,
    /// The files; - is standard input
    #[arg(required = true, value_name = "FILES")]
    files: Vec<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    /// Configs of nginx; files that they include are read too
    Nginx,
    /// Kubernetes manifests with Ingresses for ingress-nginx, YAML or JSON
    IngressNginx,
    /// Configs of envoyproxy/ratelimit, YAML
    Ratelimit,
}

pub fn run_import(options: &ImportOptions) -> ExitCode {
    let result = match options.from {
        Format::Nginx => import::import_nginx(&options.files),
        Format::IngressNginx => import::import_ingress_nginx(&options.files),
        Format::Ratelimit => import::import_ratelimit(&options.files),
    };
    let output = match result {
        Ok(output) => output,
        Err(error) => {
            report_error(error);
            return ExitCode::from(BAD_CONFIG);
        }
    };
    if let Err(error) = std::io::stdout().write_all(output.text.as_bytes())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        report_error(format_args!("cannot write the config: {error}"));
        return ExitCode::from(RUNTIME);
    }
    if let Err(report) = config::load_text("standard output", &output.text) {
        report_bad_config(&report);
        report_error("the imported config does not load yet; correct what is listed above");
        return ExitCode::from(RUNTIME);
    }
    match output.remarks {
        0 => ExitCode::SUCCESS,
        1 => {
            report_note("1 item was not translated; see the numbered comment in the config");
            ExitCode::from(INCOMPLETE)
        }
        many => {
            report_note(format_args!("{many} items were not translated; see the numbered comments in the config"));
            ExitCode::from(INCOMPLETE)
        }
    }
}
