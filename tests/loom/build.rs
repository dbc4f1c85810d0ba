//! Sets `cfg(loom)` for this package alone: the files of the crate then use the atomics of loom.

fn main() {
    println!("cargo:rustc-cfg=loom");
}
