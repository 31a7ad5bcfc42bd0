//! From gradients to new weights: clipping, the learning-rate schedule, AdamW.

pub mod adamw;
pub mod clip;
pub mod schedule;

pub use adamw::{AdamW, AdamWConfig};
pub use clip::{Clipped, clip_grad_norm, not_finite};
pub use schedule::CosineSchedule;
