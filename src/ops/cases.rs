//! One list of cases for every operator: the gradient check by finite differences, the comparisons of the tuned CPU and of a
//! card with f64 (see [`super::check`]), `handgrad gradcheck`, `handgrad kernels` and the test of the counters all run
//! it. An operator is tested once it stands here.

mod edges;
pub mod plain;

use super::*;
use crate::gpu::attention::HEAD_DIMS;
use crate::tape::{Tape, Var};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

const BOTH: &[DType] = &[DType::F32, DType::Bf16];

type Run = Box<dyn Fn(&mut Tape, &[Var]) -> Result<Vec<Var>> + Send + Sync>;

/// What a case is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Every check.
    Check,
    /// Every check but on a card: no kernel was compiled for the shape.
    CpuOnly,
    /// The edges of a card's tiles: every check but finite differences, for which they are too many or too large.
    Edge,
    /// Outputs only: no gradient passes the operator.
    Forward,
    /// Only what a card counts: whole tiles, at which a kernel shows how it moves data.
    Count,
}

/// An operator at certain shapes. The function works in the dtype of its inputs, where they lie.
pub struct Case {
    pub op: &'static str,
    pub label: String,
    /// Shapes of the differentiable inputs.
    pub shapes: Vec<Vec<usize>>,
    pub usage: Use,
    /// What the operator takes on a card: AdamW's weights, moments and gradients are f32.
    pub dtypes: &'static [DType],
    run: Run,
    /// What a plain bf16 version computes, where that rounds more than the results: see [`rounded`].
    plain: Option<Run>,
    /// Half the roundings of numbers of size 1 that one result may carry, where these are more than what is allowed anyway:
    /// terms that are added up, or that cancel.
    pub terms: usize,
}

impl Case {
    /// Standard normal inputs in f64.
    pub fn inputs(&self, rng: &mut ChaCha8Rng) -> Vec<Tensor> {
        let draw = |shape: &Vec<usize>, rng: &mut ChaCha8Rng| {
            let data: Vec<f64> = (0..shape.iter().product()).map(|_| StandardNormal.sample(rng)).collect();
            Tensor::from_vec(data, shape).expect("one value an element")
        };
        self.shapes.iter().map(|shape| draw(shape, rng)).collect()
    }

    /// The operator's outputs. Error: whatever it returns.
    pub fn run(&self, tape: &mut Tape, inputs: &[Var]) -> Result<Vec<Var>> {
        (self.run)(tape, inputs)
    }

    /// The outputs of a plain bf16 version, in f32 but for what it rounds on the way. Error: whatever the operator returns.
    pub fn run_plain(&self, tape: &mut Tape, inputs: &[Var]) -> Result<Vec<Var>> {
        self.plain.as_ref().unwrap_or(&self.run)(tape, inputs)
    }
}

/// `x` f32, rounded to bf16, and its gradient too.
fn rounded(tape: &mut Tape, x: &Var) -> Result<Var> {
    let round = |x: &Tensor| x.to_dtype(DType::Bf16)?.to_dtype(DType::F32);
    Ok(tape.record(&[x], round(x.value())?, move |d_y, sink| sink.add(0, round(&d_y)?)))
}

/// All cases, operator by operator.
pub fn cases() -> Vec<Case> {
    let mut list = List(vec![]);
    matrix_cases(&mut list);
    elementwise_cases(&mut list);
    norm_cases(&mut list);
    rope_cases(&mut list);
    attention_cases(&mut list);
    token_cases(&mut list);
    forward_cases(&mut list);
    edges::cases(&mut list);
    count_cases(&mut list);
    list.0
}

struct List(Vec<Case>);

impl List {
    fn push(
        &mut self,
        op: &'static str,
        label: impl ToString,
        shapes: &[&[usize]],
        run: impl Fn(&mut Tape, &[Var]) -> Result<Vec<Var>> + Send + Sync + 'static,
    ) {
        self.push_for(Use::Check, op, label, shapes, run);
    }

    fn push_for(
        &mut self,
        usage: Use,
        op: &'static str,
        label: impl ToString,
        shapes: &[&[usize]],
        run: impl Fn(&mut Tape, &[Var]) -> Result<Vec<Var>> + Send + Sync + 'static,
    ) {
        let shapes = shapes.iter().map(|s| s.to_vec()).collect();
        let dtypes = if op == "adamw" { &BOTH[..1] } else { BOTH };
        self.0.push(Case {
            op,
            label: label.to_string(),
            shapes,
            usage,
            dtypes,
            run: Box::new(run),
            plain: None,
            terms: 1,
        });
    }

    /// The terms of the last case.
    fn terms(&mut self, terms: usize) {
        self.last().terms = terms;
    }

    /// The plain bf16 version of the last case.
    fn plain(&mut self, run: impl Fn(&mut Tape, &[Var]) -> Result<Vec<Var>> + Send + Sync + 'static) {
        self.last().plain = Some(Box::new(run));
    }

    fn last(&mut self) -> &mut Case {
        self.0.last_mut().expect("a case before")
    }
}

fn matrix_cases(list: &mut List) {
    for layout in [Layout::NN, Layout::NT, Layout::TN] {
        for (batch, m, n, k) in [
            (vec![], 1, 1, 1),
            (vec![], 3, 5, 4),
            (vec![2, 3], 4, 2, 3),
            (vec![], 17, 33, 65),
            (vec![], 97, 129, 70),
            (vec![3], 31, 16, 48),
            (vec![], 1, 67, 300),
        ] {
            let a = if layout == Layout::TN { [k, m] } else { [m, k] };
            let b = if layout == Layout::NT { [n, k] } else { [k, n] };
            let (a, b) = ([&batch[..], &a].concat(), [&batch[..], &b].concat());
            let label = format!("{layout:?} {a:?} {b:?}");
            list.push("matmul", label, &[&a, &b], move |t, x| Ok(vec![matmul(t, &x[0], &x[1], layout)?]));
        }
    }
    for (layout, b) in [(Layout::NN, [4, 5]), (Layout::NT, [5, 4])] {
        let label = format!("{layout:?} [2,3,4] with one matrix {b:?}");
        list.push("matmul", label, &[&[2, 3, 4], &b], move |t, x| Ok(vec![matmul(t, &x[0], &x[1], layout)?]));
    }
    for (x, w) in [(vec![5], [3, 5]), (vec![2, 3, 4], [5, 4]), (vec![2, 33, 40], [70, 40]), (vec![1, 7], [9, 7])] {
        let bias = [w[0]];
        list.push("linear", format!("{x:?} {w:?}"), &[&x, &w], |t, x| Ok(vec![linear(t, &x[0], &x[1], None)?]));
        list.push("linear", format!("{x:?} {w:?} with bias"), &[&x, &w, &bias], |t, x| {
            Ok(vec![linear(t, &x[0], &x[1], Some(&x[2]))?])
        });
    }
}

fn elementwise_cases(list: &mut List) {
    for (a, b) in
        [(vec![2, 3], vec![2, 3]), (vec![4, 5], vec![5]), (vec![3, 2, 5], vec![2, 5]), (vec![150, 7], vec![7])]
    {
        list.push("add", format!("{a:?} {b:?}"), &[&a, &b], |t, x| Ok(vec![add(t, &x[0], &x[1])?]));
    }
    for shape in [vec![1], vec![2, 3, 4], vec![97, 101]] {
        let label = format!("{shape:?}");
        list.push("mul", &label, &[&shape, &shape], |t, x| Ok(vec![mul(t, &x[0], &x[1])?]));
        list.push("mul", format!("{label} by itself"), &[&shape], |t, x| Ok(vec![mul(t, &x[0], &x[0])?]));
        list.push("scale", &label, &[&shape], |t, x| Ok(vec![scale(t, &x[0], -1.7)?]));
        list.push("silu", &label, &[&shape], |t, x| Ok(vec![silu(t, &x[0])?]));
        list.push("gelu", &label, &[&shape], |t, x| Ok(vec![gelu(t, &x[0])?]));
        list.push("swiglu", &label, &[&shape, &shape], |t, x| Ok(vec![swiglu(t, &x[0], &x[1])?]));
    }
    list.push("reshape", "[2,6] to [3,4], squared", &[&[2, 6]], |t, x| {
        let y = reshape(t, &x[0], &[3, 4])?;
        Ok(vec![mul(t, &y, &y)?])
    });
    for shape in [vec![1], vec![3, 1], vec![2, 3, 5], vec![70, 129]] {
        list.push("softmax", format!("{shape:?}"), &[&shape], |t, x| Ok(vec![softmax(t, &x[0])?]));
        list.plain(|t, x| Ok(vec![plain::softmax(t, &x[0])?]));
    }
}

fn norm_cases(list: &mut List) {
    for x in [vec![4], vec![3, 5], vec![2, 3, 8], vec![130, 67]] {
        let label = format!("{x:?}");
        let gain = [*x.last().expect("not empty")];
        list.push("rms_norm", &label, &[&x, &gain], |t, x| Ok(vec![rms_norm(t, &x[0], &x[1], 1e-5)?]));
        list.push("rms_norm", format!("{label} with residual"), &[&x, &x, &gain], |t, x| {
            let (h, y) = rms_norm_residual(t, &x[0], &x[1], &x[2], 1e-5)?;
            Ok(vec![h, y])
        });
        let plain = |t: &mut Tape, x: &[Var]| {
            let h = add(t, &x[0], &x[1])?;
            let h = rounded(t, &h)?;
            let y = rms_norm(t, &h, &x[2], 1e-5)?;
            Ok(vec![h, y])
        };
        list.plain(plain);
        list.push("rms_norm", format!("{label} with residual, sum unused"), &[&x, &x, &gain], |t, x| {
            Ok(vec![rms_norm_residual(t, &x[0], &x[1], &x[2], 1e-5)?.1])
        });
        list.plain(move |t, x| Ok(vec![plain(t, x)?.remove(1)]));
        list.push("rms_norm", format!("{label} with residual, norm unused"), &[&x, &x], |t, x| {
            let x_value = x[0].value();
            let gain = Tensor::full(&[x_value.rows_cols().1], 1.0, x_value.dtype()).to(&x_value.device())?;
            let gain = Var::constant(gain);
            Ok(vec![rms_norm_residual(t, &x[0], &x[1], &gain, 1e-5)?.0])
        });
        list.push("layer_norm", &label, &[&x, &gain, &gain], |t, x| {
            Ok(vec![layer_norm(t, &x[0], &x[1], &x[2], 1e-2)?])
        });
    }
}

fn rope_cases(list: &mut List) {
    for (shape, start) in [([1, 1, 1, 2], 5), ([2, 3, 2, 4], 0), ([1, 3, 2, 6], 7), ([2, 65, 4, 32], 1)] {
        let table = RopeTable::new(shape[3], 70, 10000.0).expect("even head_dim");
        let label = format!("{shape:?} from {start}");
        let (for_rope, gain) = (table.clone(), [shape[3]]);
        list.push("rope", &label, &[&shape], move |t, x| Ok(vec![rope(t, &x[0], &for_rope, start)?]));
        list.push("qk_norm_rope", &label, &[&shape, &gain], move |t, x| {
            Ok(vec![qk_norm_rope(t, &x[0], &x[1], 1e-6, &table, start)?])
        });
    }
}

fn attention_cases(list: &mut List) {
    for (b, tq, tk, h, hkv, d) in [
        (1, 1, 1, 1, 1, 2),
        (2, 3, 3, 2, 1, 2),
        (1, 2, 5, 2, 2, 3),
        (1, 5, 2, 2, 2, 3), // the first three queries see nothing
        (2, 17, 17, 4, 2, 32),
        (1, 63, 63, 2, 2, 64),
        (1, 64, 64, 4, 1, 32),
        (2, 65, 65, 2, 1, 96),
        (1, 129, 129, 2, 2, 32),
        (1, 33, 97, 8, 1, 128),
        (1, 97, 33, 3, 1, 16),
        (1, 66, 66, 6, 2, 40),
    ] {
        for causal in [true, false] {
            let label = format!("B {b} Tq {tq} Tk {tk} H {h} Hkv {hkv} D {d}{}", if causal { " causal" } else { "" });
            let (q, kv) = ([b, tq, h, d], [b, tk, hkv, d]);
            let on_card = HEAD_DIMS.iter().any(|(dim, _)| *dim == d);
            let usage = if on_card { Use::Check } else { Use::CpuOnly };
            list.push_for(usage, "attention", label, &[&q, &kv, &kv], move |t, x| {
                Ok(vec![attention(t, &x[0], &x[1], &x[2], causal)?])
            });
            list.plain(move |t, x| Ok(vec![plain::attention(t, &x[0], &x[1], &x[2], causal)?]));
        }
    }
}

fn token_cases(list: &mut List) {
    let many: Vec<u32> = (0..150).map(|n| n * n % 70).collect();
    for (vocab, channels, ids) in [(3, 1, vec![1, 1, 0]), (5, 4, vec![4, 0, 4, 4, 2]), (70, 33, many.clone())] {
        let label = format!("[{vocab},{channels}], {} ids", ids.len());
        let ids = id_tensor(ids);
        list.push("embedding", label, &[&[vocab, channels]], move |t, x| Ok(vec![embedding(t, &x[0], &ids)?]));
    }
    let ignored = IGNORE_INDEX as u32;
    let mut most = many;
    most[7] = ignored;
    for (vocab, targets) in [(1, vec![0]), (3, vec![2, ignored, 0]), (5, vec![4, 0, 1, 1]), (70, most)] {
        let label =
            format!("[{},{vocab}], {} ignored", targets.len(), targets.iter().filter(|&&t| t == ignored).count());
        let shape = [targets.len(), vocab];
        let targets = id_tensor(targets);
        let same = targets.clone();
        list.push("cross_entropy", &label, &[&shape], move |t, x| {
            Ok(vec![cross_entropy(t, &x[0], &targets, IGNORE_INDEX)?])
        });
        let (hidden, head) = ([shape[0], 5], [vocab, 5]);
        let chunked = same.clone();
        list.push("linear_cross_entropy", format!("{label}, C 5"), &[&hidden, &head], move |t, x| {
            Ok(vec![linear_cross_entropy(t, &x[0], &x[1], &same, IGNORE_INDEX)?])
        });
        if shape[0] > 16 {
            list.push("linear_cross_entropy", format!("{label}, by 16 rows"), &[&hidden, &head], move |t, x| {
                Ok(vec![linear_cross_entropy::in_chunks(t, &x[0], &x[1], &chunked, IGNORE_INDEX, 16)?])
            });
        }
    }
}

fn id_tensor(ids: Vec<u32>) -> Tensor {
    let len = ids.len();
    Tensor::from_vec(ids, &[len]).expect("one id an element")
}

/// The operators that no gradient passes.
fn forward_cases(list: &mut List) {
    for n in [1, 7, 4096, 5000] {
        let shape: &[usize] = &[n];
        list.push_for(Use::Forward, "adamw", format!("[{n}]"), &[shape, shape, shape, shape], adamw_case);
        list.push_for(Use::Forward, "global_norm", format!("[{n}] and [3]"), &[shape, &[3]], |_, x| {
            let [norm, scale] = global_norm(&[x[0].value(), x[1].value()], 1.0)?;
            Ok(vec![Var::constant(norm), Var::constant(scale)])
        });
    }
    for (b, t, h, d) in [(1, 1, 1, 2), (2, 3, 2, 32), (3, 2, 1, 5)] {
        let (cache, x) = ([b, t + 4, h, d], [b, t, h, d]);
        list.push_for(Use::Forward, "cache_write", format!("{x:?} into {cache:?}"), &[&cache, &x], cache_case);
    }
    for (b, tq, len, capacity, h, hkv, d) in
        [(1, 1, 1, 4, 2, 1, 32), (2, 1, 300, 400, 8, 2, 64), (1, 3, 65, 70, 4, 4, 96), (1, 70, 100, 128, 4, 1, 128)]
    {
        let label = format!("cached, Tq {tq}, {len} of {capacity}, H {h} Hkv {hkv} D {d}");
        let (q, kv) = ([b, tq, h, d], [b, capacity, hkv, d]);
        list.push_for(Use::Forward, "attention", label, &[&q, &kv, &kv], move |_, x| {
            Ok(vec![Var::constant(attention_cached(x[0].value(), x[1].value(), x[2].value(), len)?)])
        });
    }
    for (rows, vocab) in [(1, 5), (3, 70), (2, 5003)] {
        for temperature in [0.0, 0.7] {
            // Numbers at which a small error of the masses does not change the choice: near the likeliest token.
            let label = format!("[{rows},{vocab}] at temperature {temperature}");
            list.push_for(Use::Forward, "sample", label, &[&[rows, vocab]], move |tape, x| {
                let sampling = sample::Sampling { temperature, top_p: 0.9, vocab_size: vocab };
                let logits = scale(tape, &x[0], 8.0)?;
                Ok(vec![Var::constant(sample::sample(logits.value(), &vec![1e-3; rows], &sampling)?)])
            });
        }
    }
    for n in [1, 13, 4096] {
        list.push_for(Use::Forward, "cast", format!("[{n}] there and back"), &[&[n]], cast_case);
    }
}

/// One step; weights, first moment and the root of the second, gradient.
fn adamw_case(tape: &mut Tape, x: &[Var]) -> Result<Vec<Var>> {
    let v = mul(tape, &x[2], &x[2])?; // a mean of squares is not negative
    let [mut w, mut m, mut v] = [x[0].value().clone(), x[1].value().clone(), v.value().clone()];
    let [_, scale] = global_norm(&[x[3].value()], 1.0)?;
    let step = AdamWStep { lr: 1e-2, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1, t: 3 };
    adamw_step([&mut w, &mut m, &mut v], x[3].value(), &scale, None, &step)?;
    Ok(vec![Var::constant(w), Var::constant(m), Var::constant(v)])
}

fn cache_case(_: &mut Tape, x: &[Var]) -> Result<Vec<Var>> {
    let mut cache = x[0].value().clone();
    cache_write(&mut cache, x[1].value(), 3)?;
    Ok(vec![Var::constant(cache)])
}

fn cast_case(_: &mut Tape, x: &[Var]) -> Result<Vec<Var>> {
    let x = x[0].value();
    let there = if x.dtype() == DType::Bf16 { DType::F32 } else { DType::Bf16 };
    let back = cast(&cast(x, there)?, x.dtype())?;
    Ok(vec![Var::constant(back)])
}

/// Sizes at which a kernel shows how it moves data: whole tiles.
fn count_cases(list: &mut List) {
    // Small tiles; large ones, in bf16 too; small ones and K in parts.
    let mut sizes = vec![];
    for layout in [Layout::NN, Layout::NT, Layout::TN] {
        sizes.extend([(128, 256, 256), (640, 1664, 64), (256, 256, 2048)].map(|size| (layout, size, BOTH)));
    }
    // Large tiles and K in parts, which in f32 is what smaller products are as well.
    sizes.extend([Layout::NN, Layout::NT].map(|layout| (layout, (384, 1408, 2048), &BOTH[1..])));
    for (layout, (m, n, k), dtypes) in sizes {
        let a = if layout == Layout::TN { [k, m] } else { [m, k] };
        let b = if layout == Layout::NT { [n, k] } else { [k, n] };
        let label = format!("{layout:?} {m} × {n} × {k}");
        list.push_for(Use::Count, "matmul", label, &[&a, &b], move |_, x| {
            let [a, b] = [&x[0], &x[1]].map(|x| Var::constant(x.value().clone()));
            Ok(vec![matmul(&mut Tape::inference(), &a, &b, layout)?])
        });
        list.last().dtypes = dtypes;
    }
    // A weight's gradient is f32 whatever the operands are.
    list.push_for(Use::Count, "linear", "[32,1024] to 1792", &[&[32, 1024], &[1792, 1024]], |t, x| {
        Ok(vec![linear(t, &x[0], &x[1], None)?])
    });
    for (d, _) in HEAD_DIMS {
        let (q, kv) = ([1, 256, 2, d], [1, 256, 1, d]);
        list.push_for(Use::Count, "attention", format!("256 × 256, D {d}"), &[&q, &kv, &kv], |t, x| {
            Ok(vec![attention(t, &x[0], &x[1], &x[2], true)?])
        });
        let (q, kv) = ([1, 1, 8, d], [1, 512, 2, d]);
        list.push_for(Use::Count, "attention", format!("1 over 512, D {d}"), &[&q, &kv, &kv], |_, x| {
            Ok(vec![Var::constant(attention_cached(x[0].value(), x[1].value(), x[2].value(), 512)?)])
        });
    }
    let x: &[usize] = &[64, 1024];
    for cols in [768, 2048] {
        let (x, gain): (&[usize], &[usize]) = (&[32, cols], &[cols]);
        list.push_for(Use::Count, "rms_norm", format!("{x:?}"), &[x, x, gain], |t, x| {
            let (h, y) = rms_norm_residual(t, &x[0], &x[1], &x[2], 1e-5)?;
            Ok(vec![h, y])
        });
        list.push_for(Use::Count, "layer_norm", format!("{x:?}"), &[x, gain, gain], |t, x| {
            Ok(vec![layer_norm(t, &x[0], &x[1], &x[2], 1e-5)?])
        });
        list.push_for(Use::Count, "softmax", format!("{x:?}"), &[x], |t, x| Ok(vec![softmax(t, &x[0])?]));
    }
    list.push_for(Use::Count, "swiglu", format!("{x:?}"), &[x, x], |t, x| Ok(vec![swiglu(t, &x[0], &x[1])?]));
    list.push_for(Use::Count, "add", format!("{x:?}"), &[x, &[1024]], |t, x| Ok(vec![add(t, &x[0], &x[1])?]));
}
