//! The program. Everything is in the library, so that tests and the command line share it.

use std::process::ExitCode;

/// Requests allocate many small, short-lived blocks on every core at once: mimalloc serves each
/// thread from its own heap and, unlike musl's allocator, takes no lock that all cores share.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    sluicegate::cli::main()
}
