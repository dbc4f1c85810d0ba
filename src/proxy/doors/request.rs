//! Requests of HTTP clients. `handle_request` takes them through all steps: those to the admission are listed in
//! `steps::pipeline`, `dispatch` runs the action of the route, and `finish_response` completes the response. `respond`
//! selects another page for listeners that serve something else.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Instant;

use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body as _;
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use crate::config::Service;
use crate::limiting::charges::manager::PendingCall;
use crate::proxy::account::RequestAccount;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{ClientBody, Received, Reply, RequestContext};
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::connection::request_state::RequestWait;
use crate::proxy::context::{ClientConnection, WorkerSnapshot};
use crate::proxy::doors::decide::handle_question;
use crate::proxy::doors::decide::question::must_be_finished;
use crate::proxy::doors::grpc::handle_call;
use crate::proxy::head::body::RequestBody;
use crate::proxy::steps::dispatch::dispatch;
use crate::proxy::steps::finish_response::finish_response;
use crate::proxy::steps::pipeline::{Passage, admit, arrive};
use crate::proxy::steps::response::problem::{fixed_response, forbid_caching};
use crate::proxy::words::known_headers::{HeaderSet, KnownHeader};
use crate::proxy::words::refusal::Refusal;

/// Serves one request. Never fails: every failure becomes a response.
pub fn serve(
    client: Rc<ClientConnection>,
    request: Request<RequestBody>,
    deadline: RequestDeadline,
) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> {
    let start = Instant::now();
    let (parts, body) = request.into_parts();
    let view = client.worker.view();
    let is_whole = body.is_end_stream();
    // This deadline applies until the future is first polled: a pipelined request waits for the response before it,
    // which the client may never read.
    deadline.arm(RequestWait::Stream, view.snapshot.config.server.keepalive_timeout);
    // Boxed, because the future is moved several times before it is polled.
    let mut received = Box::new(Received {
        header_set: HeaderSet::from_headers(&parts.headers),
        parts,
        body: ClientBody::Unread(body),
    });
    received.header_set.has_streamed_body =
        received.is_on_stream() && !is_whole && !received.header_set.has(KnownHeader::ContentLength);
    let account = RequestAccount::open(&view.unmatched_counters, deadline, &received.parts.method, start);
    respond(client, view, received, account)
}

async fn respond(
    client: Rc<ClientConnection>,
    view: Rc<WorkerSnapshot>,
    received: Box<Received>,
    account: Box<RequestAccount>,
) -> Result<Response<ResponseBody>, Infallible> {
    account.deadline().disarm();
    let service = client.listener.settings.service;
    if service == Service::Decide {
        // Boxed, so that the future of a proxied request is not larger for it.
        return Ok(Box::pin(respond_to_question(client, view, received, account)).await);
    }
    let mut request = RequestContext::new(&client, &view, received, account);
    let has_head = !request.received.is_on_stream();
    let result = match service {
        Service::Grpc => Box::pin(handle_call(&mut request)).await,
        Service::Http | Service::Decide => handle_request(&mut request).await,
    };
    let mut response = finish_response(request, result);
    if has_head {
        client.spell_response(&mut response);
    }
    Ok(response)
}

/// Answers another proxy, if necessary in a task that runs to its end even if that proxy leaves.
async fn respond_to_question(
    client: Rc<ClientConnection>,
    view: Rc<WorkerSnapshot>,
    received: Box<Received>,
    account: Box<RequestAccount>,
) -> Response<ResponseBody> {
    let must_be_finished = must_be_finished(&received.parts, &view.snapshot.config);
    // A worker that stops waits for the task.
    let call = must_be_finished.then(|| PendingCall::begin(view.limiter.charges()));
    let answer = async move {
        let mut request = RequestContext::new(&client, &view, received, account);
        let result = handle_question(&mut request).await;
        finish_response(request, result)
    };
    if !must_be_finished {
        return answer.await;
    }
    let (reply, response) = oneshot::channel();
    spawn_local(async move {
        // If the proxy has left, the response is dropped here, which ends its account.
        let _ = reply.send(answer.await);
        drop(call);
    });
    // Fails if the task has panicked.
    response.await.unwrap_or_else(|_| {
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        let mut response = fixed_response(StatusCode::INTERNAL_SERVER_ERROR, "internal error\n", text);
        forbid_caching(&mut response);
        response
    })
}

/// Takes a request from its head to the response of its route. An error is the reason to refuse it.
async fn handle_request(request: &mut RequestContext<'_>) -> Result<Reply, Refusal> {
    let mut arrival = arrive(request)?;
    match admit(request, &mut arrival).await? {
        Passage::Admitted(mut admitted) => {
            let tunnel = admitted.places.tunnel.take();
            let response = dispatch(request, arrival.on(admitted.route), admitted).await?;
            Ok(Reply::Route(response, tunnel))
        }
        Passage::AcmeProof(response) | Passage::HttpsRedirect(response) => Ok(Reply::Gateway(response)),
        Passage::Preflight(response) => Ok(Reply::Preflight(response)),
        Passage::AuthResponse(response) => Ok(Reply::AuthServer(response)),
    }
}
