//! Ctrl-C and SIGTERM: the first asks the work to end cleanly, the second ends the process at once.

use signal_hook::consts::{SIGINT, SIGTERM};
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
    for number in [SIGINT, SIGTERM] {
        // In this order: a second signal finds `again` set by the first and exits.
        let installed = flag::register_conditional_shutdown(number, 128 + number, again.clone())
            .and_then(|_| flag::register(number, again.clone()))
            .and_then(|_| flag::register_usize(number, signal.clone(), number as usize));
        if let Err(error) = installed {
            super::note(&format!("handgrad: interrupts will end the process at once: {error}"));
        }
    }
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
