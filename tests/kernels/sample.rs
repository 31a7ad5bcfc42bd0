//! `kernels/sample.cu` against the rule in f64, at draws of u that cover it; ties, the token that crosses, rows that are not
//! numbers, large flat vocabularies.

use crate::common::*;
use handgrad::DType;
use handgrad::ops::sample::{NO_CHOICE, Sampling, sample};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// The tokens that stay, likeliest first, with their probabilities.
fn nucleus(logits: &[f64], temperature: f64, top_p: f64) -> Vec<(u32, f64)> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp: Vec<f64> = logits.iter().map(|x| ((x - max) / temperature).exp()).collect();
    let sum: f64 = exp.iter().sum();
    let mut ranked: Vec<(u32, f64)> = (0..).zip(exp.iter().map(|e| e / sum)).filter(|(_, p)| *p > 0.0).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut before = 0.0;
    let stay = ranked.iter().take_while(|(_, p)| {
        let stays = before < top_p;
        before += p;
        stays
    });
    let stay = if top_p == 1.0 { ranked.len() } else { stay.count().max(1) };
    ranked.truncate(stay);
    ranked
}

/// The choice, or None where u is so near a boundary that f32 may see it on the other side.
fn choose(stay: &[(u32, f64)], u: f64) -> Option<u32> {
    let total: f64 = stay.iter().map(|(_, p)| p).sum();
    let mut through = 0.0;
    for (i, (id, p)) in stay.iter().enumerate() {
        let before = through;
        through += p / total;
        if u < through || i + 1 == stay.len() {
            let near = |edge: f64| (u - edge).abs() < 2e-6;
            return (!(near(before) && i > 0 || near(through) && i + 1 < stay.len())).then_some(*id);
        }
    }
    None
}

/// Whether the mass comes near to top_p at a token, so that f32 may keep one more or less.
fn on_edge(logits: &[f64], temperature: f64, top_p: f64) -> bool {
    let mut through = 0.0;
    top_p < 1.0
        && nucleus(logits, temperature, 1.0).iter().any(|(_, p)| {
            through += p;
            (through - top_p).abs() < 2e-6
        })
}

/// One choice for each u, whose rows of logits follow each other.
fn draw(logits: &[f64], u: &[f64], temperature: f64, top_p: f64, dtype: DType) -> Vec<u32> {
    let vocab_size = logits.len() / u.len();
    let logits = put(logits, &[u.len(), vocab_size], dtype);
    get(&sample(&logits, u, &Sampling { temperature, top_p, vocab_size }).unwrap())
        .iter()
        .map(|&id| id as u32)
        .collect()
}

fn greedy(logits: &[f64], rows: usize) -> Vec<u32> {
    draw(logits, &vec![0.5; rows], 0.0, 1.0, DType::F32)
}

fn check(vocab: usize, dtype: DType, rng: &mut ChaCha8Rng) {
    // Multiples of a step have many ties.
    let (step, width) = ([0.0, 0.5, 4.0][rng.random_range(0..3)], rng.random_range(0.1f64..6.0));
    let temperature = if rng.random() { 1.0 } else { f64::from(rng.random_range(0.3f32..2.0)) };
    let p = [f64::from(rng.random_range(0.05f32..0.999)), 1.0, 0.0][rng.random_range(0..4usize) % 3];
    let wide = |x: f64| if step > 0.0 { (width * x / step).round() * step } else { width * x };
    let mut row = rounded(&normal(rng, vocab).into_iter().map(wide).collect::<Vec<f64>>(), dtype);
    if vocab > 1 && rng.random() {
        row.iter_mut().skip(1).step_by(3).for_each(|x| *x = f64::NEG_INFINITY);
    }
    let first = (0..vocab).fold(0, |best, id| if row[id] > row[best] { id } else { best });
    assert_eq!(draw(&row, &[0.9], 0.0, p, dtype), [first as u32], "argmax");

    let stay = nucleus(&row, temperature, p);
    let u: Vec<f64> = [0.0, 0.999_999_94].into_iter().chain((0..4).map(|_| f64::from(rng.random::<f32>()))).collect();
    let found = draw(&row.repeat(u.len()), &u, temperature, p, dtype);
    assert_eq!(found, draw(&row.repeat(u.len()), &u, temperature, p, dtype), "two runs differ");
    if on_edge(&row, temperature, p) {
        return;
    }
    for (&id, &u) in found.iter().zip(&u) {
        if let Some(expected) = choose(&stay, u) {
            assert_eq!(id, expected, "u {u}, {} stay, temperature {temperature}, p {p}", stay.len());
        }
    }
}

#[test]
fn against_the_rule_in_f64() {
    let mut rng = rng();
    for vocab in [1, 2, 15, 16, 17, 31, 32, 33, 200, 511, 512, 513, 700, 1023, 1024, 1025] {
        for dtype in BOTH {
            check(vocab, dtype, &mut rng);
        }
    }
}

/// With u from 0 to 1, all tokens that stay come up, in order and no other.
fn kept(logits: &[f64], temperature: f64, p: f64) -> Vec<u32> {
    let u: Vec<f64> = (0..32).map(|i| (f64::from(i) + 0.5) / 32.0).collect();
    let mut found = draw(&logits.repeat(32), &u, temperature, p, DType::F32);
    found.dedup();
    found
}

#[test]
fn ties_and_the_token_that_crosses() {
    const F: DType = DType::F32;
    assert_eq!(greedy(&[1.0, 3.0, 2.0], 1), [1]);
    assert_eq!(greedy(&[2.0, 5.0, 5.0, 1.0], 1), [1]);
    assert_eq!(greedy(&[-0.0, 0.0], 1), [0]);
    assert_eq!(greedy(&[f64::NEG_INFINITY, 0.0, f64::NEG_INFINITY, -3.0], 2), [1, 1]);
    assert_eq!(kept(&[2.0, 5.0, 5.0, 1.0], 1.0, 0.0), [1]);
    assert_eq!(kept(&[2.0, 5.0, 5.0, 1.0], 1.0, 0.3), [1]);
    assert_eq!(kept(&[2.0, 5.0, 5.0, 1.0], 1.0, 0.9), [1, 2]);
    assert_eq!(kept(&[-0.0, 0.0, -5.0], 1.0, 0.6), [0, 1], "−0 and 0 tie");
    // Equal tokens: masses are exact, so a share that ends at a token keeps it and no more.
    assert_eq!(kept(&[3.0; 4], 1.0, 0.5), [0, 1]);
    assert_eq!(kept(&[3.0; 4], 1.0, 0.75), [0, 1, 2]);
    assert_eq!(kept(&[3.0; 4], 1.0, 0.7500001), [0, 1, 2, 3]);
    assert_eq!(kept(&[3.0; 4], 1.0, 1.0), [0, 1, 2, 3]);
    // Different logits of the same mass: a share that ends where one logit's tokens end.
    for (p, ids) in [(0.25, &[0][..]), (0.5, &[0, 1]), (0.75, &[0, 1, 2]), (0.750_000_1, &[0, 1, 2, 3])] {
        assert_eq!(kept(&[4.0, 3.0, 2.0, 1.0], 1e30, p), ids, "top_p {p}");
    }
    // u at a boundary belongs to the token behind it.
    assert_eq!(draw(&[3.0; 16], &[0.0, 0.25, 0.5, 0.75], 1.0, 1.0, F), [0, 1, 2, 3]);
    // A number just below 1 that became 1 in f32 is the last token's.
    assert_eq!(draw(&[3.0, 1.0, 2.0, 2.0], &[1.0], 1.0, 1.0, F), [1]);
    assert_eq!(draw(&[3.0, 1.0, 2.0, 2.0], &[1.0], 1.0, 0.9, F), [3]);
    let shares = [0.5f32, 0.25, 0.125, 0.125].map(|p| f64::from(p.ln()));
    for (p, count) in [(0.0, 1), (1e-8, 1), (1e-4, 1), (0.6, 2), (0.76, 3), (1.0, 4)] {
        assert_eq!(kept(&shares, 1.0, p).len(), count, "top_p {p}");
    }
}

#[test]
fn temperature_zero_is_argmax() {
    const F: DType = DType::F32;
    assert_eq!(draw(&[1.0, 3.0, 2.0, 2.0, 5.0, 5.0], &[0.9, 0.9], 0.0, 0.5, F), [1, 1]);
    assert_eq!(draw(&[1.0, 3.0, 2.0], &[0.9], 1e-30, 1.0, F), [1]);
    assert_eq!(draw(&[-3e38, 3e38, 2.0], &[0.9], 0.5, 1.0, F), [1]);
}

#[test]
fn rows_that_are_not_numbers_are_reported_alone() {
    let bad = [[f64::NAN, 1.0, 3.0], [1.0, f64::INFINITY, 0.0], [f64::NEG_INFINITY; 3], [1.0, 2.0, f64::NAN]];
    for row in bad {
        let logits = [[0.0, 9.0, 1.0], row, [9.0, 0.0, 0.0]].concat();
        assert_eq!(greedy(&logits, 3), [1, NO_CHOICE, 0]);
        for dtype in BOTH {
            assert_eq!(draw(&logits, &[0.5; 3], 1.0, 0.9, dtype), [1, NO_CHOICE, 0]);
        }
    }
}

/// Ids from `vocab_size` on are never chosen, likely as they are.
#[test]
fn logits_behind_the_vocabulary() {
    for dtype in BOTH {
        let logits = put(&[0.0, 1.0, 9.0, f64::NAN, 3.0, 2.0, 9.0, 9.0], &[2, 4], dtype);
        for (temperature, expected) in [(0.0, [1.0, 0.0]), (1e-30, [1.0, 0.0])] {
            let sampling = Sampling { temperature, top_p: 1.0, vocab_size: 2 };
            assert_eq!(get(&sample(&logits, &[0.5; 2], &sampling).unwrap()), expected);
        }
    }
}

#[test]
fn a_large_flat_vocabulary() {
    // The last one is the largest that is accepted.
    for (vocab, p, u) in [(151_936, 1.0, 0.5), (151_936, 0.999, 0.999_999_94), (1 << 20, 1.0, 0.5)] {
        let found = draw(&vec![0.0; vocab], &[u], 1.0, p, DType::Bf16)[0];
        // Equal tokens stand in the order of their ids.
        let expected = (u * (p * vocab as f64).ceil()).floor();
        assert!((f64::from(found) - expected).abs() <= 1.0, "found {found}, expected {expected}");
    }
    let logits = put(&vec![0.0; (1 << 20) + 1], &[1, (1 << 20) + 1], DType::Bf16);
    let sampling = Sampling { temperature: 1.0, top_p: 1.0, vocab_size: (1 << 20) + 1 };
    let error = sample(&logits, &[0.5], &sampling).unwrap_err().to_string();
    assert!(error.contains("found 1048577 ids, expected at most 1048576"), "{error}");
}

/// How often each token comes up, over many rows of one launch.
#[test]
fn the_distribution_of_many_draws() {
    let mut rng = rng();
    let (rows, logits) = (1000, [2.0, 1.0, 0.0, 1.0, -1.0]);
    for (temperature, top_p) in [(1.0, 1.0), (0.5, 1.0), (1.5, 0.8)] {
        let u: Vec<f64> = (0..rows).map(|_| f64::from(rng.random::<f32>())).collect();
        let found = draw(&logits.repeat(rows), &u, temperature, top_p, DType::F32);
        let stay = nucleus(&logits, temperature, top_p);
        let total: f64 = stay.iter().map(|(_, p)| p).sum();
        for id in 0..5 {
            let p = stay.iter().find(|(stays, _)| *stays == id).map_or(0.0, |(_, p)| p / total);
            let share = found.iter().filter(|&&choice| choice == id).count() as f64 / rows as f64;
            let deviation = (p * (1.0 - p) / rows as f64).sqrt();
            assert!((share - p).abs() <= 5.0 * deviation, "token {id}: {share}, expected {p} ± {deviation}");
        }
    }
}

#[test]
fn settings_that_are_refused() {
    let logits = put(&[0.0; 12], &[2, 6], DType::F32);
    let good = Sampling { temperature: 1.0, top_p: 1.0, vocab_size: 6 };
    for sampling in [
        Sampling { temperature: -1.0, ..good },
        Sampling { temperature: f64::NAN, ..good },
        Sampling { temperature: f64::INFINITY, ..good },
        Sampling { top_p: -0.1, ..good },
        Sampling { top_p: 1.5, ..good },
        Sampling { top_p: f64::NAN, ..good },
        Sampling { vocab_size: 0, ..good },
        Sampling { vocab_size: 7, ..good },
    ] {
        assert!(sample(&logits, &[0.5; 2], &sampling).is_err(), "{sampling:?}");
    }
    assert!(sample(&logits, &[0.5; 3], &good).is_err());
    assert_eq!(sample(&put(&[], &[0, 6], DType::F32), &[], &good).unwrap().shape(), [0]);
}
