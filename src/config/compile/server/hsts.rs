//! Option `hsts` of a listener: the value of `Strict-Transport-Security` (RFC 6797). Called by `listener`.

use std::time::Duration;

use http::HeaderValue;

use crate::config::reader::Section;
use crate::config::schema::listener;
use crate::config::schema::row::ConfigOption;
use crate::config::tree::Value;
use crate::config::values::{TextFault, parse_duration};

const AGE_HELP: &str = "write \"1y\" or \"365d\", and \"0s\" to withdraw it";
const YEAR: Duration = Duration::from_secs(365 * 86_400);
/// Maximum of `max_age`. Longer values have no use.
const AGE_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Compiles `hsts`: a duration, or a table. `has_tls`: the listener speaks TLS; browsers ignore the header otherwise.
pub fn compile_hsts(section: &Section, has_tls: bool) -> Option<HeaderValue> {
    let node = section.node(&listener::HSTS)?;
    if !has_tls {
        let help = "set it on the [[listener]] with `tls`; redirect_http leads clients there";
        return section.report_fault(
            listener::HSTS.name,
            node,
            "the listener has no `tls`, and browsers ignore it on plain HTTP",
            help,
        );
    }
    match &node.value {
        Value::Table(_) => {}
        Value::String(_) => return format_header(read_age(section, &listener::HSTS)?, false, false),
        _ => return section.report_wrong_type(listener::HSTS.name, "a duration or a table", node),
    }
    let hsts = section.read_section(&listener::HSTS)?;
    let age = match hsts.node(&listener::hsts::MAX_AGE) {
        Some(_) => read_age(&hsts, &listener::hsts::MAX_AGE),
        None => hsts.report_missing("`hsts` has no `max_age`", "add max_age = \"1y\""),
    };
    let includes = hsts.get(&listener::hsts::INCLUDE_SUBDOMAINS);
    let preloads = hsts.get(&listener::hsts::PRELOAD);
    if let (Some(age), Some(node), true) = (age, hsts.node(&listener::hsts::PRELOAD), preloads)
        && (age < YEAR || !includes)
    {
        let what = "browsers preload only names with a max_age of a year or more and with include_subdomains";
        let help = "write hsts = { max_age = \"2y\", include_subdomains = true, preload = true }";
        return hsts.report_fault(listener::hsts::PRELOAD.name, node, what, help);
    }
    hsts.report_unread_keys();
    format_header(age?, includes, preloads)
}

/// Reads a duration up to ten years. It may be written in years.
fn read_age(section: &Section, option: &ConfigOption) -> Option<Duration> {
    section.parse_string(option, |text| {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let age = match text.split_at(digits) {
            (years, "y") if !years.is_empty() => years.parse::<u32>().ok().and_then(|years| YEAR.checked_mul(years)),
            _ => Some(parse_duration(text).map_err(|fault| TextFault { help: AGE_HELP.to_owned(), ..fault })?),
        };
        match age {
            Some(age) if age <= AGE_MAX && age.subsec_millis() == 0 => Ok(age),
            _ => Err(TextFault {
                what: format!("`{text}` is not a time from 0 s to 10 years, in whole seconds"),
                help: AGE_HELP.to_owned(),
            }),
        }
    })
}

fn format_header(age: Duration, includes_subdomains: bool, preloads: bool) -> Option<HeaderValue> {
    let mut text = format!("max-age={}", age.as_secs());
    text.push_str(if includes_subdomains { "; includeSubDomains" } else { "" });
    text.push_str(if preloads { "; preload" } else { "" });
    HeaderValue::try_from(text).ok()
}
