//! Every kernel against the f64 reference, on the emulator or, with `HANDGRAD_TEST_DEVICE=cuda` or `cuda:N`, on a card: one body
//! for both.
#![cfg(feature = "cuda")]

mod adamw;
mod add;
mod attention_backward;
mod attention_decode;
mod attention_forward;
mod clip;
mod common;
mod cross_entropy;
mod elementwise;
mod embedding;
mod ladders;
mod launch;
mod layer_norm;
mod matmul;
mod qk_norm_rope;
mod rms_norm;
mod rope;
mod rows;
mod sample;
mod scale;
mod softmax;
