//! The proof that an ACME server asks for over plain HTTP (http-01, RFC 8555, 8.3). Called by `gateway`, before
//! anything is routed.

use http::{HeaderValue, Method, Response, StatusCode};

use crate::config::Acme;
use crate::http::answer::body::Body;
use crate::http::answer::problem;

const PREFIX: &str = "/.well-known/acme-challenge/";

/// `None` for whatever is no challenge that is open: it may be one of the app's own.
pub fn answer(acme: &Acme, method: &Method, path: &str) -> Option<Response<Body>> {
    let token = path.strip_prefix(PREFIX).filter(|_| method == Method::GET)?;
    let proof = acme.board.key_authorization(token)?;
    Some(problem::fixed(StatusCode::OK, proof, HeaderValue::from_static("application/octet-stream")))
}
