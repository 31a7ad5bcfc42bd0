//! Choosing the next token (report §7.5).
//!
//! ```text
//! temperature 0    argmax; the lowest id wins ties
//! otherwise        p = softmax(logits / temperature), in f64
//! top-p            the smallest set of likeliest tokens whose probabilities reach p: a token stays while the mass before it
//!                  is below p, so at least one does; the rest is drawn in proportion
//! ```

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
        ensure!(
            temperature.is_finite() && temperature >= 0.0,
            "temperature: found {temperature}, expected 0 (argmax) or a positive number"
        );
        ensure!((0.0..=1.0).contains(&top_p), "top-p: found {top_p}, expected 0 to 1");
        Ok(Sampler { temperature, top_p, rng: ChaCha8Rng::seed_from_u64(seed) })
    }

    /// Argmax, for tests and comparisons.
    pub fn greedy() -> Sampler {
        Sampler { temperature: 0.0, top_p: 1.0, rng: ChaCha8Rng::seed_from_u64(0) }
    }

    /// A token id. Error: a logit that is NaN or +∞, with `step`, the number of tokens generated so far.
    pub fn sample(&mut self, logits: &[f64], step: usize) -> Result<u32> {
        ensure!(!logits.is_empty(), "sample: found no logits");
        let finite = logits.iter().all(|x| !x.is_nan() && *x < f64::INFINITY);
        let best = argmax(logits);
        ensure!(finite && logits[best].is_finite(), "sample: found non-finite logits at step {step}, expected numbers");
        if self.temperature == 0.0 {
            return Ok(best as u32);
        }
        let candidates = self.nucleus(&softmax(logits, logits[best], self.temperature));
        let total: f64 = candidates.iter().map(|(_, p)| p).sum();
        let mut rest = self.rng.random::<f64>() * total;
        for &(id, p) in &candidates {
            if rest < p {
                return Ok(id as u32);
            }
            rest -= p;
        }
        Ok(candidates[candidates.len() - 1].0 as u32) // rounding used the mass up
    }

    /// The tokens that top-p keeps, likeliest first.
    fn nucleus(&self, probabilities: &[f64]) -> Vec<(usize, f64)> {
        let mut ranked: Vec<(usize, f64)> =
            probabilities.iter().copied().enumerate().filter(|(_, p)| *p > 0.0).collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if self.top_p == 1.0 {
            return ranked; // rounding must not cut the tail
        }
        let mut mass = 0.0;
        let kept = ranked.iter().take_while(|(_, p)| {
            let before = mass;
            mass += p;
            before < self.top_p
        });
        let kept = kept.count().max(1);
        ranked.truncate(kept);
        ranked
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(probabilities: &[f64], top_p: f64) -> Vec<(usize, f64)> {
        let kept = Sampler::new(1.0, top_p, 0).unwrap().nucleus(probabilities);
        let total: f64 = kept.iter().map(|(_, p)| p).sum();
        kept.into_iter().map(|(id, p)| (id, p / total)).collect()
    }

    #[test]
    fn temperature_zero_is_argmax_and_the_lowest_id_wins_ties() {
        let mut sampler = Sampler::greedy();
        assert_eq!(sampler.sample(&[1.0, 3.0, 2.0], 0).unwrap(), 1);
        assert_eq!(sampler.sample(&[2.0, 5.0, 5.0, 1.0], 0).unwrap(), 1);
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
    }

    #[test]
    fn a_large_flat_vocabulary_always_gives_a_valid_id() {
        for vocab in [151_936, 50_257] {
            for top_p in [0.999, 0.9999999, 1.0] {
                let mut sampler = Sampler::new(1.0, top_p, 7).unwrap();
                assert!((sampler.sample(&vec![0.0; vocab], 0).unwrap() as usize) < vocab);
            }
            assert_eq!(kept(&vec![1.0 / vocab as f64; vocab], 1.0).len(), vocab);
        }
    }

    #[test]
    fn logits_that_are_not_finite_are_an_error_with_the_step() {
        for logits in [[f64::NAN, 1.0, 3.0], [f64::NAN; 3], [1.0, f64::INFINITY, 0.0], [f64::NEG_INFINITY; 3]] {
            for temperature in [0.0, 1.0] {
                let error = Sampler::new(temperature, 1.0, 0).unwrap().sample(&logits, 5).unwrap_err();
                assert!(error.to_string().contains("step 5"), "{error}");
            }
        }
        let masked = [f64::NEG_INFINITY, 0.0];
        assert_eq!(Sampler::new(1.0, 1.0, 0).unwrap().sample(&masked, 0).unwrap(), 1);
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
                (0..20_000).map(|step| sampler.sample(&logits, step).unwrap()).collect::<Vec<u32>>()
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
