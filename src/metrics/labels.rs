//! The closed sets of label values of the records of routes. Used by the records and by whoever counts on
//! them.

use crate::labels::labels;

labels! {
    /// What became of one limit's part in a request; the `decision` label of
    /// `limit_decisions_total`.
    Decision:
    Allow = "allow",
    Deny = "deny",
    ShadowDeny = "shadow_deny",
    /// Admitted, but held back until its turn.
    Delayed = "delayed",
    Bypass = "bypass",
    ErrorOpen = "error_open",
    ErrorClosed = "error_closed",
    LocalAllow = "local_allow",
    LocalDeny = "local_deny",
}

labels! {
    /// Why a routed request was refused; the `reason` label of `rejections_total`.
    Reason:
    /// A limit is exhausted.
    Exhausted = "exhausted",
    /// The cost is above all the limit can ever hold.
    NeverFits = "never_fits",
    /// A part of the limit's key is missing.
    MissingKey = "missing_key",
    /// What the limit reads stands there more than once, or servers differ in reading it.
    RepeatedKey = "repeated_key",
    /// The key's override is a rate of 0.
    Blocked = "blocked",
    /// The store is away and the limit is `on_error = "closed"`.
    StoreDown = "store_down",
    /// It might have to wait for its turn, and as many requests as may do already.
    MaxDelayed = "max_delayed",
    /// The client's address is on the route's `deny` list.
    Denied = "denied",
    /// The route serves `max_in_flight` requests already.
    MaxInFlight = "max_in_flight",
}
