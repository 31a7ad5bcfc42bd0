//! Cases of attention: the forward pass over a sequence, and decoding over a cache.

use half::bf16;

use super::Rng;
use super::cases::{Case, i32_arg, near, wide_bf16, wide32};
use super::gpu::{Arg, Gpu, shape_3d};

/// softmax over one query's scores: weights and log-sum-exp.
fn softmax(scores: &[f64]) -> (Vec<f64>, f64) {
    let max = scores.iter().fold(f64::NEG_INFINITY, |m, &s| m.max(s));
    let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
    (scores.iter().map(|s| (s - max).exp() / sum).collect(), max + sum.ln())
}

/// Output row of one query over `keys` rows that begin at `row(t)`.
fn attend(query: &[f64], k: &[f64], v: &[f64], keys: usize, row: impl Fn(usize) -> usize) -> (Vec<f64>, f64) {
    let width = query.len();
    let score = |t: usize| (0..width).map(|d| query[d] * k[row(t) + d]).sum::<f64>() / (width as f64).sqrt();
    let (weights, lse) = softmax(&(0..keys).map(score).collect::<Vec<_>>());
    ((0..width).map(|d| (0..keys).map(|t| weights[t] * v[row(t) + d]).sum()).collect(), lse)
}

pub fn attention(batch: usize, length: usize, heads: usize, width: usize) -> Case {
    let mut rng = Rng::new(50);
    let n = batch * length * heads * width;
    // Scores of a few units, so that softmax is neither flat nor a single one.
    let mut draw = |scale: f32| -> Vec<bf16> { rng.uniforms(n).iter().map(|x| bf16::from_f32(x * scale)).collect() };
    let (q, k, v) = (draw(3.0), draw(1.0), draw(1.0));
    let (wide_q, wide_k, wide_v) = (wide_bf16(&q), wide_bf16(&k), wide_bf16(&v));
    let at = |b: usize, t: usize, h: usize| ((b * length + t) * heads + h) * width;
    let (mut o, mut lse) = (vec![0.0; n], vec![0.0; batch * heads * length]);
    for b in 0..batch {
        for h in 0..heads {
            for t in 0..length {
                let query = &wide_q[at(b, t, h)..][..width];
                let (row, log_sum) = attend(query, &wide_k, &wide_v, t + 1, |key| at(b, key, h));
                o[at(b, t, h)..][..width].copy_from_slice(&row);
                lse[(b * heads + h) * length + t] = log_sum;
            }
        }
    }
    let name = format!("attention_{width}");
    let title = format!("{name} B{batch} T{length} H{heads}");
    let run = move |gpu: &mut Gpu| {
        let (q, k, v) = (gpu.upload(&q)?, gpu.upload(&k)?, gpu.upload(&v)?);
        let (o, lse) = (gpu.alloc::<bf16>(n)?, gpu.alloc::<f32>(batch * heads * length)?);
        let args = [&[q, k, v, o, lse].map(Arg::Pointer)[..], &[i32_arg(length), i32_arg(heads)]].concat();
        let shape = shape_3d([length.div_ceil(64), heads, batch], [128, 1, 1]);
        gpu.launch(&name, shape.shared(5 * 64 * (width + 8) * 2), &args)?;
        Ok(vec![wide_bf16(&gpu.download(o, n)?), wide32(&gpu.download(lse, batch * heads * length)?)])
    };
    let expected = vec![near("o", o, 4e-3, 8e-3), near("lse", lse, 1e-5, 1e-5)];
    Case::new(title, "attention.cu", expected, Box::new(run))
}

pub fn decode_attention(batch: usize, length: usize, heads: usize, groups: usize, splits: usize) -> Case {
    const WIDTH: usize = 64;
    let mut rng = Rng::new(51);
    let q: Vec<bf16> = rng.uniforms(batch * heads * WIDTH).iter().map(|x| bf16::from_f32(x * 3.0)).collect();
    let cache = batch * length * groups * WIDTH;
    let (k, v) = (rng.bf16s(cache), rng.bf16s(cache));
    let (wide_q, wide_k, wide_v) = (wide_bf16(&q), wide_bf16(&k), wide_bf16(&v));
    let mut o = vec![];
    for b in 0..batch {
        for h in 0..heads {
            let query = &wide_q[(b * heads + h) * WIDTH..][..WIDTH];
            let row = |t: usize| ((b * length + t) * groups + h / (heads / groups)) * WIDTH;
            o.extend(attend(query, &wide_k, &wide_v, length, row).0);
        }
    }
    let run = move |gpu: &mut Gpu| {
        let (q, k, v) = (gpu.upload(&q)?, gpu.upload(&k)?, gpu.upload(&v)?);
        let parts = batch * heads * splits;
        let (out, max, sum) = (gpu.alloc::<f32>(parts * WIDTH)?, gpu.alloc::<f32>(parts)?, gpu.alloc::<f32>(parts)?);
        let o = gpu.alloc::<bf16>(batch * heads * WIDTH)?;
        let args = [&[q, k, v, out, max, sum].map(Arg::Pointer)[..], &[i32_arg(length), i32_arg(groups)]].concat();
        gpu.launch("decode_attention", shape_3d([splits, heads, batch], [128, 1, 1]), &args)?;
        let args = [&[out, max, sum, o].map(Arg::Pointer)[..], &[i32_arg(splits)]].concat();
        gpu.launch("decode_attention_merge", shape_3d([heads, batch, 1], [WIDTH, 1, 1]), &args)?;
        Ok(vec![wide_bf16(&gpu.download(o, batch * heads * WIDTH)?)])
    };
    let title = format!("decode_attention B{batch} T{length} H{heads}/{groups} in {splits}");
    Case::new(title, "decode_attention.cu", vec![near("o", o, 1e-5, 4e-3)], Box::new(run))
}
