//! Which keys each limit has refused, would have refused, or admitted recently: the data of `/-/top` and of the refusal
//! log line.
//!
//! Input: every decision of a limiter, recorded in the `recorder` of its worker. Output: the `history` that the control
//! thread keeps of the last 10 seconds, minute and 10 minutes, in bounded memory.
//!
//! - `sketch`: the most frequent keys with bounds of their counts, and the number of distinct keys
//! - `recorder`: what one worker has recorded since the control thread last collected it
//! - `history`: what all workers recorded, by time
//! - `headroom`: how much of their quota limits left to keys in the last ten minutes
//! - `what_if`: bounds for what a limit of another size would have refused
//! - `refusals`: the last refused requests, one by one
//!
//! To add an outcome that is recorded, add it to [`KeyOutcome`] and record it in `limiter`.

pub mod headroom;
pub mod history;
pub mod recorder;
pub mod refusals;
pub mod sketch;
pub mod what_if;

use std::hash::BuildHasher;
use std::sync::LazyLock;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;

use crate::labels::labels;
use crate::limiting::limit::{Limit, Mode};

labels! {
    /// Decision of a limit about a key; the parameter `by` of `/-/top`.
    KeyOutcome:
    /// Refused by a limit in effect.
    Refused = "refused",
    /// A limit in shadow mode would have refused. Of a candidate: what its incumbent admitted.
    WouldRefuse = "would_refuse",
    /// A candidate would have admitted what its incumbent refused.
    WouldAdmit = "would_admit",
    /// Over a limit that forwards such requests (`over`).
    Exceeded = "exceeded",
    /// Admitted. Estimated from a sample: one in [`ADMITTED_SAMPLE`] decisions on average.
    Admitted = "admitted",
}

impl KeyOutcome {
    /// Returns the outcome of requests that are over `limit`.
    pub fn over(limit: &Limit) -> KeyOutcome {
        match limit.mode {
            Mode::Shadow => KeyOutcome::WouldRefuse,
            Mode::Enforce if limit.forwards_excess() => KeyOutcome::Exceeded,
            Mode::Enforce => KeyOutcome::Refused,
        }
    }
}

/// One in this many admissions is recorded, and counts as many times.
pub const ADMITTED_SAMPLE: u64 = 16;

/// A secret of this process.
static KEY_SEED: LazyLock<SharedSeed> = LazyLock::new(|| SharedSeed::from_u64(rand::random()));

/// Hashes keys with secrets of this process, so that nobody can choose two keys with the same hash. The hash of the
/// standard library takes three times as long, and refusals must be cheap. It would protect its secret even from people
/// who see hashes; nobody sees these.
static KEY_HASHER: LazyLock<SeedableRandomState> =
    LazyLock::new(|| SeedableRandomState::with_seed(rand::random(), &KEY_SEED));

/// Returns the hash by which sketches identify a key.
pub fn hash_key(key: &str) -> u64 {
    KEY_HASHER.hash_one(key)
}
