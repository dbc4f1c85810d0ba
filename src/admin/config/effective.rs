//! `GET /-/config`: the effective config in force, without secrets. Listed in `pages`.

use std::cell::RefCell;

use bytes::Bytes;
use http::header::{ETAG, IF_NONE_MATCH};
use http::{HeaderValue, StatusCode};
use serde_json::json;

use crate::admin::page_request::PageRequest;
use crate::admin::problem::Problem;
use crate::admin::response::{AdminResponse, json_response, typed_response};
use crate::config::EffectiveFormat;

/// The page of one generation. It is as long as the config, so it is written once per generation.
#[derive(Default)]
pub struct CachedConfig(RefCell<Option<(u64, Bytes)>>);

const FORMAT: EffectiveFormat = EffectiveFormat { has_origins: true, is_anonymous: false };

pub async fn show_config(request: PageRequest) -> Result<AdminResponse, Problem> {
    let snapshot = request.context.current.load();
    let (generation, config) = (snapshot.generation, &snapshot.config);
    let tag = format!("\"{generation}-{}\"", config.hash);
    let known = request.head.headers.get(IF_NONE_MATCH);
    let mut answer = if known.is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        typed_response(StatusCode::NOT_MODIFIED, "application/json", Bytes::new())
    } else {
        let mut cached = request.context.cached.config.0.borrow_mut();
        let page = match &*cached {
            Some((of, page)) if *of == generation => page.clone(),
            _ => {
                let values = config.effective_json(FORMAT);
                let body = json!({ "generation": generation, "hash": config.hash, "config": values });
                Bytes::from(body.to_string())
            }
        };
        *cached = Some((generation, page.clone()));
        json_response(page)
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        answer.headers_mut().insert(ETAG, tag);
    }
    Ok(answer)
}
