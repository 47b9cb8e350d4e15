//! Builds the daemon anew when a migration comes: `sqlx::migrate!` takes the folder in, and cargo does not know of it.

#![allow(
    clippy::print_stdout,
    reason = "cargo reads a build script's standard output"
)]

fn main() {
    println!("cargo:rerun-if-changed=../migrations");
}
