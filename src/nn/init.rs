//! How weights are drawn (report §5.1).
//!
//! ```text
//! normal              N(0, std²)
//! truncated normal    N(0, std²), drawn again until |w| ≤ 3 std
//! Xavier              N(0, 2 / (fan_in + fan_out))       keeps variances through a linear layer, both ways
//! He                  N(0, 2 / fan_in)                   the same when an activation cuts half of its inputs off
//! their uniform form  U(−√3 std, √3 std)                 of the same variance std²
//! biases              U(−1/√fan_in, 1/√fan_in)           report §5.3
//! gains               1
//! ```

use super::config::Init;
use crate::dtype::DType;
use crate::tensor::Tensor;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

/// A matrix `[fan_out, fan_in]`, its values multiplied by `scale`.
pub fn matrix(init: Init, fan_out: usize, fan_in: usize, scale: f64, rng: &mut ChaCha8Rng) -> Tensor {
    let std = match init {
        Init::Normal { std } | Init::TruncatedNormal { std } => std,
        Init::XavierNormal | Init::XavierUniform => (2.0 / (fan_in + fan_out) as f64).sqrt(),
        Init::HeNormal | Init::HeUniform => (2.0 / fan_in as f64).sqrt(),
        Init::Zeros => return Tensor::zeros(&[fan_out, fan_in], DType::F32),
    };
    let limit = match init {
        Init::TruncatedNormal { .. } => 3.0,
        _ => f64::INFINITY,
    };
    let mut draw = || match init {
        Init::XavierUniform | Init::HeUniform => 3f64.sqrt() * rng.random_range(-1.0..=1.0),
        _ => standard_normal_within(limit, rng),
    };
    let data = (0..fan_out * fan_in).map(|_| (scale * std * draw()) as f32).collect();
    Tensor::from_vec::<f32>(data, &[fan_out, fan_in]).expect("one value an element")
}

/// A bias `[fan_out]` of a layer with `fan_in` inputs.
pub fn bias(fan_out: usize, fan_in: usize, rng: &mut ChaCha8Rng) -> Tensor {
    let bound = 1.0 / (fan_in as f32).sqrt();
    let data = (0..fan_out).map(|_| rng.random_range(-bound..=bound)).collect();
    Tensor::from_vec::<f32>(data, &[fan_out]).expect("one value an element")
}

/// A vector of one repeated value: gains start at 1, biases of norms at 0.
pub fn constant(len: usize, value: f64) -> Tensor {
    Tensor::full(&[len], value, DType::F32)
}

fn standard_normal_within(limit: f64, rng: &mut ChaCha8Rng) -> f64 {
    loop {
        let z: f64 = StandardNormal.sample(rng);
        if z.abs() <= limit {
            return z;
        }
    }
}
