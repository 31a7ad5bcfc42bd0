//! Clipping by the global norm of all gradients (report §6.5): the formula is in [`ops::global_norm`](mod@crate::ops::global_norm).

use crate::nn::Parameter;
use crate::ops::global_norm;
use crate::tape::Gradients;
use crate::tensor::Tensor;
use anyhow::Result;

/// What clipping found, where the gradients lie.
#[derive(Clone, Debug)]
pub struct Clipped {
    /// The global norm before clipping, shape [].
    pub norm: Tensor,
    /// What the optimizer multiplies gradients by, shape []; NaN, with which it changes nothing, if the norm is not finite.
    pub scale: Tensor,
}

/// The global norm, and the factor that makes it at most `max_norm` (0: 1). Nothing waits for a card.
///
/// Error: no gradient at all.
pub fn clip_grad_norm(gradients: &Gradients, parameters: &[&Parameter], max_norm: f64) -> Result<Clipped> {
    let all: Vec<&Tensor> = parameters.iter().filter_map(|p| gradients.get(&p.name)).collect();
    let [norm, scale] = global_norm(&all, max_norm)?;
    Ok(Clipped { norm, scale })
}

/// The first parameter, if there is one, whose gradient is not finite. Error: gradients that cannot be read.
pub fn not_finite<'a>(gradients: &Gradients, parameters: &[&'a Parameter]) -> Result<Option<&'a str>> {
    for parameter in parameters {
        let Some(gradient) = gradients.get(&parameter.name) else { continue };
        if !gradient.to_f64_vec()?.iter().all(|x| x.is_finite()) {
            return Ok(Some(&parameter.name));
        }
    }
    Ok(None)
}
