//! `kernels/rope.cu`.

use crate::common::*;
use crate::rows::{Odd, abs, odd, within_rounding};
use half::bf16;
use handgrad::dtype::Element;
use handgrad::gpu::kernels::rope::{Heads, Table, backward, cache_write, forward, forward_cached};
use handgrad::gpu::{Buffer, GpuFloat, LaunchError, View, ViewMut};
use handgrad::ops::{self, RopeTable};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;

pub const THETA: f64 = 10000.0;

/// A shape `[B,T,H,D]`, the position of the first token, and slots of the cache behind the last token.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub shape: Heads,
    pub start: usize,
    pub spare: usize,
    pub odd: Odd,
}

impl Case {
    pub fn len(&self) -> usize {
        self.rows() * self.shape.head_dim
    }

    pub fn rows(&self) -> usize {
        self.shape.batch * self.shape.tokens * self.shape.heads
    }

    pub fn dims(&self) -> [usize; 4] {
        let Heads { batch, tokens, heads, head_dim } = self.shape;
        [batch, tokens, heads, head_dim]
    }

    /// Slots of a cache that just has room for the spare ones.
    pub fn capacity(&self) -> usize {
        self.start + self.shape.tokens + self.spare
    }

    pub fn table(&self) -> Angles {
        Angles::new(self.shape.head_dim, self.capacity(), self.odd)
    }

    /// What a cache `[B,capacity,H,D]` holds: `y` in its slots, and elsewhere what was there before.
    pub fn in_cache<E: GpuFloat>(&self, y: &[E], before: &[E]) -> Vec<E> {
        let slot = self.shape.heads * self.shape.head_dim;
        let run = self.shape.tokens * slot;
        let mut cache = before.to_vec();
        for b in 0..self.shape.batch {
            let at = (b * self.capacity() + self.start) * slot;
            cache[at..at + run].copy_from_slice(&y[b * run..][..run]);
        }
        cache
    }

    pub fn cache_len(&self) -> usize {
        self.shape.batch * self.capacity() * self.shape.heads * self.shape.head_dim
    }
}

/// Head sizes of models, small and odd ones, and one wider than a window of gain sums.
pub fn cases() -> impl Strategy<Value = Case> {
    let head_dim = prop_oneof![
        3 => proptest::sample::select(HEAD_DIMS.to_vec()),
        2 => proptest::sample::select(vec![2usize, 4, 6, 8, 10, 16, 30, 40, 72, 126, 130, 136, 256, 392]),
    ];
    let shape = (1usize..=3, edges(&[8, 16]), 1usize..=6, head_dim);
    (shape, 0usize..=5, 0usize..=2, odd(6)).prop_map(|((batch, tokens, heads, head_dim), start, spare, odd)| Case {
        shape: Heads { batch, tokens, heads, head_dim },
        start,
        spare,
        odd,
    })
}

/// cos and sin on the device, in one buffer; operands 4 and 5 of `odd`.
pub struct Angles {
    buffer: Buffer<f32>,
    cos: std::ops::Range<usize>,
    sin: std::ops::Range<usize>,
    pub cpu: RopeTable,
}

impl Angles {
    pub fn new(head_dim: usize, positions: usize, odd: Odd) -> Angles {
        let pairs = head_dim / 2;
        let len = positions * pairs;
        let angle = |n: usize| (n / pairs) as f64 * THETA.powf(-2.0 * (n % pairs) as f64 / head_dim as f64);
        let (cos, sin) = (odd.offset(4), (len + 1).next_multiple_of(4) + odd.offset(5));
        let mut data = vec![f32::NAN; sin + len];
        for n in 0..len {
            data[cos + n] = angle(n).cos() as f32;
            data[sin + n] = angle(n).sin() as f32;
        }
        let cpu = RopeTable::new(head_dim, positions, THETA).unwrap();
        Angles { buffer: gpu().upload(&data).unwrap(), cos: cos..cos + len, sin: sin..sin + len, cpu }
    }

    pub fn table(&self) -> Table<'_> {
        Table { cos: self.buffer.range(self.cos.clone()), sin: self.buffer.range(self.sin.clone()) }
    }
}

/// |x| of both channels of the pair: what a rotation adds up.
pub fn pair_terms(x: &[f64]) -> Vec<f64> {
    x.chunks(2).flat_map(|pair| [pair[0].abs() + pair[1].abs(); 2]).collect()
}

fn check<E: GpuFloat>(case: Case, rng: &mut ChaCha8Rng) {
    let (gpu, odd, Case { shape, start, .. }) = (gpu(), case.odd, case);
    let (x, d_y, angles) = (normal::<E>(rng, case.len()), normal::<E>(rng, case.len()), case.table());
    let (dims, table) = (case.dims(), angles.cpu.clone());
    let expected = reference(&[tensor(&x, &dims)], &[tensor(&d_y, &dims)], |tape, v| {
        Ok(vec![ops::rope(tape, &v[0], &table, start)?])
    });
    let (x_in, d_y_in) = (Input::new(gpu, &x, odd.offset(0)), Input::new(gpu, &d_y, odd.offset(0)));

    let run = |into_cache: bool| {
        let (len, filled) = (case.len(), normal::<E>(&mut rng.clone(), case.cache_len()));
        if into_cache {
            let mut y = Guarded::holding(gpu, &filled, odd.offset(1));
            let capacity = case.capacity();
            forward_cached(gpu, x_in.view(), angles.table(), &mut y.view_mut(), shape, start, capacity).unwrap();
            return (y.download(), filled);
        }
        let mut y = Guarded::<E>::at(gpu, len, odd.offset(1));
        forward(gpu, x_in.view(), angles.table(), &mut y.view_mut(), shape, start).unwrap();
        (y.download(), filled)
    };
    let (y, _) = run(false);
    within_rounding("y", &y, &expected.outputs[0], &pair_terms(&abs(&x)));
    let (cache, before) = run(true);
    same_bits("cache", &cache, &case.in_cache(&y, &before));

    let mut d_x = Guarded::<E>::at(gpu, case.len(), odd.offset(1));
    backward(gpu, d_y_in.view(), angles.table(), &mut d_x.view_mut(), shape, start).unwrap();
    within_rounding("d_x", &d_x.download(), &expected.gradients[0], &pair_terms(&abs(&d_y)));

    let mut copied = Guarded::holding(gpu, &before, odd.offset(1));
    cache_write(gpu, x_in.view(), &mut copied.view_mut(), shape, start, case.capacity()).unwrap();
    same_bits("cache_write", &copied.download(), &case.in_cache(&x, &before));
}

#[test]
fn against_f64() {
    property("rope f32", 25, cases(), check::<f32>);
    property("rope bf16", 25, cases(), check::<bf16>);
}

#[test]
fn a_known_rotation() {
    // position 1000, θ 1,000,000, D 4: the pair 0 turns by 1000, pair 1 by 1
    let angles = [0.0f32, 0.0, 1000.0, 1.0];
    let (cos, sin) = (gpu().upload(&angles.map(f32::cos)).unwrap(), gpu().upload(&angles.map(f32::sin)).unwrap());
    let table = Table { cos: cos.view(), sin: sin.view() };
    let shape = Heads { batch: 1, tokens: 1, heads: 1, head_dim: 4 };
    let (x, mut y) = (gpu().upload(&[0.0f32, 0.0, 1.0, 0.0]).unwrap(), Guarded::<f32>::new(gpu(), 4));
    forward(gpu(), x.view(), table, &mut y.view_mut(), shape, 1).unwrap();
    within("y", &to_f64(&y.download()), &[0.0, 0.0, 0.540302, 0.841471], |_| 1e-6);
}

#[test]
fn many_sequences_and_none() {
    let shape = Heads { batch: 65_537, tokens: 1, heads: 1, head_dim: 2 };
    let x: Vec<f32> = (0..shape.batch * 2).map(|i| i as f32).collect();
    let (x_in, mut cache) = (gpu().upload(&x).unwrap(), Guarded::<f32>::new(gpu(), x.len()));
    cache_write(gpu(), x_in.view(), &mut cache.view_mut(), shape, 0, 1).unwrap();
    assert!(cache.download() == x);

    let angles = Angles::new(2, 3, Odd::default());
    for shape in [Heads { batch: 0, ..shape }, Heads { batch: 1, tokens: 0, ..shape }, Heads { heads: 0, ..shape }] {
        forward_cached(gpu(), x_in.view(), angles.table(), &mut cache.view_mut(), shape, 0, 1).unwrap();
        cache_write(gpu(), x_in.view(), &mut cache.view_mut(), shape, 0, 1).unwrap();
    }
    assert!(cache.download() == x);
}

/// The view behind `before` elements that are not there.
pub fn behind<E>(view: View<'_, E>, before: usize) -> View<'_, E> {
    let address = view.address() - (before * size_of::<E>()) as u64;
    // SAFETY: the launches below use the elements of `view` only.
    unsafe { View::from_raw(address, before + view.len()) }
}

/// The same to write to.
pub fn behind_mut<E: Element>(view: &mut Guarded<E>, before: usize) -> ViewMut<'_, E> {
    let (address, len) = (behind(view.view(), before).address(), before + view.view().len());
    // SAFETY: as above.
    unsafe { ViewMut::from_raw(address, len) }
}

/// The last slot below 2³¹ elements of a cache of one head and the first above; then the same for the table's rows.
pub const FAR_SLOTS: [usize; 4] = [(1 << 24) - 1, 1 << 24, (1 << 25) - 1, 1 << 25];
pub const FAR: Heads = Heads { batch: 1, tokens: 1, heads: 1, head_dim: 128 };

#[test]
fn offsets_beyond_32_bits() {
    let (gpu, dim) = (gpu(), FAR.head_dim);
    let data: Vec<f32> = (0..dim).map(|i| i as f32).collect();
    let (x, cos, sin) =
        (gpu.upload(&data).unwrap(), gpu.upload(&[0.6f32; 64]).unwrap(), gpu.upload(&[0.8f32; 64]).unwrap());
    let mut y = Guarded::<f32>::new(gpu, dim);
    let near = Table { cos: cos.view(), sin: sin.view() };
    forward(gpu, x.view(), near, &mut y.view_mut(), FAR, 0).unwrap();
    for slot in FAR_SLOTS {
        let table = Table { cos: behind(cos.view(), slot * dim / 2), sin: behind(sin.view(), slot * dim / 2) };
        let mut cache = Guarded::<f32>::new(gpu, dim);
        let to = &mut behind_mut(&mut cache, slot * dim);
        forward_cached(gpu, x.view(), table, to, FAR, slot, slot + 1).unwrap();
        assert_eq!(cache.download(), y.download());
        let mut cache = Guarded::<f32>::new(gpu, dim);
        cache_write(gpu, x.view(), &mut behind_mut(&mut cache, slot * dim), FAR, slot, slot + 1).unwrap();
        assert_eq!(cache.download(), data);
    }
}

#[test]
fn bad_operands_are_refused() {
    let gpu = gpu();
    let (x, mut y) = (gpu.upload(&[1.0f32; 24]).unwrap(), gpu.alloc::<f32>(24).unwrap());
    let angles = Angles::new(4, 8, Odd::default());
    let shape = Heads { batch: 1, tokens: 3, heads: 2, head_dim: 4 };
    let mut attempt = |x: View<f32>, shape, start, capacity| {
        forward_cached(gpu, x, angles.table(), &mut y.view_mut(), shape, start, capacity).unwrap_err()
    };
    let error = attempt(x.range(0..23), shape, 0, 3);
    assert_eq!(error, LaunchError::TooSmall { kernel: "rope_forward", operand: "x", found: 23, expected: 24 });
    let error = attempt(x.view(), shape, 0, 4);
    assert!(matches!(error, LaunchError::TooSmall { operand: "y", expected: 32, .. }), "{error}");
    let error = attempt(x.view(), shape, 1, 3);
    assert!(matches!(error, LaunchError::Range { what: "cache", .. }), "{error}");
    for start in [6, 9, usize::MAX] {
        let error = attempt(x.view(), shape, start, 20);
        let LaunchError::Range { what: "positions", expected, .. } = &error else { panic!("{error}") };
        assert_eq!(expected, "at most 8 positions");
    }
    for head_dim in [0, 3] {
        let error = attempt(x.view(), Heads { head_dim, ..shape }, 0, 3);
        assert!(matches!(error, LaunchError::Range { what: "head_dim", .. }), "{error}");
    }
    let error = attempt(x.view(), Heads { batch: usize::MAX, ..shape }, 0, 3);
    assert!(matches!(error, LaunchError::Overflow { .. }), "{error}");
    let error = attempt(x.view(), Heads { batch: 1 << 30, ..shape }, 0, 3);
    assert!(matches!(error, LaunchError::Range { .. }), "{error}");
    // SAFETY: refused before anything is read.
    let between = unsafe { View::<f32>::from_raw(x.view().address() + 2, 24) };
    let error = attempt(between, shape, 0, 3);
    assert!(matches!(error, LaunchError::Misaligned { operand: "x", expected: 4, .. }), "{error}");
    let error = cache_write(gpu, x.view(), &mut y.view_mut(), shape, 1, 3).unwrap_err();
    assert!(matches!(error, LaunchError::Range { kernel: "cache_write", what: "cache", .. }), "{error}");
}
