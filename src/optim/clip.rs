//! Clipping by the global norm of all gradients (report §6.5): the formula is in [`ops::global_norm`](mod@crate::ops::global_norm).

use crate::nn::Parameter;
use crate::ops::global_norm;
use crate::tape::Gradients;
use crate::tensor::Tensor;
use anyhow::{Result, bail, ensure};

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
/// Errors: no gradient at all; on the CPU, a gradient that is not finite, named.
pub fn clip_grad_norm(gradients: &Gradients, parameters: &[&Parameter], max_norm: f64) -> Result<Clipped> {
    let named: Vec<(&str, &Tensor)> =
        parameters.iter().filter_map(|p| Some((p.name.as_str(), gradients.get(&p.name)?))).collect();
    let [norm, scale] = global_norm(&named.iter().map(|(_, gradient)| *gradient).collect::<Vec<_>>(), max_norm)?;
    if norm.gpu().is_none() && !norm.item()?.is_finite() {
        for (name, gradient) in named {
            let finite = gradient.to_f64_vec()?.iter().all(|x| x.is_finite());
            ensure!(finite, "gradient of {name}: found NaN or infinity, expected finite numbers");
        }
        bail!("gradients: found a global norm of {}, expected a finite number", norm.item()?);
    }
    Ok(Clipped { norm, scale })
}
