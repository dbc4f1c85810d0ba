//! Memory that nobody uses, given back to the system. Asked for by whoever has just let go of much: the
//! control thread after a load, a worker after a flood of connections.

use std::hint::black_box;

/// The most that the allocator asks the system for is a little less than 2^48 bytes: more than a process
/// can have, and so refused.
const IMPOSSIBLE: usize = (1 << 48) - (1 << 21);

/// What the calling thread has freed goes back to the system now. The allocator keeps it for later, and
/// looks at it again only when somebody allocates; an idle thread would sit on it for ever.
pub fn give_back() {
    // Before it says no, the allocator collects whatever is free, which no other door in safe code makes
    // it do. What it frees late in one round is returned in the next.
    for _ in 0..2 {
        let mut impossible = Vec::<u8>::new();
        let refused = impossible.try_reserve_exact(IMPOSSIBLE);
        black_box((refused.is_err(), impossible));
    }
}
