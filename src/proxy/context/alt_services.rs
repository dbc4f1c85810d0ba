//! The listeners of a worker whose clients may use HTTP/3, for `Alt-Svc` (RFC 7838).

use std::cell::RefCell;
use std::rc::Rc;

use http::HeaderValue;
use http::header::ALT_SVC;
use http::{HeaderMap, Version};

use crate::proxy::context::ListenerContext;

/// The time for which responses say that HTTP/3 is gone. It is the default of `max_age`.
const WITHDRAWN_MS: u64 = 24 * 60 * 60 * 1000;

/// The listeners that have or had HTTP/3. Empty for a gateway without it.
#[derive(Default)]
pub struct AltServices(RefCell<Vec<(Rc<str>, State)>>);

#[derive(Clone, Copy)]
enum State {
    Open,
    /// Closed, at this time of the worker's coarse clock.
    Closed(u64),
}

impl AltServices {
    /// Records that the sockets of a listener are open.
    pub fn open(&self, listener: &Rc<str>) {
        self.set(listener, State::Open);
    }

    /// Records that they are being closed.
    pub fn close(&self, listener: &Rc<str>, now_ms: u64) {
        self.set(listener, State::Closed(now_ms));
    }

    fn set(&self, listener: &Rc<str>, state: State) {
        let mut services = self.0.borrow_mut();
        services.retain(|(name, _)| name != listener);
        services.push((listener.clone(), state));
    }

    fn find(&self, listener: &str) -> Option<State> {
        let services = self.0.borrow();
        services.iter().find(|(name, _)| **name == *listener).map(|(_, state)| *state)
    }

    /// Sets `Alt-Svc` of a response over `version`, instead of that of the upstream server, whose services clients
    /// cannot reach through the gateway. A worker that drains states none.
    pub fn write_header(
        &self,
        headers: &mut HeaderMap,
        listener: &ListenerContext,
        version: Version,
        (drains, now_ms): (bool, u64),
    ) {
        let state = self.find(&listener.name);
        if state.is_none() && listener.alt_svc.is_none() {
            return;
        }
        headers.remove(ALT_SVC);
        let value = match (state, &listener.alt_svc) {
            _ if drains || version == Version::HTTP_3 => None,
            (Some(State::Open), alt_svc) => alt_svc.clone(),
            (Some(State::Closed(since_ms)), None) if now_ms.saturating_sub(since_ms) < WITHDRAWN_MS => {
                Some(HeaderValue::from_static("clear"))
            }
            _ => None,
        };
        if let Some(value) = value {
            headers.insert(ALT_SVC, value);
        }
    }
}
