//! How the loss falls with parameters and tokens (report §9.1), by fits that were published.
//!
//! ```text
//! L(N, D) = E + A/N^α + B/D^β            N parameters, D training tokens
//! C ≈ 6 N D                              FLOPs of training, attention's scores left out
//! best for C:   N = G (C/6)^(β/(α+β)),   D = (C/6)/N,   G = (αA / βB)^(1/(α+β))
//! ```
//!
//! The fits are to other text with another tokenizer: they order models, and tell no run's loss.

/// One fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Law {
    pub name: &'static str,
    pub e: f64,
    pub a: f64,
    pub b: f64,
    pub alpha: f64,
    pub beta: f64,
}

/// Hoffmann et al. 2022, approach 3, and Besiroglu et al. 2024, who fitted the same runs again.
pub const LAWS: [Law; 2] = [
    Law { name: "Hoffmann 2022", e: 1.69, a: 406.4, b: 410.7, alpha: 0.34, beta: 0.28 },
    Law { name: "Besiroglu 2024", e: 1.8172, a: 482.01, b: 2085.43, alpha: 0.3478, beta: 0.3658 },
];

impl Law {
    /// The loss in nats a token of `n` parameters after `d` tokens.
    pub fn loss(&self, n: f64, d: f64) -> f64 {
        self.e + self.a / n.powf(self.alpha) + self.b / d.powf(self.beta)
    }

    /// Parameters and tokens with the lowest loss for so many FLOPs.
    pub fn best(&self, flops: f64) -> (f64, f64) {
        let Law { a, b, alpha, beta, .. } = *self;
        let product = flops / 6.0;
        let n = (alpha * a / (beta * b)).powf(1.0 / (alpha + beta)) * product.powf(beta / (alpha + beta));
        (n, product / n)
    }
}

/// FLOPs of training `n` parameters on `d` tokens.
pub fn training_flops(n: f64, d: f64) -> f64 {
    6.0 * n * d
}
