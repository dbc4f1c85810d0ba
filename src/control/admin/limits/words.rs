//! What answers about limits say in one word. Used by the other files of this folder.

use crate::labels::labels;

labels! {
    /// Why a limit of a decision was not asked.
    Unasked:
    KeyAbsent = "key_absent",
    /// Another limit had refused without asking the store.
    RefusedBefore = "refused_before",
    /// The limit that it comes after has room still.
    BaseHasRoom = "base_has_room",
}

labels! {
    /// Who decided.
    Decider:
    Store = "store",
    /// This gateway's own memory, while the store was away.
    Local = "local",
    /// What is known without a store.
    None = "none",
}

labels! {
    /// Why nothing was given back.
    Kept:
    NothingCharged = "nothing_charged",
    /// The receipt is of an algorithm that the limit no longer has.
    AlgorithmChanged = "algorithm_changed",
    Used = "used",
    Expired = "expired",
}
