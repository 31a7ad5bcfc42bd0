//! How the time of a computation grows with what it is given, whatever the speed and the load of the machine.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How many small inputs are as much as the large one.
const PARTS: usize = 8;
/// Linear work takes 1 time as long on the large input as on all the small ones, quadratic work `PARTS` times.
const MOST: f64 = 3.0;

/// Checks that `work` on an input of size `n` takes about as long as on `PARTS` inputs of size `n / PARTS`.
///
/// Both are measured in turn, the least time of each counts, and where that does not yet show linear work, what else the
/// machine does may be the reason: it is measured again, many times.
#[track_caller]
pub fn assert_linear<I, O>(n: usize, input: impl Fn(usize) -> I, work: impl Fn(I) -> O) {
    let timed = |inputs: Vec<I>| {
        let begin = Instant::now();
        let outputs: Vec<O> = inputs.into_iter().map(&work).collect();
        let taken = begin.elapsed();
        black_box(outputs);
        taken
    };
    let (mut parts, mut whole) = (Duration::MAX, Duration::MAX);
    for round in 1..=50 {
        parts = parts.min(timed((0..PARTS).map(|_| input(n / PARTS)).collect()));
        whole = whole.min(timed(vec![input(n)]));
        if round >= 5 && whole.as_secs_f64() < MOST * parts.as_secs_f64() {
            println!("{whole:?} for {n}, {parts:?} for {PARTS} times {}", n / PARTS);
            return;
        }
    }
    panic!("{whole:?} for {n}, but {parts:?} for {PARTS} times {}: more than linear", n / PARTS);
}
