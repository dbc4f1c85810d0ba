//! The option `over` of a limit: the gateway refuses requests over the limit, delays them, or forwards them all the
//! same, with a header or to another upstream.

use http::HeaderName;

/// The header that names the limits which a forwarded request exceeds, separated by commas.
pub const EXCEEDED_HEADER: HeaderName = HeaderName::from_static("x-limit-exceeded");

/// The treatment of requests that are over a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Over {
    #[default]
    Refuse,
    /// The request waits in the queue of the limit. Only a full queue refuses.
    Delay,
    /// The request is forwarded with [`EXCEEDED_HEADER`].
    Annotate,
    /// The request is forwarded with the header, to another upstream.
    Divert(Diversion),
}

/// The upstream that gets the requests over a limit.
#[derive(Clone, Debug, Eq)]
pub struct Diversion {
    pub name: String,
    /// Index among the upstreams of the config.
    pub index: usize,
}

impl Over {
    /// Returns whether requests over the limit are forwarded.
    pub fn forwards(&self) -> bool {
        match self {
            Over::Refuse | Over::Delay => false,
            Over::Annotate | Over::Divert(_) => true,
        }
    }

    /// Returns the text of the option.
    pub fn text(&self) -> String {
        match self {
            Over::Refuse => "refuse".to_owned(),
            Over::Delay => "delay".to_owned(),
            Over::Annotate => "annotate".to_owned(),
            Over::Divert(Diversion { name, .. }) => format!("upstream:{name}"),
        }
    }
}

/// Compares only the names: a reload may move an upstream to another index.
impl PartialEq for Diversion {
    fn eq(&self, other: &Diversion) -> bool {
        self.name == other.name
    }
}
