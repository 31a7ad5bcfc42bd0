//! Kernels of `tests/kernels` with inputs, launches, and what plain Rust says they compute.

use cuda_emulator::fault::Result;
use half::bf16;

use super::Rng;
use super::gpu::{Arg, Gpu, shape, shape_3d};

/// One kernel on one input.
pub struct Case {
    /// Kernel and shape: `softmax 5×37`.
    pub name: String,
    /// The file in `tests/kernels`.
    pub source: &'static str,
    pub run: Run,
    pub expected: Vec<Expected>,
}

/// Launches, and reads the outputs back; numbers of every type are exact as f64.
pub type Run = Box<dyn Fn(&mut Gpu) -> Result<Vec<Vec<f64>>>>;

/// An output: |found − value| ≤ absolute + relative·|value|.
pub struct Expected {
    pub name: &'static str,
    pub values: Vec<f64>,
    pub absolute: f64,
    pub relative: f64,
}

impl Case {
    pub fn new(name: String, source: &'static str, expected: Vec<Expected>, run: Run) -> Case {
        Case { name, source, run, expected }
    }

    /// Compares outputs with the reference; fast-math code is allowed 16 times the error.
    pub fn check(&self, found: &[Vec<f64>], slack: f64) {
        assert_eq!(found.len(), self.expected.len(), "{}: outputs", self.name);
        for (found, expected) in found.iter().zip(&self.expected) {
            assert_eq!(found.len(), expected.values.len(), "{}: {}", self.name, expected.name);
            for (i, (&f, &e)) in found.iter().zip(&expected.values).enumerate() {
                let bound = slack * (expected.absolute + expected.relative * e.abs());
                let good = (f - e).abs() <= bound || f == e;
                assert!(good, "{}: {}[{i}] is {f}, expected {e} ± {bound:e}", self.name, expected.name);
            }
        }
    }
}

pub fn near(name: &'static str, values: Vec<f64>, absolute: f64, relative: f64) -> Expected {
    Expected { name, values, absolute, relative }
}

pub fn exact(name: &'static str, values: Vec<f64>) -> Expected {
    near(name, values, 0.0, 0.0)
}

/// Numbers of any type as f64.
pub fn wide<T: Copy>(values: &[T], convert: fn(T) -> f64) -> Vec<f64> {
    values.iter().map(|&x| convert(x)).collect()
}

pub fn wide32(values: &[f32]) -> Vec<f64> {
    wide(values, f64::from)
}

pub fn wide_bf16(values: &[bf16]) -> Vec<f64> {
    wide(values, bf16::to_f64)
}

fn wide_u32(values: &[u32]) -> Vec<f64> {
    wide(values, f64::from)
}

pub fn i32_arg(n: usize) -> Arg {
    Arg::I32(n as i32)
}

pub fn softmax(rows: usize, columns: usize) -> Case {
    let x = Rng::new(1).uniforms(rows * columns).iter().map(|x| x * 9.0).collect::<Vec<f32>>();
    let mut y = vec![];
    for row in x.chunks(columns) {
        let max = row.iter().fold(f64::NEG_INFINITY, |m, &v| m.max(v as f64));
        let sum: f64 = row.iter().map(|&v| (v as f64 - max).exp()).sum();
        y.extend(row.iter().map(|&v| (v as f64 - max).exp() / sum));
    }
    let run = move |gpu: &mut Gpu| {
        let (x, y) = (gpu.upload(&x)?, gpu.alloc::<f32>(rows * columns)?);
        let args = [Arg::Pointer(x), Arg::Pointer(y), i32_arg(rows), i32_arg(columns)];
        gpu.launch("softmax", shape(rows.div_ceil(4), 128), &args)?;
        Ok(vec![wide32(&gpu.download(y, rows * columns)?)])
    };
    Case::new(format!("softmax {rows}×{columns}"), "softmax.cu", vec![near("y", y, 1e-7, 5e-6)], Box::new(run))
}

pub fn transpose(rows: usize, columns: usize) -> Case {
    let x = Rng::new(2).uniforms(rows * columns);
    let y = (0..rows * columns).map(|i| x[i % rows * columns + i / rows] as f64).collect();
    let run = move |gpu: &mut Gpu| {
        let (x, y) = (gpu.upload(&x)?, gpu.alloc::<f32>(rows * columns)?);
        let args = [Arg::Pointer(x), Arg::Pointer(y), i32_arg(rows), i32_arg(columns)];
        let grid = [columns.div_ceil(32), rows.div_ceil(32), 1];
        gpu.launch("transpose", shape_3d(grid, [32, 8, 1]), &args)?;
        Ok(vec![wide32(&gpu.download(y, rows * columns)?)])
    };
    Case::new(format!("transpose {rows}×{columns}"), "transpose.cu", vec![exact("y", y)], Box::new(run))
}

pub fn histogram(n: usize, blocks: usize) -> Case {
    let mut rng = Rng::new(3);
    let data: Vec<u8> = (0..n).map(|_| (rng.below(16) * rng.below(17)) as u8).collect();
    let mut counts = vec![0.0; 256];
    data.iter().for_each(|&byte| counts[byte as usize] += 1.0);
    let run = move |gpu: &mut Gpu| {
        let (data, counts) = (gpu.upload(&data)?, gpu.upload(&[0u32; 256])?);
        gpu.launch("histogram", shape(blocks, 96), &[Arg::Pointer(data), Arg::Pointer(counts), i32_arg(n)])?;
        Ok(vec![wide_u32(&gpu.download(counts, 256)?)])
    };
    Case::new(format!("histogram {n}"), "histogram.cu", vec![exact("counts", counts)], Box::new(run))
}

/// Blocks of `threads`; three kernels, so at most `threads` blocks.
pub fn scan(n: usize, threads: usize) -> Case {
    let mut rng = Rng::new(4);
    let x: Vec<i32> = (0..n).map(|_| rng.below(2001) as i32 - 1000).collect();
    let mut sum = 0;
    let y = x.iter().map(|&v| {
        sum += v;
        sum as f64
    });
    let y = y.collect();
    let run = move |gpu: &mut Gpu| {
        let blocks = n.div_ceil(threads);
        let (x, y, totals) = (gpu.upload(&x)?, gpu.alloc::<i32>(n)?, gpu.alloc::<i32>(blocks)?);
        let args = [Arg::Pointer(x), Arg::Pointer(y), Arg::Pointer(totals), i32_arg(n)];
        gpu.launch("scan_blocks", shape(blocks, threads), &args)?;
        let args = [Arg::Pointer(totals), Arg::Pointer(totals), Arg::Pointer(0), i32_arg(blocks)];
        gpu.launch("scan_blocks", shape(1, threads), &args)?;
        gpu.launch("scan_add", shape(blocks, threads), &[Arg::Pointer(y), Arg::Pointer(totals), i32_arg(n)])?;
        Ok(vec![wide(&gpu.download::<i32>(y, n)?, f64::from)])
    };
    Case::new(format!("scan {n} by {threads}"), "scan.cu", vec![exact("y", y)], Box::new(run))
}

/// Runs twice, since the counter must wrap to zero for the next launch.
pub fn sum_last_block(n: usize, blocks: usize) -> Case {
    let x = Rng::new(5).uniforms(n);
    let sum: f64 = x.iter().map(|&v| v as f64).sum();
    let run = move |gpu: &mut Gpu| {
        let (x, result) = (gpu.upload(&x)?, gpu.alloc::<f32>(1)?);
        let (parts, finished) = (gpu.alloc::<f32>(blocks)?, gpu.upload(&[0u32])?);
        let args = [x, result, parts, finished].map(Arg::Pointer);
        let args = [&args[..], &[i32_arg(n)]].concat();
        let mut out = vec![];
        for _ in 0..2 {
            gpu.launch("sum_last_block", shape(blocks, 128), &args)?;
            out.push(wide32(&gpu.download(result, 1)?));
        }
        Ok(out)
    };
    let expected = vec![near("first", vec![sum], 1e-4, 1e-6), near("second", vec![sum], 1e-4, 1e-6)];
    Case::new(format!("sum_last_block {n}"), "sum.cu", expected, Box::new(run))
}

/// Integers, so that the order of the additions does not show.
pub fn sum_atomic(n: usize) -> Case {
    let mut rng = Rng::new(6);
    let x: Vec<f32> = (0..n).map(|_| rng.below(100) as f32).collect();
    let sum = x.iter().map(|&v| v as f64).sum();
    let run = move |gpu: &mut Gpu| {
        let (x, result) = (gpu.upload(&x)?, gpu.upload(&[0.0f32])?);
        let args = [Arg::Pointer(x), Arg::Pointer(result), i32_arg(n)];
        gpu.launch("sum_atomic", shape(n.div_ceil(64), 64), &args)?;
        Ok(vec![wide32(&gpu.download(result, 1)?)])
    };
    Case::new(format!("sum_atomic {n}"), "sum.cu", vec![exact("sum", vec![sum])], Box::new(run))
}

pub fn producer_consumer(n: usize, blocks: usize) -> Case {
    let x = Rng::new(7).uniforms(n);
    let y = x.iter().map(|&v| (v.abs().sqrt() + 1.0) as f64).collect();
    let run = move |gpu: &mut Gpu| {
        let (x, y) = (gpu.upload(&x)?, gpu.alloc::<f32>(n)?);
        gpu.launch("producer_consumer", shape(blocks, 96), &[Arg::Pointer(x), Arg::Pointer(y), i32_arg(n)])?;
        Ok(vec![wide32(&gpu.download(y, n)?)])
    };
    let expected = vec![near("y", y, 0.0, 1e-7)];
    Case::new(format!("producer_consumer {n}"), "producer_consumer.cu", expected, Box::new(run))
}

pub fn spin_lock(kernel: &'static str, blocks: usize, threads: usize) -> Case {
    let n = (blocks * threads) as f64;
    let run = move |gpu: &mut Gpu| {
        let words = gpu.upload(&[0u32; 3])?;
        gpu.launch(kernel, shape(blocks, threads), &[words, words + 4, words + 8].map(Arg::Pointer))?;
        Ok(vec![wide_u32(&gpu.download(words, 3)?)])
    };
    let expected = vec![exact("lock, counter, sum", vec![0.0, n, n * (n + 1.0) / 2.0])];
    Case::new(format!("{kernel} {blocks}×{threads}"), "spin_lock.cu", expected, Box::new(run))
}

pub fn radix_sort(n: usize) -> Case {
    let mut rng = Rng::new(8);
    let keys: Vec<u32> = (0..n).map(|i| if i % 3 == 0 { rng.below(40) as u32 } else { rng.next() as u32 }).collect();
    let mut sorted = keys.clone();
    sorted.sort();
    let run = move |gpu: &mut Gpu| {
        let (keys, out) = (gpu.upload(&keys)?, gpu.alloc::<u32>(n)?);
        gpu.launch("radix_sort", shape(1, 256), &[Arg::Pointer(keys), Arg::Pointer(out), i32_arg(n)])?;
        Ok(vec![wide_u32(&gpu.download(out, n)?)])
    };
    let expected = vec![exact("keys", wide_u32(&sorted))];
    Case::new(format!("radix_sort {n}"), "radix_sort.cu", expected, Box::new(run))
}

pub fn window_sum(n: usize, blocks: usize) -> Case {
    let x = Rng::new(9).uniforms(n);
    let window = |i: usize| x[i.saturating_sub(4)..(i + 5).min(n)].iter().map(|&v| v as f64).sum();
    let y = (0..n).map(window).collect();
    let run = move |gpu: &mut Gpu| {
        let (x, y) = (gpu.upload(&x)?, gpu.alloc::<f32>(n)?);
        gpu.launch("window_sum", shape(blocks, 64), &[Arg::Pointer(x), Arg::Pointer(y), i32_arg(n)])?;
        Ok(vec![wide32(&gpu.download(y, n)?)])
    };
    Case::new(format!("window_sum {n}"), "window_sum.cu", vec![near("y", y, 2e-6, 0.0)], Box::new(run))
}

pub fn gather_reversed(n: usize) -> Case {
    let mut rng = Rng::new(10);
    let (pairs, singles) = (rng.uniforms(2 * n), rng.uniforms(n));
    let index: Vec<i32> = (0..n).map(|_| rng.below(n) as i32).collect();
    let y = (0..n).map(|i| {
        let mirror = i / 64 * 64 + 63 - i % 64;
        let from = if mirror < n { index[mirror] as usize } else { 0 };
        (pairs[2 * from] + 2.0 * pairs[2 * from + 1] + 4.0 * singles[from]) as f64
    });
    let y = y.collect();
    let run = move |gpu: &mut Gpu| {
        let (pairs, singles) = (gpu.upload(&pairs)?, gpu.upload(&singles)?);
        let (index, y) = (gpu.upload(&index)?, gpu.alloc::<f32>(n)?);
        let args = [pairs, singles, index, y].map(Arg::Pointer);
        gpu.launch("gather_reversed", shape(n.div_ceil(64), 64), &[&args[..], &[i32_arg(n)]].concat())?;
        Ok(vec![wide32(&gpu.download(y, n)?)])
    };
    Case::new(format!("gather_reversed {n}"), "window_sum.cu", vec![near("y", y, 1e-6, 0.0)], Box::new(run))
}

/// Positions far enough along that the slow path of `sincosf` is taken too (beyond about 10⁵).
pub fn rope(length: usize, first_position: i32) -> Case {
    let (heads, width, theta) = (2, 8, 10_000f32);
    let n = length * heads * width;
    let x = Rng::new(11).uniforms(n);
    let mut y = vec![];
    for (pair, at) in x.chunks(2).enumerate() {
        let (i, t) = (pair % (width / 2), (pair / (width / 2) / heads % length) as i32 + first_position);
        // The angle as the kernel has it, in f32; sine and cosine of exactly that angle.
        let angle = (t as f32 * theta.powf(-2.0 * i as f32 / width as f32)) as f64;
        let (a, b) = (at[0] as f64, at[1] as f64);
        y.extend([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]);
    }
    let run = move |gpu: &mut Gpu| {
        let x = gpu.upload(&x)?;
        let shape = shape((n / 2).div_ceil(64), 64);
        let dims = [i32_arg(length), i32_arg(heads), i32_arg(width)];
        let rest = [Arg::F32(theta), Arg::I32(first_position), Arg::I64(n as i64 / 2)];
        gpu.launch("rope", shape, &[&[Arg::Pointer(x)], &dims[..], &rest[..]].concat())?;
        Ok(vec![wide32(&gpu.download(x, n)?)])
    };
    // powf may differ from libm's in the last place, which large positions multiply.
    let absolute = 1e-6 + 3e-7 * (first_position as f64 + length as f64);
    Case::new(
        format!("rope {length} from {first_position}"),
        "rope.cu",
        vec![near("x", y, absolute, 0.0)],
        Box::new(run),
    )
}
