//! Training as a whole: deterministic, resumable, undisturbed by evaluation, and safe when a loss goes bad.

use handgrad::data::{TokenRow, random_batch};
use handgrad::formats::lock::Lock;
use handgrad::formats::{model_dir, safetensors};
use handgrad::nn::{ModelConfig, Module, Transformer};
use handgrad::optim::{AdamW, AdamWConfig, clip_grad_norm};
use handgrad::tokenizer::Tokenizer;
use handgrad::train::directory::{Replace, newest_whole, prepare_out};
use handgrad::train::recipe::Order;
use handgrad::train::run::{Outcome, Run, Silent};
use handgrad::train::state::{self, Source};
use handgrad::train::trainer::{Best, Skipped};
use handgrad::train::{Observer, Recipe, StepReport, Trainer};
use handgrad::{DType, Tape, Tensor};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::cell::Cell;
use std::path::Path;

const TEXT: &str = "the quick brown fox jumps over the lazy dog. ";

fn recipe(steps: usize) -> Recipe {
    let preset = Recipe::preset("chapter8").unwrap();
    Recipe { steps, batch_size: 3, seq_len: 17, warmup: 2, lr: 3e-3, eval_every: 0, log_every: 1, ..preset }
}

fn tokenizer() -> Tokenizer {
    Tokenizer::chars_of([TEXT], false)
}

fn trainer(recipe: Recipe) -> Trainer {
    let tokenizer = tokenizer();
    let config =
        ModelConfig { n_layer: 2, n_embd: 32, head_dim: 8, n_ff: 40, ..ModelConfig::chapter8(tokenizer.vocab_size()) };
    let tokens = tokenizer.encode(&TEXT.repeat(20)).unwrap();
    let (train, validation) = tokens.split_at(800);
    Trainer::new(Transformer::new(&config, recipe.seed).unwrap(), recipe, train.to_vec(), validation.to_vec())
}

fn run(dir: &Path, trainer: Trainer) -> Run {
    Run {
        out: dir.to_path_buf(),
        tokenizer: tokenizer(),
        source: Source { val_fraction: 0.1, tokens: 900, ..Source::default() },
        data_name: "text".to_string(),
        trainer,
        id: "0123".to_string(),
        lock: Lock::take(dir).unwrap(),
    }
}

fn run_to_end(dir: &Path, recipe: Recipe) -> Run {
    let mut run = run(dir, trainer(recipe));
    run.train(&mut Silent, &|| false).unwrap();
    run
}

/// The bits of all weights, moments and losses.
fn bits(trainer: &Trainer, losses: &[f64]) -> Vec<u64> {
    let weights = trainer.model.parameters().into_iter().flat_map(|p| p.value.to_f64_vec().unwrap());
    let moments = trainer
        .optimizer
        .moments
        .values()
        .flat_map(|m| [m.m.to_f64_vec().unwrap(), m.v.to_f64_vec().unwrap()].concat());
    weights.chain(moments).chain(losses.iter().copied()).map(f64::to_bits).collect()
}

fn train(recipe: Recipe) -> (Trainer, Vec<f64>) {
    let mut trainer = trainer(recipe);
    let losses = (0..trainer.recipe.steps).map(|_| trainer.train_step().unwrap().loss).collect();
    (trainer, losses)
}

#[test]
fn the_same_seed_gives_the_same_bits_on_any_number_of_threads() {
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            // wide enough for every operator to be split over threads
            let recipe = Recipe { batch_size: 8, seq_len: 64, ..recipe(3) };
            let config = ModelConfig::chapter8(tokenizer().vocab_size());
            let mut trainer = Trainer { model: Transformer::new(&config, 1).unwrap(), ..trainer(recipe) };
            let losses: Vec<f64> = (0..3).map(|_| trainer.train_step().unwrap().loss).collect();
            bits(&trainer, &losses)
        })
    };
    let one = on(1);
    assert!(one == on(2), "1 and 2 threads differ");
    assert!(one == on(3), "1 and 3 threads differ");
    assert!(one == on(1), "two runs differ");
}

#[test]
fn a_step_is_batch_loss_clip_and_adamw_with_the_step_s_learning_rate() {
    let recipe = Recipe { clip: 0.7, weight_decay: 0.3, ..recipe(10) };
    let mut found = trainer(recipe.clone());
    let mut model = trainer(recipe.clone()).model;
    let tokens = found.train.clone();
    let mut optimizer = AdamW::new(AdamWConfig { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.3 });
    let (mut windows, mut clipped) = (vec![], 0);
    for step in 1..=4 {
        let mut rng = ChaCha8Rng::seed_from_u64(recipe.seed);
        rng.set_stream(step);
        let batch = random_batch(&tokens, 3, 17, &mut rng).unwrap();
        windows.push(batch.ids.as_slice::<u32>().unwrap().to_vec());
        let mut tape = Tape::new();
        let loss = model.loss(&mut tape, &batch.ids, &batch.targets).unwrap();
        let gradients = tape.backward(&loss).unwrap();
        let limited = clip_grad_norm(&gradients, &model.parameters(), 0.7).unwrap();
        let norm = limited.norm.item().unwrap();
        clipped += usize::from(norm > 0.7);
        // warmup over 2 steps to 3e-3, then a cosine to a thirtieth of it at step 10
        let progress = (step as f64 - 2.0).max(0.0) / 8.0;
        let cosine = 1e-4 + 0.5 * (3e-3 - 1e-4) * (1.0 + (std::f64::consts::PI * progress).cos());
        let lr = if step == 1 { 1.5e-3 } else { cosine };
        optimizer.step(model.parameters_mut(), &gradients, &limited.scale, lr).unwrap();

        let report = found.train_step().unwrap();
        assert_eq!((report.step, report.grad_norm), (step as usize, norm));
        assert!((report.lr / lr - 1.0).abs() < 1e-12, "step {step}: {}, expected {lr}", report.lr);
        assert_eq!(report.loss, loss.value().item().unwrap());
    }
    for (found, expected) in found.model.parameters().iter().zip(model.parameters()) {
        assert_eq!(found.value.to_f64_vec().unwrap(), expected.value.to_f64_vec().unwrap(), "{}", found.name);
    }
    assert!(clipped > 0, "the test must see clipping");
    assert!(windows.windows(2).all(|pair| pair[0] != pair[1]), "each step has its own windows");
}

#[test]
fn an_evaluation_is_the_mean_over_every_token() {
    let mut trainer = trainer(Recipe { batch_size: 4, seq_len: 7, ..recipe(5) });
    let mut tokens = vec![];
    trainer.validation.read(0..41, &mut tokens).unwrap(); // a whole batch, a batch of one row, a short row: 28, 7 and 5 targets
    trainer.validation = tokens.clone().into();
    let mut losses = vec![];
    for start in (0..40).step_by(7) {
        let window = &tokens[start..(start + 7).min(40) + 1];
        let t = window.len() - 1;
        let ids = Tensor::from_vec(window[..t].to_vec(), &[1, t]).unwrap();
        let logits = trainer.model.forward(&mut Tape::inference(), &ids).unwrap().value().to_f64_vec().unwrap();
        for (row, &target) in logits.chunks(logits.len() / t).zip(&window[1..]) {
            losses.push(row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[target as usize]);
        }
    }
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert_eq!(losses.len(), 40);
    let found = trainer.evaluate(&|| false).unwrap().unwrap();
    assert!((found - mean(&losses)).abs() < 1e-5, "{found}, expected {}", mean(&losses));
    trainer.recipe.eval_batches = 1;
    let found = trainer.evaluate(&|| false).unwrap().unwrap();
    assert!((found - mean(&losses[..28])).abs() < 1e-5, "{found}, expected {}", mean(&losses[..28]));
    trainer.validation = vec![].into();
    assert_eq!(trainer.evaluate(&|| false).unwrap(), None);
}

#[test]
fn an_evaluation_that_is_not_finite_is_an_error_and_nothing_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = trainer(recipe(5));
    for _ in 0..5 {
        trainer.train_step().unwrap();
    }
    trainer.model.layers[0].ffn.up_proj.weight.value.as_mut_slice::<f32>().unwrap()[0] = f32::INFINITY;
    let mut run = run(dir.path(), trainer);
    let error = format!("{:#}", run.train(&mut Silent, &|| false).unwrap_err());
    assert!(
        error.contains("before the first checkpoint") && error.contains("step 5") && error.contains("NaN"),
        "{error}"
    );
    assert!(!dir.path().join("model.safetensors").exists());
    run.trainer.validation = vec![].into();
    let error = format!("{:#}", run.train(&mut Silent, &|| false).unwrap_err());
    assert!(error.contains("infinity in model.layers.0.mlp.up_proj.weight"), "{error}");
    assert!(!dir.path().join("model.safetensors").exists());
}

#[test]
fn an_interrupted_last_evaluation_is_made_up_for() {
    let dir = tempfile::tempdir().unwrap();
    let asked = Cell::new(0);
    let in_the_last_evaluation = || {
        asked.set(asked.get() + 1);
        asked.get() > 3 // once after each step, then before the first batch of the evaluation
    };
    let outcome = run(dir.path(), trainer(recipe(3))).train(&mut Silent, &in_the_last_evaluation).unwrap();
    assert_eq!(outcome, Outcome::Interrupted { step: 3 });
    let state = state::read(dir.path()).unwrap();
    assert_eq!((state.step, state.finished), (3, false));
    let mut resumed = trainer(recipe(3));
    resumed.model = model_dir::load(dir.path()).unwrap();
    state::restore(dir.path(), &state, &mut resumed).unwrap();
    let outcome = run(dir.path(), resumed).train(&mut Silent, &|| false).unwrap();
    assert!(matches!(outcome, Outcome::Finished { val_loss: Some(_) }));
    assert!(state::read(dir.path()).unwrap().finished);
}

#[test]
fn moments_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    run_to_end(dir.path(), recipe(2));
    let state = state::read(dir.path()).unwrap();
    let path = dir.path().join("optimizer.safetensors");
    let good = safetensors::read(&path).unwrap();
    type Change<'a> = &'a dyn Fn(&mut Vec<(String, Tensor)>);
    let refused = |change: Change, expected: &str| {
        let mut tensors: Vec<(String, Tensor)> = good.tensors.clone().into_iter().collect();
        change(&mut tensors);
        safetensors::write(&path, &tensors, &[("step", "2".to_string())]).unwrap();
        let error = state::restore(dir.path(), &state, &mut trainer(recipe(2))).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}, expected {expected}");
    };
    let name = good.tensors.keys().next().unwrap();
    refused(&|tensors| tensors.truncate(tensors.len() - 1), "is missing");
    refused(&|tensors| tensors[0].1 = Tensor::zeros(&[1], DType::F32), &format!("{name}: found"));
    refused(&|tensors| tensors[0].1 = Tensor::zeros(tensors[0].1.shape(), DType::U32), &format!("{name}: found"));
    refused(&|tensors| tensors.push(("exp_avg.nobody".to_string(), Tensor::zeros(&[1], DType::F32))), "exp_avg.nobody");
}

#[test]
fn another_seed_gives_another_run() {
    let (_, a) = train(recipe(2));
    let (_, b) = train(Recipe { seed: 7, ..recipe(2) });
    assert_ne!(a, b);
}

#[test]
fn the_loss_falls_in_every_preset() {
    for preset in ["chapter8", "classic"] {
        let mut trainer = trainer(recipe(60));
        let config = ModelConfig { n_layer: 2, ..ModelConfig::preset(preset, Some(tokenizer().vocab_size())).unwrap() };
        trainer.model = Transformer::new(&config, 1).unwrap();
        let losses: Vec<f64> = (0..60).map(|_| trainer.train_step().unwrap().loss).collect();
        assert!(losses[59] < 0.6 * losses[0], "{preset}: {} to {}", losses[0], losses[59]);
    }
}

#[test]
fn evaluating_does_not_change_training() {
    let losses = |eval_every| {
        struct Losses(Vec<f64>, usize);
        impl Observer for Losses {
            fn step(&mut self, report: &StepReport, _: f64) {
                self.0.push(report.loss);
            }
            fn evaluated(&mut self, _: usize, _: f64) {
                self.1 += 1;
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let mut losses = Losses(vec![], 0);
        run(dir.path(), trainer(Recipe { eval_every, ..recipe(20) })).train(&mut losses, &|| false).unwrap();
        losses
    };
    let (often, once) = (losses(5), losses(1000));
    assert_eq!(often.0, once.0);
    assert_eq!((often.1, once.1), (4, 1), "the last step is always evaluated");
}

#[test]
fn a_resumed_run_is_the_same_run() {
    resumed_is_the_same(&recipe(16));
    // The place in the data is where the step is, in parts and in order too.
    let parts = Recipe { accumulate: 2, order: Order::Sequential, ..recipe(16) };
    resumed_is_the_same(&Recipe { save_every: 3, keep: 1, keep_best: true, ..parts });
}

fn resumed_is_the_same(recipe: &Recipe) {
    let (straight, losses) = train(recipe.clone());
    let dir = tempfile::tempdir().unwrap();
    let steps = Cell::new(0);
    let stop_at_8 = || {
        steps.set(steps.get() + 1);
        steps.get() > 7 // asked once after each step: this is step 8
    };
    let outcome = run(dir.path(), trainer(recipe.clone())).train(&mut Silent, &stop_at_8).unwrap();
    assert_eq!(outcome, Outcome::Interrupted { step: 8 });

    let state = state::read(dir.path()).unwrap();
    assert_eq!((state.step, state.finished), (8, false));
    let mut resumed = trainer(state.recipe.clone());
    resumed.model = model_dir::load(dir.path()).unwrap();
    state::restore(dir.path(), &state, &mut resumed).unwrap();
    let mut run = run(dir.path(), resumed);
    run.train(&mut Silent, &|| false).unwrap();
    assert!(bits(&straight, &[]) == bits(&run.trainer, &[]), "weights or moments differ");
    assert!(state::read(dir.path()).unwrap().finished);

    let metrics = std::fs::read_to_string(dir.path().join("metrics.jsonl")).unwrap();
    let logged: Vec<f64> = metrics
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["loss"].as_f64())
        .collect();
    assert_eq!(logged, losses, "one line a step, none twice");
}

#[test]
fn files_of_different_checkpoints_or_with_a_flipped_bit_are_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let recipe = Recipe { save_every: 3, ..recipe(6) };
    run_to_end(dir.path(), recipe.clone());
    let other = tempfile::tempdir().unwrap();
    run_to_end(other.path(), Recipe { seed: 9, ..recipe.clone() });
    for file in ["config.json", "model.safetensors", "optimizer.safetensors"] {
        let path = dir.path().join(file);
        let good = std::fs::read(&path).unwrap();
        let flipped = |bit: usize| {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        };
        let bad = [
            std::fs::read(dir.path().join("step-000003").join(file)).unwrap(),
            std::fs::read(other.path().join(file)).unwrap(), // of the same step
            flipped(8 * good.len() - 9),
            flipped(8 * good.len() / 2),
        ];
        for bytes in bad.iter().filter(|bytes| **bytes != good) {
            std::fs::write(&path, bytes).unwrap();
            let error = state::read_whole(dir.path()).unwrap_err().to_string();
            assert!(error.contains(file) && error.contains("SHA-256"), "{error}");
            let mut warnings = vec![];
            let (found, _) = newest_whole(dir.path(), &mut |line| warnings.push(line.to_string())).unwrap();
            assert_eq!((found.step, found.name), (3, dir.path().join("step-000003")));
            assert!(warnings.len() == 1 && warnings[0].contains(file), "{warnings:?}");
        }
        std::fs::write(&path, good).unwrap();
    }
    assert_eq!(newest_whole(dir.path(), &mut |line| panic!("{line}")).unwrap().0.step, 6);
}

#[test]
fn a_bad_loss_stops_training_and_keeps_the_last_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = run_to_end(dir.path(), Recipe { save_every: 2, ..recipe(5) });
    let good = bits(&run.trainer, &[]);

    let weight = &mut run.trainer.model.layers[1].ffn.up_proj.weight.value;
    let old = weight.clone();
    weight.as_mut_slice::<f32>().unwrap()[3] = f32::NAN;
    (run.trainer.recipe.steps, run.trainer.recipe.max_skipped, run.trainer.recipe.save_every) = (20, 2, 0);
    let error = format!("{:#}", run.train(&mut Silent, &|| false).unwrap_err());
    let mut trainer = run.trainer;
    assert!(error.contains("step 8") && error.contains("loss NaN") && error.contains("3 steps in a row"), "{error}");
    assert!(error.contains(&format!("the last checkpoint is {}, step 5", dir.path().display())), "{error}");
    assert_eq!((trainer.step, trainer.skipped), (8, Skipped { total: 3, in_row: 3 }));

    trainer.model.layers[1].ffn.up_proj.weight.value = old;
    assert!(bits(&trainer, &[]) == good, "the bad step changed weights or moments");
    let saved = model_dir::load(dir.path()).unwrap();
    for (saved, trained) in saved.parameters().iter().zip(trainer.model.parameters()) {
        assert_eq!(saved.value.to_f64_vec().unwrap(), trained.value.to_f64_vec().unwrap(), "{}", saved.name);
    }
}

/// The directories in a run's directory.
fn directories(out: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap());
    let directories = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    let mut names: Vec<String> = directories.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_newest_checkpoints_and_the_best_one_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    // A rate at which the loss rises again, so that the best step is not the last.
    let recipe = Recipe {
        save_every: 2,
        keep: 2,
        keep_best: true,
        eval_every: 3,
        lr: 0.3,
        min_lr: 0.3,
        clip: 0.0,
        ..recipe(13)
    };
    let run = run_to_end(dir.path(), recipe);
    let metrics = std::fs::read_to_string(dir.path().join("metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let losses = lines.filter_map(|line| Some((line["val_loss"].as_f64()?, line["step"].as_u64()? as usize)));
    let (val_loss, step) = losses.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    assert_eq!(run.trainer.best, Some(Best { step, val_loss }));
    let best = format!("best-{step:06}");
    assert_eq!(directories(dir.path()), [best.as_str(), "checkpoint-000013", "step-000010", "step-000012"]);
    let state = state::read_whole(&dir.path().join(best)).unwrap();
    assert_eq!((state.step, state.best), (step, Some(Best { step, val_loss })));
    drop(run);
    let (newest, _) = newest_whole(dir.path(), &mut |warning| panic!("{warning}")).unwrap();
    assert_eq!((newest.name.as_path(), newest.step), (dir.path(), 13));
}

#[test]
fn a_step_that_is_not_finite_is_left_out_and_training_goes_on() {
    let mut trainer = trainer(recipe(20));
    let step = |trainer: &mut Trainer| {
        let report = trainer.train_step().unwrap();
        trainer.count(&report).unwrap();
        report.left_out()
    };
    assert_eq!(step(&mut trainer), None);
    let before = bits(&trainer, &[]);
    let weight = trainer.model.layers[0].attn.q_proj.weight.value.clone();
    trainer.model.layers[0].attn.q_proj.weight.value.as_mut_slice::<f32>().unwrap()[0] = f32::INFINITY;
    for _ in 0..2 {
        let reason = step(&mut trainer).unwrap();
        assert!(reason.contains("gradient norm NaN, of model."), "{reason}");
    }
    assert_eq!((trainer.step, trainer.skipped), (3, Skipped { total: 2, in_row: 2 }));
    trainer.model.layers[0].attn.q_proj.weight.value = weight;
    assert!(bits(&trainer, &[]) == before, "the steps that were left out changed weights or moments");
    assert_eq!(step(&mut trainer), None);
    assert_eq!(trainer.skipped, Skipped { total: 2, in_row: 0 });
    assert!(bits(&trainer, &[]) != before);
}

#[test]
fn the_output_directory_is_checked_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("a/b");
    let prepare = |out: &Path, replace| prepare_out(out, replace, "0123").map(|_| ()).map_err(|e| format!("{e:#}"));
    prepare(&out, Replace::Nothing).unwrap();
    prepare(&out, Replace::Nothing).unwrap(); // still without anything to lose
    let names = |out: &Path| {
        let mut names: Vec<_> = std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&out), ["run.json"]);
    let held = Lock::take(&out).unwrap();
    assert!(prepare(&out, Replace::Any).unwrap_err().contains("another handgrad"));
    drop(held);

    run_to_end(&out, recipe(1));
    for replace in [Replace::Nothing, Replace::WithoutCheckpoint] {
        let error = prepare(&out, replace).unwrap_err();
        assert!(error.contains("found a training run") && error.contains("--overwrite"), "{error}");
    }
    std::fs::create_dir(out.join("step-000009")).unwrap();
    std::fs::write(out.join(".latest.tmp-1-2"), "left over").unwrap();
    std::fs::create_dir(out.join(".step-000009.tmp-1-3")).unwrap();
    std::fs::write(out.join("notes.txt"), "mine").unwrap();
    prepare(&out, Replace::Any).unwrap();
    assert_eq!(names(&out), ["notes.txt", "run.json"], "the old run goes, other files stay");

    let kept = dir.path().join("kept");
    std::fs::create_dir_all(kept.join("step-000010")).unwrap();
    prepare(&kept, Replace::WithoutCheckpoint).expect_err("an intermediate checkpoint is a run too");
    std::fs::remove_dir(kept.join("step-000010")).unwrap();
    std::fs::write(kept.join("metrics.jsonl"), "{}").unwrap();
    assert!(prepare(&kept, Replace::Nothing).unwrap_err().contains("before its first checkpoint"));
    prepare(&kept, Replace::WithoutCheckpoint).unwrap();

    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    assert!(prepare(&file, Replace::Any).unwrap_err().contains("found a file"));
    prepare(&file.join("below"), Replace::Nothing).unwrap_err();
}

#[test]
fn a_trained_directory_holds_every_file_and_loads_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let trainer = run_to_end(dir.path(), Recipe { save_every: 2, ..recipe(5) }).trainer;
    let names = ["config.json", "model.safetensors", "tokenizer.json", "optimizer.safetensors", "trainer_state.json"];
    for place in ["", "step-000002", "step-000004"] {
        for name in names {
            assert!(dir.path().join(place).join(name).exists(), "{place}/{name}");
        }
    }
    let loaded = model_dir::load(dir.path()).unwrap();
    assert_eq!(loaded.config, trainer.model.config);
    assert_eq!(loaded.dtype(), DType::F32);
    for (loaded, trained) in loaded.parameters().iter().zip(trainer.model.parameters()) {
        assert_eq!(loaded.value.to_f64_vec().unwrap(), trained.value.to_f64_vec().unwrap(), "{}", loaded.name);
    }
    let metrics = std::fs::read_to_string(dir.path().join("metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 6, "five steps and an evaluation");
    for key in ["step", "tokens", "loss", "lr", "grad_norm", "tokens_per_s"] {
        assert!(lines[4][key].is_number(), "{key} in {}", lines[4]);
    }
    assert_eq!((lines[4]["step"].as_u64(), lines[4]["tokens"].as_u64()), (Some(5), Some(5 * 3 * 17)));
    assert!(lines[5]["val_loss"].is_number());
}

#[test]
fn nonsense_recipes_are_refused_by_flag() {
    let good = recipe(5);
    let cases: [(Recipe, &str); 11] = [
        (Recipe { warmup: 6, ..good.clone() }, "--warmup: found 6, expected at most --steps, 5"),
        (Recipe { lr: f64::NAN, ..good.clone() }, "--lr: found NaN"),
        (Recipe { lr: -1.0, ..good.clone() }, "--lr: found -1"),
        (Recipe { min_lr: 1.0, ..good.clone() }, "--min-lr: found 1"),
        (Recipe { batch_size: 0, ..good.clone() }, "--batch-size: found 0"),
        (Recipe { accumulate: 0, ..good.clone() }, "--accumulate: found 0"),
        (Recipe { seq_len: 0, ..good.clone() }, "--seq-len: found 0"),
        (Recipe { steps: 0, ..good.clone() }, "--steps: found 0"),
        (Recipe { beta1: 1.0, ..good.clone() }, "--beta1: found 1"),
        (Recipe { clip: -0.1, ..good.clone() }, "--clip: found -0.1"),
        (Recipe { weight_decay: f64::INFINITY, ..good.clone() }, "--weight-decay: found inf"),
    ];
    for (recipe, expected) in cases {
        let error = recipe.validate().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}, expected {expected}");
    }
    good.validate().unwrap();
}
