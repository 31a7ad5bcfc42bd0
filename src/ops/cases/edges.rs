//! Shapes at the edges of the tiles, warps and blocks of a card's kernels: a tile more or less one, length 1, odd lengths,
//! rows that are too long for a warp.

use super::*;

pub(super) fn cases(list: &mut List) {
    matrices(list);
    elements(list);
    rows(list);
    heads(list);
    attentions(list);
    decoding(list);
    tokens(list);
}

/// Tiles of 128×128 and 64×128 in steps of 8 or 32; deep and thin ones, whose K is split; weights that are used twice.
fn matrices(list: &mut List) {
    for layout in [Layout::NN, Layout::NT, Layout::TN] {
        for (batch, m, n, k) in [
            (1, 63, 127, 31),
            (1, 64, 128, 32),
            (1, 65, 129, 33),
            (1, 127, 128, 7),
            (1, 128, 120, 8),
            (1, 129, 136, 9),
            (1, 136, 264, 64),
            (1, 72, 40, 160),
            (1, 1, 768, 1000),
            (1, 96, 136, 2048),
            (1, 33, 17, 1999),
            (3, 64, 136, 40),
            (2, 129, 65, 24),
        ] {
            let a = if layout == Layout::TN { [batch, k, m] } else { [batch, m, k] };
            let b = if layout == Layout::NT { [batch, n, k] } else { [batch, k, n] };
            let label = format!("{layout:?} {a:?} {b:?}");
            list.push_for(Use::Edge, "matmul", label, &[&a, &b], move |t, x| {
                Ok(vec![matmul(t, &x[0], &x[1], layout)?])
            });
        }
    }
    for (rows, out, into) in [(64, 136, 72), (200, 96, 128), (1500, 33, 17), (2048, 40, 64)] {
        let label = format!("[{rows},{into}] to {out} and back, each weight used twice");
        let shapes: [&[usize]; 3] = [&[rows, into], &[out, into], &[into, out]];
        list.push_for(Use::Edge, "linear", label, &shapes, |t, x| Ok(vec![there_and_back(t, x, |_, y| Ok(y))?]));
        list.plain(|t, x| Ok(vec![there_and_back(t, x, |t, y| rounded(t, &y))?]));
    }
}

/// Twice through both weights, `round` after each product.
fn there_and_back(t: &mut Tape, x: &[Var], round: fn(&mut Tape, Var) -> Result<Var>) -> Result<Var> {
    let mut y = x[0].clone();
    for weight in [&x[1], &x[2], &x[1], &x[2]] {
        y = linear(t, &y, weight, None)?;
        y = round(t, y)?;
    }
    Ok(y)
}

/// Vectors of 16 bytes, blocks of 256 threads; second operands that are repeated over rows.
fn elements(list: &mut List) {
    for n in [3, 4, 5, 7, 8, 9, 255, 257, 1023, 1024, 1025, 2047, 2049] {
        let (shape, label): (&[usize], String) = (&[n], format!("[{n}]"));
        list.push_for(Use::Edge, "mul", &label, &[shape, shape], |t, x| Ok(vec![mul(t, &x[0], &x[1])?]));
        list.push_for(Use::Edge, "add", &label, &[shape, shape], |t, x| Ok(vec![add(t, &x[0], &x[1])?]));
        list.push_for(Use::Edge, "scale", &label, &[shape], |t, x| Ok(vec![scale(t, &x[0], -1.7)?]));
        // Four times as wide, into the flat parts; and exact in bf16.
        list.push_for(Use::Edge, "silu", &label, &[shape], |t, x| {
            let wide = scale(t, &x[0], 4.0)?;
            Ok(vec![silu(t, &wide)?])
        });
        list.push_for(Use::Edge, "gelu", &label, &[shape], |t, x| {
            let wide = scale(t, &x[0], 4.0)?;
            Ok(vec![gelu(t, &wide)?])
        });
        list.push_for(Use::Edge, "swiglu", &label, &[shape, shape], |t, x| Ok(vec![swiglu(t, &x[0], &x[1])?]));
    }
    for (rows, cols) in [
        (7, 31),
        (8, 32),
        (9, 33),
        (63, 128),
        (64, 129),
        (65, 256),
        (127, 257),
        (129, 64),
        (33, 1),
        (8201, 3),
        (8193, 8),
        (2, 32_776),
    ] {
        list.push_for(Use::Edge, "add", format!("[{rows},{cols}] [{cols}]"), &[&[rows, cols], &[cols]], |t, x| {
            Ok(vec![add(t, &x[0], &x[1])?])
        });
    }
}

/// A warp a row up to 512 or 1024 columns, eight rows a block, 256 blocks that sum; then a block a row, whose threads have
/// windows of 4096 or 8192 columns.
fn rows(list: &mut List) {
    for (rows, cols) in [
        (7, 1),
        (9, 31),
        (8, 32),
        (9, 33),
        (63, 8),
        (65, 40),
        (3, 127),
        (7, 128),
        (9, 129),
        (2, 511),
        (5, 512),
        (3, 513),
        (2, 520),
        (2, 1023),
        (9, 1024),
        (3, 1025),
        (2, 1032),
        (1, 2047),
        (3, 2048),
        (2, 4097),
        (3, 4104),
        (3, 8200),
        (2047, 3),
        (2049, 8),
        (259, 520),
        (259, 1032),
    ] {
        let (x, gain): (&[usize], &[usize]) = (&[rows, cols], &[cols]);
        let label = format!("{x:?}");
        // A row of one number is its own norm: without ε, what is left of its gradient is rounding.
        let (eps, terms) = if cols < 8 { (1e-2, 128) } else { (1e-5, 1) };
        list.push_for(Use::Edge, "rms_norm", &label, &[x, gain], move |t, x| Ok(vec![rms_norm(t, &x[0], &x[1], eps)?]));
        list.terms(terms);
        list.push_for(Use::Edge, "layer_norm", &label, &[x, gain, gain], |t, x| {
            Ok(vec![layer_norm(t, &x[0], &x[1], &x[2], 1e-2)?])
        });
        list.terms(terms);
        if rows < 2000 {
            list.push_for(Use::Edge, "rms_norm", format!("{label} with residual"), &[x, x, gain], move |t, x| {
                let (h, y) = rms_norm_residual(t, &x[0], &x[1], &x[2], eps)?;
                Ok(vec![h, y])
            });
            list.terms(terms);
            list.plain(move |t, x| {
                let h = add(t, &x[0], &x[1])?;
                let h = rounded(t, &h)?;
                let y = rms_norm(t, &h, &x[2], eps)?;
                Ok(vec![h, y])
            });
        }
        list.push_for(Use::Edge, "softmax", &label, &[x], |t, x| {
            let wide = scale(t, &x[0], 4.0)?;
            Ok(vec![softmax(t, &wide)?])
        });
        list.plain(|t, x| {
            let wide = scale(t, &x[0], 4.0)?;
            Ok(vec![plain::softmax(t, &wide)?])
        });
        list.terms(256); // where one number has nearly all the weight, d_y minus its mean cancels
    }
}

/// Heads of models, small and odd ones, and ones wider than a window of the gain's sums; more heads than the blocks of a
/// backward pass take at once.
fn heads(list: &mut List) {
    for (b, tokens, h, d, start) in [
        (1, 7, 1, 2, 0),
        (3, 1, 6, 6, 5),
        (2, 8, 3, 8, 1),
        (1, 9, 5, 10, 0),
        (2, 15, 1, 16, 2),
        (1, 17, 3, 30, 3),
        (2, 9, 4, 32, 0),
        (1, 7, 6, 40, 1),
        (3, 16, 2, 64, 4),
        (1, 8, 5, 72, 0),
        (2, 3, 4, 96, 5),
        (1, 9, 1, 126, 2),
        (2, 16, 3, 128, 0),
        (1, 5, 2, 130, 1),
        (1, 7, 3, 136, 0),
        (1, 3, 2, 256, 3),
        (2, 2, 1, 392, 0),
        (1, 70, 241, 8, 3),
    ] {
        let table = RopeTable::new(d, start + tokens, 10000.0).expect("even head_dim");
        let (shape, for_rope) = ([b, tokens, h, d], table.clone());
        let label = format!("{shape:?} from {start}");
        list.push_for(Use::Edge, "rope", &label, &[&shape], move |t, x| Ok(vec![rope(t, &x[0], &for_rope, start)?]));
        list.push_for(Use::Edge, "qk_norm_rope", &label, &[&shape, &[d]], move |t, x| {
            Ok(vec![qk_norm_rope(t, &x[0], &x[1], 1e-6, &table, start)?])
        });
    }
}

/// Every head_dim with every number of heads to a KV head, at the edges of tiles of 16 to 128; causal ones in which the first
/// key of a tile is seen by the last query of a warp or tile alone.
fn attentions(list: &mut List) {
    let mut push = |b: usize, tq: usize, tk: usize, (h, hkv): (usize, usize), d: usize, causal: bool| {
        let label = format!("B {b} Tq {tq} Tk {tk} H {h} Hkv {hkv} D {d}{}", if causal { " causal" } else { "" });
        list.push_for(
            Use::Edge,
            "attention",
            label,
            &[&[b, tq, h, d], &[b, tk, hkv, d], &[b, tk, hkv, d]],
            move |t, x| Ok(vec![attention(t, &x[0], &x[1], &x[2], causal)?]),
        );
        list.plain(move |t, x| Ok(vec![plain::attention(t, &x[0], &x[1], &x[2], causal)?]));
    };
    for (d, _) in HEAD_DIMS {
        for (tq, tk) in [(16, 33), (17, 16), (64, 65), (65, 64), (128, 65), (128, 129), (129, 128)] {
            push(1, tq, tk, (2, 2), d, true);
        }
        for (i, group) in [1, 2, 3, 4, 6, 8].into_iter().enumerate() {
            let (tq, tk) = [(15, 31), (31, 15), (32, 63), (33, 17), (5, 127), (9, 9)][i];
            push(2, tq, tk, (2 * group, 2), d, d != 64);
            push(1, tk, tq, (group, 1), d, d == 64);
        }
        push(1, 1, 40, (3, 1), d, true);
        push(1, 200, 270, (2, 1), d, true);
        push(1, 170, 150, (2, 1), d, false);
    }
}

/// Few queries over a cache: every group, caches at the edges of tiles, long enough for several ranges and to go round the
/// stages of shared memory; so many heads that each has one range, which goes round them more than once.
fn decoding(list: &mut List) {
    let mut push = |b: usize, tq: usize, len: usize, spare: usize, (h, hkv): (usize, usize), d: usize| {
        let capacity = len + spare;
        let label = format!("cached, B {b} Tq {tq}, {len} of {capacity}, H {h} Hkv {hkv} D {d}");
        let kv = [b, capacity, hkv, d];
        list.push_for(Use::Forward, "attention", label, &[&[b, tq, h, d], &kv, &kv], move |_, x| {
            Ok(vec![Var::constant(attention_cached(x[0].value(), x[1].value(), x[2].value(), len)?)])
        });
    };
    let lengths = [1, 7, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300, 511, 690, 230];
    for (i, (d, _)) in HEAD_DIMS.into_iter().enumerate() {
        for (j, group) in [1, 2, 3, 4, 6, 8, 16].into_iter().enumerate() {
            let len = lengths[(7 * i + j) % lengths.len()];
            push(1 + j % 2, 1 + (i + j) % 3 * (j % 4), len, 17 * (j % 3), (group * (1 + i % 3), 1 + i % 3), d);
        }
        push(1, 1, 330, 0, (8, 2), d);
        push(1, 7, 330, 5, (8, 2), d);
        push(1, 12, 8, 0, (1, 1), d); // the first queries see nothing
    }
    for (d, heads) in [(64, 206), (128, 103)] {
        push(1, 1, 230, 0, (heads, heads), d);
    }
}

/// Vocabularies at the ends of the sort's digits of 8 bits, more tokens than one of its tiles, one token many times; the
/// vectors and threads of a row of logits.
fn tokens(list: &mut List) {
    for (n, vocab, cols) in [
        (31, 4, 3),
        (32, 5, 4),
        (33, 256, 5),
        (63, 3000, 127),
        (64, 1, 128),
        (65, 255, 129),
        (128, 257, 32),
        (255, 3, 264),
        (257, 7, 516),
        (1023, 255, 1),
        (1025, 256, 1),
        (2049, 257, 1),
        (1500, 65_535, 1),
        (1100, 65_536, 2),
        (3000, 65_537, 1),
    ] {
        for same in [0, 60, 100] {
            // Every 61st id or so again; of each hundred, `same` are one id.
            let id = |i: usize| if i * 37 % 100 < same { vocab / 2 } else { i * i * 7919 % vocab };
            let ids = id_tensor((0..n).map(|i| id(i) as u32).collect());
            let label = format!("[{vocab},{cols}], {n} ids, {same}% the same, table used twice");
            list.push_for(Use::Edge, "embedding", label, &[&[vocab, cols]], move |t, x| {
                let y = [embedding(t, &x[0], &ids)?, embedding(t, &x[0], &ids)?];
                Ok(y.to_vec())
            });
            list.terms(2 * n * same.max(2) / 100);
        }
    }
    for (rows, vocab) in [
        (6, 7),
        (5, 8),
        (3, 9),
        (6, 15),
        (3, 17),
        (5, 511),
        (3, 513),
        (4, 1023),
        (2, 1025),
        (3, 2047),
        (3, 2048),
        (3, 2049),
        (2, 4095),
        (2, 4097),
        (3, 151_936),
        (2, 256_001),
    ] {
        let ignore = if rows % 2 == 0 { 0 } else { IGNORE_INDEX };
        let target = |row: usize| if row == 1 { ignore as u32 } else { ((row + 1) * 7919 % vocab) as u32 };
        let targets = id_tensor((0..rows).map(target).collect());
        let label = format!("[{rows},{vocab}], {ignore} ignored");
        list.push_for(Use::Edge, "cross_entropy", label, &[&[rows, vocab]], move |t, x| {
            let wide = scale(t, &x[0], 2.0)?;
            Ok(vec![cross_entropy(t, &wide, &targets, ignore)?])
        });
    }
    for (rows, vocab) in [(1, 15), (2, 16), (1, 31), (3, 33), (1, 511), (2, 512), (1, 513), (1, 1023), (2, 1025)] {
        for (temperature, top_p) in [(0.0, 0.5), (0.7, 0.9), (1.0, 1.0), (1.3, 0.0)] {
            let label = format!("[{rows},{vocab}] at temperature {temperature}, top-p {top_p}");
            list.push_for(Use::Forward, "sample", label, &[&[rows, vocab + 3]], move |tape, x| {
                let sampling = sample::Sampling { temperature, top_p, vocab_size: vocab };
                let logits = scale(tape, &x[0], 8.0)?;
                Ok(vec![Var::constant(sample::sample(logits.value(), &vec![1e-3; rows], &sampling)?)])
            });
        }
    }
    for n in [3, 4, 5, 255, 257, 1023, 1025, 49_157] {
        let shape: &[usize] = &[n];
        list.push_for(Use::Forward, "adamw", format!("[{n}]"), &[shape, shape, shape, shape], adamw_case);
        list.push_for(Use::Forward, "global_norm", format!("[{n}] and [5]"), &[shape, &[5]], |_, x| {
            let [norm, scale] = global_norm(&[x[0].value(), x[1].value()], 0.5)?;
            Ok(vec![Var::constant(norm), Var::constant(scale)])
        });
        list.push_for(Use::Forward, "cast", format!("[{n}] there and back"), &[shape], cast_case);
    }
    for (b, tokens, h, d) in [(1, 5, 3, 8), (2, 33, 4, 64), (5, 2, 1, 7), (1, 300, 2, 128)] {
        let (cache, x) = ([b, tokens + 4, h, d], [b, tokens, h, d]);
        list.push_for(Use::Forward, "cache_write", format!("{x:?} into {cache:?}"), &[&cache, &x], cache_case);
    }
}
