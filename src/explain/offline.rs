//! A limiter without a gateway: all keys are unused, and the caller sets the time.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::config::Config;
use crate::explain::explanation::Explanation;
use crate::explain::input::ExplainInput;
use crate::explain::steps::{ExplainContext, MadeCharge, explain_request, plain_display};
use crate::limiting::Limiter;
use crate::limiting::clock;
use crate::limiting::decision::Op;
use crate::limiting::store::memory::MemoryStore;
use crate::limiting::store::timeline::Timeline;
use crate::limiting::store::{Store, Stores};
use crate::telemetry::metrics::Metrics;

/// A limiter with its own memory and clock.
pub struct OfflineLimiter {
    limiter: Limiter,
    pub timeline: Rc<Timeline>,
}

impl OfflineLimiter {
    /// # Errors
    /// The metrics of the limiter cannot be created.
    pub fn new(config: &Config) -> Result<OfflineLimiter, String> {
        let metrics = Metrics::new().map_err(|error| error.to_string())?;
        let timeline = Rc::new(Timeline::new(config.store.max_keys, &config.limits));
        let stores = Stores::new(Arc::new(MemoryStore::new(1)), &metrics);
        let limiter = Limiter::new(Store::Timeline(timeline.clone()), None, &stores, &config.store.prefix);
        Ok(OfflineLimiter { limiter, timeline })
    }

    /// Explains a request at the time of the limiter, and charges it if `op` is [`Op::Take`].
    ///
    /// # Errors
    /// The input is not a request that a client can send.
    pub fn explain(
        &self,
        input: &ExplainInput,
        config: &Config,
        op: Op,
    ) -> Result<(Explanation, Vec<MadeCharge>), String> {
        let display = plain_display();
        let context = ExplainContext { config, limiter: &self.limiter, display: &display, op, is_live: false };
        // A store in this process never waits.
        match pin!(explain_request(input, &context)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(explained) => explained,
            Poll::Pending => Err("the store in memory did not respond".to_owned()),
        }
    }
}

/// Explains a request with unused limits, at the present time.
///
/// # Errors
/// The input is not a request that a client can send.
pub fn explain_offline(input: &ExplainInput, config: &Config) -> Result<Explanation, String> {
    let limiter = OfflineLimiter::new(config)?;
    limiter.timeline.set_now(clock::now_ms());
    limiter.explain(input, config, Op::Peek).map(|(explanation, _)| explanation)
}
