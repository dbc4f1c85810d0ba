//! Precondition of changes: `If-Match`. Called by `pages`.

use http::header::IF_MATCH;
use http::{HeaderMap, StatusCode};

use crate::admin::problem::Problem;

/// Maximum number of entity tags in a request.
const TAGS_MAX: usize = 16;

/// Returns the entity tags of `If-Match`.
///
/// # Errors
/// If there are none, or the client does not say what it has seen (`*`).
pub fn read_tags(headers: &HeaderMap, source: &str) -> Result<Vec<String>, Problem> {
    let lists = headers.get_all(IF_MATCH).iter().filter_map(|value| value.to_str().ok());
    let tags: Vec<String> = lists.flat_map(|list| list.split(',')).map(|tag| tag.trim().to_owned()).collect();
    let is_tag = |tag: &String| tag.len() > 2 && tag.starts_with('"') && tag.ends_with('"');
    if tags.is_empty() || tags.len() > TAGS_MAX || !tags.iter().all(is_tag) {
        let detail = format!("send `If-Match` with the ETag of {source}, so that you do not undo another change");
        return Err(Problem::new(StatusCode::PRECONDITION_REQUIRED, detail));
    }
    Ok(tags)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_client_must_send_if_match() {
        let tags = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IF_MATCH, HeaderValue::from_static(value));
            }
            read_tags(&headers, "the file").map_err(|problem| problem.status.as_u16())
        };
        assert_eq!(tags(&["\"1-ab\""]), Ok(vec!["\"1-ab\"".to_owned()]));
        assert_eq!(tags(&["\"1-ab\", \"2-cd\"", "\"3\""]).unwrap().len(), 3);
        for values in [&[][..], &["*"], &[""], &["1-ab"], &["W/\"1-ab\""], &["\"1-ab\", *"]] {
            assert_eq!(tags(values), Err(428), "{values:?}");
        }
    }
}
