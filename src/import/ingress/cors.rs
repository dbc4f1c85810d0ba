//! Translates the CORS annotations of an Ingress.

use crate::import::text::{format_array, format_list};
use crate::text::quote_literal;

/// The longest time that browsers remember a preflight, in seconds.
const MAX_AGE_MAX: u64 = 86_400;
const DEFAULT_HEADERS: &str =
    "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization";

/// The CORS annotations of an Ingress, with the defaults of ingress-nginx.
pub struct CorsAnnotations {
    is_enabled: bool,
    origins: String,
    methods: String,
    headers: String,
    expose: String,
    credentials: bool,
    max_age: u64,
}

impl Default for CorsAnnotations {
    fn default() -> Self {
        CorsAnnotations {
            is_enabled: false,
            origins: "*".to_owned(),
            methods: "GET, PUT, POST, DELETE, PATCH, OPTIONS".to_owned(),
            headers: DEFAULT_HEADERS.to_owned(),
            expose: String::new(),
            credentials: true,
            max_age: 1_728_000,
        }
    }
}

impl CorsAnnotations {
    /// Reads an annotation about CORS. Returns false for every other annotation.
    pub fn read_annotation(&mut self, key: &str, value: &str) -> bool {
        match key {
            "enable-cors" => self.is_enabled = value == "true",
            "cors-allow-origin" => value.clone_into(&mut self.origins),
            "cors-allow-methods" => value.clone_into(&mut self.methods),
            "cors-allow-headers" => value.clone_into(&mut self.headers),
            "cors-expose-headers" => value.clone_into(&mut self.expose),
            "cors-allow-credentials" => self.credentials = value == "true",
            "cors-max-age" => self.max_age = value.parse().unwrap_or(self.max_age),
            _ => return false,
        }
        true
    }

    /// Formats `cors` of the routes. Returns `None` without `enable-cors`, and an error if a route cannot have these values.
    pub fn format_option(&self) -> Result<Option<String>, String> {
        if !self.is_enabled {
            return Ok(None);
        }
        let refuse = |what: &str, text: &str| format!("left out: `{text}` is no {what} of `cors`");
        let origins =
            list(&self.origins).map(|origin| translate_origin(origin).ok_or_else(|| refuse("origin", origin)));
        let origins: Vec<String> = origins.collect::<Result<_, String>>()?;
        let names = |text: &str, what: &str| {
            let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
            match list(text).find(|name| *name != "*" && !is_name(name)) {
                Some(wrong) => Err(refuse(what, wrong)),
                None if list(text).any(|name| name == "*") => Ok(quote_literal("*")),
                None => Ok(format_list(&list(text).map(str::to_owned).collect::<Vec<_>>())),
            }
        };
        let mut parts = vec![
            format!("origins = {}", format_array(&origins)),
            format!("methods = {}", names(&self.methods.to_ascii_uppercase(), "method")?),
            format!("headers = {}", names(&self.headers, "header")?),
        ];
        if list(&self.expose).next().is_some() {
            parts.push(format!("expose = {}", names(&self.expose, "header")?));
        }
        // Browsers send no cookies to a server that answers every origin with `*`.
        if self.credentials && !origins.iter().any(|origin| origin == "*") {
            parts.push("credentials = true".to_owned());
        }
        parts.push(format!("max_age = \"{}s\"", self.max_age.min(MAX_AGE_MAX)));
        Ok(Some(format!("cors = {{ {} }}", parts.join(", "))))
    }
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Translates an origin. A `*` stands for one label, unlike in `cors`.
fn translate_origin(origin: &str) -> Option<String> {
    if origin == "*" {
        return Some(origin.to_owned());
    }
    let (scheme, authority) = origin.split_once("://")?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:*".contains(&byte);
    let is_valid = matches!(scheme, "http" | "https") && !authority.is_empty() && authority.bytes().all(fits);
    match authority.matches('*').count() {
        _ if !is_valid => None,
        0 => Some(origin.to_owned()),
        // Without a literal part, every origin would match.
        1 if authority.split('.').skip(1).any(|label| !label.is_empty() && !label.contains('*')) => {
            let authority = regex::escape(authority).replace("\\*", "[a-z0-9-]+");
            Some(format!("~ {scheme}://{authority}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_become_an_option() {
        let format = |values: &[(&str, &str)]| {
            let mut cors = CorsAnnotations::default();
            values.iter().for_each(|(key, value)| assert!(cors.read_annotation(key, value), "{key}"));
            cors.format_option()
        };
        assert_eq!(format(&[("cors-allow-origin", "https://a.test")]), Ok(None));
        let found = format(&[
            ("enable-cors", "true"),
            ("cors-allow-origin", "https://a.test, https://*.b.test:8443"),
            ("cors-allow-methods", "PUT, get"),
            ("cors-allow-headers", "*"),
            ("cors-expose-headers", "X-One"),
            ("cors-max-age", "600"),
        ]);
        let expected = "cors = { origins = [\"https://a.test\", '~ https://[a-z0-9-]+\\.b\\.test:8443'], methods = [\"PUT\", \"GET\"], \
                        headers = \"*\", expose = \"X-One\", credentials = true, max_age = \"600s\" }";
        let found = found.unwrap().unwrap();
        assert_eq!(found.replace("\\\\", "\\").replace('\'', "\""), expected.replace('\'', "\""));
        let every = format(&[("enable-cors", "true")]).unwrap().unwrap();
        assert!(every.contains("origins = [\"*\"]") && !every.contains("credentials"), "{every}");
        for origin in ["a.test", "https://*", "https://*.", "https://a.test/x", "ftp://a.test", "https://*.*.a.test"] {
            assert!(format(&[("enable-cors", "true"), ("cors-allow-origin", origin)]).is_err(), "{origin}");
        }
    }
}
