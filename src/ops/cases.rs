//! One list of cases for every operator: what the gradient check, the comparison of tuned kernels with their references and
//! `handgrad gradcheck` all run. An operator is tested once it stands here.

use super::*;
use crate::tape::{Tape, Var};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

type Run = Box<dyn Fn(&mut Tape, &[Var]) -> Result<Vec<Var>> + Send + Sync>;

/// An operator at certain shapes. The function works in the dtype of its inputs.
pub struct Case {
    pub op: &'static str,
    pub label: String,
    /// Shapes of the differentiable inputs.
    pub shapes: Vec<Vec<usize>>,
    run: Run,
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

    pub fn run(&self, tape: &mut Tape, inputs: &[Var]) -> Result<Vec<Var>> {
        (self.run)(tape, inputs)
    }
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
        let shapes = shapes.iter().map(|s| s.to_vec()).collect();
        self.0.push(Case { op, label: label.to_string(), shapes, run: Box::new(run) });
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
        list.push("rms_norm", format!("{label} with residual, sum unused"), &[&x, &x, &gain], |t, x| {
            Ok(vec![rms_norm_residual(t, &x[0], &x[1], &x[2], 1e-5)?.1])
        });
        list.push("rms_norm", format!("{label} with residual, norm unused"), &[&x, &x], |t, x| {
            let gain = Var::constant(Tensor::full(&x[0].shape()[x[0].shape().len() - 1..], 1.0, x[0].value().dtype()));
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
            list.push("attention", label, &[&q, &kv, &kv], move |t, x| {
                Ok(vec![attention(t, &x[0], &x[1], &x[2], causal)?])
            });
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
        list.push("cross_entropy", label, &[&shape], move |t, x| {
            Ok(vec![cross_entropy(t, &x[0], &targets, IGNORE_INDEX)?])
        });
    }
}

fn id_tensor(ids: Vec<u32>) -> Tensor {
    let len = ids.len();
    Tensor::from_vec(ids, &[len]).expect("one id an element")
}
