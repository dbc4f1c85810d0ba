//! The rules of who may name the address of a client, and in which headers. `proxy::head::identity` applies these
//! rules.

use std::fmt;

use http::HeaderName;

use crate::net::{IpSet, Nat64};

/// How the address of a client is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAddressRules {
    /// Peers whose forwarding headers are trusted.
    pub trusted: IpSet,
    pub headers: AddressHeaders,
    /// Prefixes of IPv6 addresses that stand for IPv4 clients.
    pub nat64: Nat64,
}

/// The headers that may name the client, in the order in which they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressHeaders {
    list: Vec<AddressHeader>,
    /// Number of addresses that are read of a list. In a longer list, the last one of them is the client.
    pub max_hops: usize,
    /// They are not the defaults.
    pub is_configured: bool,
}

/// A header in which a trusted proxy names the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressHeader {
    /// A list of hops (RFC 7239).
    Forwarded,
    /// A list of hops.
    XForwardedFor,
    /// Exactly one address.
    Single(HeaderName),
}

/// The largest number of addresses that are read of a list.
pub const HOPS_MAX: usize = 32;

static FORWARDED: HeaderName = HeaderName::from_static("forwarded");
static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

impl Default for AddressHeaders {
    fn default() -> AddressHeaders {
        // Nearly every proxy writes `X-Forwarded-For` and passes the `Forwarded` of its client on, so it comes first.
        let list = vec![AddressHeader::XForwardedFor, AddressHeader::Forwarded];
        AddressHeaders { list, max_hops: HOPS_MAX, is_configured: false }
    }
}

impl AddressHeaders {
    pub fn from_config(list: Vec<AddressHeader>) -> AddressHeaders {
        let is_configured = list != AddressHeaders::default().list;
        AddressHeaders { list, max_hops: HOPS_MAX, is_configured }
    }

    pub fn iter(&self) -> impl Iterator<Item = &AddressHeader> {
        self.list.iter()
    }

    pub fn contains(&self, header: &AddressHeader) -> bool {
        self.list.contains(header)
    }

    /// Returns the headers of exactly one address. There are none by default.
    pub fn singles(&self) -> impl Iterator<Item = &HeaderName> {
        self.list.iter().filter_map(|header| match header {
            AddressHeader::Single(name) => Some(name),
            AddressHeader::Forwarded | AddressHeader::XForwardedFor => None,
        })
    }
}

impl AddressHeader {
    pub fn name(&self) -> &HeaderName {
        match self {
            AddressHeader::Forwarded => &FORWARDED,
            AddressHeader::XForwardedFor => &X_FORWARDED_FOR,
            AddressHeader::Single(name) => name,
        }
    }
}

impl fmt::Display for AddressHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().as_str())
    }
}
