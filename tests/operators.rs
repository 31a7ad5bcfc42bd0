//! Operators at the edges that other engines got wrong: values worked out by hand, and refusals.

mod common;

use common::{both, close, cross_entropy, f64s, ids, random};
use handgrad::ops::{self, IGNORE_INDEX, Layout, RopeScaling, RopeTable};
use handgrad::{DType, Tape, Tensor, Var};

#[test]
fn cross_entropy_of_large_logits() {
    let cases: [(&[f64], i32, f64); 6] = [
        (&[1e8, 1e8], 1, std::f64::consts::LN_2),
        (&[1000.0, 0.0], 1, 1000.0),
        (&[1000.0, 0.0], 0, 0.0),
        (&[-101.0, 0.0, 0.0], 0, 101.693147),
        (&[1.0, 2.0, 3.0], 2, 0.407606),
        (&[1.0, 2.0, 3.0], 0, 2.407606),
    ];
    for (logits, target, expected) in cases {
        for x in both(&f64s(logits, &[1, logits.len()])) {
            let (loss, _) = cross_entropy(&x, &[target]);
            assert!((loss - expected).abs() < 1e-5, "{logits:?} {target}: {loss}, expected {expected}");
        }
    }
    for x in both(&f64s(&[1.0, 2.0, 3.0], &[1, 3])) {
        close(&cross_entropy(&x, &[2]).1, &[0.090031, 0.244728, -0.334759], 1e-6);
    }
    for x in both(&f64s(&[1e8, 1e8], &[1, 2])) {
        close(&cross_entropy(&x, &[1]).1, &[0.5, -0.5], 1e-6);
    }
}

#[test]
fn ignored_targets_do_not_count() {
    for x in both(&f64s(&[0.0; 4], &[2, 2])) {
        let (loss, gradient) = cross_entropy(&x, &[0, IGNORE_INDEX]);
        assert!((loss - 2.0_f64.ln()).abs() < 1e-6);
        close(&gradient, &[-0.5, 0.5, 0.0, 0.0], 1e-6);
    }
    for x in both(&f64s(&[1.0, 2.0, 3.0], &[1, 3])) {
        let (loss, gradient) = cross_entropy(&x, &[IGNORE_INDEX]);
        assert_eq!(loss, 0.0, "all targets ignored");
        assert_eq!(gradient.to_f64_vec().unwrap(), [0.0; 3]);
    }
}

#[test]
fn a_target_out_of_range_is_named() {
    for x in both(&f64s(&[0.0; 10], &[2, 5])) {
        for bad in [-4, 5, -1, i32::MAX] {
            let x = Var::constant(x.clone());
            let error = ops::cross_entropy(&mut Tape::inference(), &x, &ids(&[0, bad]), IGNORE_INDEX).unwrap_err();
            assert!(error.to_string().contains(&format!("target {bad} in row 1")), "{error}");
        }
        let x = Var::constant(x.clone());
        assert!(ops::cross_entropy(&mut Tape::inference(), &x, &ids(&[255, 255]), 255).is_ok(), "ignored though ≥ V");
    }
}

#[test]
fn many_gradients_of_one_embedding_row_stay_accurate_and_deterministic() {
    let n = 10_000;
    let tokens: Vec<i32> = (0..n).map(|i| if i % 10 == 0 { 1 + i % 7 } else { 0 }).collect();
    let d_y = random(&[n as usize, 5], 3);
    let run = |dtype| {
        let mut tape = Tape::new();
        let table = tape.leaf("table", &Tensor::zeros(&[8, 5], dtype));
        let y = ops::embedding(&mut tape, &table, &ids(&tokens)).unwrap();
        tape.backward_from(&[(&y, d_y.to_dtype(dtype).unwrap())]).unwrap().get("table").unwrap().clone()
    };
    let (found, exact) = (run(DType::F32), run(DType::F64));
    let scale = exact.to_f64_vec().unwrap().iter().fold(0.0_f64, |m, x| m.max(x.abs()));
    close(&found, &exact.to_f64_vec().unwrap(), 1e-5 * scale);
    assert_eq!(found.to_f64_vec().unwrap(), run(DType::F32).to_f64_vec().unwrap());
}

#[test]
fn rope_turns_neighbours_and_position_0_turns_nothing() {
    let table = RopeTable::new(4, 8, 10000.0).unwrap();
    for x in both(&f64s(&[1.0, 2.0, 3.0, 4.0], &[1, 1, 1, 4])) {
        let x = Var::constant(x);
        let at = |position| ops::rope(&mut Tape::inference(), &x, &table, position).unwrap();
        close(at(1).value(), &[-1.142640, 1.922076, 2.959851, 4.029800], 1e-6);
        close(at(0).value(), &[1.0, 2.0, 3.0, 4.0], 0.0);
    }
    // theta is used: at a million and position 1000 the second pair turns by 1 radian
    let table = RopeTable::new(4, 1001, 1e6).unwrap();
    let x = Var::constant(f64s(&[0.0, 0.0, 0.0, 1.0], &[1, 1, 1, 4]));
    close(ops::rope(&mut Tape::inference(), &x, &table, 1000).unwrap().value(), &[0.0, 0.0, -0.841471, 0.540302], 1e-6);
}

/// What each pair turns by from one position to the next, as `transformers` 5 has it, in f32.
#[test]
fn a_stretched_context_turns_more_slowly() {
    let turns = |table: &RopeTable| -> Vec<f64> {
        let x: Vec<f64> = (0..16).map(|i| f64::from(i % 2 == 0)).collect(); // every pair at angle 0
        let y = ops::rope(&mut Tape::inference(), &Var::constant(f64s(&x, &[1, 1, 1, 16])), table, 1).unwrap();
        y.value().to_f64_vec().unwrap().chunks(2).map(|pair| pair[1].atan2(pair[0])).collect()
    };
    let linear = RopeTable::scaled(16, 2, 10000.0, RopeScaling::Linear { factor: 4.0 }).unwrap();
    let scaling =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_seq_len: 64 };
    let llama3 = RopeTable::scaled(16, 2, 500000.0, scaling).unwrap();
    for (table, expected) in [
        (linear, [0.25, 0.079056941, 0.025, 0.0079056947, 0.0025, 0.00079056947, 0.00025, 7.905694656e-05]),
        (
            llama3,
            [1.0, 0.079403013, 0.0047007538, 0.00091158313, 0.00017677668, 3.4281024e-05, 6.6478697e-06, 1.2891732e-06],
        ),
    ] {
        for (found, expected) in turns(&table).into_iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-6 * expected, "found {found}, expected {expected}");
        }
    }
}

#[test]
fn qk_norm_comes_before_rope() {
    let table = RopeTable::new(2, 4, 10000.0).unwrap();
    for x in both(&f64s(&[3.0, 4.0], &[1, 1, 1, 2])) {
        let gain = f64s(&[1.0, 2.0], &[2]).to_dtype(x.dtype()).unwrap();
        let (x, gain) = (Var::constant(x), Var::constant(gain));
        let y = ops::qk_norm_rope(&mut Tape::inference(), &x, &gain, 0.0, &table, 1).unwrap();
        close(y.value(), &[-1.445570, 1.936576], 1e-6);
    }
}

#[test]
fn rms_norm_keeps_epsilon_inside_the_root() {
    for (eps, expected) in [(1e-6, std::f64::consts::FRAC_1_SQRT_2), (1e-5, 0.301511)] {
        for x in both(&f64s(&[1e-3; 4], &[1, 4])) {
            let gain = Var::constant(Tensor::full(&[4], 1.0, x.dtype()));
            let y = ops::rms_norm(&mut Tape::inference(), &Var::constant(x), &gain, eps).unwrap();
            close(y.value(), &[expected; 4], 1e-5);
        }
    }
    let mut tape = Tape::new();
    let x = tape.leaf("x", &f64s(&[3.0, 4.0], &[2]));
    let gain = Var::constant(f64s(&[1.0, 1.0], &[2]));
    let y = ops::rms_norm(&mut tape, &x, &gain, 0.0).unwrap();
    let gradients = tape.backward_from(&[(&y, f64s(&[1.0, 0.0], &[2]))]).unwrap();
    close(gradients.get("x").unwrap(), &[0.181019, -0.135765], 1e-6);
}

/// Attention with all scores 0: q and k are zero.
fn flat_attention(tq: usize, v: &[f64], dtype: DType) -> Tensor {
    let tk = v.len();
    let zeros = |t| Var::constant(Tensor::zeros(&[1, t, 1, 1], dtype));
    let v = Var::constant(f64s(v, &[1, tk, 1, 1]).to_dtype(dtype).unwrap());
    ops::attention(&mut Tape::inference(), &zeros(tq), &zeros(tk), &v, true).unwrap().value().clone()
}

#[test]
fn the_causal_mask_is_aligned_to_the_bottom_right() {
    for dtype in [DType::F32, DType::F64] {
        let v = [1.0, 2.0, 3.0, 4.0, 5.0];
        close(&flat_attention(2, &v, dtype), &[2.5, 3.0], 1e-6);
        close(&flat_attention(1, &v, dtype), &[3.0], 1e-6);
        close(&flat_attention(5, &v, dtype), &[1.0, 1.5, 2.0, 2.5, 3.0], 1e-6);
        // five queries, two keys: the first three see nothing and give exactly 0
        close(&flat_attention(5, &[4.0, 6.0], dtype), &[0.0, 0.0, 0.0, 4.0, 5.0], 1e-6);
        assert_eq!(flat_attention(5, &[4.0, 6.0], dtype).to_f64_vec().unwrap()[..3], [0.0; 3]);
    }
}

#[test]
fn missing_keys_of_the_last_tile_have_no_weight() {
    for t in [1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 192, 1025] {
        let out = flat_attention(t, &vec![1.0; t], DType::F32);
        close(&out, &vec![1.0; t], 2e-6);
    }
}

#[test]
fn attention_of_one_token_copies_its_value() {
    for dtype in [DType::F32, DType::F64] {
        let mut tape = Tape::new();
        let mut leaf = |name: &str, data: &[f64]| tape.leaf(name, &f64s(data, &[1, 1, 1, 2]).to_dtype(dtype).unwrap());
        let (q, k, v) = (leaf("q", &[0.3, -2.0]), leaf("k", &[5.0, 1.0]), leaf("v", &[3.0, -4.0]));
        let out = ops::attention(&mut tape, &q, &k, &v, true).unwrap();
        assert_eq!(out.value().to_f64_vec().unwrap(), [3.0, -4.0]);
        let d_out = f64s(&[1.0, 2.0], &[1, 1, 1, 2]).to_dtype(dtype).unwrap();
        let gradients = tape.backward_from(&[(&out, d_out)]).unwrap();
        let gradient = |name: &str| gradients.get(name).unwrap().to_f64_vec().unwrap();
        assert_eq!((gradient("q"), gradient("k"), gradient("v")), (vec![0.0; 2], vec![0.0; 2], vec![1.0, 2.0]));
    }
}

#[test]
fn attention_of_large_scores_does_not_overflow() {
    for dtype in [DType::F32, DType::F64] {
        for sign in [1.0, -1.0] {
            let tensor = |data: &[f64]| Var::constant(f64s(data, &[1, data.len(), 1, 1]).to_dtype(dtype).unwrap());
            let (q, k, v) = (tensor(&[sign, sign]), tensor(&[10000.0, 9999.0]), tensor(&[1.0, 0.0]));
            let out = ops::attention(&mut Tape::inference(), &q, &k, &v, true).unwrap();
            let expected = if sign > 0.0 { 0.731059 } else { 0.268941 };
            close(out.value(), &[1.0, expected], 1e-5);
        }
    }
}

#[test]
fn a_nan_score_reaches_the_output() {
    for dtype in [DType::F32, DType::F64] {
        let tensor = |data: &[f64]| Var::constant(f64s(data, &[1, data.len(), 1, 1]).to_dtype(dtype).unwrap());
        let (q, k, v) = (tensor(&[f64::NAN, 1.0]), tensor(&[1.0, 2.0]), tensor(&[1.0, 2.0]));
        let out = ops::attention(&mut Tape::inference(), &q, &k, &v, true).unwrap().value().to_f64_vec().unwrap();
        assert!(out[0].is_nan() && out[1].is_finite(), "{out:?}");
        for row in [[f64::NAN, f64::NEG_INFINITY], [f64::NEG_INFINITY, f64::NAN], [f64::NAN, f64::NAN]] {
            let x = Var::constant(f64s(&row, &[2]).to_dtype(dtype).unwrap());
            let y = ops::softmax(&mut Tape::inference(), &x).unwrap().value().to_f64_vec().unwrap();
            assert!(y.iter().all(|y| y.is_nan()), "{row:?} gives {y:?}");
        }
    }
}

#[test]
fn query_head_h_reads_kv_head_h_over_g() {
    for dtype in [DType::F32, DType::F64] {
        for (h, expected) in [(4, vec![10.0, 10.0, 20.0, 20.0]), (8, [vec![10.0; 4], vec![20.0; 4]].concat())] {
            let zeros = |heads| Var::constant(Tensor::zeros(&[1, 1, heads, 1], dtype));
            let v = Var::constant(f64s(&[10.0, 20.0], &[1, 1, 2, 1]).to_dtype(dtype).unwrap());
            let out = ops::attention(&mut Tape::inference(), &zeros(h), &zeros(2), &v, true).unwrap();
            assert_eq!(out.value().to_f64_vec().unwrap(), expected);
        }
    }
}

#[test]
fn softmax_of_nothing_to_attend_to_is_zero() {
    let x = Var::constant(f64s(&[f64::NEG_INFINITY, f64::NEG_INFINITY, 0.0, 0.0], &[2, 2]));
    let y = ops::softmax(&mut Tape::inference(), &x).unwrap();
    assert_eq!(y.value().to_f64_vec().unwrap(), [0.0, 0.0, 0.5, 0.5]);
}

#[test]
fn dimensions_of_zero_give_empty_results() {
    for dtype in [DType::F32, DType::F64] {
        let x = |shape: &[usize]| Var::constant(Tensor::full(shape, 1.0, dtype));
        let mut t = Tape::inference();
        let y = ops::linear(&mut t, &x(&[0, 40]), &x(&[70, 40]), None).unwrap();
        assert_eq!(y.shape(), [0, 70]);
        let y = ops::linear(&mut t, &x(&[2, 0]), &x(&[3, 0]), None).unwrap();
        assert_eq!((y.shape(), y.value().to_f64_vec().unwrap()), (&[2, 3][..], vec![0.0; 6]));
        for layout in [Layout::NN, Layout::NT, Layout::TN] {
            let y = ops::matmul(&mut t, &x(&[0, 0]), &x(&[0, 0]), layout).unwrap();
            assert_eq!(y.shape(), [0, 0]);
        }
        let y = ops::attention(&mut t, &x(&[0, 3, 2, 4]), &x(&[0, 3, 1, 4]), &x(&[0, 3, 1, 4]), true).unwrap();
        assert_eq!(y.shape(), [0, 3, 2, 4]);
        let y = ops::attention(&mut t, &x(&[1, 3, 2, 4]), &x(&[1, 0, 1, 4]), &x(&[1, 0, 1, 4]), true).unwrap();
        assert_eq!(y.value().to_f64_vec().unwrap(), [0.0; 24]);
        let y = ops::rms_norm(&mut t, &x(&[0, 4]), &x(&[4]), 1e-6).unwrap();
        assert_eq!(y.shape(), [0, 4]);
    }
}

#[test]
fn shapes_that_do_not_fit_are_named_with_the_operator() {
    let x = |shape: &[usize]| Var::constant(Tensor::zeros(shape, DType::F32));
    let mut t = Tape::inference();
    let table = RopeTable::new(4, 8, 10000.0).unwrap();
    let errors = [
        ("matmul", "[2, 3]", "[4, 5]", ops::matmul(&mut t, &x(&[2, 3]), &x(&[4, 5]), Layout::NN)),
        ("matmul", "[2, 3, 4]", "[3, 4, 5]", ops::matmul(&mut t, &x(&[2, 3, 4]), &x(&[3, 4, 5]), Layout::NN)),
        ("linear", "[2, 3]", "[5, 4]", ops::linear(&mut t, &x(&[2, 3]), &x(&[5, 4]), None)),
        ("linear", "[5, 3]", "[4]", ops::linear(&mut t, &x(&[2, 3]), &x(&[5, 3]), Some(&x(&[4])))),
        ("add", "[2, 3]", "[2]", ops::add(&mut t, &x(&[2, 3]), &x(&[2]))),
        ("mul", "[2, 3]", "[3]", ops::mul(&mut t, &x(&[2, 3]), &x(&[3]))),
        ("swiglu", "[2, 3]", "[3, 2]", ops::swiglu(&mut t, &x(&[2, 3]), &x(&[3, 2]))),
        ("rms_norm", "[2, 3]", "[2]", ops::rms_norm(&mut t, &x(&[2, 3]), &x(&[2]), 1e-6)),
        ("layer_norm", "[2, 3]", "[2]", ops::layer_norm(&mut t, &x(&[2, 3]), &x(&[3]), &x(&[2]), 1e-6)),
        ("rope", "[1, 2, 3, 6]", "[B,T,H,4]", ops::rope(&mut t, &x(&[1, 2, 3, 6]), &table, 0)),
        ("rope", "positions 3 to 9", "at most 8", ops::rope(&mut t, &x(&[1, 6, 3, 4]), &table, 3)),
        ("attention", "[1, 2, 3, 4]", "[1, 2, 2, 4]", {
            ops::attention(&mut t, &x(&[1, 2, 3, 4]), &x(&[1, 2, 2, 4]), &x(&[1, 2, 2, 4]), true)
        }),
        ("embedding", "id 7 at position 1", "below 3", ops::embedding(&mut t, &x(&[3, 2]), &ids(&[0, 7]))),
        ("cross_entropy", "[2, 3]", "[3]", ops::cross_entropy(&mut t, &x(&[2, 3]), &ids(&[0, 1, 2]), IGNORE_INDEX)),
        ("softmax", "[2, 0]", "at least 1", ops::softmax(&mut t, &x(&[2, 0]))),
    ];
    for (op, found, expected, result) in errors {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(op) && error.contains(found) && error.contains(expected), "{op}: {error}");
    }
    let error = RopeTable::new(5, 8, 10000.0).unwrap_err().to_string();
    assert!(error.contains("head_dim 5") && error.contains("even"), "{error}");
    let ids = Var::constant(Tensor::zeros(&[2, 3], DType::U32));
    let error = ops::silu(&mut t, &ids).unwrap_err().to_string();
    assert!(error.contains("silu") && error.contains("u32"), "{error}");
    let error = ops::mul(&mut t, &x(&[2]), &Var::constant(Tensor::zeros(&[2], DType::F64))).unwrap_err().to_string();
    assert!(error.contains("f32 and f64"), "{error}");
}
