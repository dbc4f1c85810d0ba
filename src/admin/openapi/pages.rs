//! Page with the description of the API. Listed in `admin::pages`.

use http::StatusCode;

use crate::admin::openapi;
use crate::admin::page_request::PageRequest;
use crate::admin::problem::Problem;
use crate::admin::response::{AdminResponse, json_response};

pub async fn show_openapi(_: PageRequest) -> Result<AdminResponse, Problem> {
    let document = openapi::document();
    document.map(json_response).map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error))
}
