//! The headers by which a browser lets a page of another origin read a response (CORS), and responses to preflights.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::proxy::account::body::ResponseBody;
use crate::proxy::steps::response::preflight::Preflight;
use crate::proxy::words::known_headers::find_single;
use crate::route::cors::{CORS_HEADERS, CorsPolicy};

/// Builds the response to a preflight. A page of an origin that is not allowed learns nothing.
pub fn answer_preflight(preflight: &Preflight<'_>, request: &HeaderMap) -> Response<ResponseBody> {
    let policy = preflight.policy;
    let mut response = Response::new(ResponseBody::full(""));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    if write_origin(headers, policy, find_single(request, &ORIGIN)) {
        let request_header = |name: &HeaderName| find_single(request, name).cloned();
        let methods = policy.methods.clone().or_else(|| request_header(&ACCESS_CONTROL_REQUEST_METHOD));
        let names = policy.headers.clone().or_else(|| request_header(&ACCESS_CONTROL_REQUEST_HEADERS));
        let values = [(ACCESS_CONTROL_ALLOW_METHODS, methods), (ACCESS_CONTROL_ALLOW_HEADERS, names)];
        for (name, value) in values {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                headers.insert(name, value);
            }
        }
        headers.insert(ACCESS_CONTROL_MAX_AGE, policy.max_age.clone());
    }
    let vary = "access-control-request-method, access-control-request-headers";
    headers.append(VARY, HeaderValue::from_static(vary));
    response
}

/// Replaces the CORS headers of a response by those of the route. `origin` is the origin of the page, if the request
/// has one.
pub fn write_cors_headers(headers: &mut HeaderMap, policy: &CorsPolicy, origin: Option<&HeaderValue>) {
    for name in CORS_HEADERS {
        headers.remove(name);
    }
    if write_origin(headers, policy, origin) {
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, policy.exposed.clone());
    }
}

/// Says whether the page may read the response, and returns it. A cache must not give a page the answer to another
/// origin.
fn write_origin(headers: &mut HeaderMap, policy: &CorsPolicy, origin: Option<&HeaderValue>) -> bool {
    if policy.depends_on_origin() && !varies_by_origin(headers) {
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
    let Some(allowed) = policy.allow_origin(origin) else { return false };
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
    if policy.credentials {
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
    true
}

/// Returns whether `Vary` of a response has `Origin` already.
fn varies_by_origin(headers: &HeaderMap) -> bool {
    let names = headers.get_all(VARY).iter().filter_map(|line| line.to_str().ok());
    names
        .flat_map(|line| line.split(','))
        .any(|name| matches!(name.trim(), "*") || name.trim().eq_ignore_ascii_case("origin"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::cors::{AllowedOrigins, OriginPattern};

    fn policy(origins: AllowedOrigins) -> CorsPolicy {
        let value = HeaderValue::from_static;
        CorsPolicy {
            origins,
            credentials: false,
            methods: None,
            headers: None,
            exposed: value("retry-after"),
            max_age: value("600"),
        }
    }

    #[test]
    fn headers_of_the_server_are_replaced_and_vary_is_kept() {
        let listed = AllowedOrigins::Listed(vec![OriginPattern::Exact("https://a.test".to_owned())]);
        let origin = HeaderValue::from_static("https://a.test");
        for (vary, expected) in [
            (None, vec!["origin"]),
            (Some("accept, ORIGIN"), vec!["accept, ORIGIN"]),
            (Some("*"), vec!["*"]),
            (Some("accept"), vec!["accept", "origin"]),
        ] {
            let mut headers = HeaderMap::new();
            for name in CORS_HEADERS {
                headers.append(name.clone(), HeaderValue::from_static("of-the-server"));
                headers.append(name, HeaderValue::from_static("twice"));
            }
            headers.extend(vary.map(|vary| (VARY, HeaderValue::from_static(vary))));
            write_cors_headers(&mut headers, &policy(listed.clone()), Some(&origin));
            let varies: Vec<_> = headers.get_all(VARY).iter().map(|line| line.to_str().unwrap()).collect();
            assert_eq!(varies, expected);
            assert_eq!(headers.len(), expected.len() + 2, "{headers:?}");
            assert_eq!(headers[ACCESS_CONTROL_ALLOW_ORIGIN], origin);
            assert_eq!(headers[ACCESS_CONTROL_EXPOSE_HEADERS], "retry-after");
            write_cors_headers(&mut headers, &policy(listed.clone()), None);
            assert_eq!(headers.len(), expected.len(), "{headers:?}");
        }
    }

    #[test]
    fn responses_for_every_origin_do_not_vary() {
        let mut headers = HeaderMap::new();
        write_cors_headers(&mut headers, &policy(AllowedOrigins::Any), None);
        assert_eq!((headers.len(), &headers[ACCESS_CONTROL_ALLOW_ORIGIN]), (2, &HeaderValue::from_static("*")));
    }
}
