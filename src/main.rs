//! The command line: exit status 0 done, 1 failed with one line that says why, 2 wrong arguments, 128 + signal interrupted.

use std::process::ExitCode;

fn main() -> ExitCode {
    handgrad::cli::main()
}
