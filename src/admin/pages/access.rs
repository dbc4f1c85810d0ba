//! Pages about access: the audit log and sessions. Listed in `admin::pages`.

use std::time::{Instant, SystemTime};

use http::StatusCode;
use serde::{Deserialize, Deserializer};
use serde_json::json;

use crate::admin::access::credentials::has_bearer;
use crate::admin::access::guard::{check_same_site, refuse_role};
use crate::admin::access::sessions::CODE_LIFE;
use crate::admin::access::{AccessFault, AccessRefusal, AdminCaller, refuse};
use crate::admin::lifecycle::format_rfc3339;
use crate::admin::page_request::PageRequest;
use crate::admin::problem::Problem;
use crate::admin::response::{AdminResponse, json_response};
use crate::config::admin_tokens::Role;

/// Body of `POST /-/session`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionBody {
    #[serde(default, deserialize_with = "read_text")]
    role: Option<String>,
    #[serde(default, deserialize_with = "read_text")]
    code: Option<String>,
}

/// Reads a string. Null is an error: a program that lost its code must not get another one instead.
fn read_text<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    String::deserialize(value).map(Some)
}

const BODY_MAX: usize = 1024;
const CODE_UNKNOWN: &str = "the code is unknown, used or older than a minute; get another with the admin token";

pub async fn show_audit(request: PageRequest) -> Result<AdminResponse, Problem> {
    Ok(json_response(request.context.access.audit.list_recent()))
}

/// Issues a code with which a session can be opened, or opens one.
pub async fn open_session(mut request: PageRequest) -> Result<AdminResponse, Problem> {
    let has_bearer = has_bearer(&request.head.headers);
    let caller = match has_bearer {
        true => Some(authorize(&request)?),
        false => {
            check_same_site(&request.head.headers).map_err(|refusal| count_refusal(&request, refusal))?;
            None
        }
    };
    let order = parse_body(&request.read_body(BODY_MAX).await?)?;
    match (caller, order) {
        (None, SessionBody { role: None, code: Some(code) }) => redeem_code(&request, &code),
        (_, SessionBody { code: Some(_), .. }) => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "send `code` alone, without `role` and without the Authorization header",
        )),
        (Some(caller), SessionBody { role, .. }) => issue_code(&request, caller, role.as_deref()),
        (None, SessionBody { role, .. }) => issue_code(&request, authorize(&request)?, role.as_deref()),
    }
}

fn parse_body(body: &[u8]) -> Result<SessionBody, Problem> {
    if body.is_empty() {
        return Ok(SessionBody::default());
    }
    let read = serde_json::from_slice(body).map_err(|error| match error.is_data() {
        true => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, format!("the body is wrong: {error}")),
        false => Problem::new(StatusCode::BAD_REQUEST, format!("the body is not JSON: {error}")),
    })?;
    // An array of the values would be read as well.
    match body.trim_ascii_start().first() {
        Some(b'{') => Ok(read),
        _ => Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "the body is wrong: it must be a JSON object")),
    }
}

fn issue_code(request: &PageRequest, caller: AdminCaller, role: Option<&str>) -> Result<AdminResponse, Problem> {
    let role = match role {
        None => caller.role,
        Some(text) => {
            let role = Role::ALL.iter().find(|role| role.label() == text).copied();
            role.ok_or_else(|| {
                let labels: Vec<&str> = Role::ALL.iter().map(|role| role.label()).collect();
                Problem::new(StatusCode::UNPROCESSABLE_ENTITY, format!("`role` is one of {}", labels.join(", ")))
            })?
        }
    };
    if caller.is_session {
        // A session could otherwise prolong itself forever.
        let detail = "a session opens no other sessions: send the admin token itself";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    if !caller.role.includes(role) {
        return Err(count_refusal(request, refuse_role(caller, role)));
    }
    request.note_change(format!("code for a session of role {}", role.label()));
    let code = request.context.access.sessions.borrow_mut().issue_code(&caller, role, Instant::now());
    let answer = json!({ "code": code, "expires_in_seconds": CODE_LIFE.as_secs() });
    Ok(json_response(answer.to_string()))
}

fn redeem_code(request: &PageRequest, code: &str) -> Result<AdminResponse, Problem> {
    let access = &request.context.access;
    let snapshot = request.context.current.load();
    let admin = &snapshot.config.admin;
    let session = access.sessions.borrow_mut().redeem_code(code, admin, Instant::now(), SystemTime::now());
    let Some(session) = session else {
        return Err(count_refusal(request, refuse(AccessFault::CodeUnknown, CODE_UNKNOWN)));
    };
    let (role, name) = (session.caller.role.label(), session.caller.name.clone());
    request.note_change(format!("session of role {role}"));
    request.note_caller(session.caller);
    let answer = json!({
        "token": session.token,
        "name": name,
        "role": role,
        "expires_at": format_rfc3339(session.expires_at),
    });
    Ok(json_response(answer.to_string()))
}

/// Checks that the request may create sessions: with any token, or from this machine if none is configured.
fn authorize(request: &PageRequest) -> Result<AdminCaller, Problem> {
    let snapshot = request.context.current.load();
    let result = request.context.access.authorize_any_token(&request.head, &snapshot.config.admin, request.peer);
    match result {
        Ok(caller) => {
            request.note_caller(caller.clone());
            Ok(caller)
        }
        Err(refusal) => Err(note_refusal(request, refusal)),
    }
}

fn count_refusal(request: &PageRequest, refusal: AccessRefusal) -> Problem {
    note_refusal(request, request.context.access.count_refusal(refusal, request.peer))
}

fn note_refusal(request: &PageRequest, refusal: AccessRefusal) -> Problem {
    if let Some(caller) = refusal.caller {
        request.note_caller(*caller);
    }
    *refusal.problem
}
