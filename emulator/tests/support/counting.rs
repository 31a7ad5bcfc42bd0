//! An allocator that counts how much memory a piece of work holds at once.
//!
//! Each thread counts its own, so that tests may run side by side.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Put it in a test binary with `#[global_allocator]`.
pub struct Counting;

thread_local! {
    /// Bytes held now, and the most that were.
    static COUNTS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Does the work; gives also the most bytes that it held at once.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let (held, _) = COUNTS.get();
    COUNTS.set((held, held));
    let result = work();
    (result, COUNTS.get().1.wrapping_sub(held))
}

fn grown(bytes: usize) {
    // A thread that is ending has no storage left, and nobody asks.
    let _ = COUNTS.try_with(|counts| {
        let (held, peak) = counts.get();
        let held = held.wrapping_add(bytes);
        // Memory of another thread may be freed here, so that the count may stand below zero.
        counts.set((held, if held as isize > peak as isize { held } else { peak }));
    });
}

fn shrunk(bytes: usize) {
    let _ = COUNTS.try_with(|counts| {
        let (held, peak) = counts.get();
        counts.set((held.wrapping_sub(bytes), peak));
    });
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        shrunk(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // While it moves, both blocks may exist.
        grown(size);
        shrunk(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(block, layout, size) }
    }
}
