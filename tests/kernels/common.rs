//! What the tests of kernels share: the device, drawn numbers, an operator's outputs and gradients, error bounds, guarded
//! outputs.
#![allow(dead_code, reason = "a test module uses its own part")]

use std::sync::OnceLock;

use handgrad::gpu::Gpu;
use handgrad::{DType, Device, Tape, Tensor, Var};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

pub const BOTH: [DType; 2] = [DType::F32, DType::Bf16];
pub const HEAD_DIMS: [usize; 4] = [32, 64, 96, 128];

/// The device under test: the emulator, or what `HANDGRAD_TEST_DEVICE` names.
pub fn device() -> &'static Device {
    static OPENED: OnceLock<Device> = OnceLock::new();
    OPENED.get_or_init(|| {
        let choice = std::env::var("HANDGRAD_TEST_DEVICE").unwrap_or_else(|_| "emulator".to_string());
        let device = Device::open(&choice).unwrap_or_else(|error| panic!("{error:#}"));
        println!("device under test: {device}");
        device
    })
}

pub fn gpu() -> &'static Gpu {
    device().gpu().expect("a card or the emulator")
}

/// A generator; its seed is new each time unless `HANDGRAD_TEST_SEED` gives one, and is printed.
pub fn rng() -> ChaCha8Rng {
    let seed = std::env::var("HANDGRAD_TEST_SEED").ok().map(|seed| seed.parse().expect("HANDGRAD_TEST_SEED: a number"));
    let seed: u64 = seed.unwrap_or_else(rand::random);
    println!("HANDGRAD_TEST_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

pub fn normal(rng: &mut ChaCha8Rng, len: usize) -> Vec<f64> {
    (0..len).map(|_| StandardNormal.sample(rng)).collect()
}

/// The numbers in `dtype`, on the device.
pub fn put(data: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    Tensor::from_vec(data.to_vec(), shape).unwrap().to_dtype(dtype).unwrap().to(device()).unwrap()
}

/// Standard normal numbers in `dtype`, on the device.
pub fn draw(rng: &mut ChaCha8Rng, shape: &[usize], dtype: DType) -> Tensor {
    put(&normal(rng, shape.iter().product()), shape, dtype)
}

/// Token ids, or targets, on the device.
pub fn ids(data: &[i64]) -> Tensor {
    Tensor::from_vec(data.iter().map(|&id| id as u32).collect(), &[data.len()]).unwrap().to(device()).unwrap()
}

/// The values, once the device has them.
pub fn get(x: &Tensor) -> Vec<f64> {
    x.to_f64_vec().unwrap()
}

/// The same numbers in f64 on the CPU, where the reference runs.
pub fn exact(x: &Tensor) -> Tensor {
    Tensor::from_vec(get(x), x.shape()).unwrap()
}

/// The numbers as `dtype` holds them.
pub fn rounded(data: &[f64], dtype: DType) -> Vec<f64> {
    Tensor::from_vec(data.to_vec(), &[data.len()]).unwrap().to_dtype(dtype).unwrap().to_f64_vec().unwrap()
}

/// What a rounding to `dtype` may be off by, as a share.
pub fn unit(dtype: DType) -> f64 {
    if dtype == DType::Bf16 { 2f64.powi(-8) } else { 2f64.powi(-24) }
}

type Operator<'a> = &'a dyn Fn(&mut Tape, &[Var]) -> anyhow::Result<Vec<Var>>;

/// An operator's outputs, without a gradient.
pub fn forward(inputs: &[&Tensor], f: Operator) -> Vec<Tensor> {
    let vars: Vec<Var> = inputs.iter().map(|&x| Var::constant(x.clone())).collect();
    f(&mut Tape::inference(), &vars).unwrap().into_iter().map(|y| y.value().clone()).collect()
}

/// An operator's outputs and the gradients of all its inputs, for a cotangent of each output.
pub fn both_ways(inputs: &[&Tensor], cotangents: &[&Tensor], f: Operator) -> (Vec<Tensor>, Vec<Tensor>) {
    let mut tape = Tape::new();
    let vars: Vec<Var> = inputs.iter().enumerate().map(|(i, x)| tape.leaf(&i.to_string(), x)).collect();
    let outputs = f(&mut tape, &vars).unwrap();
    let values = outputs.iter().map(|y| y.value().clone()).collect();
    let seeds: Vec<(&Var, Tensor)> = outputs.iter().zip(cotangents.iter().map(|&d| d.clone())).collect();
    let mut gradients = tape.backward_from(&seeds).unwrap();
    let gradients = (0..inputs.len()).map(|i| gradients.remove(&i.to_string()).expect("a gradient")).collect();
    (values, gradients)
}

/// [`both_ways`] on the device, after a second run gave the same bits; and in f64 on the same numbers.
pub fn against_f64(inputs: &[&Tensor], cotangents: &[&Tensor], f: Operator) -> [Vec<(Tensor, Vec<f64>)>; 2] {
    let found = both_ways(inputs, cotangents, f);
    let again = both_ways(inputs, cotangents, f);
    for (found, again) in found.0.iter().zip(&again.0).chain(found.1.iter().zip(&again.1)) {
        same_bits("two runs", found, again);
    }
    let wide: Vec<Vec<Tensor>> =
        [inputs, cotangents].iter().map(|list| list.iter().map(|x| exact(x)).collect()).collect();
    let wide: Vec<Vec<&Tensor>> = wide.iter().map(|list| list.iter().collect()).collect();
    let expected = both_ways(&wide[0], &wide[1], f);
    let pairs = |found: Vec<Tensor>, expected: Vec<Tensor>| found.into_iter().zip(expected.iter().map(get)).collect();
    [pairs(found.0, expected.0), pairs(found.1, expected.1)]
}

/// Element by element |found − expected| ≤ `bound(i)`; NaN and ∞ have to be where they are expected.
pub fn within(label: &str, found: &[f64], expected: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(found.len(), expected.len(), "{label}: number of elements");
    for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
        if e.is_nan() || e.is_infinite() {
            assert!(f == e || (f.is_nan() && e.is_nan()), "{label}[{i}]: found {f}, expected {e}");
            continue;
        }
        let error = (f - e).abs();
        assert!(error <= bound(i), "{label}[{i}]: found {f}, expected {e}, error {error:e} above {:e}", bound(i));
    }
}

/// f32 roundings that an element may suffer: the longest chain of additions in the tests, twice over.
const ROUNDINGS: f64 = 48.0;

/// Element by element half a unit of the type, and some roundings in f32 of the terms that are added up, `terms` being the
/// sum of their absolute values: what a kernel that computes in f32 and rounds once keeps, and stricter than any budget
/// that the largest element sets.
pub fn within_rounding(label: &str, found: &Tensor, expected: &[f64], terms: &[f64]) {
    assert_eq!(terms.len(), expected.len(), "{label}: number of terms");
    let half = unit(found.dtype());
    let bound = |i: usize| 1.01 * half * expected[i].abs() + ROUNDINGS * 2f64.powi(-24) * terms[i];
    within(label, &get(found), expected, bound);
}

/// Largest error and root mean square of all in bf16 are at most `factor` times those of a naive version, and a
/// rounding.
pub fn within_budget(label: &str, found: &[f64], expected: &[f64], naive: &[f64], factor: f64) {
    let errors = |x: &[f64]| {
        let errors = x.iter().zip(expected).map(|(x, e)| (x - e).abs());
        let (max, squares) = errors.fold((0.0f64, 0.0), |(m, s), e| (m.max(e), s + e * e));
        (max, (squares / expected.len() as f64).sqrt())
    };
    assert!(found.iter().all(|x| x.is_finite()), "{label}: a number that is not finite");
    let ((max, rms), (naive_max, naive_rms)) = (errors(found), errors(naive));
    let largest = expected.iter().fold(0.0f64, |m, e| m.max(e.abs()));
    let size = (expected.iter().map(|e| e * e).sum::<f64>() / expected.len() as f64).sqrt();
    let unit = unit(DType::Bf16);
    assert!(max <= factor * naive_max + unit * largest, "{label}: largest error {max:e}, naive {naive_max:e}");
    assert!(rms <= factor * naive_rms + 0.5 * unit * size, "{label}: root mean square {rms:e}, naive {naive_rms:e}");
}

/// Two tensors hold the same bits.
pub fn same_bits(label: &str, a: &Tensor, b: &Tensor) {
    let bits = |x: &Tensor| get(x).iter().map(|x| x.to_bits()).collect::<Vec<u64>>();
    assert!(a.dtype() == b.dtype() && bits(a) == bits(b), "{label} differ");
}

/// An output: filled with NaN, or with values, between guards that have to survive.
pub struct Guarded {
    whole: Tensor,
    /// For [`Into`](handgrad::launch::Arg::Into).
    pub window: Tensor,
}

const GUARD: usize = 64;
/// What no kernel writes.
const GUARD_VALUE: f64 = 1.2676506002282294e30; // 2¹⁰⁰

impl Guarded {
    pub fn new(shape: &[usize], dtype: DType) -> Guarded {
        Guarded::holding(&vec![f64::NAN; shape.iter().product()], shape, dtype)
    }

    /// The same with values, for outputs that are added to.
    pub fn holding(data: &[f64], shape: &[usize], dtype: DType) -> Guarded {
        let guard = vec![GUARD_VALUE; GUARD];
        let whole = put(&[&guard, data, &guard].concat(), &[data.len() + 2 * GUARD], dtype);
        let window = whole.rows(GUARD..GUARD + data.len()).unwrap().reshape(shape).unwrap();
        Guarded { whole, window }
    }

    /// The values, after a look at the guards.
    pub fn get(&self) -> Vec<f64> {
        let all = get(&self.whole);
        let (before, rest) = all.split_at(GUARD);
        let (data, after) = rest.split_at(self.window.len());
        for (place, guard) in [("before", before), ("behind", after)] {
            assert!(guard.iter().all(|&x| x == GUARD_VALUE), "the kernel wrote {place} its output {:?}", self.window);
        }
        data.to_vec()
    }
}
