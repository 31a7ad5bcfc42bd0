//! `kernels/matmul.cu` and `kernels/matmul_f32.cu`, launched with every tiling, ending and stride: each element within
//! c·K·u·(|A||B|) of the exact sum, into guarded memory.

use crate::common::*;
use handgrad::gpu::gemm::{Product, Tiling};
use handgrad::gpu::grid::in_vectors;
use handgrad::launch::{Absent, Arg, In, Into, int};
use handgrad::ops::{self, Layout};
use handgrad::{DType, Tensor, Var};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

const LAYOUTS: [Layout; 3] = [Layout::NN, Layout::NT, Layout::TN];
/// Dtypes of the operands and of the product.
const TYPES: [(DType, DType); 3] = [(DType::Bf16, DType::Bf16), (DType::Bf16, DType::F32), (DType::F32, DType::F32)];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    Store,
    /// C = A·B + R.
    Residual,
    /// C += A·B.
    Accumulate,
}

const ENDINGS: [Ending; 3] = [Ending::Store, Ending::Residual, Ending::Accumulate];

/// A launch: `splits: None` leaves the tiling to what the operator takes; few multiprocessors make for whole tiles.
#[derive(Clone, Copy, Debug)]
struct Case {
    layout: Layout,
    size: Product,
    /// Elements from a matrix to the next.
    strides: [usize; 2],
    multiprocessors: usize,
    splits: Option<usize>,
    ending: Ending,
}

impl Case {
    fn new(layout: Layout, batch: usize, [m, n, k]: [usize; 3], splits: Option<usize>, ending: Ending) -> Case {
        let size = Product { batch, m, n, k };
        Case { layout, size, strides: [m * k, k * n], multiprocessors: 128, splits, ending }
    }

    /// The two shapes of matrices as they are stored.
    fn stored(&self) -> [[usize; 2]; 2] {
        let Product { m, n, k, .. } = self.size;
        match self.layout {
            Layout::NN => [[m, k], [k, n]],
            Layout::NT => [[m, k], [n, k]],
            Layout::TN => [[k, m], [k, n]],
        }
    }

    /// Elements from the first matrix to the end of the last.
    fn extent(&self) -> [usize; 2] {
        let [a, b] = self.stored().map(|[rows, cols]| rows * cols);
        [(self.size.batch - 1) * self.strides[0] + a, (self.size.batch - 1) * self.strides[1] + b]
    }

    fn len(&self) -> usize {
        self.size.batch * self.size.m * self.size.n
    }

    /// The product of the operands in f64, by handgrad's own operator.
    fn product(&self, a: &[f64], b: &[f64]) -> Vec<f64> {
        let inputs: Vec<Tensor> = [(a, self.strides[0]), (b, self.strides[1])]
            .iter()
            .zip(self.stored())
            .map(|(&(data, stride), [rows, cols])| {
                let matrices = (0..self.size.batch).flat_map(|i| &data[i * stride..i * stride + rows * cols]);
                Tensor::from_vec(matrices.copied().collect::<Vec<f64>>(), &[self.size.batch, rows, cols]).unwrap()
            })
            .collect();
        let layout = self.layout;
        let found =
            forward(&[&inputs[0], &inputs[1]], &|tape, x: &[Var]| Ok(vec![ops::matmul(tape, &x[0], &x[1], layout)?]));
        get(&found[0])
    }

    fn tiling(&self, dtype: DType) -> Tiling {
        let [[_, a_cols], [_, b_cols]] = self.stored();
        let aligned = [a_cols, b_cols, self.strides[0], self.strides[1]];
        let aligned = aligned.iter().all(|&length| in_vectors(length, dtype.size()));
        let tiling = Tiling::new(self.multiprocessors, self.size, dtype.size(), aligned);
        self.splits.map_or(tiling, |splits| tiling.with_splits(splits))
    }

    /// What the kernels make of the operands, once, as the operator launches them.
    fn run(&self, a: &Tensor, b: &Tensor, residual: &[f64], into: DType) -> Vec<f64> {
        let shape = [self.size.batch, self.size.m, self.size.n];
        let added = put(residual, &shape, into);
        let c = match self.ending {
            Ending::Accumulate => Guarded::holding(residual, &shape, into),
            _ => Guarded::new(&shape, into),
        };
        let residual = match self.ending {
            Ending::Store => Absent,
            Ending::Residual => In(&added),
            Ending::Accumulate => In(&c.window),
        };
        let kernel = match self.layout {
            Layout::NN => "matmul_nn",
            Layout::NT => "matmul_nt",
            Layout::TN => "matmul_tn",
        };
        let (tiling, Product { batch, m, n, k }) = (self.tiling(a.dtype()), self.size);
        let [a_stride, b_stride] = self.strides;
        let sizes = [m, n, k, batch, a_stride, b_stride, tiling.split_steps].map(int);
        let launch = |to: &Tensor, residual: Arg| {
            let grid = tiling.grid(to.dtype() != a.dtype());
            gpu().launch(kernel, &grid, &[&[In(a), In(b), Into(to), residual], &sizes[..]].concat()).unwrap();
        };
        if tiling.splits == 1 {
            launch(&c.window, residual);
        } else {
            let parts = Guarded::new(&[tiling.splits, self.len()], DType::F32);
            launch(&parts.window, Absent);
            assert!(parts.get().iter().all(|x| !x.is_nan()) || get(a).iter().chain(&get(b)).any(|x| !x.is_finite()));
            let args = [In(&parts.window), Into(&c.window), residual, int(self.len()), int(tiling.splits)];
            gpu().launch("matmul_reduce", &Tiling::reduce_grid(self.len()), &args).unwrap();
        }
        c.get()
    }

    /// Each element within c·K·u·(|A||B|) of the exact sum, and half a unit of a bf16 output; two runs bit for bit.
    fn compare(&self, [a, b]: [Vec<f64>; 2], residual: &[f64], (dtype, into): (DType, DType)) {
        let label = format!("matmul {self:?} of {dtype} into {into}");
        let (a, b) = (put(&a, &[a.len()], dtype), put(&b, &[b.len()], dtype));
        let residual = &rounded(residual, into)[..];
        let (wide_a, wide_b) = (get(&a), get(&b));
        let absolute = |x: &[f64]| x.iter().map(|x| x.abs()).collect::<Vec<f64>>();
        let mut expected = self.product(&wide_a, &wide_b);
        let mut magnitude = self.product(&absolute(&wide_a), &absolute(&wide_b));
        if self.ending != Ending::Store {
            for ((e, m), r) in expected.iter_mut().zip(&mut magnitude).zip(residual) {
                (*e, *m) = (*e + r, *m + r.abs());
            }
        }
        let found = self.run(&a, &b, residual, into);
        let sum = (self.size.k as f64 + 2.0) * f64::from(f32::EPSILON);
        let store = if into == DType::Bf16 { 2f64.powi(-8) } else { 0.0 };
        within(&label, &found, &expected, |i| sum * magnitude[i] + store * expected[i].abs() * 1.001);
        let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<u64>>();
        assert_eq!(bits(&found), bits(&self.run(&a, &b, residual, into)), "{label}: two runs differ");
    }

    fn check(&self, types: (DType, DType), rng: &mut ChaCha8Rng) {
        let operands = self.extent().map(|len| normal(rng, len));
        self.compare(operands, &normal(rng, self.len()), types);
    }
}

/// A length at which tiles of these sizes can go wrong.
fn edge(tiles: &[usize], rng: &mut ChaCha8Rng) -> usize {
    let tile = tiles[rng.random_range(0..tiles.len())];
    match rng.random_range(0..5) {
        0 => 1,
        1 => tile - 1,
        2 => tile,
        3 => tile + 1,
        _ => rng.random_range(1..=tiles[tiles.len() - 1] + 1),
    }
}

/// Shapes around the edges of tiles; half of them with aligned rows, the others with any rows; with every number of parts
/// that K may be cut into, and few or many multiprocessors, for which tiles are large or small.
#[test]
fn element_by_element() {
    let mut rng = rng();
    for (types, depths) in TYPES.into_iter().zip([&[32, 64, 96, 160][..], &[32, 64, 96, 160], &[8, 16, 32]]) {
        for case in 0..48 {
            let mut sizes = [edge(&[64, 128], &mut rng), edge(&[32, 128], &mut rng), edge(depths, &mut rng)];
            if case % 2 == 0 {
                sizes = sizes.map(|x| x.next_multiple_of(8));
            }
            let splits = [None, Some(1), Some(2), Some(3), Some(4)][rng.random_range(0..5)];
            let batch = rng.random_range(1..3);
            let ending = ENDINGS[rng.random_range(0..3)];
            let multiprocessors = [1, 128][rng.random_range(0..2)];
            let case = Case { multiprocessors, ..Case::new(LAYOUTS[case % 3], batch, sizes, splits, ending) };
            case.check(types, &mut rng);
        }
    }
}

/// More rows of tiles than are walked through together, and a last group that is shorter.
#[test]
fn groups_of_tiles() {
    let mut rng = rng();
    for layout in LAYOUTS {
        Case::new(layout, 1, [64 * 11 - 8, 264, 8], Some(1), Ending::Store).check(TYPES[1], &mut rng);
    }
    let wide = |m, n| Case::new(Layout::NT, 1, [m, n, 3], Some(1), Ending::Residual);
    wide(128 * 9 + 1, 130).check(TYPES[0], &mut rng);
    wide(128 * 9 + 1, 130).check(TYPES[2], &mut rng);
    wide(5, 128 * 9 + 1).check(TYPES[0], &mut rng);
}

/// Deep and thin, so that the launch itself splits K.
#[test]
fn weight_gradients() {
    let mut rng = rng();
    let deep = |layout, size| Case::new(layout, 1, size, None, Ending::Accumulate);
    for (case, types) in [
        (deep(Layout::TN, [96, 136, 2048]), TYPES[1]),
        (deep(Layout::TN, [33, 17, 1999]), TYPES[1]),
        (deep(Layout::TN, [36, 40, 1004]), TYPES[2]),
        (deep(Layout::NT, [1, 768, 1000]), TYPES[0]),
    ] {
        assert!(case.tiling(types.0).splits > 1, "{case:?}");
        case.check(types, &mut rng);
    }
}

/// One matrix for the whole batch, and gaps between matrices, also such that only the first is aligned.
#[test]
fn strides() {
    let mut rng = rng();
    for strides in [[0, 72 * 40], [72 * 24 + 8, 0], [72 * 24 + 1, 72 * 40 + 3], [0, 0]] {
        for layout in LAYOUTS {
            for splits in [Some(1), Some(3)] {
                let case = Case { strides, ..Case::new(layout, 3, [24, 40, 72], splits, Ending::Residual) };
                case.check(TYPES[1], &mut rng);
                Case { ending: Ending::Store, ..case }.check(TYPES[2], &mut rng);
            }
        }
    }
}

/// A NaN and infinities in the operands are in their row or column of the product and nowhere else, although tiles overhang.
#[test]
fn nan_and_infinity_stay_in_their_place() {
    let mut rng = rng();
    for (types, [m, n, k], splits) in [
        (TYPES[0], [72, 136, 40], 1),
        (TYPES[1], [65, 129, 33], 1),
        (TYPES[1], [72, 40, 72], 3),
        (TYPES[2], [36, 132, 12], 1),
        (TYPES[2], [33, 129, 13], 2),
    ] {
        for layout in LAYOUTS {
            let case = Case::new(layout, 1, [m, n, k], Some(splits), Ending::Store);
            let [mut a, mut b] = case.extent().map(|len| normal(&mut rng, len));
            let a_at = |row: usize, l: usize| if layout == Layout::TN { l * m + row } else { row * k + l };
            let b_at = |l: usize, column: usize| if layout == Layout::NT { column * k + l } else { l * n + column };
            a[a_at(m - 1, k - 1)] = f64::NAN;
            a[a_at(1, 0)] = f64::INFINITY;
            b[b_at(k - 1, n - 1)] = f64::NEG_INFINITY;
            b[b_at(0, 2)] = f64::NAN;
            case.compare([a, b], &vec![0.0; m * n], types);
        }
    }
}

/// An empty sum is 0, and an empty product has no elements; nothing is launched.
#[test]
fn nothing_to_multiply() {
    for dtype in BOTH {
        let product = |a: &[usize], b: &[usize], layout| {
            let (a, b) = (put(&vec![1.0; a.iter().product()], a, dtype), put(&vec![1.0; b.iter().product()], b, dtype));
            forward(&[&a, &b], &|tape, x| Ok(vec![ops::matmul(tape, &x[0], &x[1], layout)?])).remove(0)
        };
        for (layout, a, b) in [(Layout::NN, [3, 0], [0, 5]), (Layout::NT, [3, 0], [5, 0]), (Layout::TN, [0, 3], [0, 5])]
        {
            assert_eq!(get(&product(&a, &b, layout)), [0.0; 15]);
        }
        assert_eq!(product(&[0, 3, 7], &[0, 7, 5], Layout::NN).shape(), [0, 3, 5]);
        assert_eq!(product(&[2, 0, 7], &[2, 7, 5], Layout::NN).shape(), [2, 0, 5]);
        assert_eq!(product(&[2, 3, 7], &[2, 7, 0], Layout::NN).shape(), [2, 3, 0]);
        // No rows: the weight's gradient is 0, and a sum of gradients stays what it is.
        let (x, w) = (put(&[], &[0, 4], dtype), put(&[1.0; 12], &[3, 4], dtype));
        let d_y = put(&[], &[0, 3], dtype);
        let twice = |tape: &mut handgrad::Tape, x: &[Var]| {
            Ok(vec![ops::linear(tape, &x[0], &x[1], None)?, ops::linear(tape, &x[2], &x[1], None)?])
        };
        let full = (put(&[1.0; 8], &[2, 4], dtype), put(&[1.0; 6], &[2, 3], dtype));
        let (_, gradients) = both_ways(&[&x, &w, &full.0], &[&d_y, &full.1], &twice);
        assert_eq!(get(&gradients[1]), [2.0; 12]);
    }
}

/// The tiling of aligned bf16 on so many multiprocessors: whether tiles are small, and into how many parts K is cut.
fn planned(multiprocessors: usize, batch: usize, [m, n, k]: [usize; 3], dtype: DType, aligned: bool) -> (bool, usize) {
    let tiling = Tiling::new(multiprocessors, Product { batch, m, n, k }, dtype.size(), aligned);
    (tiling.grid(false).variant.contains("64"), tiling.splits)
}

#[test]
fn plans_fill_the_card() {
    let plan = |multiprocessors, batch, size| planned(multiprocessors, batch, size, DType::Bf16, true);
    let gradient = [768, 768, 16384];
    // 36 tiles of 128×128: unsplit, most of 128 multiprocessors would wait.
    let (_, splits) = plan(128, 1, gradient);
    assert!((3..=14).contains(&splits), "{splits}");
    assert!(plan(256, 1, gradient).1 >= splits);
    assert_eq!(plan(1, 1, gradient), (false, 1), "nothing to fill");
    // Enough tiles, large or batched, or too little work to pay for a second kernel.
    assert_eq!(plan(128, 1, [16384, 2048, 768]), (false, 1));
    assert_eq!(plan(128, 512, [128, 128, 4096]), (false, 1));
    assert_eq!(plan(128, 1, [128, 128, 64]).1, 1);
    assert_eq!(plan(128, 1, [5, 5, 0]).1, 1);
    // Few rows: the small tile; one token against a weight matrix: split as well.
    let (small, splits) = plan(128, 1, [1, 2048, 2048]);
    assert!(small && splits > 1, "{splits}");
    // There is no small tile in f32 or for rows that are not aligned.
    assert!(!planned(128, 1, [1, 2048, 2048], DType::F32, true).0);
    assert!(!planned(128, 1, [1, 2048, 2048], DType::F32, false).0);
    assert!(!planned(128, 1, [1, 999, 999], DType::Bf16, false).0);
    // No part is without a step, and none is left out.
    for k in [1, 31, 32, 33, 1000, 4096] {
        for splits in 1..40 {
            let size = Product { batch: 1, m: 8, n: 8, k };
            let tiling = Tiling::new(128, size, 2, true).with_splits(splits);
            let steps = k.div_ceil(32);
            assert!(tiling.splits * tiling.split_steps >= steps && (tiling.splits - 1) * tiling.split_steps < steps);
        }
    }
}
