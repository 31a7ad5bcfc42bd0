//! Matrix multiplication in three layouts, batched over leading dimensions.
//!
//! ```text
//!        forward        backward
//! NN     C = A B        d_A = d_C Bᵀ   d_B = Aᵀ d_C        A [.., M,K]  B [.., K,N]
//! NT     C = A Bᵀ       d_A = d_C B    d_B = d_Cᵀ A        A [.., M,K]  B [.., N,K]
//! TN     C = Aᵀ B       d_A = B d_Cᵀ   d_B = A d_C         A [.., K,M]  B [.., K,N]
//! ```
//!
//! A transpose is a flag, never a copy: each gradient is again one of the three. Both operands have the same leading
//! dimensions, or B is one matrix, used by all rows of A (NN and NT).

use super::{dispatch, same_dtype};
use crate::cpu::gemm::{MatRef, gemm};
use crate::device::Device;
use crate::dtype::{DType, Float};
use crate::gpu::Gpu;
use crate::gpu::gemm::{Product, Tiling};
use crate::gpu::grid::in_vectors;
use crate::launch::{Absent, In, Out, int};
use crate::tape::{Tape, Var, accumulate};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

/// Which operand is stored transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    NN,
    NT,
    TN,
}

/// The product of `a` and `b`, `[.., M,N]`. Errors name both shapes.
pub fn matmul(tape: &mut Tape, a: &Var, b: &Var, layout: Layout) -> Result<Var> {
    let c = product("matmul", a.value(), b.value(), layout)?;
    // Each operand is saved only if the other one needs a gradient.
    let a_value = b.needs_gradient().then(|| a.value().clone());
    let b_value = a.needs_gradient().then(|| b.value().clone());
    let (a_shape, one_b) = (a.shape().to_vec(), b.shape().len() == 2);
    Ok(tape.record(&[a, b], c, move |d_c, sink| {
        // With one B, the rows of all A's are one matrix.
        let as_matrix = |x: &Tensor| if one_b { x.reshape(&flat(x.shape())) } else { Ok(x.clone()) };
        let d_c = as_matrix(&d_c)?;
        if let Some(b) = b_value {
            let d_a = match layout {
                Layout::NN => product("matmul", &d_c, &b, Layout::NT)?,
                Layout::NT => product("matmul", &d_c, &b, Layout::NN)?,
                Layout::TN => product("matmul", &b, &d_c, Layout::NT)?,
            };
            sink.add(0, d_a.reshape(&a_shape)?)?;
        }
        if let Some(a) = a_value {
            let d_b = match layout {
                Layout::NN => product("matmul", &as_matrix(&a)?, &d_c, Layout::TN)?,
                Layout::NT => product("matmul", &d_c, &as_matrix(&a)?, Layout::TN)?,
                Layout::TN => product("matmul", &a, &d_c, Layout::NN)?,
            };
            sink.add(1, d_b)?;
        }
        Ok(())
    }))
}

/// `[.., M,K]` as `[..·M, K]`.
fn flat(shape: &[usize]) -> [usize; 2] {
    let (rows, cols) = (&shape[..shape.len() - 1], shape[shape.len() - 1]);
    [rows.iter().product(), cols]
}

/// What a product computes: `batch` times `[m,k] × [k,n]`.
struct Plan {
    size: Product,
    layout: Layout,
    c_shape: Vec<usize>,
}

impl Plan {
    fn new(op: &str, a: &[usize], b: &[usize], layout: Layout) -> Result<Plan> {
        let mismatch = || format!("{op}: found {a:?} and {b:?} in layout {layout:?}");
        ensure!(a.len() >= 2 && b.len() >= 2, "{}, expected at least two dimensions", mismatch());
        let (a_leading, a_matrix) = a.split_at(a.len() - 2);
        let (b_leading, b_matrix) = b.split_at(b.len() - 2);
        let (m, k) = if layout == Layout::TN { (a_matrix[1], a_matrix[0]) } else { (a_matrix[0], a_matrix[1]) };
        let (n, b_k) = if layout == Layout::NT { (b_matrix[0], b_matrix[1]) } else { (b_matrix[1], b_matrix[0]) };
        ensure!(k == b_k, "{}, expected the same inner dimension ({k} and {b_k})", mismatch());
        let c_shape = [a_leading, &[m, n]].concat();
        if b_leading.is_empty() && layout != Layout::TN {
            let rows = a_leading.iter().product::<usize>() * m;
            return Ok(Plan { size: Product { batch: 1, m: rows, n, k }, layout, c_shape });
        }
        ensure!(a_leading == b_leading, "{}, expected the same leading dimensions", mismatch());
        Ok(Plan { size: Product { batch: a_leading.iter().product(), m, n, k }, layout, c_shape })
    }
}

/// The product on plain tensors; `op` names the caller in errors.
pub(super) fn product(op: &str, a: &Tensor, b: &Tensor, layout: Layout) -> Result<Tensor> {
    same_dtype(op, a, b)?;
    let plan = Plan::new(op, a.shape(), b.shape(), layout)?;
    dispatch(
        op,
        &[a, b],
        || Tensor::from_vec(tuned(&plan, a.as_slice()?, b.as_slice()?), &plan.c_shape),
        || Tensor::from_vec(reference::<f64>(&plan, a.as_slice()?, b.as_slice()?), &plan.c_shape),
        |gpu| launch(gpu, &plan, a, b, Tensor::empty(&plan.c_shape, a.dtype(), gpu)?, false),
    )
}

/// A weight's gradient d_yᵀ x `[O,I]`, added to the sum so far in place; d_y `[rows,O]`, x `[rows,I]`. On a card in f32.
pub(super) fn weight_gradient(op: &str, d_y: &Tensor, x: &Tensor, sum: Option<Tensor>) -> Result<Tensor> {
    same_dtype(op, d_y, x)?;
    let plan = Plan::new(op, d_y.shape(), x.shape(), Layout::TN)?;
    let Some(mut sum) = sum else {
        let Some(gpu) = d_y.gpu() else { return product(op, d_y, x, Layout::TN) };
        return launch(gpu, &plan, d_y, x, Tensor::empty(&plan.c_shape, DType::F32, gpu)?, false);
    };
    match (d_y.gpu(), d_y.dtype()) {
        (Some(gpu), _) => {
            sum.make_unique()?;
            return launch(gpu, &plan, d_y, x, sum, true);
        }
        (None, DType::F32) => multiply(&plan, d_y.as_slice()?, x.as_slice()?, sum.as_mut_slice()?, true),
        (None, _) => accumulate(&mut sum, &product(op, d_y, x, Layout::TN)?)?,
    }
    Ok(sum)
}

fn tuned(plan: &Plan, a: &[f32], b: &[f32]) -> Vec<f32> {
    let mut c = vec![0.0; plan.c_shape.iter().product()];
    multiply(plan, a, b, &mut c, false);
    c
}

fn multiply(plan: &Plan, a: &[f32], b: &[f32], c: &mut [f32], accumulate: bool) {
    let Product { batch, m, n, k } = plan.size;
    let (a_strides, b_strides) = match plan.layout {
        Layout::NN => ((k, 1), (n, 1)),
        Layout::NT => ((k, 1), (1, k)),
        Layout::TN => ((1, m), (n, 1)),
    };
    for i in 0..batch {
        let a = MatRef { data: &a[i * m * k..], row_stride: a_strides.0, col_stride: a_strides.1 };
        let b = MatRef { data: &b[i * k * n..], row_stride: b_strides.0, col_stride: b_strides.1 };
        gemm(m, n, k, a, b, &mut c[i * m * n..], n, accumulate);
    }
}

fn reference<F: Float>(plan: &Plan, a: &[F], b: &[F]) -> Vec<F> {
    let (Product { batch, m, n, k }, layout) = (plan.size, plan.layout);
    let mut c = vec![F::zero(); batch * m * n];
    crate::cpu::parallel::par_rows(&mut c, n, |row, c| {
        let (batch, i) = (row / m, row % m);
        let (a, b) = (&a[batch * m * k..], &b[batch * k * n..]);
        for (j, c) in c.iter_mut().enumerate() {
            let term = |l: usize| match layout {
                Layout::NN => a[i * k + l] * b[l * n + j],
                Layout::NT => a[i * k + l] * b[j * k + l],
                Layout::TN => a[l * m + i] * b[l * n + j],
            };
            *c = (0..k).map(term).sum();
        }
    });
    c
}

/// C = A·B, or C += A·B with `accumulate`, into `c`, in its dtype: that of A and B, or f32.
fn launch(gpu: &Gpu, plan: &Plan, a: &Tensor, b: &Tensor, c: Tensor, accumulate: bool) -> Result<Tensor> {
    if c.len() == 0 {
        return Ok(c);
    }
    let Product { batch, m, n, k } = plan.size;
    if k == 0 {
        return if accumulate { Ok(c) } else { Tensor::zeros_on(c.shape(), c.dtype(), &Device::Gpu(gpu.clone())) };
    }
    let (kernel, rows) = match plan.layout {
        Layout::NN => ("matmul_nn", [k, n]),
        Layout::NT => ("matmul_nt", [k, k]),
        Layout::TN => ("matmul_tn", [m, n]),
    };
    let aligned = rows.iter().all(|&row| in_vectors(row, a.dtype().size()));
    let tiling = Tiling::new(gpu.limits().multiprocessors as usize, plan.size, a.dtype().size(), aligned);
    let sizes = [int(m), int(n), int(k), int(batch), int(m * k), int(k * n), int(tiling.split_steps)];
    let residual = if accumulate { In(&c) } else { Absent };
    if tiling.splits == 1 {
        let grid = tiling.grid(c.dtype() != a.dtype());
        gpu.launch(kernel, &grid, &[&[In(a), In(b), Out(&c), residual], &sizes[..]].concat())?;
        return Ok(c);
    }
    let parts = Tensor::empty(&[tiling.splits, c.len()], DType::F32, gpu)?;
    let grid = tiling.grid(a.dtype() != DType::F32);
    gpu.launch(kernel, &grid, &[&[In(a), In(b), Out(&parts), Absent], &sizes[..]].concat())?;
    let grid = Tiling::reduce_grid(c.len());
    gpu.launch("matmul_reduce", &grid, &[In(&parts), Out(&c), residual, int(c.len()), int(tiling.splits)])?;
    Ok(c)
}
