//! The `sluicegate` program. All code is in the library, so that tests can use it.

use std::process::ExitCode;

/// The global allocator. Requests allocate many small, short-lived blocks on every core at once. mimalloc serves each
/// thread from its own heap; the allocator of musl takes a lock that all cores share.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    sluicegate::cli::main()
}
