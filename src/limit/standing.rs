//! A limit's place among limits that come one after another.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its word counts. Only such a limit was charged, if it admitted.
    InForce,
    /// It refuses, and the limit that comes after it decides instead.
    HandedOver,
    /// The limit before it has room still; it was not charged.
    NotYet,
}
