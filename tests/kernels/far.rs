//! Rows on both sides of 2³¹ and 2³² elements. A device's memory is as large as the whole, though only the row is ever written;
//! the tests take turns, as a card holds few of these.

use crate::common::*;
use handgrad::gpu::Grid;
use handgrad::gpu::gemm::{Product, Tiling};
use handgrad::launch::{Absent, F32, In, Into, int};
use handgrad::ops::{self, IGNORE_INDEX, cache_write};
use handgrad::{DType, Tape, Tensor};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn empty(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::empty(shape, dtype, gpu()).unwrap()
}

/// Numbers that bf16 holds.
fn row(len: usize) -> Vec<f64> {
    (0..len).map(|i| (i % 128) as f64 + 1.0).collect()
}

/// The last slot below 2³¹ elements of a cache of one head of 128, the first above; then the same for 2³².
const SLOTS: [usize; 4] = [(1 << 24) - 1, 1 << 24, (1 << 25) - 1, 1 << 25];

#[test]
fn slots_of_a_cache() {
    let _turn = turn();
    let (x, capacity) = (put(&row(128), &[1, 1, 1, 128], DType::Bf16), SLOTS[3] + 1);
    let mut cache = empty(&[1, capacity, 1, 128], DType::Bf16);
    for slot in SLOTS {
        cache_write(&mut cache, &x, slot).unwrap();
        let slots = cache.reshape(&[capacity, 128]).unwrap();
        assert_eq!(get(&slots.rows(slot..slot + 1).unwrap()), row(128));
    }
}

/// Rotations at such positions of the table, written to such slots of a cache, with and without the norm.
#[test]
fn positions_of_a_table() {
    let _turn = turn();
    let (x, gain) = (put(&row(128), &[1, 1, 1, 128], DType::Bf16), put(&row(128), &[128], DType::Bf16));
    let (angle, slots) = (put(&[0.6; 64], &[1, 64], DType::F32), SLOTS[3] + 1);
    let (mut angles, cache) = (empty(&[slots, 64], DType::F32), empty(&[slots, 128], DType::Bf16));
    let grid = Grid::blocks(1, 256);
    let run = |angles: &Tensor, y: &Tensor, position: usize, slots: usize, norm: bool| {
        let sizes = [1, 1, 1, 128, position, slots, position].map(int);
        let args = if norm {
            [&[In(&x), In(&gain), In(angles), In(angles), Into(y), Absent], &sizes[..], &[F32(1e-6)]].concat()
        } else {
            [&[In(&x), In(angles), In(angles), Into(y)], &sizes[..], &[F32(1.0)]].concat()
        };
        gpu().launch(if norm { "qk_norm_rope_forward" } else { "rope" }, &grid, &args).unwrap();
    };
    for norm in [false, true] {
        let near = empty(&[1, 128], DType::Bf16);
        run(&angle, &near, 0, 1, norm);
        assert!(get(&near).iter().all(|y| y.is_finite()));
        for slot in SLOTS {
            angles.write_at(slot * 64, &angle).unwrap();
            run(&angles, &cache, slot, slots, norm);
            same_bits("near and far", &cache.rows(slot..slot + 1).unwrap(), &near);
        }
    }
}

#[test]
fn rows_of_an_embedding_table() {
    let _turn = turn();
    let (vocab, cols) = (479_351usize, 8_960usize);
    let data = put(&row(cols), &[1, cols], DType::Bf16);
    let mut table = empty(&[vocab, cols], DType::Bf16);
    let ids_of_rows = [239_673i64, 239_674, 479_349, 479_350];
    for id in ids_of_rows {
        table.write_at(id as usize * cols, &data).unwrap();
    }
    let y = forward(&[&table], &|t, x| Ok(vec![ops::embedding(t, &x[0], &ids(&ids_of_rows))?]));
    assert_eq!(get(&y[0]), row(cols).repeat(4));
    drop(table);
    // One token: it is sorted as it is. Its row holds the numbers already.
    let (data, zero) = (put(&row(cols), &[1, cols], DType::F32), ids(&[0]));
    let mut d_table = empty(&[vocab, cols], DType::F32);
    for id in ids_of_rows {
        d_table.write_at(id as usize * cols, &data).unwrap();
        let (keys, edge) = (ids(&[id]), empty(&[1, 2, cols], DType::F32));
        let grid = Grid { blocks: [1, cols.div_ceil(128 * 4), 1], ..Grid::blocks(1, 128) };
        let sizes = [1, vocab, cols].map(int);
        let tensors = [In(&data), In(&keys), In(&zero), Into(&edge), Into(&d_table)];
        gpu().launch("embedding_backward", &grid, &[&tensors[..], &sizes].concat()).unwrap();
        gpu()
            .launch("embedding_merge", &grid, &[&[In(&keys), In(&edge), Into(&d_table)], &sizes[..]].concat())
            .unwrap();
        let found = get(&d_table.rows(id as usize..id as usize + 1).unwrap());
        assert_eq!(found, row(cols).iter().map(|x| 2.0 * x).collect::<Vec<f64>>());
    }
}

/// The last row of logits beyond 2³¹ elements: all others are ignored, so that only this one is read.
#[test]
fn rows_of_logits() {
    let _turn = turn();
    let vocab = 151_936;
    let logits: Vec<f64> = (0..vocab).map(|v| (v % 100) as f64 / 25.0).collect();
    let logits = put(&logits, &[1, vocab], DType::Bf16);
    let loss = |logits: &Tensor, targets: &[i64]| {
        let f =
            |t: &mut Tape, x: &[handgrad::Var]| Ok(vec![ops::cross_entropy(t, &x[0], &ids(targets), IGNORE_INDEX)?]);
        get(&forward(&[logits], &f)[0])
    };
    let alone = loss(&logits, &[77]);
    for rows in [14_134usize, 14_135] {
        let mut targets = vec![i64::from(IGNORE_INDEX); rows];
        targets[rows - 1] = 77;
        let mut all = empty(&[rows, vocab], DType::Bf16);
        all.write_at((rows - 1) * vocab, &logits).unwrap();
        assert_eq!(loss(&all, &targets), alone);
    }
}

/// Matrices more than 2³¹ elements apart.
#[test]
fn strides_of_matrices() {
    let _turn = turn();
    let (far, n) = ((1usize << 31) + 8, 16usize);
    let eye: Vec<f64> = (0..n * n).map(|i| f64::from(u8::from(i % (n + 1) == 0))).collect();
    let eye = put(&eye, &[n, n], DType::Bf16);
    let values: Vec<f64> = (0..2 * n * n).map(|i| (i % 200) as f64).collect();
    let mut a = empty(&[far + n * n], DType::Bf16);
    for (i, values) in values.chunks(n * n).enumerate() {
        a.write_at(i * far, &put(values, &[n * n], DType::Bf16)).unwrap();
    }
    let c = Guarded::new(&[2, n, n], DType::Bf16);
    let tiling = Tiling::new(1, Product { batch: 2, m: n, n, k: n }, 2, true);
    let sizes = [n, n, n, 2, far, 0, tiling.split_steps].map(int);
    let args = [&[In(&a), In(&eye), Into(&c.window), Absent], &sizes[..]].concat();
    gpu().launch("matmul_nn", &tiling.grid(false), &args).unwrap();
    assert_eq!(c.get(), values);
}

/// More sequences than a grid's second axis has; and none.
#[test]
fn many_sequences_and_none() {
    let _turn = turn();
    let (batch, table) = (65_537, ops::RopeTable::new(2, 3, 10_000.0).unwrap());
    let x: Vec<f64> = (0..batch * 2).map(|i| i as f64).collect();
    let here = put(&x, &[batch, 1, 1, 2], DType::F32);
    let mut cache = empty(&[batch, 1, 1, 2], DType::F32);
    cache_write(&mut cache, &here, 0).unwrap();
    assert_eq!(get(&cache), x);
    let turned = forward(&[&here], &|t, x| Ok(vec![ops::rope(t, &x[0], &table, 0)?]));
    assert_eq!(get(&turned[0]), x, "position 0 turns nothing");
    for (shape, room) in [([0, 1, 1, 2], [0, 3, 1, 2]), ([1, 0, 1, 2], [1, 3, 1, 2]), ([1, 1, 0, 2], [1, 3, 0, 2])] {
        let mut cache = Tensor::zeros_on(&room, DType::F32, device()).unwrap();
        cache_write(&mut cache, &put(&[], &shape, DType::F32), 0).unwrap();
        assert!(get(&cache).iter().all(|&x| x == 0.0));
    }
}
