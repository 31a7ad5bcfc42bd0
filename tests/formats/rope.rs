//! The two RoPE layouts.

use super::*;

fn config(n_head: usize, n_kv_head: usize, head_dim: usize) -> ModelConfig {
    ModelConfig { n_head, n_kv_head, head_dim, ..ModelConfig::chapter8(10) }
}

fn rows(config: &ModelConfig, name: &str, shape: &[usize]) -> Vec<f64> {
    rope_layout::to_file(config, name, &iota(shape)).unwrap().to_f64_vec().unwrap()
}

const Q: &str = "model.layers.0.self_attn.q_proj.weight";

#[test]
fn rows_of_every_head_go_even_then_odd() {
    let two = config(2, 1, 4);
    assert_eq!(rows(&two, Q, &[8, 1]), [0., 2., 1., 3., 4., 6., 5., 7.]);
    assert_eq!(rows(&two, "layers.3.q_proj.bias", &[8]), [0., 2., 1., 3., 4., 6., 5., 7.]);
    assert_eq!(rows(&two, &Q.replace("q_", "k_"), &[4, 2]), [0., 1., 4., 5., 2., 3., 6., 7.]);
    assert_eq!(rows(&two, "model.layers.0.self_attn.k_norm.weight", &[4]), [0., 2., 1., 3.]);
    assert_eq!(rows(&config(1, 1, 6), Q, &[6, 1]), [0., 2., 4., 1., 3., 5.]);
}

#[test]
fn other_tensors_and_models_without_rope_pass_unchanged() {
    let rope = config(2, 1, 4);
    for name in ["v_proj.weight", "o_proj.weight", "input_layernorm.weight"] {
        let tensor = iota(&[8, 1]);
        let name = format!("model.layers.0.self_attn.{name}");
        assert!(rope_layout::to_file(&rope, &name, &tensor).unwrap().shares_storage(&tensor), "{name}");
    }
    let absolute = ModelConfig { positions: Positions::Absolute, ..rope };
    assert_eq!(rows(&absolute, Q, &[8, 1]), [0., 1., 2., 3., 4., 5., 6., 7.]);
}

#[test]
fn rotating_halves_in_the_file_is_rotating_neighbours_here() {
    // One head of 4 at position 1, theta 10000: angles 1 and 0.01.
    let rotate = |a: f64, b: f64, angle: f64| (a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos());
    let x = [1.0, 2.0, 3.0, 4.0];
    let ((a, b), (c, d)) = (rotate(x[0], x[1], 1.0), rotate(x[2], x[3], 0.01));
    let neighbours = [a, b, c, d];
    for (found, expected) in neighbours.iter().zip([-1.142640, 1.922076, 2.959851, 4.029800]) {
        assert!((found - expected).abs() < 1e-6, "{neighbours:?}");
    }
    // What a file calls [1,2,3,4], pairs (0,2) and (1,3), is [1,3,2,4] here; the result goes back the same way.
    let head = config(1, 1, 4);
    let here = rope_layout::from_file(&head, Q, &iota(&[4, 1])).unwrap().to_f64_vec().unwrap();
    assert_eq!(here, [0., 2., 1., 3.]);
    let here: Vec<f64> = here.iter().map(|&row| x[row as usize]).collect();
    let ((a, b), (c, d)) = (rotate(here[0], here[1], 1.0), rotate(here[2], here[3], 0.01));
    let rotated = Tensor::from_vec(vec![a, b, c, d], &[4, 1]).unwrap();
    let halves = rope_layout::to_file(&head, Q, &rotated).unwrap().to_f64_vec().unwrap();
    for (found, expected) in halves.iter().zip([-1.984111, 1.959901, 2.462378, 4.019800]) {
        assert!((found - expected).abs() < 1e-6, "{halves:?}");
    }
}

#[test]
fn every_float_goes_and_comes_back() {
    let config = config(3, 3, 10);
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        let tensor = iota(&[30, 3]).to_dtype(dtype).unwrap();
        let back = rope_layout::from_file(&config, Q, &rope_layout::to_file(&config, Q, &tensor).unwrap()).unwrap();
        assert_eq!((back.dtype(), back.to_f64_vec().unwrap()), (dtype, tensor.to_f64_vec().unwrap()));
    }
    assert_says(rope_layout::to_file(&config, Q, &iota(&[20, 3])), &[Q, "[20, 3]", "30 rows"]);
    assert_says(rope_layout::to_file(&config, Q, &Tensor::zeros(&[30, 3], DType::U32)), &["u32"]);
}
