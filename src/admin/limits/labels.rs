//! Closed sets of texts in responses about limits. Used by the other files of this directory.

use crate::labels::labels;

labels! {
    /// Why a limit of a decision was not evaluated.
    NotAskedReason:
    KeyAbsent = "key_absent",
    /// Another limit refused first, without the store.
    RefusedBefore = "refused_before",
    /// The limit is a wider tier, which has only IPv6 networks, and the client has an IPv4 address.
    Ipv6Only = "ipv6_only",
    /// The limit that it follows still has capacity.
    BaseHasRoom = "base_has_room",
}

labels! {
    /// The place of a decision.
    DecidedBy:
    Store = "store",
    /// Decided from this gateway's memory, because the store was unavailable.
    Local = "local",
    /// Decided without a store.
    None = "none",
}

labels! {
    /// Why nothing was refunded.
    NotRefundedReason:
    NothingCharged = "nothing_charged",
    /// The limit no longer uses the algorithm of the receipt.
    AlgorithmChanged = "algorithm_changed",
    Used = "used",
    Expired = "expired",
}
