//! `kernels/embedding.cu` and `kernels/cross_entropy.cu`: sums element by element, ids out of range, ignored targets, numbers
//! that are not finite, rows in chunks.

use crate::common::*;
use handgrad::gpu::Grid;
use handgrad::gpu::grid::shared::{CROSS_ENTROPY_SMALL_THREADS, EMBEDDING_THREADS, WARP};
use handgrad::launch::{F32, In, Int, Into, int};
use handgrad::ops::{self, IGNORE_INDEX};
use handgrad::{DType, Device, Tape, Tensor, Var};
use rand::RngExt;

const IGNORED: i64 = IGNORE_INDEX as i64;

fn lookup(table: &Tensor, ids: &Tensor, d_y: &Tensor) -> (Tensor, Tensor) {
    let (mut y, mut d) = both_ways(&[table], &[d_y], &|t, x| Ok(vec![ops::embedding(t, &x[0], ids)?]));
    (y.remove(0), d.remove(0))
}

/// The rows are copied bit for bit; a sum of rows has one rounding an addition, and a row without a token is exactly 0.
#[test]
fn gathered_and_added_row_by_row() {
    let mut rng = rng();
    for (n, vocab, cols, same) in [(65, 5, 33, 0), (300, 257, 128, 60), (2049, 70, 4, 20), (128, 3000, 7, 100)] {
        for dtype in BOTH {
            let often = rng.random_range(0..vocab as i64);
            let mut id = || if rng.random_range(0..100) < same { often } else { rng.random_range(0..vocab as i64) };
            let list: Vec<i64> = (0..n).map(|_| id()).collect();
            let (table, d_y) = (draw(&mut rng, &[vocab, cols], dtype), draw(&mut rng, &[n, cols], dtype));
            let (y, d_table) = lookup(&table, &ids(&list), &d_y);
            let rows = get(&table);
            let expected: Vec<f64> = list.iter().flat_map(|&id| rows[id as usize * cols..][..cols].to_vec()).collect();
            assert_eq!(get(&y), expected);
            let (mut sums, mut sizes) = (vec![0.0; vocab * cols], vec![0.0; vocab * cols]);
            for (i, d) in get(&d_y).into_iter().enumerate() {
                let at = list[i / cols] as usize * cols + i % cols;
                (sums[at], sizes[at]) = (sums[at] + d, sizes[at] + d.abs());
            }
            let terms = (32 + n / 32) as f64; // the longest chain of additions
            within("d_table", &get(&d_table), &sums, |i| terms * 2f64.powi(-24) * sizes[i]);
            same_bits("d_table", &d_table, &lookup(&table, &ids(&list), &d_y).1);
        }
    }
}

/// 10,000 tokens of which 9,000 are the same: the same bits, and within 1e-5 of the f64 sum.
#[test]
fn one_id_nine_thousand_times() {
    let mut rng = rng();
    let (n, vocab, cols) = (10_000, 1000, 5);
    let list: Vec<i64> = (0..n).map(|i| if i % 10 < 9 { 321 } else { rng.random_range(0..vocab as i64) }).collect();
    let d_y: Vec<f64> = (0..n * cols).map(|_| rng.random_range(0.5f64..1.5)).collect();
    let d_y = put(&d_y, &[n, cols], DType::F32);
    let mut sums = vec![0.0f64; vocab * cols];
    get(&d_y).iter().enumerate().for_each(|(i, d)| sums[list[i / cols] as usize * cols + i % cols] += d);
    let (table, list) = (put(&vec![0.0; vocab * cols], &[vocab, cols], DType::F32), ids(&list));
    let found = lookup(&table, &list, &d_y).1;
    within("d_table", &get(&found), &sums, |i| 1e-5 * sums[i]);
    for _ in 0..4 {
        same_bits("d_table", &found, &lookup(&table, &list, &d_y).1);
    }
}

#[test]
fn repeated_and_empty() {
    let (table, d_y) = (put(&[0.0; 3], &[3, 1], DType::F32), put(&[1.0, 2.0, 4.0], &[3, 1], DType::F32));
    assert_eq!(get(&lookup(&table, &ids(&[1, 1, 0]), &d_y).1), [4.0, 3.0, 0.0]);
    let none = put(&[], &[0, 1], DType::F32);
    let (y, d_table) = lookup(&table, &ids(&[]), &none);
    assert_eq!((y.shape(), get(&d_table)), (&[0, 1][..], vec![0.0; 3]));
    // The sum of two uses, one of them empty.
    let (list, empty) = (ids(&[1, 1, 0]), ids(&[]));
    let twice = |t: &mut Tape, x: &[Var]| {
        Ok(vec![ops::embedding(t, &x[0], &list)?, ops::embedding(t, &x[0], &list)?, ops::embedding(t, &x[0], &empty)?])
    };
    assert_eq!(get(&both_ways(&[&table], &[&d_y, &d_y, &none], &twice).1[0]), [8.0, 6.0, 0.0]);
}

/// On a card an id beyond the table gives NaN and has no gradient; on the CPU it is refused.
#[test]
fn ids_out_of_range() {
    let (vocab, cols) = (5usize, 8);
    let rows: Vec<f64> = (0..vocab * cols).map(|i| i as f64).collect();
    let table = put(&rows, &[vocab, cols], DType::F32);
    // 9 has the low bits of 1, and the largest ids come from failed draws.
    let list = [1i64, 9, 1, i64::from(u32::MAX), 4, 5, 0, 13, 1];
    let ones = |n: usize| put(&vec![1.0; n * cols], &[n, cols], DType::F32);
    let (y, d_table) = lookup(&table, &ids(&list), &ones(list.len()));
    for (row, &id) in get(&y).chunks(cols).zip(&list) {
        match (id as usize) < vocab {
            true => assert_eq!(row, &rows[id as usize * cols..][..cols]),
            false => assert!(row.iter().all(|x| x.is_nan())),
        }
    }
    let counts: Vec<f64> = get(&d_table).chunks(cols).map(|row| row[0]).collect();
    assert_eq!(counts, [1.0, 3.0, 0.0, 0.0, 1.0]);
    // So many that their run crosses pieces of the sorted list.
    assert!(get(&lookup(&table, &ids(&[7; 100]), &ones(100)).1).iter().all(|&d| d == 0.0));
    let (x, here) = (Var::constant(table), ids(&list).to(&Device::Cpu).unwrap());
    let error = ops::embedding(&mut Tape::inference(), &x, &here).unwrap_err().to_string();
    assert!(error.contains("id 9 at position 1") && error.contains("below 5"), "{error}");
}

#[test]
fn gathering_stays_in_its_memory() {
    let mut rng = rng();
    for (n, cols, dtype) in [(1, 1, DType::F32), (33, 7, DType::Bf16), (9, 64, DType::Bf16), (65, 12, DType::F32)] {
        let (table, list) =
            (draw(&mut rng, &[5, cols], dtype), ids(&(0..n as i64).map(|i| i % 5).collect::<Vec<i64>>()));
        let y = Guarded::new(&[n, cols], dtype);
        let variant = if (cols * dtype.size()).is_multiple_of(16) { "" } else { "_unaligned" };
        let grid = Grid::linear(n * WARP, EMBEDDING_THREADS).variant(variant);
        let args = [In(&table), In(&list), Into(&y.window), int(n), int(5), int(cols)];
        gpu().launch("embedding_forward", &grid, &args).unwrap();
        assert_eq!(y.get(), get(&forward(&[&table], &|t, x| Ok(vec![ops::embedding(t, &x[0], &list)?]))[0]));
    }
}

/// The losses of rows, and the gradient for a mean over `counted`, both in guarded memory, `chunk` rows a launch.
fn rows_of(logits: &[f64], targets: &[i64], ignored: i64, counted: usize, chunk: usize) -> (Vec<f64>, Vec<f64>) {
    let (rows, vocab) = (targets.len(), logits.len() / targets.len());
    let (data, losses) = (Guarded::holding(logits, &[rows, vocab], DType::F32), Guarded::new(&[rows], DType::F32));
    let targets = ids(targets);
    for start in (0..rows).step_by(chunk) {
        let range = start..rows.min(start + chunk);
        let part = |x: &Tensor| x.rows(range.clone()).unwrap();
        let (data, targets, losses) = (part(&data.window), part(&targets), part(&losses.window));
        let grid = Grid::blocks(range.len(), CROSS_ENTROPY_SMALL_THREADS);
        let sizes = [F32(1.0 / counted as f32), int(vocab), Int(ignored)];
        gpu()
            .launch(
                "cross_entropy_gradient",
                &grid,
                &[&[Into(&data), In(&targets), Into(&losses)], &sizes[..]].concat(),
            )
            .unwrap();
    }
    (losses.get(), data.get())
}

fn loss(logits: &[f64], targets: &[i64]) -> (f64, Vec<f64>) {
    let x = put(logits, &[targets.len(), logits.len() / targets.len()], DType::F32);
    let targets = ids(targets);
    let one = put(&[1.0], &[], DType::F32);
    let (y, d) = both_ways(&[&x], &[&one], &|t, x| Ok(vec![ops::cross_entropy(t, &x[0], &targets, IGNORE_INDEX)?]));
    (y[0].item().unwrap(), get(&d[0]))
}

#[test]
fn known_losses() {
    let (mean, gradient) = loss(&[0.0; 4], &[0, IGNORED]);
    assert!((mean - 2f64.ln()).abs() < 1e-6);
    assert_eq!(gradient, [-0.5, 0.5, 0.0, 0.0]);
    for (logits, target, expected) in [
        (&[1e8, 1e8][..], 1, 2f64.ln()),
        (&[1000.0, 0.0], 1, 1000.0),
        (&[1000.0, 0.0], 0, 0.0),
        (&[-101.0, 0.0, 0.0], 0, 101.69314718),
        (&[1.0, 2.0, 3.0], 2, 0.40760596),
        (&[1.0, 2.0, 3.0], 0, 2.40760596),
        (&[f64::NEG_INFINITY, 0.0, f64::NEG_INFINITY], 1, 0.0),
        (&[f64::NEG_INFINITY, 0.0], 0, f64::INFINITY),
        (&[-6e4, -6e4], 0, 2f64.ln()),
    ] {
        let alone = rows_of(logits, &[target], IGNORED, 1, 1).0;
        for found in [loss(logits, &[target]).0, alone[0]] {
            within("loss", &[found], &[expected], |_| 1e-6 * expected.abs().max(1.0));
        }
    }
    within("gradient", &loss(&[1.0, 2.0, 3.0], &[2]).1, &[0.09003057, 0.24472847, -0.33475904], |_| 1e-6);
}

/// Element by element: what the gradient adds up is the probability, whose exponential multiplies what its argument was
/// rounded by, and 1 at the target.
#[test]
fn gradients_element_by_element() {
    let mut rng = rng();
    for (rows, vocab, width) in [(5, 9, 8.0), (3, 513, 1.0), (3, 1025, 8.0), (2, 4097, 8.0)] {
        for dtype in BOTH {
            let wide: Vec<f64> = normal(&mut rng, rows * vocab).iter().map(|x| width * x).collect();
            let x = put(&wide, &[rows, vocab], dtype);
            let list: Vec<i64> =
                (0..rows).map(|row| if row == 1 { IGNORED } else { rng.random_range(0..vocab as i64) }).collect();
            let (on_card, d_loss) = (ids(&list), -1.7f32);
            let f = |targets: &Tensor, x: &Tensor, d: Tensor| {
                both_ways(&[x], &[&d], &|t, x| Ok(vec![ops::cross_entropy(t, &x[0], targets, IGNORE_INDEX)?]))
            };
            let found = f(&on_card, &x, put(&[d_loss.into()], &[], DType::F32));
            let here = on_card.to(&Device::Cpu).unwrap();
            let expected = f(&here, &exact(&x), Tensor::scalar(f64::from(d_loss)));
            let mean = expected.0[0].item().unwrap();
            within("mean", &[found.0[0].item().unwrap()], &[mean], |_| 2e-6 * (1.0 + mean));
            let scale = f64::from(d_loss.abs()) / list.iter().filter(|&&t| t != IGNORED).count() as f64;
            let logits = get(&x);
            let terms = logits.chunks(vocab).zip(&list).flat_map(|(row, &target)| {
                let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
                let term = move |(v, x): (usize, &f64)| {
                    let p = (x - max).exp() / sum;
                    scale * (p * (1.0 + (max - x) / 24.0) + f64::from(u8::from(v as i64 == target)))
                };
                row.iter().enumerate().map(term).collect::<Vec<f64>>()
            });
            within_rounding("gradient", &found.1[0], &get(&expected.1[0]), &terms.collect::<Vec<f64>>());
            assert!(get(&found.1[0])[vocab..2 * vocab].iter().all(|&d| d == 0.0), "an ignored row");
        }
    }
}

/// The same bits whatever the chunks are; ignored rows have the loss 0 and no gradient.
#[test]
fn rows_in_chunks() {
    let mut rng = rng();
    for (rows, vocab) in [(7, 13), (9, 16), (5, 2049)] {
        let logits = normal(&mut rng, rows * vocab);
        let list: Vec<i64> = (0..rows as i64).map(|row| if row % 4 == 2 { IGNORED } else { row % 5 }).collect();
        let whole = rows_of(&logits, &list, IGNORED, 4, rows);
        for (row, _) in list.iter().enumerate().filter(|(_, target)| **target == IGNORED) {
            assert!(whole.0[row] == 0.0 && whole.1[row * vocab..][..vocab].iter().all(|&d| d == 0.0), "row {row}");
        }
        // Four rows at a time, so that each chunk begins at an aligned address.
        assert_eq!(rows_of(&logits, &list, IGNORED, 4, 4), whole);
    }
}

#[test]
fn all_ignored_is_a_loss_of_zero() {
    let (mean, gradient) = loss(&[f64::NAN, f64::INFINITY, 1.0, 2.0], &[IGNORED; 2]);
    assert_eq!((mean, gradient), (0.0, vec![0.0; 4]));
    // No rows at all.
    let (x, none, one) = (put(&[], &[0, 5], DType::F32), ids(&[]), put(&[1.0], &[], DType::F32));
    let f = |t: &mut Tape, x: &[Var]| Ok(vec![ops::cross_entropy(t, &x[0], &none, IGNORE_INDEX)?]);
    let (y, d) = both_ways(&[&x], &[&one], &f);
    assert_eq!((get(&y[0]), d[0].shape()), (vec![0.0], &[0, 5][..]));
    // Ignored although it is beyond the vocabulary.
    let (losses, gradient) = rows_of(&[0.0; 6], &[255, 2], 255, 1, 2);
    within("losses", &losses, &[0.0, 3f64.ln()], |_| 1e-6);
    assert_eq!(&gradient[..3], [0.0; 3]);
}

#[test]
fn what_is_not_finite_shows() {
    for bad in [f64::NAN, f64::INFINITY] {
        for place in [0, 7, 9, 12] {
            let mut logits = vec![1.0; 2 * 13];
            logits[place] = bad;
            let (losses, gradient) = rows_of(&logits, &[1, 1], IGNORED, 2, 2);
            assert!(losses[0].is_nan() && losses[1].is_finite(), "{bad} at {place}: {losses:?}");
            assert!(gradient[..13].iter().all(|d| d.is_nan()) && gradient[13..].iter().all(|d| d.is_finite()));
            assert!(loss(&logits, &[1, 1]).0.is_nan());
        }
    }
    assert!(rows_of(&[f64::NEG_INFINITY; 3], &[1], IGNORED, 1, 1).0[0].is_nan());
}

/// Targets are checked before they are copied, so the first bad row is named whatever the device does.
#[test]
fn bad_targets_are_named() {
    let x = Var::constant(put(&[0.0; 35], &[7, 5], DType::F32));
    for (targets, message) in [
        ([0, -100, -4, 5, 1, 2, 3], "target -4 in row 2"),
        ([0, -100, 4, 5, 1, 2, -3], "target 5 in row 3"),
        ([i64::from(i32::MAX), 0, 0, 0, 0, 0, i64::from(i32::MIN)], "target 2147483647 in row 0"),
        ([0, 0, 0, 0, 0, 0, i64::from(i32::MIN)], "target -2147483648 in row 6"),
    ] {
        let error =
            ops::cross_entropy(&mut Tape::inference(), &x, &ids(&targets), IGNORE_INDEX).unwrap_err().to_string();
        assert!(error.contains(message) && error.contains("0 to 4 or -100"), "{error}");
    }
}

#[test]
fn the_mean_of_many_rows() {
    let mut rng = rng();
    for rows in [1023, 1025, 4097] {
        let list: Vec<i64> = (0..rows as i64).map(|n| if n % 3 == 0 { IGNORED } else { 1 }).collect();
        let logits = normal(&mut rng, 2 * rows);
        let counted = list.iter().filter(|&&t| t == 1).count();
        let sum: f64 = rows_of(&logits, &list, IGNORED, counted, rows).0.iter().sum();
        within("mean", &[loss(&logits, &list).0], &[sum / counted as f64], |_| 1e-6);
    }
}
