//! Cases of the kernels that training needs: loss, optimizer, norm, elementwise functions.

use half::{bf16, f16};

use super::Rng;
use super::cases::{Case, exact, i32_arg, near, wide, wide_bf16, wide32};
use super::gpu::{Arg, Gpu, shape, shape_3d};

const IGNORED: i32 = -100;

pub fn cross_entropy_f32(rows: usize, vocabulary: usize) -> Case {
    let logits: Vec<f32> = Rng::new(20).uniforms(rows * vocabulary).iter().map(|x| x * 8.0).collect();
    let targets = targets(rows, vocabulary);
    let scale = 0.25;
    let (loss, lse, slope) = cross_entropy(&wide32(&logits), &targets, scale as f64, vocabulary);
    let expected = vec![near("loss", loss, 1e-5, 2e-6), near("lse", lse, 1e-5, 2e-6), near("slope", slope, 1e-7, 3e-5)];
    let run = move |gpu: &mut Gpu| {
        let (x, t) = (gpu.upload(&logits)?, gpu.upload(&targets)?);
        let (loss, lse) = (gpu.alloc::<f32>(rows)?, gpu.alloc::<f32>(rows)?);
        let args = [&[x, t, loss, lse].map(Arg::Pointer)[..], &[i32_arg(vocabulary)]].concat();
        gpu.launch("cross_entropy_forward_f32", shape(rows, 96), &args)?;
        let args = [&[x, t, lse].map(Arg::Pointer)[..], &[Arg::F32(scale), i32_arg(vocabulary)]].concat();
        gpu.launch("cross_entropy_backward_f32", shape(rows, 128), &args)?;
        let slope = gpu.download(x, rows * vocabulary)?;
        Ok(vec![wide32(&gpu.download(loss, rows)?), wide32(&gpu.download(lse, rows)?), wide32(&slope)])
    };
    Case::new(format!("cross_entropy f32 {rows}×{vocabulary}"), "cross_entropy.cu", expected, Box::new(run))
}

pub fn cross_entropy_bf16(rows: usize, vocabulary: usize) -> Case {
    let logits = Rng::new(21).bf16s(rows * vocabulary);
    let targets = targets(rows, vocabulary);
    let scale = 1.0;
    let (loss, lse, slope) = cross_entropy(&wide_bf16(&logits), &targets, scale as f64, vocabulary);
    let expected =
        vec![near("loss", loss, 1e-5, 2e-6), near("lse", lse, 1e-5, 2e-6), near("slope", slope, 1e-7, 4.1e-3)];
    let run = move |gpu: &mut Gpu| {
        let (x, t) = (gpu.upload(&logits)?, gpu.upload(&targets)?);
        let (loss, lse) = (gpu.alloc::<f32>(rows)?, gpu.alloc::<f32>(rows)?);
        let args = [&[x, t, loss, lse].map(Arg::Pointer)[..], &[i32_arg(vocabulary)]].concat();
        gpu.launch("cross_entropy_forward_bf16", shape(rows, 64), &args)?;
        let args = [&[x, t, lse].map(Arg::Pointer)[..], &[Arg::F32(scale), i32_arg(vocabulary)]].concat();
        gpu.launch("cross_entropy_backward_bf16", shape(rows, 64), &args)?;
        let slope = gpu.download(x, rows * vocabulary)?;
        Ok(vec![wide32(&gpu.download(loss, rows)?), wide32(&gpu.download(lse, rows)?), wide_bf16(&slope)])
    };
    Case::new(format!("cross_entropy bf16 {rows}×{vocabulary}"), "cross_entropy.cu", expected, Box::new(run))
}

/// Every third target is ignored.
fn targets(rows: usize, vocabulary: usize) -> Vec<i32> {
    let mut rng = Rng::new(22);
    (0..rows).map(|i| if i % 3 == 2 { IGNORED } else { rng.below(vocabulary) as i32 }).collect()
}

fn cross_entropy(x: &[f64], targets: &[i32], scale: f64, vocabulary: usize) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (mut loss, mut lse, mut slope) = (vec![], vec![], vec![]);
    for (row, &target) in x.chunks(vocabulary).zip(targets) {
        let max = row.iter().fold(f64::NEG_INFINITY, |m, &v| m.max(v));
        let log_sum = max + row.iter().map(|v| (v - max).exp()).sum::<f64>().ln();
        lse.push(log_sum);
        loss.push(if target == IGNORED { 0.0 } else { log_sum - row[target as usize] });
        slope.extend(row.iter().enumerate().map(|(i, v)| {
            let hit = if i as i32 == target { 1.0 } else { 0.0 };
            if target == IGNORED { 0.0 } else { ((v - log_sum).exp() - hit) * scale }
        }));
    }
    (loss, lse, slope)
}

pub fn adamw(n: usize) -> Case {
    let mut rng = Rng::new(23);
    let (w, g) = (rng.uniforms(n), rng.bf16s(n));
    let m: Vec<f32> = rng.uniforms(n).iter().map(|x| x * 0.1).collect();
    let v: Vec<f32> = rng.uniforms(n).iter().map(|x| x * x * 0.1).collect();
    let (rate, beta1, beta2, epsilon, decay, step) = (1e-2f32, 0.9f32, 0.95f32, 1e-8f32, 0.1f32, 3);
    let (mut new_w, mut new_m, mut new_v) = (vec![], vec![], vec![]);
    for i in 0..n {
        let (b1, b2, g) = (beta1 as f64, beta2 as f64, g[i].to_f64());
        let m = b1 * m[i] as f64 + (1.0 - b1) * g;
        let v = b2 * v[i] as f64 + (1.0 - b2) * g * g;
        let direction = (m / (1.0 - b1.powi(step))) / ((v / (1.0 - b2.powi(step))).sqrt() + epsilon as f64);
        new_w.push(w[i] as f64 - rate as f64 * (direction + decay as f64 * w[i] as f64));
        new_m.push(m);
        new_v.push(v);
    }
    let expected = vec![
        near("weights", new_w.clone(), 1e-6, 1e-6),
        near("copy", new_w, 1e-6, 4e-3),
        near("first", new_m, 1e-7, 1e-6),
        near("second", new_v, 1e-8, 1e-6),
    ];
    let run = move |gpu: &mut Gpu| {
        let (w, copy) = (gpu.upload(&w)?, gpu.alloc::<bf16>(n)?);
        let (m, v, g) = (gpu.upload(&m)?, gpu.upload(&v)?, gpu.upload(&g)?);
        let mut settings: Vec<u8> = [rate, beta1, beta2, epsilon, decay].iter().flat_map(|x| x.to_le_bytes()).collect();
        settings.extend(step.to_le_bytes());
        let args = [&[w, copy, m, v, g].map(Arg::Pointer)[..], &[Arg::Struct(settings), Arg::I64(n as i64)]].concat();
        gpu.launch("adamw", shape(n.div_ceil(4 * 64), 64), &args)?;
        let f32s = |at| gpu.download(at, n).map(|x| wide32(&x));
        Ok(vec![f32s(w)?, wide_bf16(&gpu.download(copy, n)?), f32s(m)?, f32s(v)?])
    };
    Case::new(format!("adamw {n}"), "adamw.cu", expected, Box::new(run))
}

pub fn rms_norm(rows: usize, width: usize, blocks: usize) -> Case {
    let mut rng = Rng::new(24);
    let (x, dy) = (rng.uniforms(rows * width), rng.uniforms(rows * width));
    let gain: Vec<f32> = rng.uniforms(width).iter().map(|g| g + 1.5).collect();
    let epsilon = 1e-5f32;
    let (mut y, mut dx, mut dgain) = (vec![], vec![], vec![0.0; width]);
    for row in 0..rows {
        let (x, dy) = (wide32(&x[row * width..][..width]), wide32(&dy[row * width..][..width]));
        let r = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / width as f64 + epsilon as f64).sqrt();
        let shared: f64 = (0..width).map(|c| x[c] * gain[c] as f64 * dy[c]).sum::<f64>() * r.powi(3) / width as f64;
        for c in 0..width {
            y.push(x[c] * r * gain[c] as f64);
            dx.push(r * gain[c] as f64 * dy[c] - x[c] * shared);
            dgain[c] += dy[c] * x[c] * r;
        }
    }
    let expected = vec![near("y", y, 1e-6, 3e-6), near("dx", dx, 1e-5, 3e-6), near("dgain", dgain, 1e-5, 3e-6)];
    let run = move |gpu: &mut Gpu| {
        let (x, gain, dy) = (gpu.upload(&x)?, gpu.upload(&gain)?, gpu.upload(&dy)?);
        let (y, dx) = (gpu.alloc::<f32>(rows * width)?, gpu.alloc::<f32>(rows * width)?);
        let (scale, partial) = (gpu.alloc::<f32>(rows)?, gpu.alloc::<f32>(blocks * width)?);
        let dgain = gpu.alloc::<f32>(width)?;
        let args = [&[x, gain, y, scale].map(Arg::Pointer)[..], &[i32_arg(width), Arg::F32(epsilon)]].concat();
        gpu.launch("rms_norm_forward", shape(rows, 64), &args)?;
        let args =
            [&[x, gain, scale, dy, dx, partial].map(Arg::Pointer)[..], &[i32_arg(rows), i32_arg(width)]].concat();
        gpu.launch("rms_norm_backward", shape(blocks, 96).shared(width * 4), &args)?;
        let args = [Arg::Pointer(partial), Arg::Pointer(dgain), i32_arg(blocks), i32_arg(width)];
        gpu.launch("rms_norm_gain", shape_3d([width.div_ceil(32), 1, 1], [32, 8, 1]), &args)?;
        let f32s = |at, n| gpu.download(at, n).map(|x| wide32(&x));
        Ok(vec![f32s(y, rows * width)?, f32s(dx, rows * width)?, f32s(dgain, width)?])
    };
    Case::new(format!("rms_norm {rows}×{width}"), "rms_norm.cu", expected, Box::new(run))
}

pub fn gelu(n: usize) -> Case {
    let x: Vec<f32> = Rng::new(25).uniforms(n).iter().map(|x| x * 6.0).collect();
    let exact_form = x.iter().map(|&x| 0.5 * x as f64 * (1.0 + erf(x as f64 / 2f64.sqrt()))).collect();
    let tanh_form = x.iter().map(|&x| x as f64);
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let tanh_form = tanh_form.map(|x| 0.5 * x * (1.0 + (root * (x + 0.044715 * x * x * x)).tanh())).collect();
    // tanh.approx, under fast math, is good to about 2⁻¹¹.
    let expected = vec![near("erf", exact_form, 2e-6, 2e-6), near("tanh", tanh_form, 1e-4, 1e-4)];
    let run = move |gpu: &mut Gpu| {
        let (x, a, b) = (gpu.upload(&x)?, gpu.alloc::<f32>(n)?, gpu.alloc::<f32>(n)?);
        gpu.launch("gelu", shape(2, 64), &[&[x, a, b].map(Arg::Pointer)[..], &[i32_arg(n)]].concat())?;
        Ok(vec![wide32(&gpu.download(a, n)?), wide32(&gpu.download(b, n)?)])
    };
    Case::new(format!("gelu {n}"), "activations.cu", expected, Box::new(run))
}

/// By its series 2/√π·Σ (−1)ᵏ x²ᵏ⁺¹ / (k!·(2k+1)); good for |x| below 5.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for k in 1..120 {
        term *= -x * x / k as f64;
        sum += term / (2 * k + 1) as f64;
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

pub fn silu(n: usize) -> Case {
    let x: Vec<f32> = Rng::new(26).uniforms(n).iter().map(|x| x * 10.0).collect();
    let y = x.iter().map(|&x| x as f64 / (1.0 + (-x as f64).exp())).collect();
    let softplus = x.iter().map(|&x| (x as f64).exp().ln_1p()).collect();
    let expected = vec![near("silu", y, 1e-6, 3e-6), near("softplus", softplus, 1e-6, 3e-6)];
    let run = move |gpu: &mut Gpu| {
        let (x, a, b) = (gpu.upload(&x)?, gpu.alloc::<f32>(n)?, gpu.alloc::<f32>(n)?);
        let args = [&[x, a, b].map(Arg::Pointer)[..], &[i32_arg(n)]].concat();
        gpu.launch("silu", shape(n.div_ceil(64), 64), &args)?;
        Ok(vec![wide32(&gpu.download(a, n)?), wide32(&gpu.download(b, n)?)])
    };
    Case::new(format!("silu {n}"), "activations.cu", expected, Box::new(run))
}

/// x·clamp(g, −1, 1) + x + 0 in packed arithmetic: the products with zero are exact, so one rounding remains.
pub fn gate_f16(pairs: usize) -> Case {
    let mut rng = Rng::new(27);
    let mut draw =
        |scale: f32| -> Vec<f16> { rng.uniforms(2 * pairs).iter().map(|x| f16::from_f32(x * scale)).collect() };
    let (x, g) = (draw(1.0), draw(2.0));
    let y =
        x.iter().zip(&g).map(|(x, g)| f16::from_f64(x.to_f64() * g.to_f64().clamp(-1.0, 1.0) + x.to_f64()).to_f64());
    let expected = vec![exact("y", y.collect())];
    let run = move |gpu: &mut Gpu| {
        let (x, g, y) = (gpu.upload(&x)?, gpu.upload(&g)?, gpu.alloc::<f16>(2 * pairs)?);
        let args = [&[x, g, y].map(Arg::Pointer)[..], &[i32_arg(pairs)]].concat();
        gpu.launch("gate_f16", shape(pairs.div_ceil(32), 32), &args)?;
        Ok(vec![wide(&gpu.download::<f16>(y, 2 * pairs)?, f16::to_f64)])
    };
    Case::new(format!("gate_f16 {pairs}"), "activations.cu", expected, Box::new(run))
}

pub fn gate_bf16(pairs: usize) -> Case {
    let mut rng = Rng::new(28);
    let (x, g) = (rng.bf16s(2 * pairs), rng.bf16s(2 * pairs));
    let y = x.iter().zip(&g).map(|(x, g)| bf16::from_f64(x.to_f64() * g.to_f64() + x.to_f64()).to_f64()).collect();
    let run = move |gpu: &mut Gpu| {
        let (x, g, y) = (gpu.upload(&x)?, gpu.upload(&g)?, gpu.alloc::<bf16>(2 * pairs)?);
        let args = [&[x, g, y].map(Arg::Pointer)[..], &[i32_arg(pairs)]].concat();
        gpu.launch("gate_bf16", shape(pairs.div_ceil(32), 32), &args)?;
        Ok(vec![wide_bf16(&gpu.download(y, 2 * pairs)?)])
    };
    Case::new(format!("gate_bf16 {pairs}"), "activations.cu", vec![exact("y", y)], Box::new(run))
}

pub fn dropout(n: usize) -> Case {
    let x = Rng::new(29).uniforms(n);
    let (seed, keep) = (0x1234_5678_9ABC_DEF0u64, 0.75f32);
    let kept = |i: usize| (philox((i / 4) as u32, seed)[i % 4] >> 8) as f32 / (1 << 24) as f32;
    let y = (0..n).map(|i| if kept(i) < keep { (x[i] / keep) as f64 } else { 0.0 }).collect();
    let run = move |gpu: &mut Gpu| {
        let (x, y) = (gpu.upload(&x)?, gpu.alloc::<f32>(n)?);
        let rest = [Arg::I64(seed as i64), Arg::F32(keep), i32_arg(n)];
        gpu.launch("dropout", shape(n.div_ceil(256), 64), &[&[x, y].map(Arg::Pointer)[..], &rest].concat())?;
        Ok(vec![wide32(&gpu.download(y, n)?)])
    };
    Case::new(format!("dropout {n}"), "activations.cu", vec![near("y", y, 0.0, 1e-7)], Box::new(run))
}

fn philox(counter: u32, seed: u64) -> [u32; 4] {
    let (mut c, mut key) = ([counter, 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
    for _ in 0..10 {
        let (a, b) = (0xD251_1F53 * c[0] as u64, 0xCD9E_8D57 * c[2] as u64);
        c = [(b >> 32) as u32 ^ c[1] ^ key[0], b as u32, (a >> 32) as u32 ^ c[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

pub fn moments(n: usize) -> Case {
    let x = Rng::new(30).uniforms(n);
    let wide = wide32(&x);
    let mean = wide.iter().sum::<f64>() / n as f64;
    let deviation = (wide.iter().map(|v| v * v).sum::<f64>() / n as f64 - mean * mean).sqrt();
    let run = move |gpu: &mut Gpu| {
        let (x, out) = (gpu.upload(&x)?, gpu.alloc::<f64>(2)?);
        gpu.launch("moments", shape(1, 32), &[Arg::Pointer(x), Arg::Pointer(out), i32_arg(n)])?;
        Ok(vec![gpu.download(out, 2)?])
    };
    let expected = vec![near("mean, deviation", vec![mean, deviation], 1e-14, 1e-13)];
    Case::new(format!("moments {n}"), "activations.cu", expected, Box::new(run))
}
