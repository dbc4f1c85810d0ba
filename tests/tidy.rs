//! Rules about the source code that ARCHITECTURE.md and CONTRIBUTING.md state: layers, purity, sizes, names. The
//! message of a rule that fails says what to do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod tidy {
    mod changelog;
    mod cycles;
    mod known_faults;
    mod layers;
    mod map;
    mod names;
    mod options;
    mod prose;
    mod purity;
    mod reach;
    mod size;
    mod source;
    mod stderr;
    mod taught;
}
