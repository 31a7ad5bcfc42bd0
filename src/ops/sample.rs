//! The choice of the next token (report §7.5).
//!
//! ```text
//! temperature 0    argmax; the lowest id wins ties
//! otherwise        p = softmax(logits / temperature)
//! top-p            the smallest set of likeliest tokens whose probabilities reach p: a token stays while the mass before it
//!                  is below p, so at least one does; the rest is drawn in proportion, by a number u in 0..1
//! ```
//!
//! No gradient passes.

use crate::device::Device;
use crate::dtype::DType;
use crate::gpu::Gpu;
use crate::gpu::grid::Grid;
use crate::gpu::grid::shared::{SAMPLE_DIGIT_BITS, SAMPLE_MOST_VOCAB, SAMPLE_THREADS};
use crate::launch::{F32, In, Out, int};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

/// What stands for the choice of a row whose logits are not all numbers below ∞, or all −∞.
pub const NO_CHOICE: u32 = u32::MAX;

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    pub temperature: f64,
    pub top_p: f64,
    /// Ids below this one may be chosen; at most the logits of a row.
    pub vocab_size: usize,
}

/// A token id for each row of `logits` `[rows, V]`, u32 `[rows]` where the logits lie, or [`NO_CHOICE`]; `u` holds a number
/// in 0..1 for each row, which temperature 0 does not use.
///
/// Errors: settings out of range; no logits; numbers `u` that are not one a row.
pub fn sample(logits: &Tensor, u: &[f64], sampling: &Sampling) -> Result<Tensor> {
    let &Sampling { temperature, top_p, vocab_size } = sampling;
    ensure!(
        temperature.is_finite() && temperature >= 0.0,
        "temperature: found {temperature}, expected 0 (argmax) or a positive number"
    );
    ensure!((0.0..=1.0).contains(&top_p), "top-p: found {top_p}, expected 0 to 1");
    let (rows, cols) = logits.rows_cols();
    ensure!(
        vocab_size > 0 && vocab_size <= cols,
        "sample: found {vocab_size} ids of {cols} logits, expected 1 to {cols}"
    );
    ensure!(u.len() == rows, "sample: found {} numbers for {rows} rows, expected one a row", u.len());
    match logits.device() {
        Device::Gpu(gpu) => launch(&gpu, logits, u, sampling),
        Device::Cpu => {
            let logits = logits.to_f64_vec()?;
            let choose = |(row, &u): (&[f64], &f64)| choice(&row[..vocab_size], u, sampling);
            Tensor::from_vec(logits.chunks_exact(cols).zip(u).map(choose).collect(), &[rows])
        }
    }
}

fn choice(logits: &[f64], u: f64, sampling: &Sampling) -> u32 {
    let best = argmax(logits);
    let numbers = logits.iter().all(|x| !x.is_nan() && *x < f64::INFINITY);
    if !numbers || !logits[best].is_finite() {
        return NO_CHOICE;
    }
    if sampling.temperature == 0.0 {
        return best as u32;
    }
    let candidates = nucleus(&softmax(logits, logits[best], sampling.temperature), sampling.top_p);
    let total: f64 = candidates.iter().map(|(_, p)| p).sum();
    let mut rest = u * total;
    for &(id, p) in &candidates {
        if rest < p {
            return id as u32;
        }
        rest -= p;
    }
    candidates[candidates.len() - 1].0 as u32 // rounding used the mass up
}

/// The tokens that top-p keeps, likeliest first.
fn nucleus(probabilities: &[f64], top_p: f64) -> Vec<(usize, f64)> {
    let mut ranked: Vec<(usize, f64)> = probabilities.iter().copied().enumerate().filter(|(_, p)| *p > 0.0).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if top_p == 1.0 {
        return ranked; // rounding must not cut the tail
    }
    let mut mass = 0.0;
    let kept = ranked.iter().take_while(|(_, p)| {
        let before = mass;
        mass += p;
        before < top_p
    });
    let kept = kept.count().max(1);
    ranked.truncate(kept);
    ranked
}

fn argmax(logits: &[f64]) -> usize {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = id;
        }
    }
    best
}

fn softmax(logits: &[f64], max: f64, temperature: f64) -> Vec<f64> {
    let exp: Vec<f64> = logits.iter().map(|&x| ((x - max) / temperature).exp()).collect();
    let sum: f64 = exp.iter().sum();
    exp.iter().map(|e| e / sum).collect()
}

fn launch(gpu: &Gpu, logits: &Tensor, u: &[f64], sampling: &Sampling) -> Result<Tensor> {
    let &Sampling { temperature, top_p, vocab_size } = sampling;
    let (rows, cols) = logits.rows_cols();
    ensure!(
        vocab_size <= SAMPLE_MOST_VOCAB,
        "sample: found {vocab_size} ids, expected at most {SAMPLE_MOST_VOCAB} on {}",
        gpu.name()
    );
    let choice = Tensor::empty(&[rows], DType::U32, gpu)?;
    let grid = Grid::blocks(rows, SAMPLE_THREADS);
    if temperature == 0.0 {
        gpu.launch("sample_argmax", &grid, &[In(logits), Out(&choice), int(vocab_size), int(cols)])?;
        return Ok(choice);
    }
    let u = Tensor::from_vec(u.iter().map(|&u| u as f32).collect(), &[rows])?.to(&logits.device())?;
    // A count of 64 bits for each digit and thread.
    let grid = Grid { shared_bytes: (1 << SAMPLE_DIGIT_BITS) * SAMPLE_THREADS * 8, ..grid };
    let settings = [int(vocab_size), int(cols), F32(temperature as f32), F32(top_p as f32)];
    gpu.launch("sample_top_p", &grid, &[&[In(logits), In(&u), Out(&choice)], &settings[..]].concat())?;
    Ok(choice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(probabilities: &[f64], top_p: f64) -> Vec<(usize, f64)> {
        let kept = nucleus(probabilities, top_p);
        let total: f64 = kept.iter().map(|(_, p)| p).sum();
        kept.into_iter().map(|(id, p)| (id, p / total)).collect()
    }

    #[test]
    fn top_p_keeps_the_token_that_crosses_p() {
        let p = [0.5, 0.25, 0.125, 0.125];
        for (top_p, count) in [(0.0, 1), (1e-8, 1), (0.5, 1), (0.6, 2), (0.75, 2), (0.7500001, 3), (1.0, 4)] {
            assert_eq!(kept(&p, top_p).len(), count, "top_p {top_p}");
        }
        assert_eq!(kept(&p, 0.6), [(0, 2.0 / 3.0), (1, 1.0 / 3.0)]);
        let renormalised = kept(&[0.5, 0.3, 0.15, 0.05], 0.6);
        assert!((renormalised[0].1 - 0.625).abs() < 1e-12 && (renormalised[1].1 - 0.375).abs() < 1e-12);
        for vocab in [151_936, 50_257] {
            assert_eq!(kept(&vec![1.0 / vocab as f64; vocab], 1.0).len(), vocab);
        }
    }
}
