//! The model against PyTorch: `scripts/golden.py` wrote the files that are compared with here.
//!
//! f64 agrees to 1e-10 and f32 to 1e-5, relative to the largest value of each tensor.

use handgrad::formats::safetensors::{self, TensorFile};
use handgrad::formats::{model_dir, rope_layout};
use handgrad::generate::{Request, Sampler, generate};
use handgrad::nn::{Module, Transformer};
use handgrad::ops::{IGNORE_INDEX, cross_entropy};
use handgrad::optim::{AdamW, AdamWConfig, clip_grad_norm};
use handgrad::{DType, Tape, Tensor};
use std::path::PathBuf;

const MODELS: [&str; 3] = ["chapter8", "report", "classic"];

struct Golden {
    name: &'static str,
    file: TensorFile,
    model: Transformer,
}

impl Golden {
    fn load(name: &'static str) -> Golden {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let file = safetensors::read(&dir.join("golden.safetensors")).unwrap();
        Golden { name, file, model: model_dir::load(&dir).unwrap() }
    }

    fn tensor(&self, key: &str) -> &Tensor {
        self.file.tensors.get(key).unwrap_or_else(|| panic!("{}: no {key}", self.name))
    }

    /// Batch `n` of the three that the file holds: ids or targets [B,T].
    fn batch(&self, key: &str, n: usize) -> Tensor {
        let all = self.tensor(key);
        let shape = &all.shape()[1..];
        let len = shape.iter().product::<usize>();
        Tensor::from_vec(all.as_slice::<u32>().unwrap()[n * len..(n + 1) * len].to_vec(), shape).unwrap()
    }

    /// Every value of a trace that the file holds, sorted.
    fn trace_names(&self) -> Vec<&str> {
        let belongs = |key: &str| key.starts_with("layers.") || ["embed", "final_norm", "logits"].contains(&key);
        self.file.tensors.keys().map(String::as_str).filter(|key| belongs(key)).collect()
    }

    fn number(&self, key: &str) -> f64 {
        self.file.metadata[key].parse().unwrap()
    }

    fn compare(&self, key: &str, found: &Tensor, relative: f64) {
        let expected = self.tensor(key);
        assert_eq!(found.shape(), expected.shape(), "{}: {key}", self.name);
        let (found, expected) = (found.to_f64_vec().unwrap(), expected.to_f64_vec().unwrap());
        let scale = expected.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
        for (e, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let ok = (found - expected).abs() <= relative * scale;
            assert!(ok, "{}: {key}[{e}] is {found}, expected {expected}", self.name);
        }
    }

    /// Trace, logits, loss and all gradients of batch 0.
    fn check_forward_backward(&self, dtype: DType, relative: f64, suffix: &str) {
        let model = self.model.to_dtype(dtype).unwrap();
        let mut tape = Tape::new();
        tape.keep_trace();
        let logits = model.forward(&mut tape, &self.batch("ids", 0)).unwrap();
        let trace = tape.take_trace();
        let mut names: Vec<&str> = trace.iter().map(|(key, _)| key.as_str()).collect();
        names.sort();
        assert_eq!(names, self.trace_names(), "{}", self.name);
        for (key, value) in &trace {
            self.compare(key, value, relative);
        }
        self.compare(&format!("logits{suffix}"), logits.value(), relative);
        let loss = cross_entropy(&mut tape, &logits, &self.batch("targets", 0), IGNORE_INDEX).unwrap();
        self.compare(&format!("loss{suffix}"), loss.value(), relative);
        let gradients = tape.backward(&loss).unwrap();
        for parameter in model.parameters() {
            let gradient =
                gradients.get(&parameter.name).unwrap_or_else(|| panic!("no gradient of {}", parameter.name));
            let gradient = rope_layout::to_file(&model.config, &parameter.name, gradient).unwrap();
            self.compare(&format!("grad{suffix}.{}", parameter.name), &gradient, relative);
        }
    }

    /// Three clipped AdamW steps, one for each batch.
    fn train(&self, dtype: DType) -> Transformer {
        let mut model = self.model.to_dtype(dtype).unwrap();
        let mut optimizer = AdamW::new(AdamWConfig {
            beta1: self.number("beta1"),
            beta2: self.number("beta2"),
            eps: self.number("eps"),
            weight_decay: self.number("weight_decay"),
        });
        let norms = self.tensor("grad_norms").to_f64_vec().unwrap();
        for (n, expected) in norms.iter().enumerate() {
            let mut tape = Tape::new();
            let loss = model.loss(&mut tape, &self.batch("ids", n), &self.batch("targets", n)).unwrap();
            let gradients = tape.backward(&loss).unwrap();
            let clipped = clip_grad_norm(&gradients, &model.parameters(), self.number("clip")).unwrap();
            let norm = clipped.norm.item().unwrap();
            let relative = if dtype == DType::F64 { 1e-10 } else { 1e-5 };
            assert!((norm - expected).abs() <= relative * expected, "step {n}: norm {norm}, expected {expected}");
            optimizer.step(model.parameters_mut(), &gradients, &clipped.scale, self.number("lr")).unwrap();
        }
        model
    }
}

#[test]
fn f64_equals_pytorch() {
    for name in MODELS {
        Golden::load(name).check_forward_backward(DType::F64, 1e-10, "");
    }
}

#[test]
fn f32_equals_pytorch() {
    for name in MODELS {
        Golden::load(name).check_forward_backward(DType::F32, 1e-5, "_f32");
    }
}

#[test]
fn three_adamw_steps_in_f64_equal_pytorch() {
    for name in MODELS {
        let golden = Golden::load(name);
        let model = golden.train(DType::F64);
        for parameter in model.parameters() {
            let found = rope_layout::to_file(&model.config, &parameter.name, &parameter.value).unwrap();
            golden.compare(&format!("step3.{}", parameter.name), &found, 1e-10);
        }
    }
}

#[test]
fn three_adamw_steps_in_f32_equal_pytorch() {
    for name in MODELS {
        let golden = Golden::load(name);
        let model = golden.train(DType::F32);
        for parameter in model.parameters() {
            let found = rope_layout::to_file(&model.config, &parameter.name, &parameter.value).unwrap();
            let expected = golden.tensor(&format!("step3_f32.{}", parameter.name));
            for (found, expected) in found.to_f64_vec().unwrap().iter().zip(expected.to_f64_vec().unwrap()) {
                let ok = (found - expected).abs() <= 2e-5;
                assert!(ok, "{name}: {} has {found}, expected {expected}", parameter.name);
            }
        }
    }
}

#[test]
fn greedy_tokens_equal_pytorch() {
    for name in MODELS {
        let golden = Golden::load(name);
        let (prompts, greedy) = (golden.tensor("prompts"), golden.tensor("greedy"));
        let rows = |x: &Tensor| -> Vec<Vec<u32>> {
            x.as_slice::<u32>().unwrap().chunks(x.shape()[1]).map(<[u32]>::to_vec).collect()
        };
        for dtype in [DType::F64, DType::F32] {
            let model = golden.model.to_dtype(dtype).unwrap();
            for (prompt, expected) in rows(prompts).iter().zip(rows(greedy)) {
                for use_cache in [true, false] {
                    let vocab_size = model.config.vocab_size;
                    let request = Request { prompt, max_new: expected.len(), end_of_text: &[], vocab_size, use_cache };
                    let mut found = vec![];
                    let keep = |id| {
                        found.push(id);
                        Ok(true)
                    };
                    generate(&model, &request, &mut Sampler::greedy(), keep).unwrap();
                    assert_eq!(found, expected, "{name} {dtype} cache {use_cache}");
                }
            }
        }
    }
}
