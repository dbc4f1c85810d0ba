//! Costs of a request at each of several limits. Used by the tests of how requests end.

use std::time::{Duration, Instant};

use crate::support::WAIT_MAX;
use crate::support::gateway::Gateway;

/// The units left at limits whose key is the same for all requests.
fn left<const N: usize>(gateway: &Gateway, limits: [&str; N]) -> [i64; N] {
    limits.map(|limit| {
        let state = gateway.admin(&format!("/-/limits/{limit}/state")).json();
        state["remaining"].as_i64().unwrap_or_else(|| panic!("{limit}: {state}"))
    })
}

/// Runs `exchange`, and checks what it costs at each of the limits once it has ended. Returns its result.
#[track_caller]
pub fn assert_costs<T, const N: usize>(
    gateway: &Gateway,
    limits: [&str; N],
    name: &str,
    expected: [i64; N],
    exchange: impl FnOnce() -> T,
) -> T {
    let before = left(gateway, limits);
    let kept = exchange();
    let spent = || {
        let left = left(gateway, limits);
        std::array::from_fn(|at| before[at] - left[at])
    };
    let end = Instant::now() + WAIT_MAX;
    let mut last: [i64; N] = spent();
    while last != expected && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(25));
        last = spent();
    }
    assert_eq!(last, expected, "{name}: {limits:?}");
    // A charge that is settled does not change any more.
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(spent(), expected, "{name}, later: {limits:?}");
    kept
}
