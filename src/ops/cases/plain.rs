//! Eager bf16 versions in f32 arithmetic, whose errors set the budgets of operators that round more than their results.

use super::*;

fn round(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

fn f32s(x: &Tensor) -> Result<Vec<f32>> {
    Ok(x.to_f64_vec()?.into_iter().map(|x| x as f32).collect())
}

/// Softmax whose backward half sees the rounded probabilities, all that there is of them.
pub(super) fn softmax(tape: &mut Tape, x: &Var) -> Result<Var> {
    let y = super::softmax(&mut Tape::inference(), &Var::constant(x.value().clone()))?;
    let y = y.value().to_dtype(DType::Bf16)?.to_dtype(DType::F32)?;
    let saved = y.clone();
    Ok(tape.record(&[x], y, move |d_y, sink| sink.add(0, crate::ops::softmax::backward(&saved, &d_y)?)))
}

/// Attention in which each matrix of scores, probabilities and their gradients is rounded, and d_k and d_v first exist for
/// every query head. δ comes from the rounded output.
pub fn attention(tape: &mut Tape, q: &Var, k: &Var, v: &Var, causal: bool) -> Result<Var> {
    let [q_value, k_value, v_value] = [q, k, v].map(|x| x.value().clone());
    let heads = Heads::new(q_value.shape(), k_value.shape(), causal);
    let [q_data, k_data, v_data] = [f32s(&q_value)?, f32s(&k_value)?, f32s(&v_value)?];
    let (d, mut out) = (heads.d, vec![0.0; q_data.len()]);
    for (row, out) in out.chunks_mut(d).enumerate() {
        let keys = heads.keys(row);
        let p = heads.probabilities(&q_data[row * d..], &k_data, &keys);
        for (c, out) in out.iter_mut().enumerate() {
            *out = round(keys.iter().zip(&p).map(|(&at, p)| p * v_data[at + c]).sum());
        }
    }
    let out = Tensor::from_vec(out, q_value.shape())?;
    let saved = f32s(&out)?;
    Ok(tape.record(&[q, k, v], out, move |d_out, sink| {
        let [d_q, d_k, d_v] = heads.backward([&q_data, &k_data, &v_data], &saved, &f32s(&d_out)?);
        sink.add(0, Tensor::from_vec(d_q, q_value.shape())?)?;
        sink.add(1, Tensor::from_vec(d_k, k_value.shape())?)?;
        sink.add(2, Tensor::from_vec(d_v, v_value.shape())?)
    }))
}

struct Heads {
    tq: usize,
    tk: usize,
    h: usize,
    hkv: usize,
    d: usize,
    causal: bool,
}

impl Heads {
    fn new(q: &[usize], k: &[usize], causal: bool) -> Heads {
        Heads { tq: q[1], tk: k[1], h: q[2], hkv: k[2], d: q[3], causal }
    }

    /// Where the keys begin that a row of q sees.
    fn keys(&self, row: usize) -> Vec<usize> {
        let (b, i, h) = (row / self.h / self.tq, row / self.h % self.tq, row % self.h);
        let seen = if self.causal { (i + 1 + self.tk).saturating_sub(self.tq) } else { self.tk };
        (0..seen).map(|j| ((b * self.tk + j) * self.hkv + h / (self.h / self.hkv)) * self.d).collect()
    }

    fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        round(a[..self.d].iter().zip(b).map(|(a, b)| a * b).sum())
    }

    fn scale(&self) -> f32 {
        1.0 / (self.d as f32).sqrt()
    }

    fn probabilities(&self, q: &[f32], k: &[f32], keys: &[usize]) -> Vec<f32> {
        let scores: Vec<f32> = keys.iter().map(|&at| round(self.dot(q, &k[at..]) * self.scale())).collect();
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = scores.iter().map(|s| (s - max).exp()).sum();
        scores.iter().map(|s| round((s - max).exp() / sum)).collect()
    }

    fn backward(&self, [q, k, v]: [&[f32]; 3], out: &[f32], d_out: &[f32]) -> [Vec<f32>; 3] {
        let (d, group) = (self.d, self.h / self.hkv);
        let mut d_q = vec![0.0; q.len()];
        let (mut d_k, mut d_v) = (vec![0.0f32; k.len() * group], vec![0.0f32; k.len() * group]); // [B,Tk,H,D]
        for row in 0..q.len() / d {
            let (b, h, keys) = (row / self.h / self.tq, row % self.h, self.keys(row));
            let [q, out, d_out] = [q, out, d_out].map(|x| &x[row * d..][..d]);
            let p = self.probabilities(q, k, &keys);
            let delta: f32 = d_out.iter().zip(out).map(|(d_out, out)| d_out * out).sum();
            let d_s = |(&at, p): (&usize, &f32)| round(round(p * (self.dot(d_out, &v[at..]) - delta)) * self.scale());
            let d_s: Vec<f32> = keys.iter().zip(&p).map(d_s).collect();
            for c in 0..d {
                d_q[row * d + c] = round(keys.iter().zip(&d_s).map(|(&at, d_s)| d_s * k[at + c]).sum());
            }
            for (j, (p, d_s)) in p.iter().zip(&d_s).enumerate() {
                let to = ((b * self.tk + j) * self.h + h) * d;
                for c in 0..d {
                    d_k[to + c] += d_s * q[c];
                    d_v[to + c] += p * d_out[c];
                }
            }
        }
        let heads_summed = |x: Vec<f32>| {
            let sum = |heads: &[f32], c: usize| round(heads[c..].iter().step_by(d).map(|&x| round(x)).sum());
            x.chunks(group * d).flat_map(|heads| (0..d).map(move |c| sum(heads, c))).collect()
        };
        [d_q, heads_summed(d_k), heads_summed(d_v)]
    }
}
