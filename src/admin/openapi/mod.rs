//! Description of the admin API for programs: OpenAPI 3.1, at `GET /-/openapi.json`. Called by `pages`.
//!
//! Input: the table of pages, which has paths, methods and roles, and for each operation its summary, parameters, body
//! and response, as JSON in `operations/`; their schemas are in `schemas/`. Output: one document, built once. The
//! table adds what all pages share: security, the role, and a problem document for every status.
//!
//! To describe a page, add its path as in the table, and each method, to a file of `operations/`. `problems` lists the
//! statuses that only this operation has. Then run `GOLDEN=write cargo test --lib admin::pages`.

use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::admin::access::Access;

/// A row of the table of pages.
pub struct DescribedPage {
    pub methods: &'static str,
    /// `NAME` represents a name.
    pub path: &'static str,
    pub access: Access,
}

/// Operations by path and method.
const OPERATIONS: [&str; 7] = [
    include_str!("operations/access.json"),
    include_str!("operations/browser.json"),
    include_str!("operations/config.json"),
    include_str!("operations/limits.json"),
    include_str!("operations/process.json"),
    include_str!("operations/traffic.json"),
    include_str!("operations/usage.json"),
];
const SCHEMAS: [&str; 7] = [
    include_str!("schemas/access.json"),
    include_str!("schemas/browser.json"),
    include_str!("schemas/config.json"),
    include_str!("schemas/limits.json"),
    include_str!("schemas/process.json"),
    include_str!("schemas/traffic.json"),
    include_str!("schemas/usage.json"),
];

/// Returns the document; an error if one of the descriptions is not JSON.
pub fn document(pages: impl Iterator<Item = DescribedPage>) -> Result<Bytes, &'static str> {
    static DOCUMENT: OnceLock<Option<Bytes>> = OnceLock::new();
    let document = DOCUMENT.get_or_init(|| build_document(pages).ok().map(|document| format!("{document:#}\n").into()));
    document.clone().ok_or("the description of the API cannot be built")
}

fn build_document(pages: impl Iterator<Item = DescribedPage>) -> serde_json::Result<Value> {
    let (operations, schemas) = (merge_objects(&OPERATIONS)?, merge_objects(&SCHEMAS)?);
    let mut paths = Map::new();
    for page in pages {
        let path = page.path.replace("NAME", "{name}");
        let item = paths.entry(path).or_insert_with(|| json!({}));
        for method in page.methods.split(", ").filter(|method| *method != "HEAD").map(str::to_ascii_lowercase) {
            let operation = operations.get(page.path).and_then(|methods| methods.get(&method));
            item[&method] = build_operation(&page, &method, operation.cloned().unwrap_or_else(|| json!({})));
        }
    }
    Ok(json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sluicegate admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "State, limits and config of a gateway. GET pages respond to HEAD too. Each operation states \
                            the role that its token needs (x-role). Without any configured token, requests from the \
                            same machine need none.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "parameters": merge_objects(&[include_str!("parameters.json")])?,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "responses": {
                "Problem": {
                    "description": "The request is refused, or failed.",
                    "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
                },
                "HeadTooLong": { "description": "The head of the request is longer than 16 KiB." },
            },
            "headers": { "ETag": { "schema": { "type": "string", "pattern": "^\"[0-9]+-[0-9a-f]+\"$" } } },
        },
    }))
}

/// Completes an operation with what all pages share.
fn build_operation(page: &DescribedPage, method: &str, mut operation: Value) -> Value {
    let own = operation.as_object_mut().and_then(|operation| operation.remove("problems"));
    let own: Vec<u64> = own.iter().flat_map(|own| own.as_array()).flatten().filter_map(Value::as_u64).collect();
    let role = page.access.needed_role();
    let access: &[u64] = if page.access == Access::Open { &[] } else { &[401, 403, 429] };
    let body: &[u64] = if operation["requestBody"].is_object() { &[408, 413, 415] } else { &[] };
    for status in [400].iter().chain(&own).chain(access).chain(body) {
        operation["responses"][status.to_string()] = json!({ "$ref": "#/components/responses/Problem" });
    }
    operation["responses"]["431"] = json!({ "$ref": "#/components/responses/HeadTooLong" });
    let name = page.path.trim_matches(['/', '-']).replace(['/', '.', '-'], "_").replace("NAME", "name");
    let name = if name.is_empty() { "dashboard" } else { &name };
    operation["operationId"] = format!("{method}_{name}").into();
    operation["security"] = if role.is_some() { json!([{ "token": [] }]) } else { json!([]) };
    if let Some(role) = role {
        operation["x-role"] = role.label().into();
    }
    let has_own_name = operation["parameters"].to_string().contains("#/components/parameters/file");
    if page.path.contains("NAME") && !has_own_name {
        let parameter = json!({ "$ref": "#/components/schemas/Name" });
        let name = json!({ "name": "name", "in": "path", "required": true, "schema": parameter });
        match operation["parameters"].as_array_mut() {
            Some(parameters) => parameters.insert(0, name),
            None => operation["parameters"] = json!([name]),
        }
    }
    operation
}

fn merge_objects(texts: &[&str]) -> serde_json::Result<Map<String, Value>> {
    let mut object = Map::new();
    for text in texts {
        object.extend(serde_json::from_str::<Map<String, Value>>(text)?);
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_description_has_a_page() {
        let copy: Value =
            serde_json::from_str(&std::fs::read_to_string("docs/reference/openapi.json").unwrap()).unwrap();
        let operations = merge_objects(&OPERATIONS).unwrap();
        for (path, methods) in &operations {
            for method in methods.as_object().unwrap().keys() {
                assert!(copy["paths"][path.replace("NAME", "{name}")][method].is_object(), "no page {method} {path}");
            }
        }
        let count = |texts: &[&str]| -> usize {
            texts.iter().map(|text| serde_json::from_str::<Map<String, Value>>(text).unwrap().len()).sum()
        };
        assert_eq!(count(&OPERATIONS), operations.len(), "a path is described in two files");
        assert_eq!(count(&SCHEMAS), merge_objects(&SCHEMAS).unwrap().len(), "a schema is described in two files");
    }
}
