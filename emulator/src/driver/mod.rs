//! The CUDA driver interface: what a program finds when it loads `libcuda.so.1` (CUDA Driver API, version 13).
//!
//! `capi` has the C functions; each turns its pointers into values (`abi`) and calls a method of `Driver`, which is safe Rust.
//! One process has one emulated device behind one lock. Work runs in the call that submits it; `order` checks that the
//! program waits where a card would make it wait. Every error is a code with a one-line diagnosis: it is what
//! `cuGetErrorString` gives for that code on the same thread, and a line on stderr unless `HANDGRAD_EMULATOR_QUIET` is 1.
//!
//! An error of a launch is returned by the launch, and once more by the next call that waits for its stream, for programs
//! that ignore the first. The context stays usable afterwards.

pub mod abi;
mod attributes;
mod capi;
mod context;
mod error;
mod handle;
mod host;
mod launch;
mod memory;
mod module;
mod occupancy;
mod order;
mod pointer;
mod pool;
mod report;
mod rows;
mod state;
mod stream;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::ThreadId;

use abi::Handle;
use state::Driver;

use crate::fault::{Code, Fault, Result};

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);
/// The process that called `cuInit`; 0 before.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Threads that had a default stream of their own and ended.
static ENDED: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

thread_local! {
    /// The thread's stack of current contexts.
    static CONTEXTS: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
    /// Whether the thread runs a function that the driver calls, which may not call the driver.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
    /// Tells when the thread ends.
    static THREAD: ThreadEnd = ThreadEnd(std::thread::current().id());
}

struct ThreadEnd(ThreadId);

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        // Without the driver's lock: another thread's kernel may hold it for long.
        ENDED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(self.0);
    }
}

/// The calling thread, whose end `ENDED` will hold.
fn this_thread() -> ThreadId {
    THREAD.try_with(|thread| thread.0).unwrap_or_else(|_| std::thread::current().id())
}

/// Whether this is a child that was forked after `cuInit`: nothing of the driver works there, not even its lock.
fn is_forked() -> bool {
    ![0, std::process::id()].contains(&PROCESS.load(Ordering::Relaxed))
}

/// `CUDA_SUCCESS`
const SUCCESS: u32 = 0;

/// Runs a driver call: locks the device, turns an error into its code, and keeps panics from crossing into C.
fn call(name: &'static str, body: impl FnOnce(&mut Driver) -> Result<()>) -> u32 {
    locked(name, |slot| match slot {
        Some(driver) => body(driver),
        None => Err(Fault::new(Code::NotInitialized, format!("{name} before cuInit"))),
    })
}

fn locked(name: &'static str, body: impl FnOnce(&mut Option<Driver>) -> Result<()>) -> u32 {
    if is_forked() {
        let message =
            format!("{name} in a forked process: the driver was initialised before fork, start a new program");
        return failed(name, &Fault::new(Code::NotInitialized, message), true);
    }
    if IN_HOST_FUNCTION.try_with(Cell::get).unwrap_or(false) {
        let message = format!("{name} is called from a host function: those may not call the driver");
        return failed(name, &Fault::new(Code::NotPermitted, message), true);
    }
    let mut slot = DRIVER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let ended = std::mem::take(&mut *ENDED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    let result = catch_unwind(AssertUnwindSafe(|| {
        if let Some(driver) = slot.as_mut().filter(|_| !ended.is_empty()) {
            driver.threads_ended(&ended)?;
        }
        body(&mut slot)
    }));
    let result = result.unwrap_or_else(|panic| Err(from_panic(&*panic)));
    let Err(fault) = result else { return SUCCESS };
    let mut is_new = true;
    if let Some(driver) = slot.as_mut() {
        is_new = !std::mem::take(&mut driver.repeated);
        if is_new {
            driver.report.finding(&fault);
        }
    }
    drop(slot);
    failed(name, &fault, is_new)
}

fn failed(name: &str, fault: &Fault, print: bool) -> u32 {
    error::remember(fault);
    if print {
        tell(&format!("{name}: {fault}"));
    }
    fault.code as u32
}

/// A line on stderr.
fn tell(text: &str) {
    if std::env::var_os("HANDGRAD_EMULATOR_QUIET").is_none_or(|value| value != "1") {
        eprintln!("cuda-emulator: {text}");
    }
}

fn from_panic(panic: &(dyn std::any::Any + Send)) -> Fault {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    Fault::new(Code::Unknown, format!("internal error of the emulator: {}", text.unwrap_or("no message")))
}

/// Runs a function of the program, which may not call the driver meanwhile.
fn host_function(body: impl FnOnce()) {
    let _ = IN_HOST_FUNCTION.try_with(|inside| inside.set(true));
    body();
    let _ = IN_HOST_FUNCTION.try_with(|inside| inside.set(false));
}
