//! `GET /-/config`: the effective config in force, without secrets. Listed in `pages`.

use bytes::Bytes;
use http::header::{ETAG, IF_NONE_MATCH};
use http::{HeaderValue, StatusCode};
use serde_json::json;

use crate::admin::page_request::PageRequest;
use crate::admin::problem::Problem;
use crate::admin::response::{AdminResponse, json_response, typed_response};
use crate::config::EffectiveFormat;
use crate::config::admin_tokens::Role;
use crate::reload::history::hash_text;

const FORMAT: EffectiveFormat =
    EffectiveFormat { has_origins: true, is_anonymous: false, has_defaults: true, is_for_readers: false };

pub async fn show_config(request: PageRequest) -> Result<AdminResponse, Problem> {
    let snapshot = request.context.current.load();
    let (generation, config) = (snapshot.generation, &snapshot.config);
    // Editors can read the files, and everybody else gets what logs show. Each has a tag of its own.
    let is_for_readers = request.caller.role != Role::Edit;
    let cache = &request.context.cached;
    let (text, hash) = match is_for_readers {
        true => (&cache.config, hash_text(format!("{} for readers", config.hash).as_bytes())),
        false => (&cache.config_of_editors, config.hash.clone()),
    };
    let tag = format!("\"{generation}-{hash}\"");
    let client_tag = request.head.headers.get(IF_NONE_MATCH);
    let mut answer = if client_tag.is_some_and(|client_tag| client_tag.as_bytes() == tag.as_bytes()) {
        typed_response(StatusCode::NOT_MODIFIED, "application/json", Bytes::new())
    } else {
        json_response(text.get_or_make(generation, || {
            let values = config.effective_json(EffectiveFormat { is_for_readers, ..FORMAT });
            json!({ "generation": generation, "hash": config.hash, "config": values }).to_string()
        }))
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        answer.headers_mut().insert(ETAG, tag);
    }
    Ok(answer)
}
