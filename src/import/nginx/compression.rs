//! Translates `gzip`, `gzip_types`, `gzip_min_length` and `gzip_proxied` to `compress`.

use crate::import::error::Result;
use crate::import::model::ImportedConfig;
use crate::import::nginx::scope::Scope;
use crate::import::nginx::sizes::translate_size;
use crate::import::text::format_array;

/// Returns the `compress` of a block, or `None` if nginx does not compress there.
pub fn translate_gzip(scope: &Scope, out: &mut ImportedConfig) -> Result<Option<String>> {
    if !scope.is_on("gzip") {
        return Ok(None);
    }
    if let Some(directive) = scope.get("gzip").filter(|_| !scope.is_on("gzip_vary")) {
        out.remarks.add(directive, "compressed responses have `Vary: Accept-Encoding`, as with `gzip_vary on`");
    }
    let gzip_proxied = scope.get("gzip_proxied");
    if let Some(directive) =
        gzip_proxied.or(scope.get("gzip")).filter(|_| gzip_proxied.is_none_or(|at| at.arg(0) != "any"))
    {
        out.remarks.add(directive, "responses to requests with `Via` are compressed, too, as with `gzip_proxied any`");
    }
    // nginx always compresses this type.
    let mut types = vec!["text/html".to_owned()];
    if let Some(directive) = scope.get("gzip_types") {
        for arg in &directive.args {
            let name = arg.to_ascii_lowercase();
            if name == "*" {
                types = vec!["*/*".to_owned()];
                break;
            }
            match is_media_type(&name) {
                true if types.contains(&name) || name.starts_with("application/grpc") => {}
                true => types.push(name),
                false => {
                    out.remarks.add(directive, "one of these is not a media type, so it is left out");
                }
            }
        }
    }
    let min_size = match scope.get("gzip_min_length") {
        Some(directive) if matches!(directive.arg(0), "0" | "0k" | "0m") => "0".to_owned(),
        Some(directive) => translate_size(directive)?,
        None => "20".to_owned(),
    };
    let types = format_array(&types);
    Ok(Some(format!("compress = {{ types = {types}, min_size = {min_size}, algorithms = [\"gzip\"] }}")))
}

fn is_media_type(text: &str) -> bool {
    let is_token = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-+._".contains(&byte))
    };
    text.split_once('/').is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype))
}
