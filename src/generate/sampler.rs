//! Draws of the next token, by the rules of [`ops::sample`](mod@crate::ops::sample) and a seed.

use crate::device::Device;
use crate::ops::sample::{NO_CHOICE, Sampling, sample};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub struct Sampler {
    temperature: f64,
    top_p: f64,
    rng: ChaCha8Rng,
}

impl Sampler {
    /// Errors: a temperature that is negative or not finite; a `top_p` outside 0..=1.
    pub fn new(temperature: f64, top_p: f64, seed: u64) -> Result<Sampler> {
        // One logit has only one choice: this asks for the settings to be checked.
        sample(&Tensor::zeros(&[1, 1], crate::DType::F64), &[0.0], &Sampling { temperature, top_p, vocab_size: 1 })?;
        Ok(Sampler { temperature, top_p, rng: ChaCha8Rng::seed_from_u64(seed) })
    }

    /// Argmax, for tests and comparisons.
    pub fn greedy() -> Sampler {
        Sampler { temperature: 0.0, top_p: 1.0, rng: ChaCha8Rng::seed_from_u64(0) }
    }

    /// A token id below `vocab_size` for each row of `logits` `[rows, V]`; waits for their device. Error: a logit that is NaN or
    /// +∞, with `step`, the number of tokens generated so far.
    pub fn sample(&mut self, logits: &Tensor, vocab_size: usize, step: usize) -> Result<Vec<u32>> {
        let rows = logits.rows_cols().0;
        let u: Vec<f64> =
            (0..rows).map(|_| if self.temperature == 0.0 { 0.0 } else { self.rng.random::<f64>() }).collect();
        let sampling = Sampling { temperature: self.temperature, top_p: self.top_p, vocab_size };
        let ids = sample(logits, &u, &sampling)?.to(&Device::Cpu)?;
        let ids = ids.as_slice::<u32>()?.to_vec();
        ensure!(!ids.contains(&NO_CHOICE), "sample: found non-finite logits at step {step}, expected numbers");
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(sampler: &mut Sampler, logits: &[f64], step: usize) -> Result<u32> {
        let logits = Tensor::from_vec(logits.to_vec(), &[1, logits.len()])?;
        Ok(sampler.sample(&logits, logits.len(), step)?[0])
    }

    #[test]
    fn temperature_zero_is_argmax_and_the_lowest_id_wins_ties() {
        let mut sampler = Sampler::greedy();
        assert_eq!(sample(&mut sampler, &[1.0, 3.0, 2.0], 0).unwrap(), 1);
        assert_eq!(sample(&mut sampler, &[2.0, 5.0, 5.0, 1.0], 0).unwrap(), 1);
    }

    #[test]
    fn a_large_flat_vocabulary_always_gives_a_valid_id() {
        for vocab in [151_936, 50_257] {
            for top_p in [0.999, 0.9999999, 1.0] {
                let mut sampler = Sampler::new(1.0, top_p, 7).unwrap();
                assert!((sample(&mut sampler, &vec![0.0; vocab], 0).unwrap() as usize) < vocab);
            }
        }
    }

    #[test]
    fn logits_that_are_not_finite_are_an_error_with_the_step() {
        for logits in [[f64::NAN, 1.0, 3.0], [f64::NAN; 3], [1.0, f64::INFINITY, 0.0], [f64::NEG_INFINITY; 3]] {
            for temperature in [0.0, 1.0] {
                let error = sample(&mut Sampler::new(temperature, 1.0, 0).unwrap(), &logits, 5).unwrap_err();
                assert!(error.to_string().contains("step 5"), "{error}");
            }
        }
        let masked = [f64::NEG_INFINITY, 0.0];
        assert_eq!(sample(&mut Sampler::new(1.0, 1.0, 0).unwrap(), &masked, 0).unwrap(), 1);
    }

    #[test]
    fn nonsense_settings_are_refused() {
        for (temperature, top_p) in [(-1.0, 1.0), (f64::NAN, 1.0), (1.0, -0.1), (1.0, 1.5), (1.0, f64::NAN)] {
            assert!(Sampler::new(temperature, top_p, 0).is_err(), "{temperature} {top_p}");
        }
    }

    #[test]
    fn draws_follow_the_probabilities_and_the_seed() {
        let logits: Vec<f64> = [0.5_f64, 0.3, 0.2].iter().map(|p| p.ln()).collect();
        // p^(1/temperature), normalised; and the two likeliest of three, renormalised
        let cases = [
            (1.0, 1.0, [0.5, 0.3, 0.2]),
            (0.5, 1.0, [0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38]),
            (2.0, 1.0, [0.4154, 0.3218, 0.2628]),
            (1.0, 0.6, [0.625, 0.375, 0.0]),
        ];
        for (temperature, top_p, expected) in cases {
            let draw = |seed| {
                let mut sampler = Sampler::new(temperature, top_p, seed).unwrap();
                (0..20_000).map(|step| sample(&mut sampler, &logits, step).unwrap()).collect::<Vec<u32>>()
            };
            let ids = draw(3);
            assert_eq!(ids, draw(3));
            assert_ne!(ids, draw(4));
            for (id, p) in (0..).zip(expected) {
                let share = ids.iter().filter(|&&x| x == id).count() as f64 / ids.len() as f64;
                assert!(
                    (share - p).abs() < 0.02,
                    "temperature {temperature}, top-p {top_p}, id {id}: {share}, expected {p}"
                );
            }
        }
    }
}
