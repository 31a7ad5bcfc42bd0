//! `kernels/{silu,gelu,swiglu,cast,add,adamw,global_norm}.cu` and their like: far from zero, ties, numbers that are not
//! finite, many rows; all elementwise kernels in guarded memory.

use crate::common::*;
use handgrad::gpu::Grid;
use handgrad::gpu::grid::shared::{ADAMW_WIDTH, CAST_WIDTH, ELEMENTWISE_THREADS};
use handgrad::launch::{Absent, Arg, F32, In, Into, int};
use handgrad::ops::{self, AdamWStep, adamw_step, cast, global_norm};
use handgrad::{DType, Tape, Tensor, Var};

/// Where e⁻ˣ overflows, and where tanh is 1: each element has to be right by itself.
#[test]
fn activations_far_from_zero() {
    let data = [0.0, -0.0, 20.0, -20.0, 88.0, -88.0, 105.0, -105.0, 1e4, -1e4, 3e38, -3e38, f64::NAN];
    let data = rounded(&data, DType::F32);
    let (x, one) = (put(&data, &[13], DType::F32), put(&[1.0; 13], &[13], DType::F32));
    let near = |label: &str, found: &Tensor, f: &dyn Fn(f64) -> f64| {
        let expected: Vec<f64> = data.iter().map(|&x| f(x)).collect();
        within(label, &get(found), &expected, |i| 2e-6 * expected[i].abs() + 1e-37);
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let slope = |x: f64| sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)));
    let (y, d_x) = both_ways(&[&x], &[&one], &|t, x| Ok(vec![ops::silu(t, &x[0])?]));
    near("silu", &y[0], &|x| x * sigmoid(x));
    near("silu, d_x", &d_x[0], &slope);
    let (y, d) = both_ways(&[&x, &one], &[&one], &|t, x| Ok(vec![ops::swiglu(t, &x[0], &x[1])?]));
    near("swiglu", &y[0], &|x| x * sigmoid(x));
    near("swiglu, d_gate", &d[0], &slope);
    near("swiglu, d_up", &d[1], &|x| x * sigmoid(x));
    let y = forward(&[&x], &|t, x| Ok(vec![ops::gelu(t, &x[0])?]));
    near("gelu", &y[0], &|x| if x < 0.0 { 0.0 } else { x });
}

/// Ties, both ways; the largest; what becomes infinite; subnormal; not numbers.
#[test]
fn cast_rounds_to_nearest_even() {
    let mut rng = rng();
    let special = [
        1.0 + 1.0 / 256.0,
        1.0 + 3.0 / 256.0,
        -1.0 - 1.0 / 256.0,
        3.389e38,
        3.4e38,
        -3.4e38,
        1e-40,
        -0.0,
        f64::INFINITY,
        f64::NAN,
    ];
    for n in [10, 11, 13, 255, 1025, 4099] {
        let data = rounded(&[&special[..], &normal(&mut rng, n - 10)].concat(), DType::F32);
        let x = put(&data, &[n], DType::F32);
        let y = cast(&x, DType::Bf16).unwrap();
        for ((x, y), back) in data.iter().zip(get(&y)).zip(get(&cast(&y, DType::F32).unwrap())) {
            let expected = half::bf16::from_f32(*x as f32).to_f64();
            let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(same(y, expected) && same(back, expected), "cast of {x}: {y} and back {back}, expected {expected}");
        }
    }
}

/// Sums over rows within one rounding an addition, c·K·u·(|A||B|) with B = 1; more rows than 128 chunks of 64, so that
/// chunks get longer; few rows of many columns, as position tables have.
#[test]
fn sums_over_rows() {
    let mut rng = rng();
    for (rows, cols) in [(9, 33), (65, 40), (128 * 64 + 9, 3), (128 * 64 + 1, 8), (2, 32 * 1024 + 8)] {
        for dtype in BOTH {
            let (a, b) = (put(&vec![0.0; rows * cols], &[rows, cols], dtype), put(&vec![0.0; cols], &[cols], dtype));
            let d_y = draw(&mut rng, &[rows, cols], dtype);
            let run = || both_ways(&[&a, &b], &[&d_y], &|t, x| Ok(vec![ops::add(t, &x[0], &x[1])?])).1.remove(1);
            let (mut sums, mut sizes) = (vec![0.0; cols], vec![0.0; cols]);
            for (i, d) in get(&d_y).into_iter().enumerate() {
                (sums[i % cols], sizes[i % cols]) = (sums[i % cols] + d, sizes[i % cols] + d.abs());
            }
            // The longest chain of additions: a thread's rows, a column's threads, a warp's chunks, the warps.
            let chunk_rows = rows.div_ceil(128).max(64);
            let terms = (chunk_rows.min(rows).div_ceil(8) + 8 + rows.div_ceil(chunk_rows).div_ceil(32) + 33) as f64;
            let found = run();
            within("d_b", &get(&found), &sums, |c| terms * 2f64.powi(-24) * sizes[c]);
            same_bits("d_b", &found, &run());
        }
    }
}

/// Rows that would not fit on the grid's second axis; and none.
#[test]
fn seventy_thousand_rows_and_none() {
    let rows = 70_000;
    let data: Vec<f64> = (0..rows).map(|i| i as f64).collect();
    let (a, b) = (put(&data, &[rows, 1], DType::F32), put(&[0.5], &[1], DType::F32));
    let add = |t: &mut Tape, x: &[Var]| Ok(vec![ops::add(t, &x[0], &x[1])?]);
    assert!(get(&forward(&[&a, &b], &add)[0]).iter().zip(&data).all(|(y, x)| *y == x + 0.5));
    for dtype in BOTH {
        let (none, five) = (put(&[], &[0, 5], dtype), put(&[1.0; 5], &[5], dtype));
        let (y, d) = both_ways(&[&none, &five], &[&none], &add);
        assert_eq!((y[0].shape(), get(&d[1])), (&[0, 5][..], vec![0.0; 5]));
        // A sum of gradients stays what it is.
        let twice = |t: &mut Tape, x: &[Var]| Ok(vec![ops::add(t, &x[0], &x[1])?, ops::add(t, &x[2], &x[1])?]);
        let (d_y, x) = (put(&[2.0; 5], &[1, 5], dtype), put(&[0.0; 5], &[1, 5], dtype));
        assert_eq!(get(&both_ways(&[&none, &five, &x], &[&none, &d_y], &twice).1[1]), [2.0; 5]);
        let empty = put(&[], &[5, 0], dtype);
        assert!(get(&forward(&[&empty, &put(&[], &[0], dtype)], &add)[0]).is_empty());
        assert!(get(&forward(&[&empty], &|t, x| Ok(vec![ops::scale(t, &x[0], 2.0)?]))[0]).is_empty());
    }
}

/// Every elementwise kernel writes all of its output and nothing else, at the ends of its vectors and blocks.
#[test]
fn elementwise_kernels_stay_in_their_memory() {
    let mut rng = rng();
    for (n, dtype) in [1, 3, 4, 5, 7, 8, 9, 255, 1025, 2047].into_iter().flat_map(|n| BOTH.map(|dtype| (n, dtype))) {
        let x = [(); 3].map(|()| draw(&mut rng, &[n], dtype));
        let grid = Grid::elementwise(n, dtype.size());
        for (kernel, inputs, outputs) in [
            ("add_forward", 2, 1),
            ("mul_forward", 2, 1),
            ("silu_forward", 1, 1),
            ("silu_backward", 2, 1),
            ("gelu_forward", 1, 1),
            ("gelu_backward", 2, 1),
            ("swiglu_forward", 2, 1),
            ("swiglu_backward", 3, 2),
        ] {
            let y = [(); 2].map(|()| Guarded::new(&[n], dtype));
            let tensors = x[..inputs].iter().map(In).chain(y[..outputs].iter().map(|y| Into(&y.window)));
            gpu().launch(kernel, &grid, &tensors.chain([int(n)]).collect::<Vec<Arg>>()).unwrap();
            assert!(y[..outputs].iter().all(|y| y.get().iter().all(|y| y.is_finite())), "{kernel} of {n}");
            // Over its first input: the same bits.
            let over = Guarded::holding(&get(&x[0]), &[n], dtype);
            let mut args = vec![In(&over.window)];
            args.extend(x[1..inputs].iter().map(In));
            args.push(Into(&over.window));
            args.extend(y[1..outputs].iter().map(|y| Into(&y.window)));
            args.push(int(n));
            gpu().launch(kernel, &grid, &args).unwrap();
            assert_eq!(over.get(), y[0].get(), "{kernel} in place");
        }
        let y = Guarded::new(&[n], dtype);
        gpu().launch("scale", &grid, &[In(&x[0]), Into(&y.window), F32(2.0), int(n)]).unwrap();
        assert_eq!(y.get(), get(&x[0]).iter().map(|x| 2.0 * x).collect::<Vec<f64>>());
        let (kernel, to) =
            if dtype == DType::F32 { ("cast_to_bf16", DType::Bf16) } else { ("cast_to_f32", DType::F32) };
        let (y, grid) = (Guarded::new(&[n], to), Grid::linear(n.div_ceil(CAST_WIDTH), ELEMENTWISE_THREADS));
        gpu().launch(kernel, &grid, &[In(&x[0]), Into(&y.window), int(n)]).unwrap();
        assert_eq!(y.get(), get(&cast(&x[0], to).unwrap()));
    }
}

fn step(lr: f64, weight_decay: f64, t: usize) -> AdamWStep {
    AdamWStep { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay, t }
}

/// Weights, moments and the bf16 copy of a parameter.
struct State {
    tensors: [Tensor; 3],
    copy: Tensor,
}

impl State {
    fn new(weights: &[f64]) -> State {
        let n = weights.len();
        let zeros = || put(&vec![0.0; n], &[n], DType::F32);
        let copy = put(&vec![7.0; n], &[n], DType::Bf16);
        State { tensors: [put(weights, &[n], DType::F32), zeros(), zeros()], copy }
    }

    fn step(&mut self, gradient: &[f64], scale: f64, step: &AdamWStep) {
        let (gradient, scale) = (put(gradient, &[gradient.len()], DType::F32), put(&[scale], &[], DType::F32));
        adamw_step(self.tensors.each_mut(), &gradient, &scale, Some(&mut self.copy), step).unwrap();
    }

    fn bits(&self) -> Vec<u64> {
        self.tensors.iter().chain([&self.copy]).flat_map(get).map(f64::to_bits).collect()
    }
}

/// Three steps against f64, the copy bit for bit that of the weights.
#[test]
fn adamw_against_f64() {
    let mut rng = rng();
    for (n, scale, weight_decay) in [(1, 1.0, 0.0), (5, 0.3, 0.1), (257, 1.0, 0.1), (1025, 0.01, 0.0), (4099, 0.7, 0.1)]
    {
        let start = rounded(&normal(&mut rng, n), DType::F32);
        let (mut state, mut again) = (State::new(&start), State::new(&start));
        let mut expected: Vec<[f64; 3]> = start.iter().map(|&w| [w, 0.0, 0.0]).collect();
        let factor = f64::from(scale as f32);
        for t in 1..4 {
            let settings = AdamWStep { beta2: 0.95, ..step(0.01, weight_decay, t) };
            let gradient = rounded(&normal(&mut rng, n), DType::F32);
            state.step(&gradient, scale, &settings);
            again.step(&gradient, scale, &settings);
            let AdamWStep { lr, beta1, beta2, eps, .. } = settings;
            for ([w, m, v], g) in expected.iter_mut().zip(gradient) {
                let g = factor * g;
                *w *= 1.0 - lr * weight_decay;
                (*m, *v) = (beta1 * *m + (1.0 - beta1) * g, beta2 * *v + (1.0 - beta2) * g * g);
                let (m_hat, v_hat) = (*m / (1.0 - beta1.powi(t as i32)), *v / (1.0 - beta2.powi(t as i32)));
                *w -= lr * m_hat / (v_hat.sqrt() + eps);
            }
        }
        assert_eq!(state.bits(), again.bits(), "two runs differ");
        let part = |i: usize| expected.iter().map(|state| state[i]).collect::<Vec<f64>>();
        let [w, m, v] = state.tensors.each_ref().map(get);
        // Three steps of at most about 1.5 lr, whose quotient is a few roundings off, and of each weight.
        within("weights", &w, &part(0), |i| 2f64.powi(-23) * (3.0 * part(0)[i].abs() + 1.0));
        within("m", &m, &part(1), |_| 2f64.powi(-22) * 4.0);
        within("v", &v, &part(2), |i| 2f64.powi(-20) * part(2)[i]);
        assert_eq!(get(&state.copy), rounded(&w, DType::Bf16));
    }
}

#[test]
fn the_first_steps_are_pytorchs() {
    let mut state = State::new(&[1.0]);
    for (t, (gradient, expected)) in (1..).zip([(0.5, 0.890000002), (0.5, 0.781100004), (-0.25, 0.721723665)]) {
        state.step(&[gradient], 1.0, &step(0.1, 0.1, t));
        let found = get(&state.tensors[0])[0];
        assert!((found - expected).abs() < 2e-7, "found {found}, expected {expected}");
    }
    // No gradient: the weight decays.
    let mut state = State::new(&[1.0]);
    (1..=10).for_each(|t| state.step(&[0.0], 1.0, &step(0.1, 0.1, t)));
    assert!((get(&state.tensors[0])[0] - 0.904382075).abs() < 1e-6);
    let mut state = State::new(&[1.0]);
    (1..).zip([1.0, -2.0, 3.0]).for_each(|(t, g)| state.step(&[g], 1.0, &step(0.01, 0.0, t)));
    let found: Vec<f64> = state.tensors.iter().flat_map(get).collect();
    within("state", &found, &[0.9902286246, 0.201, 0.013994001], |_| 2e-7);
}

/// Steps too small for a bf16 weight add up in the f32 one, and the copy follows.
#[test]
fn small_steps_are_not_lost() {
    let mut state = State::new(&[1.0]);
    (1..=100).for_each(|t| state.step(&[1.0], 1.0, &step(0.0006, 0.0, t)));
    let (weight, copy) = (get(&state.tensors[0])[0], get(&state.copy));
    assert!((weight - 0.94).abs() < 1e-4 && copy == rounded(&[weight], DType::Bf16), "found {weight} and {copy:?}");
}

#[test]
fn a_scale_that_is_not_finite_changes_nothing() {
    for scale in [f64::NAN, f64::INFINITY] {
        let mut state = State::new(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        let before = state.bits();
        state.step(&[f64::NAN, 1.0, 1.0, 1.0, f64::INFINITY], scale, &step(0.1, 0.1, 1));
        assert_eq!(state.bits(), before);
    }
}

#[test]
fn adamw_stays_in_its_memory() {
    for n in [1, 3, 4, 5, 1023, 1025] {
        let [w, m, v] = [(); 3].map(|()| Guarded::holding(&vec![1.0; n], &[n], DType::F32));
        let (copy, one) = (Guarded::new(&[n], DType::Bf16), put(&[1.0], &[], DType::F32));
        let gradient = put(&vec![1.0; n], &[n], DType::F32);
        let numbers = [0.9, 0.1, 0.999, 0.001, 1e-8, 1.0, 0.1, 1.0].map(F32);
        for copy in [Absent, Into(&copy.window)] {
            let state = [Into(&w.window), Into(&m.window), Into(&v.window), In(&gradient), copy, int(n), In(&one)];
            let grid = Grid::linear(n.div_ceil(ADAMW_WIDTH), ELEMENTWISE_THREADS);
            gpu().launch("adamw_step", &grid, &[&state[..], &numbers].concat()).unwrap();
        }
        assert!([&w, &m, &v, &copy].iter().all(|x| x.get().iter().all(|x| x.is_finite())));
        assert_eq!(copy.get(), rounded(&w.get(), DType::Bf16));
    }
}

/// The norm of gradients, f32 or bf16, and the factor.
fn norm(gradients: &[(&[f64], DType)], max_norm: f64) -> (f64, f64) {
    let gradients: Vec<Tensor> = gradients.iter().map(|(g, dtype)| put(g, &[g.len()], *dtype)).collect();
    let [norm, scale] = global_norm(&gradients.iter().collect::<Vec<_>>(), max_norm).unwrap();
    (norm.item().unwrap(), scale.item().unwrap())
}

/// Within the roundings of four squares' sum, its root, the ε that is added and the quotient.
fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 6.0 * 2f64.powi(-24) * expected, "found {found}, expected {expected}");
}

/// Of f32 and bf16 together; more than one block a gradient, and more slots than the second stage has threads.
#[test]
fn norms_of_many_gradients() {
    const F: DType = DType::F32;
    let mut rng = rng();
    let draw = |rng: &mut _, n: usize, dtype: DType| rounded(&normal(rng, n), dtype);
    let (a, b) = (draw(&mut rng, 1025, F), draw(&mut rng, 2049, DType::Bf16));
    let (long, many) = (draw(&mut rng, 3 * 16_384 + 5, F), (0..300).map(|i| vec![i as f64; 1 + i % 3]));
    let many: Vec<Vec<f64>> = many.collect();
    let all: Vec<(&[f64], DType)> = many.iter().map(|g| (&g[..], F)).chain([(&long[..], F)]).collect();
    for gradients in [vec![(&a[..], F), (&b[..], DType::Bf16)], all] {
        let squares: f64 = gradients.iter().flat_map(|(g, _)| g.iter()).map(|x| x * x).sum();
        for max_norm in [0.5, 1e6] {
            let found = norm(&gradients, max_norm);
            near(found.0, squares.sqrt());
            near(found.1, (max_norm / (squares.sqrt() + 1e-6)).min(1.0));
            assert_eq!(found, norm(&gradients, max_norm), "two runs differ");
        }
    }
}

#[test]
fn norms_beyond_f32_and_known_ones() {
    const F: DType = DType::F32;
    let (found, scale) = norm(&[(&[3.0], F), (&[4.0], F)], 1.0);
    assert_eq!(found, 5.0);
    near(scale, 1.0 / (5.0 + 1e-6));
    assert_eq!(norm(&[(&[0.3, 0.4], F)], 1.0).1, 1.0, "short gradients are left alone");
    assert_eq!(norm(&[(&[3.0, 4.0], F)], 0.0), (5.0, 1.0), "0 leaves gradients alone");
    assert_eq!(norm(&[(&[0.0; 9], F), (&[], F)], 1.0), (0.0, 1.0));
    assert_eq!(norm(&[(&[], F)], 1.0), (0.0, 1.0));
    let large = vec![f64::from(1e20f32); 100];
    let apart: Vec<(&[f64], DType)> = large.chunks(1).map(|g| (g, F)).collect();
    let (found, scale) = norm(&apart, 1.0);
    near(found, 1e21);
    near(scale * 1e20, 0.1);
    near(norm(&[(&large, F)], 1.0).0, 1e21);
    near(norm(&[(&vec![f64::from(1e30f32); 64], F)], 1.0).0, 8.0 * f64::from(1e30f32));
    near(norm(&[(&[3e-30, 0.0, 4e-30, 0.0, 0.0], F)], 1.0).0, 5e-30);
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for place in [0, 6, 8] {
            let mut gradient = vec![1.0; 9];
            gradient[place] = bad;
            let (found, scale) = norm(&[(&[2.0; 3], F), (&gradient, F)], 1.0);
            assert!(!found.is_finite() && scale.is_nan(), "{bad} at {place}: norm {found}, scale {scale}");
        }
    }
    for max_norm in [f64::NAN, -1.0, f64::INFINITY] {
        let error = global_norm(&[&put(&[1.0], &[1], F)], max_norm).unwrap_err().to_string();
        assert!(error.contains("max_norm"), "{error}");
    }
}
