//! Ctrl-C, SIGTERM and SIGHUP: the first asks the work to end cleanly, the second ends the process at once.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

static SIGNAL: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// Starts listening; for work that asks [`interrupted`] now and then. All other work ends at the first signal.
pub fn install() {
    if SIGNAL.get().is_some() {
        return;
    }
    let signal = SIGNAL.get_or_init(|| Arc::new(AtomicUsize::new(0)));
    let again = Arc::new(AtomicBool::new(false));
    // nohup has a process ignore the end of its terminal: it goes on then.
    let hangup = Some(SIGHUP).filter(|_| !ignores(SIGHUP));
    for number in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        // In this order: a second signal finds `again` set by the first and exits.
        let installed = flag::register_conditional_shutdown(number, 128 + number, again.clone())
            .and_then(|_| flag::register(number, again.clone()))
            .and_then(|_| flag::register_usize(number, signal.clone(), number as usize));
        if let Err(error) = installed {
            super::note(&format!("handgrad: interrupts will end the process at once: {error}"));
        }
    }
}

/// Whether the process was started with a signal ignored (Linux).
fn ignores(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    ignored.is_some_and(|ignored| ignored & (1 << (signal - 1)) != 0)
}

/// Whether a signal came.
pub fn interrupted() -> bool {
    status().is_some()
}

/// The exit status that tells which signal came, 128 + its number.
pub fn status() -> Option<u8> {
    let number = SIGNAL.get().map_or(0, |signal| signal.load(Ordering::Relaxed));
    (number != 0).then_some(128 + number as u8)
}
