//! Linear warmup, then half a cosine down to the minimum (report §6.4).
//!
//! ```text
//! lr(t) = max t / warmup                                         t ≤ warmup, counted from 1
//!       = min + (max − min)/2 (1 + cos π (t − warmup)/(total − warmup))      up to the last step, t = total
//!       = min                                                    after it
//! ```

/// Learning rates by step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineSchedule {
    pub max: f64,
    pub min: f64,
    /// Steps of warmup.
    pub warmup: usize,
    /// The step that reaches `min`.
    pub total: usize,
}

impl CosineSchedule {
    /// The learning rate of step `t`, counted from 1.
    pub fn at(&self, t: usize) -> f64 {
        if t < self.warmup {
            return self.max * t as f64 / self.warmup as f64;
        }
        if t >= self.total {
            return if self.total > self.warmup { self.min } else { self.max };
        }
        let progress = (t - self.warmup) as f64 / (self.total - self.warmup) as f64;
        self.min + 0.5 * (self.max - self.min) * (1.0 + (std::f64::consts::PI * progress).cos())
    }
}
