//! Bytes of bodies as a cost: `settle = "response_bytes"` and `"request_bytes"`.

/// The bytes of bodies that a limit counts. The default counts none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedBytes {
    /// The bytes that the client sent.
    pub request: bool,
    /// The bytes that the client got.
    pub response: bool,
}

/// Bytes of the bodies of one request that have passed so far, or of its tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferredBytes {
    /// The bytes from the client.
    pub request: u64,
    /// The bytes to the client, as it gets them: compressed, and without the framing.
    pub response: u64,
}

impl CountedBytes {
    /// Names of the sources in `settle`.
    pub const RESPONSE: &str = "response_bytes";
    pub const REQUEST: &str = "request_bytes";

    /// Returns whether the limit counts any bytes.
    pub fn is_any(self) -> bool {
        self.request || self.response
    }

    /// Returns what the bytes cost.
    pub fn units(self, passed: TransferredBytes) -> i64 {
        let request = if self.request { passed.request } else { 0 };
        let response = if self.response { passed.response } else { 0 };
        i64::try_from(request.saturating_add(response)).unwrap_or(i64::MAX)
    }

    /// Returns the sources as in the config.
    pub fn sources(self) -> impl Iterator<Item = &'static str> {
        let sources = [(self.response, CountedBytes::RESPONSE), (self.request, CountedBytes::REQUEST)];
        sources.into_iter().filter_map(|(is_counted, name)| is_counted.then_some(name))
    }
}
