//! Every kernel against the f64 reference, on the emulator or, with `HANDGRAD_TEST_DEVICE=cuda` or `cuda:N`, on a card: one body
//! for both.
#![cfg(feature = "cuda")]

mod common;
mod launch;
mod scale;
