//! `kernels/sample.cu` against the rule of `generate::sampler`, in f64.

use crate::common::*;
use half::bf16;
use handgrad::gpu::kernels::sample::{argmax, read, top_p};
use handgrad::gpu::{GpuFloat, LaunchError};
use proptest::prelude::*;
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

fn draw<E: GpuFloat>(logits: &[E], u: &[f32], temperature: f32, p: f32, offset: usize) -> Vec<u32> {
    let (gpu, rows) = (gpu(), u.len());
    let (x, u) = (Input::new(gpu, logits, offset), gpu.upload(u).unwrap());
    let mut choice = Guarded::<u32>::new(gpu, rows);
    top_p(gpu, x.view(), u.view(), &mut choice.view_mut(), rows, logits.len() / rows, temperature, p).unwrap();
    choice.download()
}

fn greedy<E: GpuFloat>(logits: &[E], rows: usize) -> Vec<u32> {
    let (x, mut choice) = (Input::new(gpu(), logits, 0), Guarded::<u32>::new(gpu(), rows));
    argmax(gpu(), x.view(), &mut choice.view_mut(), rows, logits.len() / rows).unwrap();
    choice.download()
}

#[derive(Clone, Debug)]
struct Draw {
    vocab: usize,
    /// Logits are multiples of this: many ties where it is large.
    step: f64,
    width: f64,
    temperature: f32,
    p: f32,
    masked: bool,
    offset: usize,
}

fn draws() -> impl Strategy<Value = Draw> {
    let step = prop_oneof![Just(0.0), Just(0.5), Just(4.0)];
    let temperature = prop_oneof![Just(1.0f32), 0.3f32..2.0];
    let p = prop_oneof![2 => 0.05f32..0.999, 1 => Just(1.0f32), 1 => Just(0.0)];
    let shape = (edges(&[16, 32, 512, 1024]), step, 0.1f64..6.0, temperature, p, any::<bool>(), 0usize..3);
    shape.prop_map(|(vocab, step, width, temperature, p, masked, offset)| Draw {
        vocab,
        step,
        width,
        temperature,
        p,
        masked,
        offset,
    })
}

fn drawn<E: GpuFloat>(case: Draw, rng: &mut ChaCha8Rng) {
    let Draw { vocab, step, width, temperature, p, masked, offset } = case;
    let mut row: Vec<E> = normal::<f32>(rng, vocab)
        .iter()
        .map(|&x| round::<E>(if step > 0.0 { (width * x as f64 / step).round() * step } else { width * x as f64 }))
        .collect();
    if masked && vocab > 1 {
        row.iter_mut().skip(1).step_by(3).for_each(|x| *x = round::<E>(f64::NEG_INFINITY));
    }
    let logits = to_f64(&row);
    let first = (0..vocab).fold(0, |best, id| if logits[id] > logits[best] { id } else { best });
    assert_eq!(greedy(&row, 1), [first as u32], "argmax");

    let stay = nucleus(&logits, temperature as f64, p as f64);
    let u: Vec<f32> = [0.0, 0.999_999_94].into_iter().chain((0..4).map(|_| rng.random::<f32>())).collect();
    let found = draw(&row.repeat(u.len()), &u, temperature, p, offset);
    assert_eq!(found, draw(&row.repeat(u.len()), &u, temperature, p, offset), "two runs differ");
    if on_edge(&logits, temperature as f64, p as f64) {
        return;
    }
    for (&id, &u) in found.iter().zip(&u) {
        if let Some(expected) = choose(&stay, u as f64) {
            assert_eq!(id, expected, "u {u}, {} stay", stay.len());
        }
    }
}

#[test]
fn against_the_rule_in_f64() {
    property("sample f32", 20, draws(), drawn::<f32>);
    property("sample bf16", 20, draws(), drawn::<bf16>);
}

/// With u from 0 to 1, all tokens that stay come up, in order and no other.
fn kept(logits: &[f32], temperature: f32, p: f32) -> Vec<u32> {
    let u: Vec<f32> = (0..32).map(|i| (i as f32 + 0.5) / 32.0).collect();
    let mut found = draw(&logits.repeat(32), &u, temperature, p, 0);
    found.dedup();
    found
}

#[test]
fn ties_and_the_token_that_crosses() {
    assert_eq!(greedy(&[1.0f32, 3.0, 2.0], 1), [1]);
    assert_eq!(greedy(&[2.0f32, 5.0, 5.0, 1.0], 1), [1]);
    assert_eq!(greedy(&[-0.0f32, 0.0], 1), [0]);
    assert_eq!(greedy(&[f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, -3.0], 2), [1, 1]);
    assert_eq!(kept(&[2.0, 5.0, 5.0, 1.0], 1.0, 0.0), [1]);
    assert_eq!(kept(&[2.0, 5.0, 5.0, 1.0], 1.0, 0.3), [1]);
    assert_eq!(kept(&[2.0, 5.0, 5.0, 1.0], 1.0, 0.9), [1, 2]);
    assert_eq!(kept(&[-0.0, 0.0, -5.0], 1.0, 0.6), [0, 1], "−0 and 0 tie");
    // equal tokens: masses are exact, so a share that ends at a token keeps it and no more
    assert_eq!(kept(&[3.0; 4], 1.0, 0.5), [0, 1]);
    assert_eq!(kept(&[3.0; 4], 1.0, 0.75), [0, 1, 2]);
    assert_eq!(kept(&[3.0; 4], 1.0, 0.7500001), [0, 1, 2, 3]);
    assert_eq!(kept(&[3.0; 4], 1.0, 1.0), [0, 1, 2, 3]);
    // different logits of the same mass: a share that ends where one logit's tokens end
    for (p, ids) in [(0.25, &[0][..]), (0.5, &[0, 1]), (0.75, &[0, 1, 2]), (0.750_000_1, &[0, 1, 2, 3])] {
        assert_eq!(kept(&[4.0, 3.0, 2.0, 1.0], 1e30, p), ids, "top_p {p}");
    }
    // u at a boundary belongs to the token behind it
    assert_eq!(draw(&[3.0f32; 16], &[0.0, 0.25, 0.5, 0.75], 1.0, 1.0, 0), [0, 1, 2, 3]);
    // a number just below 1 that became 1 in f32 is the last token's
    assert_eq!(draw(&[3.0f32, 1.0, 2.0, 2.0], &[1.0], 1.0, 1.0, 0), [1]);
    assert_eq!(draw(&[3.0f32, 1.0, 2.0, 2.0], &[1.0], 1.0, 0.9, 0), [3]);
    let shares = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
    for (p, count) in [(0.0, 1), (1e-8, 1), (1e-4, 1), (0.6, 2), (0.76, 3), (1.0, 4)] {
        assert_eq!(kept(&shares, 1.0, p).len(), count, "top_p {p}");
    }
}

#[test]
fn temperature_zero_is_argmax() {
    assert_eq!(draw(&[1.0f32, 3.0, 2.0, 2.0, 5.0, 5.0], &[0.9, 0.9], 0.0, 0.5, 0), [1, 1]);
    assert_eq!(draw(&[1.0f32, 3.0, 2.0], &[0.9], 1e-30, 1.0, 0), [1]);
    assert_eq!(draw(&[-3e38f32, 3e38, 2.0], &[0.9], 0.5, 1.0, 0), [1]);
}

#[test]
fn rows_that_are_not_numbers_are_reported_alone() {
    let bad = [[f32::NAN, 1.0, 3.0], [1.0, f32::INFINITY, 0.0], [f32::NEG_INFINITY; 3], [1.0, 2.0, f32::NAN]];
    for row in bad {
        let logits = [[0.0, 9.0, 1.0], row, [9.0, 0.0, 0.0]].concat();
        assert_eq!(greedy(&logits, 3), [1, u32::MAX, 0]);
        assert_eq!(draw(&logits, &[0.5; 3], 1.0, 0.9, 0), [1, u32::MAX, 0]);
    }
    let choice = gpu().upload(&[1, u32::MAX, 0]).unwrap();
    let error = read(&choice, 5).unwrap_err().to_string();
    assert!(error.contains("non-finite logits at step 5 in row 1"), "{error}");
    assert_eq!(read(&gpu().upload(&[1u32, 2]).unwrap(), 5).unwrap(), [1, 2]);
}

#[test]
fn a_large_flat_vocabulary() {
    // the second one is the largest that is accepted
    for (vocab, p, u) in [(151_936, 1.0f32, 0.5f32), (151_936, 0.999, 0.999_999_94), (1 << 20, 1.0, 0.5)] {
        let logits = vec![bf16::ZERO; vocab];
        let found = draw(&logits, &[u], 1.0, p, 0)[0];
        // equal tokens stand in the order of their ids
        let expected = (u as f64 * (p as f64 * vocab as f64).ceil()).floor();
        assert!((found as f64 - expected).abs() <= 1.0, "found {found}, expected {expected}");
    }
}

#[test]
fn bad_input_is_refused() {
    let gpu = gpu();
    let (x, u) = (gpu.upload(&[0.0f32; 12]).unwrap(), gpu.upload(&[0.5f32; 2]).unwrap());
    let mut choice = Guarded::<u32>::new(gpu, 2);
    let mut run = |rows, vocab, temperature, p| {
        top_p(gpu, x.view(), u.view(), &mut choice.view_mut(), rows, vocab, temperature, p)
    };
    for (temperature, p) in
        [(-1.0, 1.0), (f32::NAN, 1.0), (f32::INFINITY, 1.0), (1.0, -0.1), (1.0, 1.5), (1.0, f32::NAN)]
    {
        assert!(matches!(run(2, 6, temperature, p), Err(LaunchError::Range { .. })), "{temperature} {p}");
    }
    assert!(matches!(run(2, 7, 1.0, 1.0), Err(LaunchError::TooSmall { operand: "logits", .. })));
    assert!(matches!(run(3, 4, 1.0, 1.0), Err(LaunchError::TooSmall { operand: "u", .. })));
    assert!(matches!(run(2, 0, 1.0, 1.0), Err(LaunchError::Range { what: "vocab", .. })));
    assert!(matches!(run(usize::MAX, 6, 0.0, 1.0), Err(LaunchError::TooSmall { operand: "u", .. })));
    run(0, 6, 1.0, 1.0).unwrap();
    assert!(matches!(
        argmax(gpu, x.view(), &mut choice.view_mut(), 4, 3),
        Err(LaunchError::TooSmall { operand: "choice", .. })
    ));
}
