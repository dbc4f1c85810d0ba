//! The jitter of the retry times in refusals, so that clients that were refused together do not return together.

/// Returns `wait_ms` changed by up to 20 % in either direction.
pub fn add_jitter(wait_ms: u64) -> u64 {
    let fifth = wait_ms / 5;
    (wait_ms - fifth).saturating_add(rand::random_range(0..=fifth.saturating_mul(2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jitter_is_a_fifth_at_most() {
        let waits: Vec<u64> = (0..1_000).map(|_| add_jitter(5_000)).collect();
        assert!(waits.iter().all(|wait| (4_000..=6_000).contains(wait)));
        assert!(waits.iter().any(|wait| *wait < 4_500) && waits.iter().any(|wait| *wait > 5_500));
        assert_eq!(add_jitter(0), 0);
        add_jitter(u64::MAX);
    }
}
