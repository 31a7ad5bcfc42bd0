//! Runs a kernel: grid, block, warp, instruction.

mod access;
mod atomic;
mod barrier;
mod block;
mod copy_async;
mod diagnose;
mod global;
pub mod grid;
mod interpret;
mod lanes;
mod matrix;
mod services;
mod shared;
mod staging;
mod taint;
mod vector;
mod warp;

use crate::fault::Fault;

/// A run's result; a fault is boxed, since it is rare and large.
type Ran<T> = Result<T, Box<Fault>>;
