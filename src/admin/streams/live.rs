//! `GET /-/live`: one event per second that says what the gateway does. An event is built once for all viewers, and
//! only while there are any.
//!
//! A viewer that reads slowly loses events, and one that reads nothing for long loses its stream. Streams end after
//! some minutes and with each new config, so that access is checked again.

use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::spawn_local;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::admin::access::guard;
use crate::admin::context::AdminContext;
use crate::admin::page_request::PageRequest;
use crate::admin::problem::Problem;
use crate::admin::response::{AdminResponse, stream_response};
use crate::admin::streams::summary::LiveSampler;

const EVERY: Duration = Duration::from_secs(1);
/// Building events takes at most one part in `SHARE` of the time of the control thread.
const SHARE: u32 = 10;
/// A comment precedes one in this many events, for proxies that wait for one.
const COMMENT_EVERY: u64 = 15;

pub async fn stream_live(request: PageRequest) -> Result<AdminResponse, Problem> {
    // Otherwise, any web page could occupy all slots of streams.
    guard::check_same_site(&request.head.headers).map_err(|refusal| *refusal.problem)?;
    let permit = request.take_stream_permit(false)?;
    let context = &request.context;
    let events = context.cached.live.add_viewer(context.current.load().generation, permit.share());
    if context.cached.live.start_sending() {
        spawn_local(send_events(context.clone()));
    }
    Ok(stream_response(events, permit))
}

/// Sends an event per second until nobody reads them.
async fn send_events(context: Rc<AdminContext>) {
    let (mut sampler, mut tick, mut count) = (LiveSampler::default(), interval(EVERY), 0_u64);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if !context.cached.live.has_viewers() {
            return;
        }
        let start = Instant::now();
        let comment = if count.is_multiple_of(COMMENT_EVERY) { ": one event per second\n\n" } else { "" };
        let event = format!("{comment}data: {}\n\n", sampler.make_event(&context));
        context.cached.live.send_event(&event.into(), context.current.load().generation);
        count += 1;
        sleep((start.elapsed() * SHARE).saturating_sub(EVERY)).await;
    }
}
