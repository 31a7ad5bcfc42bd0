//! What the tests of kernels share: the device, drawn inputs, guarded outputs, the f64 reference, and error budgets.
#![allow(dead_code, reason = "a test module uses its own part")]

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use half::bf16;
use handgrad::dtype::Element;
use handgrad::gpu::{Buffer, Gpu, GpuFloat, View, ViewMut};
use handgrad::{Tape, Tensor, Var};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

pub const HEAD_DIMS: [usize; 4] = [32, 64, 96, 128];
pub const GROUPS: [usize; 6] = [1, 2, 3, 4, 6, 8];

/// The device under test: the emulator, or the card that `HANDGRAD_TEST_DEVICE` names.
pub fn gpu() -> &'static Gpu {
    static OPENED: OnceLock<Gpu> = OnceLock::new();
    OPENED.get_or_init(|| {
        let choice = std::env::var("HANDGRAD_TEST_DEVICE").unwrap_or_else(|_| "emulator".to_string());
        let opened = match choice.strip_prefix("cuda") {
            Some("") => Gpu::open(0),
            Some(number) => Gpu::open(number.trim_start_matches(':').parse().expect("cuda:N")),
            None if choice == "emulator" => Gpu::emulator(),
            None => panic!("HANDGRAD_TEST_DEVICE: found {choice}, expected emulator, cuda or cuda:N"),
        };
        let gpu = opened.unwrap_or_else(|error| panic!("{error:#}"));
        println!("device under test: {}", gpu.name());
        gpu
    })
}

/// Runs `body` for `cases` draws of `strategy`. The seed is new each time unless `HANDGRAD_TEST_SEED` gives one; a failure prints it.
/// The generator that the body gets depends on the seed and on what was drawn only: a case that is run again sees the same numbers.
pub fn property<S>(name: &str, cases: u32, strategy: S, body: impl Fn(S::Value, &mut ChaCha8Rng))
where
    S: Strategy,
    S::Value: Debug + Clone,
{
    let seed = std::env::var("HANDGRAD_TEST_SEED").ok().map(|seed| seed.parse().expect("HANDGRAD_TEST_SEED: a number"));
    let seed: u64 = seed.unwrap_or_else(rand::random);
    println!("{name}: HANDGRAD_TEST_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 20, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&strategy, |case| {
        let mut hash = DefaultHasher::new();
        (seed, format!("{case:?}")).hash(&mut hash);
        body(case, &mut ChaCha8Rng::seed_from_u64(hash.finish()));
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{name}, HANDGRAD_TEST_SEED={seed}: {failure}");
    }
}

/// Lengths at which a kernel with tiles of these sizes can go wrong: each ±1 and itself, 1, and any up to the largest + 1.
pub fn edges(tiles: &[usize]) -> BoxedStrategy<usize> {
    let near: Vec<usize> = [1].into_iter().chain(tiles.iter().flat_map(|&t| [t.max(2) - 1, t, t + 1])).collect();
    let largest = tiles.iter().max().copied().unwrap_or(1);
    prop_oneof![3 => proptest::sample::select(near), 1 => 1..=largest + 1].boxed()
}

/// Standard normal values, rounded to the type.
pub fn normal<E: GpuFloat>(rng: &mut ChaCha8Rng, len: usize) -> Vec<E> {
    (0..len).map(|_| round::<E>(StandardNormal.sample(rng))).collect()
}

/// The nearest value of the type.
pub fn round<E: GpuFloat>(x: f64) -> E {
    // bf16 by way of f64: one rounding.
    let bytes: Vec<u8> = match E::SUFFIX {
        "bf16" => bytemuck::bytes_of(&bf16::from_f64(x)).to_vec(),
        _ => bytemuck::bytes_of(&(x as f32)).to_vec(),
    };
    bytemuck::pod_read_unaligned(&bytes)
}

/// f32 rounded to the type and back: what a tensor of that type keeps of an intermediate value.
pub fn rounded<E: GpuFloat>(x: f32) -> f32 {
    if E::SUFFIX == "bf16" { bf16::from_f32(x).to_f32() } else { x }
}

pub fn to_f64<E: GpuFloat>(data: &[E]) -> Vec<f64> {
    data.iter()
        .map(|x| match E::SUFFIX {
            "bf16" => bytemuck::cast::<E, bf16>(*x).to_f64(),
            _ => bytemuck::cast::<E, f32>(*x) as f64,
        })
        .collect()
}

pub fn to_f32<E: GpuFloat>(data: &[E]) -> Vec<f32> {
    to_f64(data).into_iter().map(|x| x as f32).collect()
}

/// An f64 tensor of values in the type, for the reference.
pub fn tensor<E: GpuFloat>(data: &[E], shape: &[usize]) -> Tensor {
    Tensor::from_vec(to_f64(data), shape).unwrap()
}

/// Outputs and gradients of a function of f64 tensors: what kernels are compared with.
pub struct Reference {
    pub outputs: Vec<Vec<f64>>,
    /// In the order of the inputs; empty for those without gradient.
    pub gradients: Vec<Vec<f64>>,
}

/// Runs handgrad's own operators in f64. There is one cotangent for each output, or none for no gradients.
pub fn reference(
    inputs: &[Tensor],
    cotangents: &[Tensor],
    f: impl FnOnce(&mut Tape, &[Var]) -> anyhow::Result<Vec<Var>>,
) -> Reference {
    let mut tape = Tape::new();
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("input {i}")).collect();
    let vars: Vec<Var> = names.iter().zip(inputs).map(|(name, x)| tape.leaf(name, x)).collect();
    let outputs = f(&mut tape, &vars).unwrap();
    let values = outputs.iter().map(|y| y.value().to_f64_vec()).collect();
    if cotangents.is_empty() {
        return Reference { outputs: values, gradients: vec![] };
    }
    assert_eq!(outputs.len(), cotangents.len(), "one cotangent for each output");
    let seeds: Vec<(&Var, Tensor)> = outputs.iter().zip(cotangents.iter().cloned()).collect();
    let gradients = tape.backward_from(&seeds).unwrap();
    let gradient = |name: &String| gradients.get(name).map(Tensor::to_f64_vec).unwrap_or_default();
    Reference { outputs: values, gradients: names.iter().map(gradient).collect() }
}

/// An output: filled with NaN, between guard words that have to survive. `offset` elements lie before the view, so that an
/// odd one makes it unaligned.
pub struct Guarded<E> {
    buffer: Buffer<E>,
    offset: usize,
    len: usize,
}

const GUARD: usize = 64;

impl<E: Element> Guarded<E> {
    pub fn new(gpu: &Gpu, len: usize) -> Guarded<E> {
        Guarded::at(gpu, len, 0)
    }

    /// `GUARD` + `offset` elements before the view, so with an offset of 0 it is aligned to 64 bytes at least.
    pub fn at(gpu: &Gpu, len: usize, offset: usize) -> Guarded<E> {
        Guarded::holding(gpu, &poison::<E>(len), offset)
    }

    /// The same with values, for outputs that are added to.
    pub fn holding(gpu: &Gpu, data: &[E], offset: usize) -> Guarded<E> {
        let guards = poison::<E>(GUARD);
        let all = [&guards, &poison::<E>(offset), data, &guards].concat();
        Guarded { buffer: gpu.upload(&all).unwrap(), offset: GUARD + offset, len: data.len() }
    }

    pub fn view(&self) -> View<'_, E> {
        self.buffer.range(self.offset..self.offset + self.len)
    }

    pub fn view_mut(&mut self) -> ViewMut<'_, E> {
        self.buffer.range_mut(self.offset..self.offset + self.len)
    }

    /// The values, after a look at the guards.
    pub fn download(&self) -> Vec<E> {
        let all = self.buffer.download().unwrap();
        let (before, rest) = all.split_at(self.offset);
        let (data, after) = rest.split_at(self.len);
        for (place, guard) in [("before", before), ("behind", after)] {
            let bytes: &[u8] = bytemuck::cast_slice(guard);
            assert!(bytes.iter().all(|&byte| byte == POISON), "the kernel wrote {place} its output of {}", self.len);
        }
        data.to_vec()
    }
}

/// Every byte 0xFF: NaN as f32 and as bf16, and no value a kernel would write.
const POISON: u8 = 0xff;

pub fn poison<E: Element>(len: usize) -> Vec<E> {
    let mut data = vec![E::zeroed(); len];
    bytemuck::cast_slice_mut::<E, u8>(&mut data).fill(POISON);
    data
}

/// An input at `offset` elements from an aligned address.
pub struct Input<E> {
    buffer: Buffer<E>,
    offset: usize,
}

impl<E: Element> Input<E> {
    pub fn new(gpu: &Gpu, data: &[E], offset: usize) -> Input<E> {
        let all = [&poison::<E>(offset), data].concat();
        Input { buffer: gpu.upload(&all).unwrap(), offset }
    }

    pub fn view(&self) -> View<'_, E> {
        self.buffer.range(self.offset..self.buffer.len())
    }
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

/// The largest error and the root mean square of all are at most `factor` times those of `naive`, an eager evaluation in the type
/// E with each intermediate tensor rounded. A floor of one rounding of the largest value stands in where naive is exact.
pub fn within_budget<E: GpuFloat>(label: &str, found: &[E], expected: &[f64], naive: &[f64], factor: f64) {
    let found = to_f64(found);
    assert_eq!(found.len(), expected.len(), "{label}: number of elements");
    assert_eq!(naive.len(), expected.len(), "{label}: number of naive elements");
    for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
        assert!(f.is_finite() || f == e || (f.is_nan() && e.is_nan()), "{label}[{i}]: found {f}, expected {e}");
    }
    let errors = |x: &[f64]| {
        let errors = x.iter().zip(expected).filter(|(_, e)| e.is_finite()).map(|(x, e)| (x - e).abs());
        let (max, squares, n) = errors.fold((0.0f64, 0.0, 0), |(m, s, n), e| (m.max(e), s + e * e, n + 1));
        (max, (squares / n.max(1) as f64).sqrt())
    };
    let ((max, rms), (naive_max, naive_rms)) = (errors(&found), errors(naive));
    let unit = if E::SUFFIX == "bf16" { 2f64.powi(-8) } else { 2f64.powi(-23) };
    let finite = expected.iter().filter(|e| e.is_finite());
    let (largest, squares, n) = finite.fold((0.0f64, 0.0, 0), |(m, s, n), e| (m.max(e.abs()), s + e * e, n + 1));
    let magnitude = (squares / n.max(1) as f64).sqrt();
    let (max_bound, rms_bound) = (factor * naive_max + unit * largest, factor * naive_rms + 0.5 * unit * magnitude);
    assert!(max <= max_bound, "{label}: largest error {max:e} above {max_bound:e} (naive {naive_max:e})");
    assert!(rms <= rms_bound, "{label}: root mean square error {rms:e} above {rms_bound:e} (naive {naive_rms:e})");
}

/// Two runs gave the same bits.
pub fn same_bits<E: Element>(label: &str, a: &[E], b: &[E]) {
    let bytes = |x: &[E]| bytemuck::cast_slice::<E, u8>(x).to_vec();
    assert!(bytes(a) == bytes(b), "{label}: two runs differ");
}
