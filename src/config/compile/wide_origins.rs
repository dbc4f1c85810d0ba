//! Warns of `cors` with `credentials` whose patterns match origins of strangers. Their pages could act as each user
//! who visits them. Called by `cors`.

use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::Section;
use crate::config::schema::cors;
use crate::config::tree::Value;

/// Hosts below which everybody can get a name for pages.
const SHARED_HOSTS: [&str; 26] = [
    "amplifyapp.com",
    "appspot.com",
    "azurestaticapps.net",
    "azurewebsites.net",
    "blogspot.com",
    "cloudfront.net",
    "deno.dev",
    "firebaseapp.com",
    "fly.dev",
    "github.dev",
    "github.io",
    "gitlab.io",
    "glitch.me",
    "herokuapp.com",
    "netlify.app",
    "ngrok-free.app",
    "ngrok.io",
    "onrender.com",
    "pages.dev",
    "run.app",
    "s3.amazonaws.com",
    "surge.sh",
    "trycloudflare.com",
    "vercel.app",
    "web.app",
    "workers.dev",
];
/// Labels before a country code that belong to a registry, as in `co.uk`.
const REGISTRIES: [&str; 9] = ["ac", "co", "com", "edu", "gov", "ne", "net", "or", "org"];

/// Warns of each origin in the list that strangers can have.
pub fn warn_of_wide_origins(table: &Section) {
    let Some(node) = table.node(&cors::ORIGINS) else { return };
    let items = match &node.value {
        Value::Array(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    for item in items {
        let Value::String(origin) = &item.value else { continue };
        let Some((what, help)) = describe_strangers(&origin.value) else { continue };
        let what = format!("with `credentials`, {what} may act as the user who visits them: `{}`", origin.value);
        table.sources.add_warning(DiagnosticCode::WideOrigins, Diagnostic::new(item.place, what).with_help(help));
    }
}

/// Returns whose pages an origin or a pattern allows besides those of its owner, and what to write.
fn describe_strangers(origin: &str) -> Option<(&'static str, &'static str)> {
    if origin == "null" {
        let help = "leave it out: every page can open a frame whose origin is `null`";
        return Some(("pages of every site", help));
    }
    if let Some(pattern) = origin.strip_prefix('~') {
        return describe_expression(pattern.trim_start());
    }
    let (_, host) = origin.split_once("*.")?;
    let host = host.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let labels: Vec<&str> = host.split('.').collect();
    let is_registry = match labels[..] {
        [last] => last != "localhost",
        [name, country] => country.len() == 2 && REGISTRIES.contains(&name),
        _ => false,
    };
    (is_registry || SHARED_HOSTS.contains(&host.as_str())).then_some((
        "pages of everybody who has a name there",
        "name your own domain, such as \"https://*.example.com\"",
    ))
}

/// Finds a dot in a regular expression that matches more than a dot, where that changes who owns the host.
fn describe_expression(pattern: &str) -> Option<(&'static str, &'static str)> {
    let (mut rest, mut is_in_class) = (pattern, false);
    while let Some(first) = rest.chars().next() {
        let after = &rest[first.len_utf8()..];
        match first {
            '\\' => {
                rest = after.chars().next().map_or("", |escaped| &after[escaped.len_utf8()..]);
                continue;
            }
            '[' => is_in_class = true,
            ']' => is_in_class = false,
            '.' if !is_in_class => {
                let next = after.trim_start_matches(['*', '+', '?', ')']);
                let is_repeated = after.starts_with(['*', '+', '?', '{']);
                match is_repeated {
                    false => {
                        let help = "write `\\\\.` in double quotes, or `\\.` in single quotes, for a dot";
                        return Some(("pages of hosts with another character in place of a dot", help));
                    }
                    // The text after a dot is the complete name of the owner.
                    true if next.starts_with("\\.") => {}
                    true => {
                        let help = "write a dot between what may vary and your domain, as in \"~ https://[a-z]+\\\\.example\\\\.com\"";
                        return Some(("pages of hosts that begin or end in another way", help));
                    }
                }
            }
            _ => {}
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_that_strangers_can_have_are_found() {
        for origin in [
            "null",
            "*.com",
            "https://*.com",
            "*.co.uk",
            "https://*.com.au:8443",
            "*.GitHub.io",
            "https://*.vercel.app",
            "~ https://.*example\\.com",
            "~ https://[a-z]+.example\\.com",
            "~ https://app\\.example.com",
            "~ https://app\\.example\\.com.*",
            "~ .*\\.example\\.com|https://.+",
            "~ https://(.+)?example\\.com",
        ] {
            assert!(describe_strangers(origin).is_some(), "{origin}");
        }
        for origin in [
            "https://app.example.com",
            "*.example.com",
            "https://*.app.example.co.uk",
            "http://*.localhost",
            "~ https://[a-z]+\\.example\\.com",
            "~ https://.*\\.example\\.com",
            "~ https://(.+\\.)?example\\.com",
            "~ https://[a-z.]+\\.example\\.com(:[0-9]+)?",
            "~ http://localhost:[0-9]+",
        ] {
            assert!(describe_strangers(origin).is_none(), "{origin}");
        }
    }
}
