//! `kernels/{mul,silu,gelu,swiglu,cast}.cu`: operators without neighbours.

use crate::common::*;
use half::bf16;
use handgrad::gpu::kernels::{cast, gelu, mul, silu, swiglu};
use handgrad::gpu::{Gpu, GpuFloat, LaunchError, Result, View, ViewMut};
use handgrad::{Tape, Var, ops};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;

/// Elements, and where each operand starts.
pub type Case = (usize, [usize; 4]);

pub fn cases() -> impl Strategy<Value = Case> {
    (edges(&[4, 8, 256, 1024, 2048]), offsets::<4>())
}

/// All operands aligned, any of them not, or just one of them.
pub fn offsets<const N: usize>() -> impl Strategy<Value = [usize; N]> + Clone {
    let alone = |(operand, offset): (usize, usize)| std::array::from_fn(|i| if i == operand { offset } else { 0 });
    let any = proptest::collection::vec(0usize..3, N).prop_map(|offsets| offsets.try_into().unwrap());
    prop_oneof![Just([0; N]), any, (0..N, 1usize..3).prop_map(alone)]
}

/// One kernel with one output, against f64 and a naive version, twice, and over its first input.
pub fn check<E: GpuFloat, const N: usize>(
    label: &str,
    inputs: [&[E]; N],
    offsets: [usize; 4],
    (expected, naive, factor): (&[f64], &[f64], f64),
    launch: impl Fn(&Gpu, [View<E>; N], &mut ViewMut<E>) -> Result<()>,
) {
    let gpu = gpu();
    let uploaded: Vec<Input<E>> = inputs.iter().zip(offsets).map(|(x, offset)| Input::new(gpu, x, offset)).collect();
    let views = || std::array::from_fn(|i| uploaded[i].view());
    let run = || {
        let mut y = Guarded::<E>::at(gpu, expected.len(), offsets[3]);
        launch(gpu, views(), &mut y.view_mut()).unwrap();
        y.download()
    };
    let found = run();
    judge(label, &found, expected, naive, factor, size(&inputs));
    same_bits(label, &found, &run());

    let mut both = Guarded::holding(gpu, inputs[0], offsets[3]);
    let mut views: [View<E>; N] = views();
    let mut both_view = both.view_mut();
    let (input, mut output) = both_view.in_place();
    views[0] = input;
    launch(gpu, views, &mut output).unwrap();
    same_bits(&format!("{label} in place"), &found, &both.download());
}

/// The budget where there are enough elements for a naive error to mean something, else four roundings of the largest,
/// or of 1, and four in f32 of `size`, which no intermediate value exceeds by much.
pub fn judge<E: GpuFloat>(label: &str, found: &[E], expected: &[f64], naive: &[f64], factor: f64, size: f64) {
    if found.len() >= 100 {
        return within_budget(label, found, expected, naive, factor);
    }
    let unit = if E::SUFFIX == "bf16" { 2f64.powi(-8) } else { 2f64.powi(-23) };
    let largest = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    within(label, &to_f64(found), expected, |_| 4.0 * (unit * largest.max(1.0) + 2f64.powi(-23) * size));
}

/// The product of each input's largest value, or 1.
fn size<E: GpuFloat>(inputs: &[&[E]]) -> f64 {
    inputs.iter().map(|x| to_f64(x).iter().fold(1.0f64, |largest, x| largest.max(x.abs()))).product()
}

/// f64 outputs and gradients of an operator of `[n]` inputs.
fn of<E: GpuFloat>(inputs: &[&[E]], d_y: &[E], op: impl FnOnce(&mut Tape, &[Var]) -> anyhow::Result<Var>) -> Reference {
    let n = d_y.len();
    let tensors: Vec<_> = inputs.iter().map(|x| tensor(x, &[n])).collect();
    reference(&tensors, &[tensor(d_y, &[n])], |tape, vars| Ok(vec![op(tape, vars)?]))
}

/// `f` of each element in f32.
fn naive<E: GpuFloat, const N: usize>(inputs: [&[E]; N], f: impl Fn([f32; N]) -> f32) -> Vec<f64> {
    let inputs = inputs.map(to_f32);
    (0..inputs[0].len()).map(|i| f(std::array::from_fn(|j| inputs[j][i])) as f64).collect()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn tanh_term(x: f32) -> f32 {
    (0.797_884_6 * (x + 0.044715 * x * x * x)).tanh()
}

fn mul_case<E: GpuFloat>((n, offsets): Case, rng: &mut ChaCha8Rng) {
    let [a, b, d_y] = [(); 3].map(|_| normal::<E>(rng, n));
    let f64s = of(&[&a, &b], &d_y, |tape, vars| ops::mul(tape, &vars[0], &vars[1]));
    let eager = naive([&a, &b], |[a, b]| rounded::<E>(a * b));
    check("mul", [&a, &b], offsets, (&f64s.outputs[0], &eager, 2.0), |gpu, [a, b], y| mul::forward(gpu, a, b, y, n));
    let eager = naive([&d_y, &b], |[d_y, b]| rounded::<E>(d_y * b));
    let launch = |gpu: &Gpu, [d_y, b]: [View<E>; 2], d_a: &mut ViewMut<E>| mul::forward(gpu, d_y, b, d_a, n);
    check("mul, d_a", [&d_y, &b], offsets, (&f64s.gradients[0], &eager, 3.0), launch);
}

fn silu_case<E: GpuFloat>((n, offsets): Case, rng: &mut ChaCha8Rng) {
    let [x, d_y] = [(); 2].map(|_| spread::<E>(rng, n));
    let f64s = of(&[&x], &d_y, |tape, vars| ops::silu(tape, &vars[0]));
    let eager = naive([&x], |[x]| rounded::<E>(x * sigmoid(x)));
    check("silu", [&x], offsets, (&f64s.outputs[0], &eager, 2.0), |gpu, [x], y| silu::forward(gpu, x, y, n));
    let slope = |x: f32| sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)));
    let eager = naive([&x, &d_y], |[x, d_y]| rounded::<E>(d_y * slope(x)));
    let launch = |gpu: &Gpu, [x, d_y]: [View<E>; 2], d_x: &mut ViewMut<E>| silu::backward(gpu, x, d_y, d_x, n);
    check("silu, d_x", [&x, &d_y], offsets, (&f64s.gradients[0], &eager, 3.0), launch);
}

fn gelu_case<E: GpuFloat>((n, offsets): Case, rng: &mut ChaCha8Rng) {
    let [x, d_y] = [(); 2].map(|_| spread::<E>(rng, n));
    let f64s = of(&[&x], &d_y, |tape, vars| ops::gelu(tape, &vars[0]));
    let eager = naive([&x], |[x]| rounded::<E>(0.5 * x * (1.0 + tanh_term(x))));
    check("gelu", [&x], offsets, (&f64s.outputs[0], &eager, 2.0), |gpu, [x], y| gelu::forward(gpu, x, y, n));
    let slope = |x: f32| {
        let (t, u_slope) = (tanh_term(x), 0.797_884_6 * (1.0 + 3.0 * 0.044715 * x * x));
        0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * u_slope
    };
    let eager = naive([&x, &d_y], |[x, d_y]| rounded::<E>(d_y * slope(x)));
    let launch = |gpu: &Gpu, [x, d_y]: [View<E>; 2], d_x: &mut ViewMut<E>| gelu::backward(gpu, x, d_y, d_x, n);
    check("gelu, d_x", [&x, &d_y], offsets, (&f64s.gradients[0], &eager, 3.0), launch);
}

fn swiglu_case<E: GpuFloat>((n, offsets): Case, rng: &mut ChaCha8Rng) {
    let [gate, up, d_y] = [(); 3].map(|_| spread::<E>(rng, n));
    let f64s = of(&[&gate, &up], &d_y, |tape, vars| ops::swiglu(tape, &vars[0], &vars[1]));
    let silu = |x: f32| rounded::<E>(x * sigmoid(x));
    let eager = naive([&gate, &up], |[gate, up]| rounded::<E>(silu(gate) * up));
    let launch = |gpu: &Gpu, [gate, up]: [View<E>; 2], y: &mut ViewMut<E>| swiglu::forward(gpu, gate, up, y, n);
    check("swiglu", [&gate, &up], offsets, (&f64s.outputs[0], &eager, 2.0), launch);

    let slope = |x: f32| sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)));
    let eager_gate = naive([&gate, &up, &d_y], |[x, up, d_y]| rounded::<E>(rounded::<E>(d_y * up) * slope(x)));
    let eager_up = naive([&gate, &d_y], |[gate, d_y]| rounded::<E>(d_y * silu(gate)));
    let inputs: [&[E]; 3] = [&gate, &up, &d_y];
    // each gradient once as the output that is checked, the other one beside it
    let launch = |gpu: &Gpu, [gate, up, d_y]: [View<E>; 3], d_gate: &mut ViewMut<E>| {
        let mut d_up = Guarded::<E>::at(gpu, n, offsets[0]);
        swiglu::backward(gpu, gate, up, d_y, d_gate, &mut d_up.view_mut(), n)?;
        d_up.download();
        Ok(())
    };
    check("swiglu, d_gate", inputs, offsets, (&f64s.gradients[0], &eager_gate, 3.0), launch);
    let launch = |gpu: &Gpu, [gate, up, d_y]: [View<E>; 3], d_up: &mut ViewMut<E>| {
        let mut d_gate = Guarded::<E>::at(gpu, n, offsets[1]);
        swiglu::backward(gpu, gate, up, d_y, &mut d_gate.view_mut(), d_up, n)?;
        d_gate.download();
        Ok(())
    };
    check("swiglu, d_up", inputs, offsets, (&f64s.gradients[1], &eager_up, 3.0), launch);

    let size = size(&inputs);
    let (mut gate, mut up) = (Guarded::holding(gpu(), &gate, offsets[0]), Guarded::holding(gpu(), &up, offsets[1]));
    let d_y = Input::new(gpu(), &d_y, offsets[2]);
    swiglu::backward_in_place(gpu(), &mut gate.view_mut(), &mut up.view_mut(), d_y.view(), n).unwrap();
    judge("swiglu in place, d_gate", &gate.download(), &f64s.gradients[0], &eager_gate, 3.0, size);
    judge("swiglu in place, d_up", &up.download(), &f64s.gradients[1], &eager_up, 3.0, size);
}

/// Normal values, three times as wide: into the flat parts of the activations.
fn spread<E: GpuFloat>(rng: &mut ChaCha8Rng, n: usize) -> Vec<E> {
    to_f64(&normal::<f32>(rng, n)).into_iter().map(|x| round::<E>(3.0 * x)).collect()
}

#[test]
fn mul_against_f64() {
    property("mul f32", 15, cases(), mul_case::<f32>);
    property("mul bf16", 15, cases(), mul_case::<bf16>);
}

#[test]
fn silu_against_f64() {
    property("silu f32", 15, cases(), silu_case::<f32>);
    property("silu bf16", 15, cases(), silu_case::<bf16>);
}

#[test]
fn gelu_against_f64() {
    property("gelu f32", 15, cases(), gelu_case::<f32>);
    property("gelu bf16", 15, cases(), gelu_case::<bf16>);
}

#[test]
fn swiglu_against_f64() {
    property("swiglu f32", 15, cases(), swiglu_case::<f32>);
    property("swiglu bf16", 15, cases(), swiglu_case::<bf16>);
}

/// Where e⁻ˣ overflows, and where tanh is 1: each element has to be right by itself.
#[test]
fn activations_far_from_zero() {
    let data = [0.0f32, -0.0, 20.0, -20.0, 88.0, -88.0, 105.0, -105.0, 1e4, -1e4, 3e38, -3e38, f32::NAN];
    let (n, gpu) = (data.len(), gpu());
    let (x, one) = (gpu.upload(&data).unwrap(), gpu.upload(&vec![1.0f32; n]).unwrap());
    type Launch<'a> = &'a dyn Fn(&mut ViewMut<f32>) -> Result<()>;
    let run = |launch: Launch| {
        let mut y = Guarded::<f32>::new(gpu, n);
        launch(&mut y.view_mut()).unwrap();
        to_f64(&y.download())
    };
    let near = |label: &str, found: Vec<f64>, f: &dyn Fn(f64) -> f64| {
        let expected: Vec<f64> = data.iter().map(|&x| f(x as f64)).collect();
        within(label, &found, &expected, |i| 2e-6 * expected[i].abs() + 1e-37);
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    near("silu", run(&|y| silu::forward(gpu, x.view(), y, n)), &|x| x * sigmoid(x));
    let gated = run(&|y| swiglu::forward(gpu, x.view(), one.view(), y, n));
    near("swiglu", gated, &|x| x * sigmoid(x));
    let slope = |x: f64| sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)));
    near("silu, d_x", run(&|y| silu::backward(gpu, x.view(), one.view(), y, n)), &slope);
    near("gelu", run(&|y| gelu::forward(gpu, x.view(), y, n)), &|x| if x < 0.0 { 0.0 } else { x });
}

#[test]
fn cast_rounds_to_nearest_even() {
    property("cast", 20, cases(), |(n, offsets), rng| {
        let gpu = gpu();
        let mut data = normal::<f32>(rng, n);
        // ties, both ways; the largest; what becomes infinite; subnormal; not numbers
        let special = [
            1.0 + 1.0 / 256.0,
            1.0 + 3.0 / 256.0,
            -1.0 - 1.0 / 256.0,
            3.389e38,
            3.4e38,
            -3.4e38,
            1e-40,
            -0.0,
            f32::INFINITY,
            f32::NAN,
        ];
        data.iter_mut().zip(special).for_each(|(x, special)| *x = special);
        let x = Input::new(gpu, &data, offsets[0]);
        let mut y = Guarded::<bf16>::at(gpu, n, offsets[1]);
        cast::to_bf16(gpu, x.view(), &mut y.view_mut(), n).unwrap();
        let mut z = Guarded::<f32>::at(gpu, n, offsets[2]);
        cast::to_f32(gpu, y.view(), &mut z.view_mut(), n).unwrap();
        for ((&x, y), z) in data.iter().zip(y.download()).zip(z.download()) {
            let expected = bf16::from_f32(x);
            assert!(
                y.to_bits() == expected.to_bits() || (x.is_nan() && y.is_nan()),
                "cast of {x}: found {y}, expected {expected}"
            );
            assert!(z.to_bits() == y.to_f32().to_bits() || (x.is_nan() && z.is_nan()), "cast of {y}: found {z}");
        }
    });
}

#[test]
fn nothing_to_do_and_bad_operands() {
    let gpu = gpu();
    let (none, x) = (gpu.alloc::<f32>(0).unwrap(), gpu.upload(&[1.0f32; 8]).unwrap());
    let mut y = Guarded::<f32>::new(gpu, 8);
    mul::forward(gpu, none.view(), none.view(), &mut y.view_mut(), 0).unwrap();
    let error = mul::forward(gpu, x.view(), x.range(1..8), &mut y.view_mut(), 8).unwrap_err();
    assert_eq!(error, LaunchError::TooSmall { kernel: "mul_forward", operand: "b", found: 7, expected: 8 });
    let error = silu::forward(gpu, none.view(), &mut y.view_mut(), 1).unwrap_err();
    assert_eq!(error, LaunchError::Null { kernel: "silu_forward", operand: "x", expected: 1 });
    let error = silu::backward(gpu, x.view(), x.view(), &mut y.view_mut(), 9).unwrap_err();
    assert!(matches!(error, LaunchError::TooSmall { operand: "x", .. }), "{error}");
    // SAFETY: refused before anything is read.
    let odd = unsafe { View::<f32>::from_raw(x.view().address() + 2, 7) };
    let error = gelu::forward(gpu, odd, &mut y.view_mut(), 7).unwrap_err();
    assert!(
        matches!(error, LaunchError::Misaligned { kernel: "gelu_forward", operand: "x", expected: 4, .. }),
        "{error}"
    );
    let error = gelu::backward(gpu, x.view(), odd, &mut y.view_mut(), 7).unwrap_err();
    assert!(matches!(error, LaunchError::Misaligned { operand: "d_y", .. }), "{error}");
    let error = swiglu::forward(gpu, x.view(), x.view(), &mut y.view_mut(), usize::MAX).unwrap_err();
    assert!(matches!(error, LaunchError::Overflow { .. }), "{error}");
    let mut short = Guarded::<f32>::new(gpu, 7);
    let error = swiglu::backward(gpu, x.view(), x.view(), x.view(), &mut y.view_mut(), &mut short.view_mut(), 8);
    assert!(matches!(error, Err(LaunchError::TooSmall { operand: "d_up", found: 7, expected: 8, .. })), "{error:?}");
    let error = cast::to_bf16(gpu, x.view(), &mut Guarded::<bf16>::new(gpu, 7).view_mut(), 8).unwrap_err();
    assert!(matches!(error, LaunchError::TooSmall { operand: "y", found: 7, expected: 8, .. }), "{error}");
    assert!(y.download().iter().all(|y| y.is_nan()), "refused launches wrote something");
}
