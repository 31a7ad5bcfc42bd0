//! The command line: exit status 0 done, 1 failed with one line that says why, 2 wrong arguments, 128 + signal interrupted.

use std::process::ExitCode;

/// Keeps the memory of a training step for the next one: glibc gives it back to the system and takes it again, 5% of a step.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    handgrad::cli::main()
}
