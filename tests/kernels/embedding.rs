//! `kernels/embedding.cu`.

use crate::common::*;
use crate::elementwise::offsets;
use half::bf16;
use handgrad::gpu::kernels::embedding::{self, BadId};
use handgrad::gpu::{GpuFloat, LaunchError, View};
use handgrad::{Tensor, ops};
use proptest::prelude::*;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

#[derive(Clone, Debug)]
struct Draw {
    n: usize,
    vocab: usize,
    cols: usize,
    offsets: [usize; 4],
    accumulate: bool,
    /// Percent of the tokens that are the same id.
    same: u32,
}

fn draws() -> impl Strategy<Value = Draw> {
    let vocab = prop_oneof![edges(&[4, 256]), Just(3000usize)];
    let cols = prop_oneof![edges(&[4, 128]), Just(516usize), Just(264), Just(32)];
    let same = prop_oneof![Just(0u32), Just(60), Just(100)];
    (edges(&[32, 64, 128, 256]), vocab, cols, offsets(), any::<bool>(), same)
        .prop_map(|(n, vocab, cols, offsets, accumulate, same)| Draw { n, vocab, cols, offsets, accumulate, same })
}

fn ids(draw: &Draw, rng: &mut ChaCha8Rng) -> Vec<u32> {
    let often = rng.random_range(0..draw.vocab as u32);
    let id = |rng: &mut ChaCha8Rng| match rng.random_range(0..100) < draw.same {
        true => often,
        false => rng.random_range(0..draw.vocab as u32),
    };
    (0..draw.n).map(|_| id(rng)).collect()
}

fn drawn<E: GpuFloat>(draw: Draw, rng: &mut ChaCha8Rng) {
    let Draw { n, vocab, cols, offsets, accumulate, .. } = draw;
    let gpu = gpu();
    let ids = ids(&draw, rng);
    let (table, d_y) = (normal::<E>(rng, vocab * cols), normal::<E>(rng, n * cols));
    let id_tensor = Tensor::from_vec(ids.clone(), &[n]).unwrap();
    let f64s = reference(&[tensor(&table, &[vocab, cols])], &[tensor(&d_y, &[n, cols])], |tape, vars| {
        Ok(vec![ops::embedding(tape, &vars[0], &id_tensor)?])
    });

    let (bad, ids_gpu) = (BadId::none(gpu).unwrap(), gpu.upload(&ids).unwrap());
    let table = Input::new(gpu, &table, offsets[0]);
    let mut y = Guarded::<E>::at(gpu, n * cols, offsets[1]);
    embedding::forward(gpu, table.view(), ids_gpu.view(), &mut y.view_mut(), &bad, n, vocab, cols).unwrap();
    bad.check(vocab).unwrap();
    assert_eq!(to_f64(&y.download()), f64s.outputs[0]);

    let (before, d_y_gpu) = (normal::<f32>(rng, vocab * cols), Input::new(gpu, &d_y, offsets[2]));
    let run = || {
        let mut d_table = if accumulate {
            Guarded::holding(gpu, &before, offsets[3])
        } else {
            Guarded::at(gpu, vocab * cols, offsets[3])
        };
        let to = &mut d_table.view_mut();
        embedding::backward(gpu, d_y_gpu.view(), ids_gpu.view(), to, n, vocab, cols, accumulate).unwrap();
        d_table.download()
    };
    let found = run();
    let mut magnitude = vec![0.0; vocab * cols];
    for (&id, d_y) in ids.iter().zip(to_f64(&d_y).chunks(cols)) {
        let row = &mut magnitude[id as usize * cols..][..cols];
        row.iter_mut().zip(d_y).for_each(|(m, d)| *m += d.abs());
    }
    let start = |i: usize| if accumulate { before[i] as f64 } else { 0.0 };
    let expected: Vec<f64> = f64s.gradients[0].iter().enumerate().map(|(i, d)| start(i) + d).collect();
    let terms = (32 + n / 32) as f64; // the longest chain of additions
    within("d_table", &to_f64(&found), &expected, |i| {
        // a row without a token is not touched, or exactly 0
        if magnitude[i] == 0.0 { 0.0 } else { terms * 2f64.powi(-24) * (magnitude[i] + start(i).abs()) }
    });
    same_bits("d_table", &found, &run());
}

#[test]
fn against_f64() {
    property("embedding f32", 20, draws(), drawn::<f32>);
    property("embedding bf16", 20, draws(), drawn::<bf16>);
}

/// Vocabularies at the ends of the sort's 8-bit digits, and more tokens than one of its tiles: every id must find its
/// row.
#[test]
fn vocabularies_around_digits() {
    for (vocab, n) in [(255, 1023), (256, 1025), (257, 2049), (65_535, 1500), (65_536, 1100), (65_537, 3000)] {
        property("embedding, digits", 1, Just(()), |(), rng| {
            let mut draw = Draw { n, vocab, cols: 1, offsets: [0; 4], accumulate: false, same: 20 };
            drawn::<f32>(draw.clone(), rng);
            draw.accumulate = true;
            drawn::<bf16>(draw, rng);
        });
    }
}

/// 10,000 tokens of which 9,000 are the same: the same bits, and within 1e-5 of the f64 sum.
#[test]
fn one_id_nine_thousand_times() {
    property("embedding, one id", 1, Just(()), |(), rng| {
        let (gpu, n, vocab, cols) = (gpu(), 10_000, 1000, 5);
        let ids: Vec<u32> = (0..n).map(|i| if i % 10 < 9 { 321 } else { rng.random_range(0..vocab as u32) }).collect();
        let d_y: Vec<f32> = (0..n * cols).map(|_| rng.random_range(0.5f32..1.5)).collect();
        let mut sums = vec![0.0f64; vocab * cols];
        for (i, &d) in d_y.iter().enumerate() {
            sums[ids[i / cols] as usize * cols + i % cols] += d as f64;
        }
        let (ids, d_y) = (gpu.upload(&ids).unwrap(), gpu.upload(&d_y).unwrap());
        let run = || {
            let mut d_table = Guarded::<f32>::new(gpu, vocab * cols);
            let to = &mut d_table.view_mut();
            embedding::backward(gpu, d_y.view(), ids.view(), to, n, vocab, cols, false).unwrap();
            d_table.download()
        };
        let found = run();
        within("d_table", &to_f64(&found), &sums, |i| 1e-5 * sums[i]);
        for _ in 0..4 {
            same_bits("d_table", &found, &run());
        }
    });
}

#[test]
fn repeated_and_empty() {
    let gpu = gpu();
    let (ids, d_y) = (gpu.upload(&[1u32, 1, 0]).unwrap(), gpu.upload(&[1.0f32, 2.0, 4.0]).unwrap());
    let mut d_table = Guarded::<f32>::new(gpu, 3);
    embedding::backward(gpu, d_y.view(), ids.view(), &mut d_table.view_mut(), 3, 3, 1, false).unwrap();
    assert_eq!(d_table.download(), [4.0, 3.0, 0.0]);
    embedding::backward(gpu, d_y.view(), ids.view(), &mut d_table.view_mut(), 3, 3, 1, true).unwrap();
    assert_eq!(d_table.download(), [8.0, 6.0, 0.0]);
    embedding::backward(gpu, d_y.view(), ids.view(), &mut d_table.view_mut(), 0, 3, 1, true).unwrap();
    assert_eq!(d_table.download(), [8.0, 6.0, 0.0]);
    embedding::backward(gpu, d_y.view(), ids.view(), &mut d_table.view_mut(), 0, 3, 1, false).unwrap();
    assert_eq!(d_table.download(), [0.0; 3]);
    let (bad, mut y) = (BadId::none(gpu).unwrap(), Guarded::<f32>::new(gpu, 0));
    embedding::forward(gpu, d_y.view(), ids.view(), &mut y.view_mut(), &bad, 0, 3, 1).unwrap();
    bad.check(3).unwrap();
}

#[test]
fn ids_out_of_range_are_reported() {
    let (gpu, vocab, cols) = (gpu(), 5usize, 8);
    let table: Vec<f32> = (0..vocab * cols).map(|i| i as f32).collect();
    let table_gpu = gpu.upload(&table).unwrap();
    // 9 has the low bits of 1, and the largest ids come from failed draws
    let ids = [1u32, 9, 1, u32::MAX, 4, 5, 0, 13, 1];
    let (n, ids_gpu) = (ids.len(), gpu.upload(&ids).unwrap());
    let (bad, mut y) = (BadId::none(gpu).unwrap(), Guarded::<f32>::new(gpu, n * cols));
    embedding::forward(gpu, table_gpu.view(), ids_gpu.view(), &mut y.view_mut(), &bad, n, vocab, cols).unwrap();
    let error = bad.check(vocab).unwrap_err();
    assert!(error.to_string().contains("id 9 at position 1") && error.to_string().contains("below 5"), "{error}");
    for (row, &id) in y.download().chunks(cols).zip(&ids) {
        match (id as usize) < vocab {
            true => assert_eq!(row, &table[id as usize * cols..][..cols]),
            false => assert!(row.iter().all(|x| x.is_nan())),
        }
    }
    let d_y = gpu.upload(&vec![1.0f32; n * cols]).unwrap();
    let mut d_table = Guarded::<f32>::new(gpu, vocab * cols);
    embedding::backward(gpu, d_y.view(), ids_gpu.view(), &mut d_table.view_mut(), n, vocab, cols, false).unwrap();
    let counts: Vec<f32> = d_table.download().chunks(cols).map(|row| row[0]).collect();
    assert_eq!(counts, [1.0, 3.0, 0.0, 0.0, 1.0]);
    // so many that their run crosses pieces of the sorted list
    let ids = gpu.upload(&[7u32; 100]).unwrap();
    let d_y = gpu.upload(&vec![1.0f32; 100 * cols]).unwrap();
    // without guards, whose NaN would hide that something was added
    let mut d_table = gpu.alloc::<f32>(vocab * cols).unwrap();
    embedding::backward(gpu, d_y.view(), ids.view(), &mut d_table.view_mut(), 100, vocab, cols, false).unwrap();
    assert!(d_table.download().unwrap().iter().all(|&d| d == 0.0));
}

/// Rows on both sides of 2³¹ and of 2³² elements, in memory that holds only the row.
#[test]
fn offsets_beyond_32_bits() {
    let (gpu, vocab, cols) = (gpu(), 524_288usize, 8_960usize);
    let data: Vec<f32> = (0..cols).map(|i| i as f32).collect();
    let row = gpu.upload(&data).unwrap();
    for id in [239_673u32, 239_674, 479_349, 479_350] {
        let start = row.view().address() - (id as usize * cols * size_of::<f32>()) as u64;
        // SAFETY: the kernel reads the one row that is there.
        let table = unsafe { View::<f32>::from_raw(start, vocab * cols) };
        let (ids, bad, mut y) = (gpu.upload(&[id]).unwrap(), BadId::none(gpu).unwrap(), Guarded::<f32>::new(gpu, cols));
        embedding::forward(gpu, table, ids.view(), &mut y.view_mut(), &bad, 1, vocab, cols).unwrap();
        assert_eq!(y.download(), data);

        let d_row = Guarded::<f32>::holding(gpu, &data, 0);
        let start = d_row.view().address() - (id as usize * cols * size_of::<f32>()) as u64;
        // SAFETY: the kernel adds to the one row that is there.
        let mut d_table = unsafe { handgrad::gpu::ViewMut::<f32>::from_raw(start, vocab * cols) };
        embedding::backward(gpu, row.view(), ids.view(), &mut d_table, 1, vocab, cols, true).unwrap();
        assert_eq!(d_row.download(), data.iter().map(|x| 2.0 * x).collect::<Vec<f32>>());
    }
}

#[test]
fn bad_operands_are_refused() {
    let gpu = gpu();
    let (x, ids, bad) =
        (gpu.upload(&[0.0f32; 12]).unwrap(), gpu.upload(&[0u32; 4]).unwrap(), BadId::none(gpu).unwrap());
    let mut y = Guarded::<f32>::new(gpu, 12);
    let mut forward =
        |n, vocab, cols| embedding::forward(gpu, x.view(), ids.view(), &mut y.view_mut(), &bad, n, vocab, cols);
    assert!(matches!(forward(4, 4, 4), Err(LaunchError::TooSmall { operand: "table", found: 12, expected: 16, .. })));
    assert!(matches!(forward(5, 4, 2), Err(LaunchError::TooSmall { operand: "ids", .. })));
    assert!(matches!(forward(4, 3, 4), Err(LaunchError::TooSmall { operand: "y", .. })));
    assert!(matches!(forward(4, 0, 3), Err(LaunchError::Range { what: "vocab", .. })));
    assert!(matches!(forward(4, 1 << 40, 1 << 40), Err(LaunchError::Overflow { operand: "table", .. })));
    let mut d_table = Guarded::<f32>::new(gpu, 12);
    let mut backward =
        |n, vocab, cols| embedding::backward(gpu, x.view(), ids.view(), &mut d_table.view_mut(), n, vocab, cols, false);
    assert!(matches!(backward(4, 3, 4), Err(LaunchError::TooSmall { operand: "d_y", .. })));
    assert!(matches!(backward(3, 4, 4), Err(LaunchError::TooSmall { operand: "d_table", .. })));
}
