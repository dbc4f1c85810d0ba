//! Closed sets of label values, each with its one table. Used by the records of routes and by
//! whoever counts on them.

/// Declares an enum whose values are label values.
macro_rules! labels {
    ($(#[$doc:meta])* $Name:ident: $($(#[$variant_doc:meta])* $Variant:ident = $label:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $Name {
            $($(#[$variant_doc])* $Variant),*
        }

        impl $Name {
            pub const ALL: &[$Name] = &[$($Name::$Variant),*];

            pub fn label(self) -> &'static str {
                match self { $($Name::$Variant => $label),* }
            }
        }
    };
}

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
