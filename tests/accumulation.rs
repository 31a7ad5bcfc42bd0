//! A step in parts: the gradients of one large batch, whatever the parts and however many of their targets count; and the
//! windows that a step takes.

use handgrad::data::Batch;
use handgrad::nn::{ModelConfig, Module, Transformer};
use handgrad::ops::IGNORE_INDEX;
use handgrad::tape::Gradients;
use handgrad::train::recipe::Order;
use handgrad::train::{Recipe, Trainer};
use handgrad::{Tape, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;

const T: usize = 11;
const VOCAB: usize = 50;

fn trainer(change: impl FnOnce(&mut Recipe)) -> Trainer {
    let config = ModelConfig { n_layer: 2, n_embd: 32, head_dim: 8, n_ff: 40, ..ModelConfig::chapter8(VOCAB) };
    let mut recipe = Recipe { steps: 40, batch_size: 3, seq_len: T, warmup: 2, ..Recipe::named("small", T).unwrap() };
    change(&mut recipe);
    let tokens: Vec<u32> = (0..400).map(|i| (i * i + i / 7) % VOCAB as u32).collect();
    Trainer::new(Transformer::new(&config, 1).unwrap(), recipe, tokens, vec![])
}

fn tensor(data: Vec<u32>) -> Tensor {
    let rows = data.len() / T;
    Tensor::from_vec(data, &[rows, T]).unwrap()
}

/// The largest difference of two models' gradients, by the largest gradient of each parameter.
fn difference(trainer: &Trainer, a: &Gradients, b: &Gradients) -> f64 {
    let of = |gradients: &Gradients, name: &str| gradients.get(name).unwrap().to_f64_vec().unwrap();
    let parameters = trainer.model.parameters();
    let differences = parameters.iter().map(|p| {
        let (a, b) = (of(a, &p.name), of(b, &p.name));
        let size = a.iter().fold(0.0f64, |size, x| size.max(x.abs()));
        a.iter().zip(&b).fold(0.0f64, |worst, (a, b)| worst.max((a - b).abs())) / size
    });
    differences.fold(0.0, f64::max)
}

#[test]
fn parts_have_the_gradients_of_the_whole_however_many_targets_count() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let trainer = trainer(|_| ());
    let ids: Vec<u32> = (0..6 * T).map(|_| rng.random_range(0..VOCAB as u32)).collect();
    // Of the rows' targets none, some or all count, so that means of means would be wrong.
    let target = |i: usize, rng: &mut ChaCha8Rng| match i / T {
        0 | 1 if i % T != 3 => IGNORE_INDEX as u32,
        2 if rng.random_bool(0.5) => IGNORE_INDEX as u32,
        5 => IGNORE_INDEX as u32,
        _ => rng.random_range(0..VOCAB as u32),
    };
    let targets: Vec<u32> = (0..6 * T).map(|i| target(i, &mut rng)).collect();
    let batches = |rows: &[usize]| -> Vec<Batch> {
        let mut first = 0;
        let part = |rows: &usize| {
            let range = first * T..(first + rows) * T;
            first += rows;
            Batch { ids: tensor(ids[range.clone()].to_vec()), targets: tensor(targets[range].to_vec()) }
        };
        rows.iter().map(part).collect()
    };
    let loss =
        |losses: &[(Tensor, f64)]| losses.iter().map(|(loss, weight)| loss.item().unwrap() * weight).sum::<f64>();
    let (whole, whole_losses) = trainer.gradients(&batches(&[6])).unwrap();
    for rows in [&[2, 2, 2][..], &[1, 5], &[3, 2, 1], &[1; 6]] {
        let (parts, losses) = trainer.gradients(&batches(rows)).unwrap();
        let found = difference(&trainer, &whole, &parts);
        assert!(found < 1e-6, "seed {seed}: parts of {rows:?} rows are off by {found:e}");
        assert!((loss(&losses) / loss(&whole_losses) - 1.0).abs() < 1e-6, "seed {seed}");
    }
}

#[test]
fn a_tape_adds_to_what_it_is_given_and_keeps_what_it_does_not_have() {
    let gradients = |sums: Gradients, name: &str, factor: f64| {
        let mut tape = Tape::onto(sums);
        let x = tape.leaf(name, &Tensor::from_vec(vec![1.0f64, 2.0], &[2]).unwrap());
        let y = handgrad::ops::scale(&mut tape, &x, factor).unwrap();
        tape.backward_from(&[(&y, Tensor::full(&[2], 1.0, handgrad::DType::F64))]).unwrap()
    };
    let sums = gradients(gradients(gradients(Gradients::default(), "x", 2.0), "y", 5.0), "x", 3.0);
    assert_eq!(sums.get("x").unwrap().to_f64_vec().unwrap(), [5.0, 5.0]);
    assert_eq!(sums.get("y").unwrap().to_f64_vec().unwrap(), [5.0, 5.0]);
}

#[test]
fn a_step_in_parts_is_the_step_on_the_same_windows() {
    for order in [Order::Random, Order::Sequential] {
        let mut whole = trainer(|recipe| (recipe.batch_size, recipe.order) = (6, order));
        let mut parts = trainer(|recipe| (recipe.batch_size, recipe.accumulate, recipe.order) = (2, 3, order));
        assert_eq!(whole.recipe.tokens_per_step(), parts.recipe.tokens_per_step());
        for _ in 0..5 {
            let (a, b) = (whole.train_step().unwrap(), parts.train_step().unwrap());
            assert!(
                (a.loss / b.loss - 1.0).abs() < 1e-5 && (a.grad_norm / b.grad_norm - 1.0).abs() < 1e-4,
                "{a:?} {b:?}"
            );
        }
    }
}

#[test]
fn steps_in_parts_are_the_same_bits_on_any_number_of_threads() {
    let bits = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut trainer = trainer(|recipe| recipe.accumulate = 3);
            for _ in 0..4 {
                trainer.train_step().unwrap();
            }
            let parameters = trainer.model.parameters();
            parameters.iter().flat_map(|p| p.value.to_f64_vec().unwrap()).map(f64::to_bits).collect::<Vec<u64>>()
        })
    };
    assert!(bits(1) == bits(2));
}

#[test]
fn windows_in_order_come_once_in_a_pass() {
    let tokens: Vec<u32> = (0..100).collect();
    let windows = 99 / T; // 9, and a tail of 0 tokens and the last target
    let starts = |batch: usize| {
        let batches = (0..).step_by(batch).take_while(|first| *first < 2 * windows);
        let ids = batches.flat_map(|first| {
            let batch = handgrad::data::batch::batch_in_order(&tokens, batch, T, first).unwrap();
            assert_eq!(batch.targets.as_slice::<u32>().unwrap()[0], batch.ids.as_slice::<u32>().unwrap()[0] + 1);
            batch.ids.as_slice::<u32>().unwrap().iter().step_by(T).copied().collect::<Vec<u32>>()
        });
        ids.take(2 * windows).collect::<Vec<u32>>()
    };
    let in_order: Vec<u32> = (0..2 * windows as u32).map(|k| k % windows as u32 * T as u32).collect();
    for batch in [1, 2, 3, 4, 20] {
        assert_eq!(starts(batch), in_order, "batches of {batch}");
    }
    assert_eq!(BTreeSet::from_iter(&in_order).len(), windows);
    assert!(handgrad::data::batch::batch_in_order(&tokens[..T], 1, T, 0).is_err());
}

#[test]
fn the_report_s_step_is_eight_batches_of_32() {
    for (name, steps, tokens) in [("report-80m", 7418, 1_458_472_895_usize), ("report-197m", 3204, 630_000_000)] {
        let recipe = Recipe::preset(name).unwrap();
        assert_eq!((recipe.batch_size, recipe.accumulate, recipe.seq_len, recipe.steps), (32, 8, 768, steps));
        assert_eq!(recipe.tokens_per_step(), 196_608);
        assert_eq!(tokens / recipe.tokens_per_step(), steps, "whole steps in the report's tokens");
    }
    let chapter = Recipe::named("chapter8", 64).unwrap();
    assert_eq!((chapter.steps, chapter.batch_size, chapter.lr, chapter.beta2), (300, 16, 3e-4, 0.95));
    assert!(Recipe::named("longer", 64).unwrap_err().to_string().contains("small, chapter8, report-80m, report-197m"));
}
