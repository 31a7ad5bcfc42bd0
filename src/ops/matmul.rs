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

use super::{same_dtype, unsupported};
use crate::cpu::gemm::{MatRef, gemm};
use crate::dtype::{DType, Float};
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::{Result, bail, ensure};

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
    Ok(tape.record(&[a, b], c, || {
        Box::new(Matmul {
            a: b.needs_gradient().then(|| a.value().clone()),
            b: a.needs_gradient().then(|| b.value().clone()),
            a_shape: a.shape().to_vec(),
            b_shape: b.shape().to_vec(),
            layout,
        })
    }))
}

/// Each operand is saved only if the other one needs a gradient.
struct Matmul {
    a: Option<Tensor>,
    b: Option<Tensor>,
    a_shape: Vec<usize>,
    b_shape: Vec<usize>,
    layout: Layout,
}

impl Backward for Matmul {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let mut d_c = only(d_outputs);
        let one_b = self.b_shape.len() == 2; // then the rows of all A's are one matrix
        let as_matrix = |x: &Tensor| if one_b { x.reshape(&flat(x.shape())) } else { Ok(x.clone()) };
        d_c = as_matrix(&d_c)?;
        let d_a = match &self.b {
            Some(b) => Some(match self.layout {
                Layout::NN => product("matmul", &d_c, b, Layout::NT)?,
                Layout::NT => product("matmul", &d_c, b, Layout::NN)?,
                Layout::TN => product("matmul", b, &d_c, Layout::NT)?,
            }),
            None => None,
        };
        let d_b = match &self.a {
            Some(a) => Some(match self.layout {
                Layout::NN => product("matmul", &as_matrix(a)?, &d_c, Layout::TN)?,
                Layout::NT => product("matmul", &d_c, &as_matrix(a)?, Layout::TN)?,
                Layout::TN => product("matmul", a, &d_c, Layout::NN)?,
            }),
            None => None,
        };
        Ok(vec![d_a.map(|d| d.reshape(&self.a_shape)).transpose()?, d_b])
    }
}

/// `[.., M,K]` as `[..·M, K]`.
fn flat(shape: &[usize]) -> [usize; 2] {
    let (rows, cols) = (&shape[..shape.len() - 1], shape[shape.len() - 1]);
    [rows.iter().product(), cols]
}

/// What a product computes: `batch` times [m,k] × [k,n].
struct Plan {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
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
            return Ok(Plan { batch: 1, m: rows, n, k, layout, c_shape });
        }
        ensure!(a_leading == b_leading, "{}, expected the same leading dimensions", mismatch());
        Ok(Plan { batch: a_leading.iter().product(), m, n, k, layout, c_shape })
    }
}

/// The product on plain tensors; `op` names the caller in errors.
pub(super) fn product(op: &str, a: &Tensor, b: &Tensor, layout: Layout) -> Result<Tensor> {
    same_dtype(op, a, b)?;
    let plan = Plan::new(op, a.shape(), b.shape(), layout)?;
    match a.dtype() {
        DType::F32 => Tensor::from_vec(tuned(&plan, a.as_slice()?, b.as_slice()?), &plan.c_shape),
        DType::F64 => Tensor::from_vec(reference::<f64>(&plan, a.as_slice()?, b.as_slice()?), &plan.c_shape),
        dtype => bail!(unsupported(op, dtype)),
    }
}

fn tuned(plan: &Plan, a: &[f32], b: &[f32]) -> Vec<f32> {
    let &Plan { batch, m, n, k, layout, .. } = plan;
    let (a_strides, b_strides) = match layout {
        Layout::NN => ((k, 1), (n, 1)),
        Layout::NT => ((k, 1), (1, k)),
        Layout::TN => ((1, m), (n, 1)),
    };
    let mut c = vec![0.0; batch * m * n];
    for i in 0..batch {
        let a = MatRef { data: &a[i * m * k..], row_stride: a_strides.0, col_stride: a_strides.1 };
        let b = MatRef { data: &b[i * k * n..], row_stride: b_strides.0, col_stride: b_strides.1 };
        gemm(m, n, k, a, b, &mut c[i * m * n..], n, false);
    }
    c
}

fn reference<F: Float>(plan: &Plan, a: &[F], b: &[F]) -> Vec<F> {
    let &Plan { batch, m, n, k, layout, .. } = plan;
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
