//! `kernels/matmul.cu` and `kernels/matmul_f32.cu`.

use crate::common::*;
use half::bf16;
use handgrad::gpu::kernels::matmul::{Epilogue, Layout, MultiplyInto, Plan, Shape, matmul, matmul_planned};
use handgrad::gpu::{GpuFloat, LaunchError, View, ViewMut};
use handgrad::{Tensor, ops};
use proptest::prelude::*;
use proptest::sample::select;
use rand_chacha::ChaCha8Rng;

const LAYOUTS: [Layout; 3] = [Layout::NN, Layout::NT, Layout::TN];
const WHOLE: Plan = Plan { small: false, splits: 1 };

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    Store,
    Residual,
    Accumulate,
}

/// `plan: None` leaves it to the launch. `offsets`: elements before A, B, C and the residual.
#[derive(Clone, Debug)]
struct Case {
    shape: Shape,
    plan: Option<Plan>,
    ending: Ending,
    offsets: [usize; 4],
}

impl Case {
    fn new(shape: Shape, plan: Plan, ending: Ending) -> Case {
        Case { shape, plan: Some(plan), ending, offsets: [0; 4] }
    }
}

/// The two shapes of matrices as they are stored.
fn stored(shape: &Shape) -> [[usize; 2]; 2] {
    let &Shape { layout, m, n, k, .. } = shape;
    match layout {
        Layout::NN => [[m, k], [k, n]],
        Layout::NT => [[m, k], [n, k]],
        Layout::TN => [[k, m], [k, n]],
    }
}

/// Elements from the first matrix to the end of the last.
fn extent(shape: &Shape) -> [usize; 2] {
    let &Shape { batch, a_stride, b_stride, .. } = shape;
    let [a, b] = stored(shape).map(|[rows, cols]| rows * cols);
    [(batch - 1) * a_stride + a, (batch - 1) * b_stride + b]
}

/// The product of the operands in f64, by handgrad's own operator.
fn product(shape: &Shape, a: &[f64], b: &[f64]) -> Vec<f64> {
    let layout = match shape.layout {
        Layout::NN => ops::Layout::NN,
        Layout::NT => ops::Layout::NT,
        Layout::TN => ops::Layout::TN,
    };
    let tensors = [(a, shape.a_stride), (b, shape.b_stride)];
    let inputs: Vec<Tensor> = tensors
        .iter()
        .zip(stored(shape))
        .map(|(&(data, stride), [rows, cols])| {
            let matrices = (0..shape.batch).flat_map(|i| &data[i * stride..i * stride + rows * cols]);
            Tensor::from_vec(matrices.copied().collect::<Vec<f64>>(), &[shape.batch, rows, cols]).unwrap()
        })
        .collect();
    let found = reference(&inputs, &[], |tape, x| Ok(vec![ops::matmul(tape, &x[0], &x[1], layout)?]));
    found.outputs.into_iter().next().unwrap()
}

/// What the kernel makes of the operands, once.
fn run<E: MultiplyInto<C>, C: GpuFloat>(case: &Case, a: &[E], b: &[E], residual: &[C]) -> Vec<C> {
    let gpu = gpu();
    let [a_offset, b_offset, c_offset, residual_offset] = case.offsets;
    let (a, b) = (Input::new(gpu, a, a_offset), Input::new(gpu, b, b_offset));
    let added = Input::new(gpu, residual, residual_offset);
    let (mut c, epilogue) = match case.ending {
        Ending::Store => (Guarded::at(gpu, residual.len(), c_offset), Epilogue::Store),
        Ending::Residual => (Guarded::at(gpu, residual.len(), c_offset), Epilogue::Residual(added.view())),
        Ending::Accumulate => (Guarded::holding(gpu, residual, c_offset), Epilogue::Accumulate),
    };
    match case.plan {
        Some(plan) => matmul_planned(gpu, &case.shape, a.view(), b.view(), &mut c.view_mut(), epilogue, plan),
        None => matmul(gpu, &case.shape, a.view(), b.view(), &mut c.view_mut(), epilogue),
    }
    .unwrap();
    c.download()
}

/// Each element within c·K·u·(|A||B|) of the exact sum, and half a unit of a bf16 output; two runs bit for bit.
fn compare<E: MultiplyInto<C>, C: GpuFloat>(case: &Case, a: &[E], b: &[E], residual: &[C]) {
    let label = format!("matmul {case:?}");
    let (wide_a, wide_b) = (to_f64(a), to_f64(b));
    let absolute = |x: &[f64]| x.iter().map(|x| x.abs()).collect::<Vec<f64>>();
    let mut expected = product(&case.shape, &wide_a, &wide_b);
    let mut magnitude = product(&case.shape, &absolute(&wide_a), &absolute(&wide_b));
    if case.ending != Ending::Store {
        for ((e, m), r) in expected.iter_mut().zip(&mut magnitude).zip(to_f64(residual)) {
            (*e, *m) = (*e + r, *m + r.abs());
        }
    }
    let found = run(case, a, b, residual);
    let sum = (case.shape.k as f64 + 2.0) * f32::EPSILON as f64;
    let store = if C::SUFFIX == "bf16" { 2f64.powi(-8) } else { 0.0 };
    within(&label, &to_f64(&found), &expected, |i| sum * magnitude[i] + store * expected[i].abs() * 1.001);
    same_bits(&label, &found, &run(case, a, b, residual));
}

fn check<E: MultiplyInto<C>, C: GpuFloat>(case: Case, rng: &mut ChaCha8Rng) {
    let [a, b] = extent(&case.shape).map(|len| normal::<E>(rng, len));
    let residual = normal::<C>(rng, case.shape.batch * case.shape.m * case.shape.n);
    compare(&case, &a, &b, &residual);
}

/// Shapes around the edges of tiles; half of them with aligned rows, the others with any rows and views at any element.
fn cases(depths: &'static [usize]) -> impl Strategy<Value = Case> {
    let endings = select(vec![Ending::Store, Ending::Residual, Ending::Accumulate]);
    let sizes = (edges(&[64, 128]), edges(&[32, 128]), edges(depths), 1usize..3);
    let plans = (any::<bool>(), prop_oneof![3 => Just(1), 1 => 2usize..5]);
    let offsets = prop::array::uniform4(0usize..3);
    (select(LAYOUTS.to_vec()), sizes, plans, endings, any::<bool>(), offsets).prop_map(
        |(layout, (m, n, k, batch), (small, splits), ending, aligned, offsets)| {
            let [m, n, k] = [m, n, k].map(|x| if aligned { x.next_multiple_of(8) } else { x });
            let offsets = if aligned { [0; 4] } else { offsets };
            Case { shape: Shape::batched(layout, batch, m, n, k), plan: Some(Plan { small, splits }), ending, offsets }
        },
    )
}

#[test]
fn against_f64() {
    property("matmul bf16", 60, cases(&[32, 64, 96, 160]), check::<bf16, bf16>);
    property("matmul bf16 into f32", 60, cases(&[32, 64, 96, 160]), check::<bf16, f32>);
    property("matmul f32", 40, cases(&[8, 16, 32]), check::<f32, f32>);
}

/// More rows of tiles than are walked through together, and a last group that is shorter.
#[test]
fn groups_of_tiles() {
    for layout in LAYOUTS {
        let small = Case::new(Shape::new(layout, 64 * 11 - 8, 264, 8), Plan { small: true, splits: 1 }, Ending::Store);
        property("matmul, groups", 1, Just(small), check::<bf16, f32>);
    }
    let wide = |m, n| Case::new(Shape::new(Layout::NT, m, n, 3), WHOLE, Ending::Residual);
    property("matmul, groups", 1, Just(wide(128 * 9 + 1, 130)), check::<bf16, bf16>);
    property("matmul, groups", 1, Just(wide(128 * 9 + 1, 130)), check::<f32, f32>);
    property("matmul, groups", 1, Just(wide(5, 128 * 9 + 1)), check::<bf16, bf16>);
}

/// Deep and thin, so that the launch itself splits K.
#[test]
fn weight_gradients() {
    let deep = |layout, m, n, k| Case {
        shape: Shape::new(layout, m, n, k),
        plan: None,
        ending: Ending::Accumulate,
        offsets: [0; 4],
    };
    property("matmul, deep", 1, Just(deep(Layout::TN, 96, 136, 2048)), check::<bf16, f32>);
    property("matmul, deep", 1, Just(deep(Layout::TN, 33, 17, 1999)), check::<bf16, f32>);
    property("matmul, deep", 1, Just(deep(Layout::TN, 36, 40, 1004)), check::<f32, f32>);
    property("matmul, deep", 1, Just(deep(Layout::NT, 1, 768, 1000)), check::<bf16, bf16>);
}

/// One matrix for the whole batch, and gaps between matrices, also such that only the first is aligned.
#[test]
fn strides() {
    for (a_stride, b_stride) in [(0, 72 * 40), (72 * 24 + 8, 0), (72 * 24 + 1, 72 * 40 + 3), (0, 0)] {
        for layout in LAYOUTS {
            let shape = Shape { a_stride, b_stride, ..Shape::batched(layout, 3, 24, 40, 72) };
            for plan in [WHOLE, Plan { small: true, splits: 3 }] {
                property("matmul, strides", 1, Just(Case::new(shape, plan, Ending::Residual)), check::<bf16, f32>);
                property("matmul, strides", 1, Just(Case::new(shape, plan, Ending::Store)), check::<f32, f32>);
            }
        }
    }
}

#[test]
fn nothing_to_multiply() {
    let residual: Vec<bf16> = (0..15).map(|i| bf16::from_f32(i as f32)).collect();
    for layout in LAYOUTS {
        for ending in [Ending::Store, Ending::Residual, Ending::Accumulate] {
            for plan in [None, Some(Plan { small: true, splits: 4 })] {
                let case = Case { shape: Shape::new(layout, 3, 5, 0), plan, ending, offsets: [0; 4] };
                let expected = if ending == Ending::Store { vec![bf16::ZERO; 15] } else { residual.clone() };
                same_bits("matmul, K = 0", &run::<bf16, bf16>(&case, &[], &[], &residual), &expected);
                let wide = residual.iter().map(|x| x.to_f32()).collect::<Vec<f32>>();
                let expected = expected.iter().map(|x| x.to_f32()).collect::<Vec<f32>>();
                same_bits("matmul, K = 0", &run::<f32, f32>(&case, &[], &[], &wide), &expected);
            }
        }
        for (batch, m, n) in [(0, 3, 5), (2, 0, 5), (2, 3, 0)] {
            let case = Case::new(Shape::batched(layout, batch, m, n, 7), WHOLE, Ending::Store);
            assert!(run::<f32, f32>(&case, &[], &[], &[]).is_empty());
            assert!(run::<bf16, f32>(&case, &[], &[], &[]).is_empty());
        }
    }
}

/// A NaN and infinities in the operands are in their row or column of the product and nowhere else, although tiles overhang.
fn spread<E: MultiplyInto<C>, C: GpuFloat>(m: usize, n: usize, k: usize, splits: usize) {
    for layout in LAYOUTS {
        let case = Case::new(Shape::new(layout, m, n, k), Plan { small: false, splits }, Ending::Store);
        property("matmul, NaN", 1, Just(case), |case, rng| {
            let [mut a, mut b] = extent(&case.shape).map(|len| normal::<E>(rng, len));
            let (transposed_a, transposed_b) = (layout == Layout::TN, layout == Layout::NT);
            let a_at = |row: usize, l: usize| if transposed_a { l * m + row } else { row * k + l };
            let b_at = |l: usize, column: usize| if transposed_b { column * k + l } else { l * n + column };
            a[a_at(m - 1, k - 1)] = round::<E>(f64::NAN);
            a[a_at(1, 0)] = round::<E>(f64::INFINITY);
            b[b_at(k - 1, n - 1)] = round::<E>(f64::NEG_INFINITY);
            b[b_at(0, 2)] = round::<E>(f64::NAN);
            compare::<E, C>(&case, &a, &b, &vec![round::<C>(0.0); m * n]);
        });
    }
}

#[test]
fn nan_and_infinity_stay_in_their_place() {
    spread::<bf16, bf16>(72, 136, 40, 1);
    spread::<bf16, f32>(65, 129, 33, 1);
    spread::<bf16, f32>(72, 40, 72, 3);
    spread::<f32, f32>(36, 132, 12, 1);
    spread::<f32, f32>(33, 129, 13, 2);
}

#[test]
fn bad_operands_are_refused() {
    let gpu = gpu();
    let (a, b) = (gpu.zeros::<bf16>(6).unwrap(), gpu.zeros::<bf16>(8).unwrap());
    let none = gpu.alloc::<bf16>(0).unwrap();
    let mut c = Guarded::<f32>::new(gpu, 12);
    let shape = Shape::new(Layout::NN, 3, 4, 2);
    let refused = |shape: &Shape, a: View<bf16>, b: View<bf16>, c: &mut ViewMut<f32>, epilogue: Epilogue<f32>| {
        matmul(gpu, shape, a, b, c, epilogue).unwrap_err()
    };
    let too_small = |operand, found, expected| LaunchError::TooSmall { kernel: "matmul", operand, found, expected };
    let mut store =
        |shape: &Shape, a: View<bf16>, b: View<bf16>| refused(shape, a, b, &mut c.view_mut(), Epilogue::Store);

    assert_eq!(store(&shape, a.range(0..5), b.view()), too_small("a", 5, 6));
    assert_eq!(store(&shape, a.view(), b.range(1..8)), too_small("b", 7, 8));
    let null = LaunchError::Null { kernel: "matmul", operand: "a", expected: 6 };
    assert_eq!(store(&shape, none.view(), b.view()), null);
    // SAFETY: refused before anything is read.
    let odd = unsafe { View::<bf16>::from_raw(a.view().address() + 1, 6) };
    let error = store(&shape, odd, b.view());
    assert!(matches!(error, LaunchError::Misaligned { operand: "a", expected: 2, .. }), "{error}");
    let gap = Shape { a_stride: 7, ..Shape::batched(Layout::NN, 2, 3, 2, 2) };
    assert_eq!(store(&gap, a.view(), b.view()), too_small("a", 6, 13));
    for shape in [
        Shape::new(Layout::NN, 1 << 31, 4, 2),
        Shape::new(Layout::NN, 3, usize::MAX, 2),
        Shape::new(Layout::NN, 3, 4, (1 << 31) - 1),
    ] {
        let error = store(&shape, a.view(), b.view());
        assert!(matches!(error, LaunchError::Range { kernel: "matmul", .. }), "{error}");
    }
    let error = store(&Shape::batched(Layout::TN, 1 << 30, 1 << 30, 1 << 30, 2), a.view(), b.view());
    assert!(matches!(error, LaunchError::Overflow { operand: "c", .. }), "{error}");
    let error = store(&Shape { b_stride: 1 << 62, ..Shape::batched(Layout::NN, 2, 3, 2, 2) }, a.view(), b.view());
    assert!(matches!(error, LaunchError::Overflow { operand: "b", .. }), "{error}");

    let residual = gpu.zeros::<f32>(11).unwrap();
    let error = refused(&shape, a.view(), b.view(), &mut c.view_mut(), Epilogue::Residual(residual.view()));
    assert_eq!(error, too_small("residual", 11, 12));
    let mut part = c.view_mut();
    let error = refused(&shape, a.view(), b.view(), &mut part.range_mut(0..11), Epilogue::Accumulate);
    assert_eq!(error, too_small("c", 11, 12));
    assert!(c.download().iter().all(|x| x.is_nan()), "a refused launch wrote");
}

/// What `Plan::new` chooses for aligned bf16 on so many multiprocessors.
fn planned(multiprocessors: usize, shape: &Shape) -> Plan {
    Plan::new(multiprocessors, shape, &<bf16 as MultiplyInto<f32>>::KIND, true)
}

#[test]
fn plans_fill_the_card() {
    let gradient = Shape::new(Layout::TN, 768, 768, 16384);
    // 36 tiles of 128×128: unsplit, most of 128 multiprocessors would wait.
    let plan = planned(128, &gradient);
    assert!((3..=14).contains(&plan.splits), "{plan:?}");
    assert!(planned(256, &gradient).splits >= plan.splits);
    assert_eq!(planned(1, &gradient), WHOLE, "nothing to fill");
    // Enough tiles, large or batched, or too little work to pay for a second kernel.
    assert_eq!(planned(128, &Shape::new(Layout::NT, 16384, 2048, 768)), WHOLE);
    assert_eq!(planned(128, &Shape::batched(Layout::NN, 512, 128, 128, 4096)), WHOLE);
    assert_eq!(planned(128, &Shape::new(Layout::NN, 128, 128, 64)).splits, 1);
    assert_eq!(planned(128, &Shape::new(Layout::NN, 5, 5, 0)).splits, 1);
    // Few rows: the small tile; one token against a weight matrix: split as well.
    let token = planned(128, &Shape::new(Layout::NT, 1, 2048, 2048));
    assert!(token.small && token.splits > 1, "{token:?}");
    // There is no small tile in f32 or for rows that are not aligned.
    for aligned in [true, false] {
        let plan = Plan::new(128, &Shape::new(Layout::NT, 1, 2048, 2048), &<f32 as MultiplyInto<f32>>::KIND, aligned);
        assert!(!plan.small, "{plan:?}");
    }
    assert!(!Plan::new(128, &Shape::new(Layout::NT, 1, 999, 999), &<bf16 as MultiplyInto<bf16>>::KIND, false).small);
}

/// Matrices more than 2³¹ elements apart.
#[test]
fn far_strides() {
    let (gpu, far, n) = (gpu(), (1usize << 31) + 8, 16usize);
    let mut a = gpu.alloc::<bf16>(far + n * n).unwrap();
    let eye: Vec<bf16> = (0..n * n).map(|i| bf16::from_f32(if i % (n + 1) == 0 { 1.0 } else { 0.0 })).collect();
    let eye = gpu.upload(&eye).unwrap();
    let values: Vec<Vec<bf16>> =
        (0..2).map(|i| (0..n * n).map(|j| bf16::from_f32((i * 256 + j) as f32)).collect()).collect();
    let one = Shape::new(Layout::NN, n, n, n);
    for (i, values) in values.iter().enumerate() {
        let x = gpu.upload(values).unwrap();
        let mut to = a.range_mut(i * far..i * far + n * n);
        matmul(gpu, &one, x.view(), eye.view(), &mut to, Epilogue::Store).unwrap();
    }
    let mut c = Guarded::<bf16>::new(gpu, 2 * n * n);
    let shape = Shape { a_stride: far, b_stride: 0, ..Shape::batched(Layout::NN, 2, n, n, n) };
    matmul(gpu, &shape, a.view(), eye.view(), &mut c.view_mut(), Epilogue::Store).unwrap();
    same_bits("far", &c.download(), &values.concat());
}
