//! The answer of `redirect_http`: the same address over HTTPS. Called by `gateway`.

use http::header::LOCATION;
use http::{HeaderValue, Response, StatusCode};

use crate::http::answer::body::Body;
use crate::http::answer::problem;
use crate::http::downstream::gate::Admitted;

/// Host and path in the form in which the gateway reads them, so that what it refuses as unclear is not
/// passed on, and with the `port` unless that is the one of HTTPS. `None` for a request that names no host.
pub fn to_https(admitted: &Admitted, port: u16) -> Option<Response<Body>> {
    let host = Some(admitted.host()).filter(|host| !host.is_empty())?;
    let path = Some(admitted.path()).filter(|path| path.starts_with('/')).unwrap_or("/");
    let mut location = match port {
        443 => format!("https://{host}{path}"),
        _ => format!("https://{host}:{port}{path}"),
    };
    if let Some(query) = admitted.query() {
        location.push('?');
        location.push_str(query);
    }
    let location = HeaderValue::try_from(location).ok()?;
    let mut response = problem::fixed(StatusCode::PERMANENT_REDIRECT, "", HeaderValue::from_static("text/plain"));
    response.headers_mut().insert(LOCATION, location);
    Some(response)
}
