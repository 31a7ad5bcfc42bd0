//! Cases of the matrix products.

use half::{bf16, f16};

use super::Rng;
use super::cases::{Case, Expected, i32_arg, near, wide, wide_bf16, wide32};
use super::gpu::{Arg, Gpu, shape, shape_3d};

/// A·B of row-major matrices in f64.
fn product(a: &[f64], b: &[f64], m: usize, n: usize, k: usize) -> Vec<f64> {
    let mut c = vec![0.0; m * n];
    for row in 0..m {
        for depth in 0..k {
            let x = a[row * k + depth];
            for column in 0..n {
                c[row * n + column] += x * b[depth * n + column];
            }
        }
    }
    c
}

/// Inputs within −1..1 and an f32 sum of k products: K·u·k for a small constant K.
fn sums(values: Vec<f64>, k: usize, relative: f64) -> Vec<Expected> {
    vec![near("c", values, 2e-7 * k as f64, relative)]
}

pub fn matmul_f32(m: usize, n: usize, k: usize) -> Case {
    let mut rng = Rng::new(40);
    let (a, b) = (rng.uniforms(m * k), rng.uniforms(k * n));
    let expected = sums(product(&wide32(&a), &wide32(&b), m, n, k), k, 1e-6);
    let run = move |gpu: &mut Gpu| {
        let (a, b, c) = (gpu.upload(&a)?, gpu.upload(&b)?, gpu.alloc::<f32>(m * n)?);
        let args = [&[a, b, c].map(Arg::Pointer)[..], &[m, n, k].map(i32_arg)].concat();
        gpu.launch("matmul_f32", shape_3d([n.div_ceil(64), m.div_ceil(64), 1], [16, 16, 1]), &args)?;
        Ok(vec![wide32(&gpu.download(c, m * n)?)])
    };
    Case::new(format!("matmul_f32 {m}×{n}×{k}"), "matmul_f32.cu", expected, Box::new(run))
}

/// With 3 stages or 4; the fourth needs the opt-in for shared memory.
pub fn matmul_bf16(stages: usize, m: usize, n: usize, k: usize) -> Case {
    let mut rng = Rng::new(41);
    let (a, b) = (rng.bf16s(m * k), rng.bf16s(k * n));
    let expected = sums(product(&wide_bf16(&a), &wide_bf16(&b), m, n, k), k, 4e-3);
    let name = format!("matmul_bf16_{stages}_stages");
    let title = format!("{name} {m}×{n}×{k}");
    let run = move |gpu: &mut Gpu| {
        let (a, b, c) = (gpu.upload(&a)?, gpu.upload(&b)?, gpu.alloc::<bf16>(m * n)?);
        let args = [&[a, b, c].map(Arg::Pointer)[..], &[m, n, k].map(i32_arg)].concat();
        let shape = shape_3d([n.div_ceil(128), m.div_ceil(128), 1], [256, 1, 1]);
        gpu.launch(&name, shape.shared(stages * 16 * 1024), &args)?;
        Ok(vec![wide_bf16(&gpu.download(c, m * n)?)])
    };
    Case::new(title, "matmul_bf16.cu", expected, Box::new(run))
}

pub fn matmul_f16_warp(k: usize) -> Case {
    let mut rng = Rng::new(42);
    let mut draw = |n: usize| -> Vec<f16> { rng.uniforms(n).iter().map(|&x| f16::from_f32(x)).collect() };
    let (a, b) = (draw(16 * k), draw(k * 8));
    let expected = sums(product(&wide(&a, f16::to_f64), &wide(&b, f16::to_f64), 16, 8, k), k, 1e-6);
    let run = move |gpu: &mut Gpu| {
        let (a, b, c) = (gpu.upload(&a)?, gpu.upload(&b)?, gpu.alloc::<f32>(16 * 8)?);
        gpu.launch("matmul_f16_warp", shape(1, 32), &[&[a, b, c].map(Arg::Pointer)[..], &[i32_arg(k)]].concat())?;
        Ok(vec![wide32(&gpu.download(c, 16 * 8)?)])
    };
    Case::new(format!("matmul_f16_warp {k}"), "matmul_small.cu", expected, Box::new(run))
}

pub fn matmul_tf32_warp(k: usize) -> Case {
    let mut rng = Rng::new(43);
    let (a, b) = (rng.uniforms(16 * k), rng.uniforms(k * 8));
    let expected = sums(product(&wide(&a, to_tf32), &wide(&b, to_tf32), 16, 8, k), k, 1e-6);
    let run = move |gpu: &mut Gpu| {
        let (a, b, c) = (gpu.upload(&a)?, gpu.upload(&b)?, gpu.alloc::<f32>(16 * 8)?);
        gpu.launch("matmul_tf32_warp", shape(1, 32), &[&[a, b, c].map(Arg::Pointer)[..], &[i32_arg(k)]].concat())?;
        Ok(vec![wide32(&gpu.download(c, 16 * 8)?)])
    };
    Case::new(format!("matmul_tf32_warp {k}"), "matmul_small.cu", expected, Box::new(run))
}

/// Ten bits of mantissa, rounded to nearest, ties away from zero.
fn to_tf32(x: f32) -> f64 {
    f32::from_bits((x.to_bits() + (1 << 12)) & !((1 << 13) - 1)) as f64
}
