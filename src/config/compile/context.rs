//! Facts from the rest of the config that limits depend on.

use std::collections::{HashMap, HashSet};

use crate::config::compile::geo::GEO_HELP;
use crate::config::compile::jwt::JWT_HELP;
use crate::config::compile::named_set::ListedItem;
use crate::config::compile::names::Definitions;
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::key::shown_key::KeyHasher;
use crate::limiting::limit::OnError;
use crate::limiting::source::{Source, SourceOrigin};

pub struct LimitContext<'a> {
    pub on_error: OnError,
    pub sets: &'a Definitions<ListedItem>,
    pub has_jwt: bool,
    /// There is a `[geo]` section.
    pub has_geo: bool,
    /// Some listener requests client certificates.
    pub requests_client_certs: bool,
    /// Maximum number of keys of the whole store.
    pub max_keys: usize,
    /// Names of the limits that refund a request which an upstream refuses for its load, each with such an upstream.
    pub refunded: HashMap<String, String>,
    /// Names of the limits that have a cost by status in a list of limits.
    pub repriced: HashSet<String>,
    /// Hashes keys as logs show them.
    pub hasher: &'a KeyHasher,
}

impl LimitContext<'_> {
    /// Returns the upstream for whose load the limit refunds requests. A candidate applies wherever its incumbent does.
    pub fn find_refunding_upstream(&self, limit: &str, incumbent: Option<&str>) -> Option<&String> {
        self.refunded.get(limit).or_else(|| self.refunded.get(incumbent?))
    }

    /// Returns whether the response may change a charge of the limit in some list.
    pub fn is_repriced(&self, limit: &str, incumbent: Option<&str>) -> bool {
        self.repriced.contains(limit) || incumbent.is_some_and(|incumbent| self.repriced.contains(incumbent))
    }

    /// Returns `source`, or an error if it reads tokens, certificates or countries, and nothing configures how these
    /// are verified or found.
    pub fn check_readable(&self, source: Source) -> Result<Source, TextFault> {
        match source.kind().origin() {
            SourceOrigin::Request if source == Source::Country && !self.has_geo => {
                invalid_text("there is no [geo] section to find countries with", GEO_HELP)
            }
            SourceOrigin::Token if !self.has_jwt => {
                invalid_text("there is no [jwt] section to verify tokens with", JWT_HELP)
            }
            SourceOrigin::Certificate if !self.requests_client_certs => invalid_text(
                "no listener requests client certificates",
                "set `client_ca` in `tls` of the [[listener]] that these clients use",
            ),
            SourceOrigin::Certificate
            | SourceOrigin::Token
            | SourceOrigin::Request
            | SourceOrigin::Target
            | SourceOrigin::Fields
            | SourceOrigin::Identity
            | SourceOrigin::Descriptor
            | SourceOrigin::Body => Ok(source),
        }
    }
}
