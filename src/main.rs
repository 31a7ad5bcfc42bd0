//! The command line: exit status 0 done, 1 failed with one line that says why, 2 wrong arguments, 128 + signal interrupted.

use std::process::ExitCode;

/// Keeps the memory of a training step for the next one: glibc gives it back to the system and takes it again, 5% of a step.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(feature = "cuda")]
    if let Err(error) = emulator_in_front() {
        eprintln!("handgrad: {error:#}");
        return ExitCode::FAILURE;
    }
    handgrad::cli::main()
}

/// Where a driver is installed and the arguments ask for the emulator, the program starts itself anew with the emulator in
/// front. Error: that failed.
#[cfg(feature = "cuda")]
fn emulator_in_front() -> std::io::Result<()> {
    use std::os::unix::process::CommandExt;
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let asked = arguments.iter().any(|argument| argument == "--device=emulator")
        || arguments.windows(2).any(|pair| pair[0] == "--device" && pair[1] == "emulator")
        || arguments.starts_with(&["kernels".into(), "--here".into()]);
    match asked.then(handgrad::gpu::emulator::restart).flatten() {
        Some(mut command) => Err(command.exec()),
        None => Ok(()),
    }
}
