//! Context of the admin pages: the state that they show and change. Created by `control`, and shared by all requests.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::admin::access::AccessState;
use crate::admin::cached::{CachedText, GenerationText, RecentAnswer};
use crate::admin::config::ConfigApi;
use crate::admin::history::TrafficHistory;
use crate::admin::lifecycle::SharedState;
use crate::admin::limits::LimitsApi;
use crate::admin::live_hub::LiveHub;
use crate::admin::metrics_text::CachedMetrics;
use crate::reload::job::ReloadJob;
use crate::snapshot::{CurrentSnapshot, Fleet};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::tap::Taps;

pub struct AdminContext {
    pub current: CurrentSnapshot,
    pub metrics: Metrics,
    pub shared: Arc<SharedState>,
    pub jobs: mpsc::Sender<ReloadJob>,
    pub limits: LimitsApi,
    pub config: ConfigApi,
    pub cached: CachedPages,
    pub fleet: Fleet,
    pub taps: Taps,
    pub access: AccessState,
    pub history: Rc<TrafficHistory>,
}

/// Pages whose text is expensive to build, and is shared by their clients.
#[derive(Default)]
pub struct CachedPages {
    pub(super) metrics: CachedMetrics,
    pub(super) upstreams: CachedText,
    pub(super) config: GenerationText,
    pub(super) config_of_editors: GenerationText,
    pub(super) live: LiveHub,
    pub(super) gateways: RecentAnswer,
}
