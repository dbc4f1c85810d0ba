//! Translates `access_log` and `log_format` to `access_log` of `[server]`.

use std::path::Path;

use crate::import::model::ImportedConfig;
use crate::import::syntax::{Directive, shorten};
use crate::text::quote_literal;

/// Keeps the access log. The gateway has only one, so the log of `http` counts, or of the first server that has one.
pub fn translate_access_log(http: &[Directive], out: &mut ImportedConfig) {
    let in_server = http.iter().filter(|at| at.name == "server").flat_map(Directive::inner);
    let in_location = in_server.clone().filter(|at| at.name == "location").flat_map(Directive::inner);
    let own = http.iter().chain(in_server.clone());
    let mut first: Option<&Directive> = None;
    for directive in own.filter(|at| at.name == "access_log") {
        match first {
            None => first = Some(directive),
            Some(first) if first.args == directive.args => {}
            Some(_) => drop(out.remarks.add(directive, "left out: the gateway has one access log for all servers")),
        }
    }
    for directive in in_location.filter(|at| at.name == "access_log") {
        if first.is_none_or(|first| first.args != directive.args) {
            out.remarks.add(directive, "left out: the gateway has one access log for all routes");
        }
    }
    let Some(directive) = first else { return };
    let path = directive.arg(0);
    if path == "off" || path == "/dev/null" {
        return;
    }
    if directive.args.iter().any(|arg| arg.starts_with("if=")) {
        out.remarks.add(directive, "`if` is not available, so all requests are logged");
    }
    let to = match path {
        "/dev/stdout" | "/proc/self/fd/1" => "stdout",
        path if Path::new(path).is_absolute() && !path.contains('$') => path,
        _ => {
            out.remarks.add(directive, "left out: write access_log = { to = \"FILE\" } with an absolute path");
            return;
        }
    };
    let folder = Path::new(to).parent().filter(|folder| to != "stdout" && !folder.is_dir());
    if let Some(folder) = folder {
        let folder = shorten(&folder.display().to_string());
        let why = format!(
            "left out: there is no folder {folder} on this machine; create it, and write access_log to [server]"
        );
        out.remarks.add(directive, &why);
        return;
    }
    let format = directive.args.get(1).filter(|name| !name.contains('=')).map_or("combined", String::as_str);
    let log_format = http.iter().find(|at| at.name == "log_format" && at.arg(0) == format);
    let is_combined =
        format == "combined" || log_format.is_some_and(|log_format| is_combined(&log_format.args[1..].concat()));
    if !is_combined {
        out.remarks.add(
            log_format.unwrap_or(directive),
            "the log has the format `combined` instead; see `format` of access_log",
        );
    }
    out.server.push(format!("access_log = {{ format = \"combined\", to = {} }}", quote_literal(to)));
}

/// Returns whether a format is nginx's `combined`, without quotes around it.
fn is_combined(text: &str) -> bool {
    const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
                            \"$http_referer\" \"$http_user_agent\"";
    text.strip_prefix("escape=default").unwrap_or(text) == COMBINED
}
