//! The program `tidegate`. Everything is in the library; see `tidegate::cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate::cli::main(std::env::args_os())
}
