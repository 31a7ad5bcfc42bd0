//! What is special to one kernel, or to launches; everything else stands in `ops::cases`, which tests/device.rs runs. On the
//! emulator or, with `HANDGRAD_TEST_DEVICE=cuda` or `cuda:N`, on a card: one body for both.
#![cfg(feature = "cuda")]

mod attention;
mod attention_backward;
mod common;
mod elements;
mod far;
mod ladders;
mod launch;
mod matmul;
mod rows;
mod sample;
mod tokens;
