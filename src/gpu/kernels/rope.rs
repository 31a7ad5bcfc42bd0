//! RoPE on the device, and tokens written into a cache: `kernels/rope.cu`.

use super::elementwise::variant;
use crate::gpu::{Arg, Check, Config, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

use Param::{F32, I32, I64, Pointer};

const ROPE: Kernel = Kernel {
    file: "rope",
    name: "rope",
    params: &[Pointer, Pointer, Pointer, Pointer, I32, I32, I32, I32, I32, I32, I32, F32],
};
const CACHE_WRITE: Kernel =
    Kernel { file: "rope", name: "cache_write", params: &[Pointer, Pointer, I32, I64, I64, I64] };

pub const KERNELS: &[&Kernel] = &[&ROPE, &CACHE_WRITE];

const THREADS: usize = 256;
const WARP: usize = 32;

/// The shape `[B,T,H,D]` of q or k.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub batch: usize,
    pub tokens: usize,
    pub heads: usize,
    pub head_dim: usize,
}

/// cos φ and sin φ, `[positions, D/2]` each.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    pub cos: View<'a, f32>,
    pub sin: View<'a, f32>,
}

/// Where the tokens go: token t of a sequence to slot `first` + t of the sequence's `count`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    pub count: usize,
    pub first: usize,
}

impl Heads {
    /// Checks the numbers that the kernels take. Errors: an odd head_dim, anything beyond 32 bits.
    pub(super) fn check(self, check: Check) -> Result<usize> {
        let Heads { batch, tokens, heads, head_dim } = self;
        if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > 1 << 30 {
            return Err(check.range("head_dim", head_dim, "an even number from 2 to 2^30"));
        }
        let rows = check.product("x", &[batch, tokens, heads])?;
        check.i32("heads of all tokens", rows)?;
        for (name, value) in [("batch", batch), ("tokens", tokens), ("heads", heads)] {
            check.i32(name, value)?;
        }
        check.product("x", &[rows, head_dim])
    }

    pub(super) fn rows(self) -> usize {
        self.batch * self.tokens * self.heads
    }

    /// The slots of a tensor of this shape.
    pub(super) fn own_slots(self) -> Slots {
        Slots { count: self.tokens, first: 0 }
    }

    /// Elements of the tensor `[B,slots,H,D]` that is written. Error: the tokens do not fit.
    pub(super) fn check_slots(self, check: Check, slots: Slots) -> Result<usize> {
        let Slots { count, first } = slots;
        check.i32("slots", count)?;
        if first > count || self.tokens > count - first {
            let found = format!("{} tokens from slot {first}", self.tokens);
            return Err(check.range("cache", found, format!("at most {count} slots")));
        }
        check.product("y", &[self.batch, count, self.heads, self.head_dim])
    }

    /// 4 or 8 lanes a head, or 16 if not `aligned`: blocks for all heads, at most `most`.
    pub(super) fn config<E: GpuFloat>(self, aligned: bool, most: usize) -> Result<Config> {
        let lanes = if aligned { WARP * size_of::<E>() / 16 } else { WARP / 2 };
        let blocks = (self.rows() * lanes).div_ceil(THREADS).min(most);
        Config::linear(blocks * THREADS, THREADS as u32)
    }
}

impl Table<'_> {
    /// Checks that positions `start` to `start` + `tokens` are in the table.
    pub(super) fn check(self, check: Check, shape: Heads, start: usize) -> Result<()> {
        let pairs = shape.head_dim / 2;
        let positions = self.cos.len().min(self.sin.len()) / pairs;
        if start > positions || shape.tokens > positions - start {
            let found = format!("{} tokens from position {start}", shape.tokens);
            return Err(check.range("positions", found, format!("at most {positions} positions")));
        }
        check.i32("start", start)?;
        check.operand("cos", self.cos, positions * pairs)?;
        check.operand("sin", self.sin, positions * pairs)
    }

    pub(super) fn is_aligned(self) -> bool {
        self.cos.is_aligned(16) && self.sin.is_aligned(16)
    }
}

/// Whether heads of `head_dim` elements at 16-byte addresses are moved by 16 bytes.
pub(super) fn is_vector<E>(head_dim: usize) -> bool {
    (head_dim * size_of::<E>()).is_multiple_of(16)
}

/// Rotates `x` `[B,T,H,D]` to `y` `[B,T,H,D]`; token t stands at position `start` + t.
pub fn forward<E: GpuFloat>(
    gpu: &Gpu,
    x: View<E>,
    table: Table,
    y: &mut ViewMut<E>,
    shape: Heads,
    start: usize,
) -> Result<()> {
    rotate(gpu, Check("rope_forward"), x, table, y, (shape, shape.own_slots()), start, 1.0)
}

/// The same into `cache` `[B,capacity,H,D]`, where token t gets slot `start` + t.
pub fn forward_cached<E: GpuFloat>(
    gpu: &Gpu,
    x: View<E>,
    table: Table,
    cache: &mut ViewMut<E>,
    shape: Heads,
    start: usize,
    capacity: usize,
) -> Result<()> {
    let slots = Slots { count: capacity, first: start };
    rotate(gpu, Check("rope_forward"), x, table, cache, (shape, slots), start, 1.0)
}

/// d_x from d_y: the rotation back.
pub fn backward<E: GpuFloat>(
    gpu: &Gpu,
    d_y: View<E>,
    table: Table,
    d_x: &mut ViewMut<E>,
    shape: Heads,
    start: usize,
) -> Result<()> {
    rotate(gpu, Check("rope_backward"), d_y, table, d_x, (shape, shape.own_slots()), start, -1.0)
}

#[expect(clippy::too_many_arguments, reason = "called from three places above; a struct would only repeat the names")]
fn rotate<E: GpuFloat>(
    gpu: &Gpu,
    check: Check,
    x: View<E>,
    table: Table,
    y: &mut ViewMut<E>,
    (shape, slots): (Heads, Slots),
    start: usize,
    direction: f32,
) -> Result<()> {
    let len = shape.check(check)?;
    table.check(check, shape, start)?;
    check.operand("x", x, len)?;
    check.output("y", y, shape.check_slots(check, slots)?)?;
    let aligned = is_vector::<E>(shape.head_dim) && table.is_aligned() && x.is_aligned(16) && y.is_aligned(16);
    let number = |n: usize| Arg::I32(n as i32); // checked above
    let args = [
        x.arg(),
        table.cos.arg(),
        table.sin.arg(),
        y.arg(),
        number(shape.rows()),
        number(shape.tokens),
        number(shape.heads),
        number(shape.head_dim),
        number(start),
        number(slots.count),
        number(slots.first),
        Arg::F32(direction),
    ];
    gpu.launch(&ROPE, &variant::<E>(aligned), shape.config::<E>(aligned, usize::MAX)?, &args)
}

/// Copies `x` `[B,T,H,D]` into `cache` `[B,capacity,H,D]`, where token t gets slot `start` + t.
pub fn cache_write<E: GpuFloat>(
    gpu: &Gpu,
    x: View<E>,
    cache: &mut ViewMut<E>,
    shape: Heads,
    start: usize,
    capacity: usize,
) -> Result<()> {
    let check = Check("cache_write");
    let Heads { batch, tokens, heads, head_dim } = shape;
    let len = check.product("x", &[batch, tokens, heads, head_dim])?;
    check.operand("x", x, len)?;
    check.output("cache", cache, shape.check_slots(check, Slots { count: capacity, first: start })?)?;
    let batch_arg = Arg::I32(check.i32("batch", batch)?);
    if len == 0 {
        return Ok(());
    }
    let width = 16 / size_of::<E>();
    let aligned = (heads * head_dim).is_multiple_of(width) && x.is_aligned(16) && cache.is_aligned(16);
    let words = |slots: usize| slots * (heads * head_dim / if aligned { width } else { 1 });
    let mut config = Config::linear(words(tokens), THREADS as u32)?;
    config.grid[1] = batch.min(65_535) as u32;
    let [run, all, first] = [tokens, capacity, start].map(|slots| Arg::I64(words(slots) as i64));
    let args = [x.arg(), cache.arg(), batch_arg, run, all, first];
    gpu.launch(&CACHE_WRITE, &variant::<E>(aligned), config, &args)
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    for offset in [0, 1] {
        run_all::<f32>(gpu, offset)?;
        run_all::<bf16>(gpu, offset)?;
    }
    Ok(())
}

/// Everything once, with operands that begin at element `offset`.
fn run_all<E: GpuFloat>(gpu: &Gpu, offset: usize) -> Result<()> {
    let shape = Heads { batch: 2, tokens: 32, heads: 6, head_dim: 96 };
    let len = offset + shape.rows() * shape.head_dim;
    let (x, mut y) = (gpu.zeros::<E>(len)?, gpu.alloc::<E>(2 * len)?);
    let table = gpu.zeros::<f32>(64 * shape.head_dim / 2)?;
    let table = Table { cos: table.view(), sin: table.view() };
    let (x, end) = (x.range(offset..len), 2 * len - offset);
    forward_cached(gpu, x, table, &mut y.range_mut(offset..end), shape, 32, 64)?;
    cache_write(gpu, x, &mut y.range_mut(offset..end), shape, 32, 64)
}
