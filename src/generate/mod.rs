//! Generation: prefill the prompt once, then one new token a step (chapter 8.2.3, report §7.5 and §9.2).

pub mod sampler;

pub use sampler::Sampler;

use crate::dtype::DType;
use crate::nn::{KvCache, Transformer};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::{Result, bail, ensure};

/// What to generate from.
pub struct Request<'a> {
    /// Token ids, at least one.
    pub prompt: &'a [u32],
    /// Most new tokens.
    pub max_new: usize,
    /// The id that ends a text; it is not given out.
    pub end_of_text: Option<u32>,
    /// Ids below this one have a token; the model's vocabulary may be larger, and the rest is never chosen.
    pub vocab_size: usize,
    /// Whether to keep keys and values, or to compute the whole sequence again for each token.
    pub use_cache: bool,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    MaxNew,
    EndOfText,
    /// `on_token` asked for it.
    Interrupted,
}

/// Generates tokens one by one; `on_token` gets each as it comes and returns whether to go on.
///
/// Errors: those of [`check`], before any work; logits that are not finite; whatever `on_token` returns.
pub fn generate(
    model: &Transformer,
    request: &Request,
    sampler: &mut Sampler,
    mut on_token: impl FnMut(u32) -> Result<bool>,
) -> Result<Stop> {
    check(model, request)?;
    if request.max_new == 0 {
        return Ok(Stop::MaxNew);
    }
    let mut sequence = request.prompt.to_vec();
    // The last token is given out, but never fed back.
    let capacity = request.prompt.len() + request.max_new - 1;
    let mut cache = request.use_cache.then(|| KvCache::new(&model.config, 1, capacity, model.dtype()));
    let mut new = sequence.clone(); // what the model has not seen: the prompt, then one token at a time
    for step in 0..request.max_new {
        let fed = if cache.is_some() { &new } else { &sequence };
        let logits = last_logits(model, fed, cache.as_mut())?;
        let token = sampler.sample(&logits[..request.vocab_size.min(logits.len())], step)?;
        if request.end_of_text == Some(token) {
            return Ok(Stop::EndOfText);
        }
        if !on_token(token)? {
            return Ok(Stop::Interrupted);
        }
        sequence.push(token);
        new = vec![token];
    }
    Ok(Stop::MaxNew)
}

/// Refuses a request that cannot be met.
///
/// Errors: an empty prompt; prompt and `max_new` together longer than the model's `max_seq_len`.
pub fn check(model: &Transformer, request: &Request) -> Result<()> {
    let (prompt, max_new, max) = (request.prompt.len(), request.max_new, model.config.max_seq_len);
    ensure!(prompt > 0, "generate: found an empty prompt, expected at least one token");
    ensure!(
        max_new <= max.saturating_sub(prompt) && prompt <= max,
        "generate: found {prompt} prompt tokens and {max_new} new ones, expected at most {max} together (the model's context length)"
    );
    Ok(())
}

/// The logits `[V]` that follow the last of `ids`, which come behind what the cache holds.
pub fn last_logits(model: &Transformer, ids: &[u32], cache: Option<&mut KvCache>) -> Result<Vec<f64>> {
    let mut tape = Tape::inference();
    let ids = Tensor::from_vec(ids.to_vec(), &[1, ids.len()])?;
    let hidden = model.hidden(&mut tape, &ids, cache)?; // [1,T,C]
    let last = last_row(hidden.value())?; // [1,C]: the head is the largest product, and only this row of it is needed
    let logits = model.logits(&mut tape, &Var::constant(last))?;
    Ok(logits.value().to_f64_vec())
}

fn last_row(x: &Tensor) -> Result<Tensor> {
    let (rows, cols) = x.rows_cols();
    let first = (rows - 1) * cols;
    match x.dtype() {
        DType::F32 => Tensor::from_vec(x.as_slice::<f32>()?[first..].to_vec(), &[1, cols]),
        DType::F64 => Tensor::from_vec(x.as_slice::<f64>()?[first..].to_vec(), &[1, cols]),
        dtype => bail!("generate: found dtype {dtype}, expected f32 or f64 on the CPU"),
    }
}
