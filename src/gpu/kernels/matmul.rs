//! C = op(A)·op(B) on the device: `kernels/matmul.cu` for bf16, `kernels/matmul_f32.cu` for f32.

use crate::gpu::{Arg, Check, Config, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

const PARAMS: &[Param] = &[
    Param::Pointer, // A
    Param::Pointer, // B
    Param::Pointer, // C, or the parts of a split product
    Param::Pointer, // residual
    Param::I32,     // M
    Param::I32,     // N
    Param::I32,     // K
    Param::I32,     // batch
    Param::I64,     // stride of A
    Param::I64,     // stride of B
    Param::I32,     // steps of a split
];

const NN: Kernel = Kernel { file: "matmul", name: "matmul_nn", params: PARAMS };
const NT: Kernel = Kernel { file: "matmul", name: "matmul_nt", params: PARAMS };
const TN: Kernel = Kernel { file: "matmul", name: "matmul_tn", params: PARAMS };
const REDUCE: Kernel = Kernel {
    file: "matmul",
    name: "matmul_reduce",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::I64, Param::I32],
};
const F32_NN: Kernel = Kernel { file: "matmul_f32", ..NN };
const F32_NT: Kernel = Kernel { file: "matmul_f32", ..NT };
const F32_TN: Kernel = Kernel { file: "matmul_f32", ..TN };

pub const KERNELS: &[&Kernel] = &[&NN, &NT, &TN, &REDUCE];
pub const KERNELS_F32: &[&Kernel] = &[&F32_NN, &F32_NT, &F32_TN];

const THREADS: u32 = 256;
const TILE: usize = 128;
const SMALL_TILE: usize = 64;
const BF16_STAGES: usize = 3;

/// Which operand is stored transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A `[M,K]`, B `[K,N]`
    NN,
    /// A `[M,K]`, B `[N,K]`
    NT,
    /// A `[K,M]`, B `[K,N]`
    TN,
}

/// What is computed: `batch` products `[m,k] × [k,n]` of contiguous matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub layout: Layout,
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Elements from one matrix of A to the next; 0 uses one for all.
    pub a_stride: usize,
    pub b_stride: usize,
}

impl Shape {
    /// One product.
    pub fn new(layout: Layout, m: usize, n: usize, k: usize) -> Shape {
        Shape::batched(layout, 1, m, n, k)
    }

    /// `batch` products of matrices that follow each other.
    pub fn batched(layout: Layout, batch: usize, m: usize, n: usize, k: usize) -> Shape {
        // What saturates is refused at the launch.
        Shape { layout, batch, m, n, k, a_stride: m.saturating_mul(k), b_stride: k.saturating_mul(n) }
    }

    /// The lengths of a row of A and of a row of B, as they are stored.
    fn row_lengths(&self) -> [usize; 2] {
        match self.layout {
            Layout::NN => [self.k, self.n],
            Layout::NT => [self.k, self.k],
            Layout::TN => [self.m, self.n],
        }
    }
}

/// What happens to the product before it is stored.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue<'a, C> {
    /// C = product
    Store,
    /// C = product + residual, of C's shape
    Residual(View<'a, C>),
    /// C += product
    Accumulate,
}

/// How a product is cut: into tiles of 128×128 or, small, of 64×128; and K into at most `splits` parts, summed apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Ignored where there is no such kernel: in f32, and where rows are not aligned.
    pub small: bool,
    pub splits: usize,
}

/// The kernels for one type of input and output.
#[derive(Debug)]
pub struct Kind {
    kernels: [&'static Kernel; 3],
    variant: &'static str,
    /// The variant that writes f32, for the parts of a split product.
    parts: &'static str,
    /// How deep in K a step is.
    step: usize,
    tensor_cores: bool,
}

/// The types there are kernels for: bf16 into bf16, bf16 into f32, f32 into f32.
pub trait MultiplyInto<C>: GpuFloat {
    const KIND: Kind;
}

const BF16: Kind = Kind { kernels: [&NN, &NT, &TN], variant: "bf16", parts: "bf16_f32", step: 32, tensor_cores: true };

impl MultiplyInto<bf16> for bf16 {
    const KIND: Kind = BF16;
}

impl MultiplyInto<f32> for bf16 {
    const KIND: Kind = Kind { variant: "bf16_f32", ..BF16 };
}

impl MultiplyInto<f32> for f32 {
    const KIND: Kind =
        Kind { kernels: [&F32_NN, &F32_NT, &F32_TN], variant: "f32", parts: "f32", step: 8, tensor_cores: false };
}

/// C `[batch,m,n]` = op(A)·op(B), with sums in f32, stored as the epilogue says.
///
/// With m, n or batch = 0 nothing is launched; with k = 0 the product is 0. Errors: operands that are null, too small or
/// misaligned to their element, shapes that overflow, dimensions beyond 31 bits.
pub fn matmul<E: MultiplyInto<C>, C: GpuFloat>(
    gpu: &Gpu,
    shape: &Shape,
    a: View<E>,
    b: View<E>,
    c: &mut ViewMut<C>,
    epilogue: Epilogue<C>,
) -> Result<()> {
    let plan = Plan::new(gpu.limits().multiprocessors as usize, shape, &E::KIND, is_aligned(shape, a, b));
    matmul_planned(gpu, shape, a, b, c, epilogue, plan)
}

/// The same, cut as `plan` says.
pub fn matmul_planned<E: MultiplyInto<C>, C: GpuFloat>(
    gpu: &Gpu,
    shape: &Shape,
    a: View<E>,
    b: View<E>,
    c: &mut ViewMut<C>,
    epilogue: Epilogue<C>,
    plan: Plan,
) -> Result<()> {
    let len = check_operands(shape, a, b, c, epilogue)?;
    if len == 0 {
        return Ok(());
    }
    let residual = match epilogue {
        Epilogue::Store => Arg::Pointer(0),
        Epilogue::Residual(residual) => residual.arg(),
        Epilogue::Accumulate => c.arg(),
    };
    let cut = Cut::new(shape, &E::KIND, is_aligned(shape, a, b), plan);
    let operands = [a.arg(), b.arg()];
    if cut.splits == 1 {
        return launch(gpu, shape, &E::KIND, E::KIND.variant, cut, [operands, [c.arg(), residual]]);
    }
    let parts = gpu.alloc::<f32>(Check("matmul").product("parts", &[cut.splits, len])?)?;
    launch(gpu, shape, &E::KIND, E::KIND.parts, cut, [operands, [parts.view().arg(), Arg::Pointer(0)]])?;
    reduce(gpu, parts.view(), c, residual, len, cut.splits)
}

/// The number of elements of C. Errors as [`matmul`] lists them.
fn check_operands<E, C>(shape: &Shape, a: View<E>, b: View<E>, c: &ViewMut<C>, epilogue: Epilogue<C>) -> Result<usize> {
    let &Shape { batch, m, n, k, a_stride, b_stride, .. } = shape;
    let check = Check("matmul");
    for (what, value) in [("m", m), ("n", n), ("k", k), ("batch", batch)] {
        // The last tile's end has to be a 32-bit number as well.
        let limit = i32::MAX as usize - TILE;
        if value > limit {
            return Err(check.range(what, value, format!("at most {limit}")));
        }
    }
    let len = check.product("c", &[batch, m, n])?;
    let operand_len = |operand, rows, cols, stride| {
        let matrix = check.product(operand, &[rows, cols])?;
        // With 61 bits each, neither the sum overflows nor an offset in bytes.
        check.product(operand, &[batch, stride]).map(|_| if len == 0 { 0 } else { (batch - 1) * stride + matrix })
    };
    let (a_len, b_len) = (operand_len("a", m, k, a_stride)?, operand_len("b", k, n, b_stride)?);
    check.operand("a", a, a_len)?;
    check.operand("b", b, b_len)?;
    check.output("c", c, len)?;
    if let Epilogue::Residual(residual) = epilogue {
        check.operand("residual", residual, len)?;
    }
    Ok(len)
}

/// Whether every row of both operands begins at a multiple of 16 bytes.
fn is_aligned<E>(shape: &Shape, a: View<E>, b: View<E>) -> bool {
    let vector = 16 / size_of::<E>();
    let rows = shape.row_lengths().iter().all(|length| length.is_multiple_of(vector));
    let strides = shape.batch == 1 || [shape.a_stride, shape.b_stride].iter().all(|s| s.is_multiple_of(vector));
    rows && strides && a.is_aligned(16) && b.is_aligned(16)
}

/// A plan as the kernel takes it: no split is without a step, and there is a kernel for the tile.
#[derive(Clone, Copy)]
struct Cut {
    tile_m: usize,
    suffix: &'static str,
    splits: usize,
    split_steps: usize,
}

impl Cut {
    fn new(shape: &Shape, kind: &Kind, aligned: bool, plan: Plan) -> Cut {
        let (tile_m, suffix) = match (aligned, plan.small && kind.tensor_cores) {
            (false, _) => (TILE, "_unaligned"),
            (true, false) => (TILE, ""),
            (true, true) => (SMALL_TILE, "_64"),
        };
        let steps = shape.k.div_ceil(kind.step).max(1);
        let split_steps = steps.div_ceil(plan.splits.max(1));
        Cut { tile_m, suffix, splits: steps.div_ceil(split_steps), split_steps }
    }
}

/// `pointers`: A and B, then C (or the parts) and the residual.
fn launch(gpu: &Gpu, shape: &Shape, kind: &Kind, variant: &str, cut: Cut, pointers: [[Arg; 2]; 2]) -> Result<()> {
    let &Shape { layout, batch, m, n, k, a_stride, b_stride } = shape;
    let tiles = [m.div_ceil(cut.tile_m), n.div_ceil(TILE)];
    let blocks = Check("matmul").product("blocks", &[tiles[0], tiles[1], batch, cut.splits])?;
    let shared_bytes = if kind.tensor_cores { BF16_STAGES * (cut.tile_m + TILE) * kind.step * 2 } else { 0 };
    let config = Config { block: [THREADS, 1, 1], shared_bytes, ..Config::linear(blocks, 1)? };
    let sizes = [m, n, k, batch].map(|x| Arg::I32(x as i32)); // in range: `check_operands`
    let strides = [a_stride, b_stride].map(|x| Arg::I64(x as i64));
    let args = [pointers.as_flattened(), &sizes, &strides, &[Arg::I32(cut.split_steps as i32)]].concat();
    gpu.launch(kind.kernels[layout as usize], &format!("{variant}{}", cut.suffix), config, &args)
}

/// C = the sum over `splits` of `parts [splits, len]`, + residual unless that is null.
fn reduce<C: GpuFloat>(
    gpu: &Gpu,
    parts: View<f32>,
    c: &ViewMut<C>,
    residual: Arg,
    len: usize,
    splits: usize,
) -> Result<()> {
    const VECTOR: usize = 4;
    let Arg::Pointer(residual_address) = residual else { unreachable!("a residual is a pointer") };
    let bytes = (VECTOR * size_of::<C>()) as u64;
    let aligned = len.is_multiple_of(VECTOR) && c.is_aligned(bytes) && residual_address.is_multiple_of(bytes);
    let variant = format!("{}{}", C::SUFFIX, if aligned { "" } else { "_unaligned" });
    let config = Config::linear(len.div_ceil(if aligned { VECTOR } else { 1 }), THREADS)?;
    let args = [parts.arg(), c.arg(), residual, Arg::I64(len as i64), Arg::I32(splits as i32)];
    gpu.launch(&REDUCE, &variant, config, &args)
}

/// Nanoseconds on an RTX 4090, by which plans are compared.
struct Cost {
    /// A step of a 128×128 tile, and of a 64×128 tile.
    step: f64,
    small_step: f64,
    /// What a block takes besides its steps.
    block: f64,
    /// The launch of the second kernel, and what it and the first take for an element of a part.
    reduce: f64,
    part: f64,
}

const TENSOR_COST: Cost = Cost { step: 800.0, small_step: 450.0, block: 2000.0, reduce: 3000.0, part: 0.004 };
const F32_COST: Cost = Cost { step: 400.0, ..TENSOR_COST };
const MOST_SPLITS: usize = 32;

impl Plan {
    /// The plan with the least estimated time on so many multiprocessors; of equal ones the first in order of splits.
    /// The small tile is for `aligned` operands in bf16.
    pub fn new(multiprocessors: usize, shape: &Shape, kind: &Kind, aligned: bool) -> Plan {
        let cost = if kind.tensor_cores { TENSOR_COST } else { F32_COST };
        let elements = shape.batch as f64 * shape.m as f64 * shape.n as f64;
        let time = |plan: Plan| {
            let cut = Cut::new(shape, kind, aligned, plan);
            let tiles = shape.m.div_ceil(cut.tile_m) as f64 * shape.n.div_ceil(TILE) as f64 * shape.batch as f64;
            let waves = (tiles * cut.splits as f64 / multiprocessors.max(1) as f64).ceil();
            let step = if cut.tile_m == SMALL_TILE { cost.small_step } else { cost.step };
            let parts = if cut.splits > 1 { cost.reduce + elements * cut.splits as f64 * cost.part } else { 0.0 };
            waves * (cut.split_steps as f64 * step + cost.block) + parts
        };
        let tiles = if kind.tensor_cores && aligned { &[false, true][..] } else { &[false] };
        let splits = 1..=shape.k.div_ceil(kind.step).clamp(1, MOST_SPLITS);
        let plans = splits.flat_map(|splits| tiles.iter().map(move |&small| Plan { small, splits }));
        let best = plans.map(|plan| (time(plan), plan)).min_by(|(a, _), (b, _)| a.total_cmp(b));
        best.map_or(Plan { small: false, splits: 1 }, |(_, plan)| plan)
    }
}

/// Each kernel once, at sizes that fill whole tiles but for the unaligned ones.
pub fn showcase(gpu: &Gpu) -> Result<()> {
    for layout in [Layout::NN, Layout::NT, Layout::TN] {
        for plan in
            [Plan { small: false, splits: 1 }, Plan { small: true, splits: 1 }, Plan { small: false, splits: 2 }]
        {
            show::<bf16, bf16>(gpu, &Shape::new(layout, 128, 256, 256), plan)?;
        }
        show::<bf16, f32>(gpu, &Shape::new(layout, 128, 256, 256), Plan { small: true, splits: 2 })?;
        show::<bf16, f32>(gpu, &Shape::new(layout, 127, 129, 65), Plan { small: false, splits: 2 })?;
        show::<bf16, bf16>(gpu, &Shape::new(layout, 127, 129, 65), Plan { small: false, splits: 1 })?;
    }
    show::<bf16, bf16>(gpu, &Shape::new(Layout::NN, 3, 5, 65), Plan { small: false, splits: 2 })
}

/// The kernels of matmul_f32.cu.
pub fn showcase_f32(gpu: &Gpu) -> Result<()> {
    for layout in [Layout::NN, Layout::NT, Layout::TN] {
        show::<f32, f32>(gpu, &Shape::new(layout, 128, 256, 64), Plan { small: false, splits: 1 })?;
        show::<f32, f32>(gpu, &Shape::new(layout, 127, 129, 33), Plan { small: false, splits: 1 })?;
    }
    Ok(())
}

fn show<E: MultiplyInto<C>, C: GpuFloat>(gpu: &Gpu, shape: &Shape, plan: Plan) -> Result<()> {
    let &Shape { m, n, k, .. } = shape;
    let (a, b, mut c) = (gpu.zeros::<E>(m * k)?, gpu.zeros::<E>(k * n)?, gpu.alloc::<C>(m * n)?);
    matmul_planned(gpu, shape, a.view(), b.view(), &mut c.view_mut(), Epilogue::Store, plan)
}
