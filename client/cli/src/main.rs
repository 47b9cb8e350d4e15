//! The command `evenkeel`. Everything is in the library, where tests reach it.
use std::process::ExitCode;

fn main() -> ExitCode {
    evenkeel_cli::main()
}
