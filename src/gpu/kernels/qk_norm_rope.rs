//! QK-Norm and RoPE in one on the device: `kernels/qk_norm_rope.cu`.

use super::elementwise::variant;
use super::rope::{Heads, Slots, Table, is_vector};
use super::rows::{SUM_PARAMS, sum_partials};
use crate::gpu::{Arg, Check, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

use Param::{F32, I32, Pointer};

const FORWARD: Kernel = Kernel {
    file: "qk_norm_rope",
    name: "qk_norm_rope_forward",
    params: &[Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, I32, I32, I32, I32, I32, I32, I32, F32],
};
const BACKWARD: Kernel = Kernel {
    file: "qk_norm_rope",
    name: "qk_norm_rope_backward",
    params: &[Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, I32, I32, I32, I32, I32],
};
const GAIN: Kernel = Kernel { file: "qk_norm_rope", name: "qk_norm_rope_gain", params: SUM_PARAMS };

pub const KERNELS: &[&Kernel] = &[&FORWARD, &BACKWARD, &GAIN];

/// Blocks that share the heads in the backward pass.
const MOST_BLOCKS: usize = 256;
/// Channels that a block of the backward pass sums over the heads.
const WINDOW: usize = 128;

/// Operands of [`forward`].
pub struct Forward<'a, E> {
    /// `[B,T,H,D]`
    pub x: View<'a, E>,
    /// `[D]`
    pub gain: View<'a, E>,
    pub table: Table<'a>,
    /// `[B,T,H,D]`, or the cache `[B,capacity,H,D]`
    pub y: ViewMut<'a, E>,
    /// `[B·T·H]`: 1/√(mean(x²) + ε) of each head, for [`backward`]
    pub rstd: Option<ViewMut<'a, f32>>,
}

/// Normalises and rotates each head; token t stands at position `start` + t.
pub fn forward<E: GpuFloat>(gpu: &Gpu, operands: Forward<E>, shape: Heads, start: usize, eps: f32) -> Result<()> {
    launch_forward(gpu, operands, shape, start, shape.own_slots(), eps)
}

/// The same into a cache `[B,capacity,H,D]`, where token t gets slot `start` + t.
pub fn forward_cached<E: GpuFloat>(
    gpu: &Gpu,
    operands: Forward<E>,
    shape: Heads,
    start: usize,
    capacity: usize,
    eps: f32,
) -> Result<()> {
    launch_forward(gpu, operands, shape, start, Slots { count: capacity, first: start }, eps)
}

fn launch_forward<E: GpuFloat>(
    gpu: &Gpu,
    operands: Forward<E>,
    shape: Heads,
    start: usize,
    slots: Slots,
    eps: f32,
) -> Result<()> {
    let check = Check("qk_norm_rope_forward");
    let Forward { x, gain, table, y, rstd } = operands;
    let len = shape.check(check)?;
    table.check(check, shape, start)?;
    check.operand("x", x, len)?;
    check.operand("gain", gain, shape.head_dim)?;
    check.output("y", &y, shape.check_slots(check, slots)?)?;
    if let Some(rstd) = &rstd {
        check.output("rstd", rstd, shape.rows())?;
    }
    let views = x.is_aligned(16) && gain.is_aligned(16) && y.is_aligned(16) && table.is_aligned();
    let aligned = views && is_vector::<E>(shape.head_dim);
    let number = |n: usize| Arg::I32(n as i32); // checked above
    let args = [
        x.arg(),
        gain.arg(),
        table.cos.arg(),
        table.sin.arg(),
        y.arg(),
        Arg::optional(rstd.as_ref().map(ViewMut::as_view)),
        number(shape.rows()),
        number(shape.tokens),
        number(shape.heads),
        number(shape.head_dim),
        number(start),
        number(slots.count),
        number(slots.first),
        Arg::F32(eps),
    ];
    gpu.launch(&FORWARD, &variant::<E>(aligned), shape.config::<E>(aligned, usize::MAX)?, &args)
}

/// Operands of [`backward`]: x, d_y, d_x `[B,T,H,D]`, gain, d_gain `[D]`, rstd `[B·T·H]`.
pub struct Backward<'a, E> {
    pub x: View<'a, E>,
    pub gain: View<'a, E>,
    pub table: Table<'a>,
    pub rstd: View<'a, f32>,
    pub d_y: View<'a, E>,
    pub d_x: ViewMut<'a, E>,
    pub d_gain: ViewMut<'a, f32>,
}

/// d_x and d_gain; with `accumulate`, d_gain is added to what lies there.
pub fn backward<E: GpuFloat>(
    gpu: &Gpu,
    operands: Backward<E>,
    shape: Heads,
    start: usize,
    accumulate: bool,
) -> Result<()> {
    let check = Check("qk_norm_rope_backward");
    let Backward { x, gain, table, rstd, d_y, d_x, mut d_gain } = operands;
    let (len, dim) = (shape.check(check)?, shape.head_dim);
    table.check(check, shape, start)?;
    check.operand("x", x, len)?;
    check.operand("gain", gain, dim)?;
    check.operand("rstd", rstd, shape.rows())?;
    check.operand("d_y", d_y, len)?;
    check.output("d_x", &d_x, len)?;
    check.output("d_gain", &d_gain, dim)?;
    let views = [x, gain, d_y].iter().all(|view| view.is_aligned(16)) && d_x.is_aligned(16) && table.is_aligned();
    let aligned = views && is_vector::<E>(dim);
    let mut config = shape.config::<E>(aligned, MOST_BLOCKS)?;
    config.grid[1] = dim.div_ceil(WINDOW).min(65_536) as u32; // beyond the limit, the launch refuses
    let parts = config.grid[0];
    let partial = gpu.alloc::<f32>(check.product("partial", &[parts as usize, dim])?)?;
    let number = |n: usize| Arg::I32(n as i32); // checked above
    let args = [
        x.arg(),
        gain.arg(),
        table.cos.arg(),
        table.sin.arg(),
        rstd.arg(),
        d_y.arg(),
        d_x.arg(),
        partial.view().arg(),
        number(shape.rows()),
        number(shape.tokens),
        number(shape.heads),
        number(dim),
        number(start),
    ];
    gpu.launch(&BACKWARD, &variant::<E>(aligned), config, &args)?;
    sum_partials(gpu, &GAIN, partial.view(), &mut d_gain, parts, dim, accumulate)
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    for offset in [0, 1] {
        run_both::<f32>(gpu, offset)?;
        run_both::<bf16>(gpu, offset)?;
    }
    Ok(())
}

/// Both passes, with operands that begin at element `offset`.
fn run_both<E: GpuFloat>(gpu: &Gpu, offset: usize) -> Result<()> {
    let shape = Heads { batch: 2, tokens: 32, heads: 6, head_dim: 96 };
    let len = offset + shape.rows() * shape.head_dim;
    let (x, mut y) = (gpu.zeros::<E>(len)?, gpu.alloc::<E>(len)?);
    let mut rstd = gpu.alloc::<f32>(shape.rows())?;
    let mut d_gain = gpu.alloc::<f32>(shape.head_dim)?;
    let table = gpu.zeros::<f32>(32 * shape.head_dim / 2)?;
    let table = Table { cos: table.view(), sin: table.view() };
    let view = x.range(offset..len);
    let y_view = y.range_mut(offset..len);
    let operands = Forward { x: view, gain: view, table, y: y_view, rstd: Some(rstd.view_mut()) };
    forward(gpu, operands, shape, 0, 1e-6)?;
    let (d_x, d_gain) = (y.range_mut(offset..len), d_gain.view_mut());
    let operands = Backward { x: view, gain: view, table, rstd: rstd.view(), d_y: view, d_x, d_gain };
    backward(gpu, operands, shape, 0, false)
}
