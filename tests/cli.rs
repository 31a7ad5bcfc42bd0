//! The program as its user meets it: commands, exit status, messages, interruption.

use handgrad::train::Recipe;
use std::io::{ErrorKind, PipeWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

const TEXT: &str =
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.\n";

fn handgrad(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handgrad"));
    command.args(args).env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    command
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("text.txt"), TEXT.repeat(30)).unwrap();
        Place { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        handgrad(args).current_dir(self.dir.path()).output().unwrap()
    }

    /// Runs a command that must succeed; its standard output.
    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail with status 1 and one line on standard error.
    fn fails(&self, args: &[&str], expected: &[&str]) {
        self.exits_with(1, args, expected);
    }

    /// Runs a command that must fail with status 2, for an argument that cannot be meant.
    fn refuses(&self, args: &[&str], expected: &[&str]) {
        self.exits_with(2, args, expected);
    }

    fn exits_with(&self, status: i32, args: &[&str], expected: &[&str]) {
        let output = self.run(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{args:?}: {error}");
        assert!(output.stdout.is_empty(), "{args:?}");
        for part in expected {
            assert!(error.contains(part), "{args:?}: {error}, expected '{part}'");
        }
    }

    fn train(&self, out: &str, more: &[&str]) -> Output {
        let args = ["train", "--data", "text.txt", "--out", out, "--batch-size", "2", "--eval-batches", "2"];
        self.run(&[&args[..], more].concat())
    }

    /// A small trained model in `model`.
    fn with_model() -> Place {
        let place = Place::new();
        let output = place.train("model", &["--steps", "3"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        place
    }
}

#[test]
fn wrong_arguments_exit_with_2_and_help_with_0() {
    let place = Place::new();
    for args in [
        vec!["fly"],
        vec!["train", "--steps", "many"],
        vec!["train"],
        vec!["generate", "--model", "m"],
        vec!["train", "--device", "tpu"],
        vec!["inspect"],
        vec!["train", "--out", "o", "--dtype", "f16"],
    ] {
        let output = place.run(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty());
    }
    for command in ["train", "generate", "eval", "trace", "inspect", "gradcheck"] {
        let help = place.ok(&[command, "--help"]);
        assert!(help.contains("--threads") && help.contains("--quiet"), "{help}");
    }
    let help = place.ok(&["train", "--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("Peak learning rate [default: 1e-3; report-*: 4e-4]"), "{help}");
    let steps = ["chapter8", "report-80m", "report-197m"].map(|preset| Recipe::preset(preset).unwrap().steps);
    let [small, report, larger] = steps;
    assert!(help.contains(&format!("[default: {small}; report-80m: {report}; report-197m: {larger}]")), "{help}");
    assert!(help.contains("in a pass [default: random]"), "{help}");
}

#[test]
fn train_eval_generate_and_trace_work_together() {
    let place = Place::with_model();
    let loss = place.ok(&["eval", "--model", "model", "--data", "text.txt"]);
    assert!(loss.starts_with("loss ") && loss.contains("perplexity"), "{loss}");
    assert!(loss.contains(&format!("over {} tokens", "3,299")), "every token but the first: {loss}");

    let generate = ["generate", "--model", "model", "--prompt", "It was", "--max-new", "20", "--seed", "5"];
    let text = place.ok(&generate);
    assert!(text.starts_with("It was") && text.ends_with('\n'), "{text}");
    assert_eq!(text, place.ok(&generate), "the same seed");
    assert_eq!(text, place.ok(&[&generate[..], &["--no-cache"]].concat()), "with and without the cache");
    assert_eq!(text, place.ok(&[&generate[..], &["--threads", "1"]].concat()));
    std::fs::write(place.path("prompt.txt"), "It was").unwrap();
    let from_file = ["generate", "--model", "model", "--prompt-file", "prompt.txt", "--max-new", "20", "--seed", "5"];
    assert_eq!(text, place.ok(&from_file));
    assert_eq!(place.ok(&["generate", "--model", "model", "--prompt", "It", "--max-new", "0"]), "It\n");

    place.ok(&[
        "trace",
        "--model",
        "model",
        "--ids",
        "1,2,3;4,5,6",
        "--targets",
        "2,3,-100;5,6,7",
        "--out",
        "t.safetensors",
    ]);
    let trace = handgrad::formats::safetensors::read(&place.path("t.safetensors")).unwrap();
    for name in ["embed", "layers.0.attn_norm", "layers.3.q", "layers.3.k", "layers.3.v", "layers.3.attn", "layers.3.h"]
    {
        assert!(trace.tensors.contains_key(name), "{name}");
    }
    for name in
        ["layers.0.ffn_norm", "layers.0.ffn", "layers.0.out", "final_norm", "logits", "loss", "grad.lm_head.weight"]
    {
        assert!(trace.tensors.contains_key(name), "{name}");
    }
    assert_eq!(trace.tensors["layers.3.k"].shape(), [2, 3, 2, 32]);
    let f64_against = [
        "trace",
        "--model",
        "model",
        "--ids",
        "1,2,3;4,5,6",
        "--targets",
        "2,3,-100;5,6,7",
        "--dtype",
        "f64",
        "--against",
        "t.safetensors",
    ];
    let said = place.ok(&f64_against);
    assert!(
        !said.contains("differs") && said.contains("layers.3.out") && said.contains("grad.lm_head.weight"),
        "{said}"
    );
    // From the second layer on something is off; one tensor is missing, one is unknown, one has another shape.
    let mut tensors = trace.tensors.clone();
    for name in ["layers.1.attn", "layers.1.out", "logits"] {
        tensors.get_mut(name).unwrap().as_mut_slice::<f32>().unwrap()[7] += 0.5;
    }
    let h = tensors.remove("layers.0.h").unwrap();
    tensors.insert("layers.9.h".to_string(), h.clone());
    tensors.insert("final_norm".to_string(), h.reshape(&[6, 128]).unwrap());
    let other: Vec<_> = tensors.into_iter().collect();
    handgrad::formats::safetensors::write(&place.path("other.safetensors"), &other, &[]).unwrap();
    let against = ["trace", "--model", "model", "--ids", "1,2,3;4,5,6", "--against", "other.safetensors"];
    let output = place.run(&against);
    let (said, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.contains("other.safetensors") && error.contains("found 4 of"), "{error}");
    assert!(error.contains("the first is layers.1.attn\n"), "{error}");
    assert!(said.starts_with("first difference: layers.1.attn [2, 3, 128] at [0, 0, 7]: found "), "{said}");
    for part in ["only here: layers.0.h", "in the file: ", "layers.9.h", "expected shape [6, 128]"] {
        assert!(said.contains(part), "{said}, expected {part}");
    }
    place.ok(&["trace", "--model", "model", "--ids", "1,2", "--dtype", "f64", "--out", "t.safetensors"]);
    let trace = handgrad::formats::safetensors::read(&place.path("t.safetensors")).unwrap();
    assert_eq!(trace.tensors["logits"].dtype(), handgrad::DType::F64);
    assert!(!trace.tensors.contains_key("loss"));
}

#[test]
fn generation_stops_at_the_end_of_a_text() {
    let place = Place::new();
    std::fs::create_dir(place.path("texts")).unwrap();
    for name in 0..40 {
        std::fs::write(place.path(&format!("texts/{name}")), "abcdef").unwrap();
    }
    let train =
        ["train", "--data", "texts", "--out", "model", "--steps", "40", "--lr", "1e-2", "--seq-len", "16", "--quiet"];
    place.ok(&[&train[..], &["--val-fraction", "0"]].concat());
    let generate = ["generate", "--model", "model", "--prompt", "ab", "--max-new", "40", "--temperature", "0"];
    assert_eq!(place.ok(&generate), "abcdef\n");
    assert_eq!(place.ok(&[&generate[..], &["--no-cache"]].concat()), "abcdef\n");
}

#[test]
fn a_prompt_that_fills_the_context_is_said_to() {
    let place = Place::with_model();
    let prompt = &TEXT[..64];
    let output = place.run(&["generate", "--model", "model", "--prompt", prompt]);
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{prompt}\n"));
    assert!(String::from_utf8(output.stderr).unwrap().contains("fills the model's context"));
    place.fails(&["generate", "--model", "model", "--prompt", &TEXT[..65]], &["65 prompt tokens", "at most 64"]);
}

#[test]
fn output_off_a_terminal_is_plain_lines() {
    let place = Place::new();
    let output = place.train("model", &["--steps", "5", "--log-every", "1"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty());
    assert!(!text.contains('\r') && !text.contains('\u{1b}'), "{text}");
    assert!(text.contains("step 5/5") && text.contains("validation loss") && text.contains("saved model"), "{text}");
    let output = place.train("quiet", &["--steps", "2", "--quiet"]);
    assert!(output.status.success() && output.stderr.is_empty() && output.stdout.is_empty());
}

#[test]
fn inspect_counts_parameters() {
    let place = Place::new();
    let text = place.ok(&["inspect", "--preset", "report-80m"]);
    for part in ["81,801,984", "25,165,824", "18,874,368", "37,748,736", "13,056"] {
        assert!(text.contains(part), "{text}");
    }
    place.refuses(&["inspect", "--preset", "chapter9"], &["found 'chapter9'", "expected chapter8"]);
}

#[test]
fn inspect_predicts_the_memory_of_training() {
    let place = Place::new();
    let text = place.ok(&["inspect", "--preset", "report-80m"]);
    assert!(text.contains("32 × 768 tokens on a card with 24 GB"), "{text}");
    let bf16 = text.lines().find(|line| line.starts_with("bf16  ")).unwrap();
    assert!(bf16.contains("  fits; the largest batch is "), "{bf16}");
    let text = place.ok(&["inspect", "--preset", "report-80m", "--batch-size", "100000"]);
    assert_eq!(text.matches("does not fit; the largest batch is ").count(), 4, "{text}");

    let number = |text: &str, name: &str| -> u64 {
        let line = text.lines().rfind(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line[name.len()..].trim().replace(',', "").parse().unwrap()
    };
    let cpu = ["inspect", "--preset", "chapter8", "--device", "cpu", "--seq-len", "80"];
    let text = place.ok(&cpu);
    assert!(text.contains("12 × 80 tokens in f32 on cpu"), "{text}");
    let rope = 80 * 16 * 2 * 8; // cos φ and sin φ in f64 for each position and pair
    assert_eq!(number(&text, "moments"), 2 * (number(&text, "weights") - rope));
    let parts = ["weights", "moments", "gradients of weights", "activations and their gradients", "workspace"];
    assert_eq!(parts.map(|part| number(&text, part)).iter().sum::<u64>(), number(&text, "total"));
    let less = place.ok(&[&cpu[..], &["--recompute"]].concat());
    assert!(number(&less, "total") < number(&text, "total"), "{less}");

    place.fails(&[&cpu[..], &["--dtype", "bf16"]].concat(), &["found bf16", "expected f32"]);
    place.refuses(&[&cpu[..], &["--batch-size", "0"]].concat(), &["--batch-size: found 0"]);
    if cfg!(feature = "cuda") {
        let text = place.ok(&["inspect", "--preset", "report-80m", "--device", "emulator", "--dtype", "bf16"]);
        assert!(text.contains("32 × 768 tokens in bf16 on NVIDIA GeForce RTX 4090"), "{text}");
        assert!(text.contains("GiB fits: 24.0 GiB are free; the largest batch is "), "{text}");
    }
}

#[test]
fn gradcheck_prints_a_verdict_for_each_operator() {
    let text = Place::new().ok(&["gradcheck", "--op", "rms_norm", "--seed", "1"]);
    assert_eq!(text.matches("rms_norm").count(), 1, "{text}");
    assert!(text.contains("pass") && !text.contains("swiglu"), "{text}");
    Place::new().refuses(&["gradcheck", "--op", "sqrt"], &["found sqrt", "rms_norm"]);
}

#[test]
fn bad_input_is_one_line_that_says_what_and_where() {
    let place = Place::with_model();
    let train = |more: &[&str], expected: &[&str]| {
        place.fails(&[&["train", "--quiet", "--out", "new"], more].concat(), expected);
        assert!(!place.path("new").exists(), "{more:?} left a directory");
    };
    train(&["--data", "missing.txt"], &["missing.txt"]);
    std::fs::write(place.path("empty.txt"), "").unwrap();
    train(&["--data", "empty.txt"], &["empty.txt"]);
    std::fs::write(place.path("short.txt"), "just a few characters").unwrap();
    train(&["--data", "short.txt"], &["65"]);
    std::fs::write(place.path("bad.txt"), b"ab\xffcd").unwrap();
    train(&["--data", "bad.txt"], &["bad.txt", "2"]);
    train(&["--data", "text.txt", "--batch-size", "1000000000"], &["GiB", "--batch-size"]);
    if cfg!(feature = "cuda") {
        let emulator = ["--data", "text.txt", "--device", "emulator", "--batch-size", "1000000"];
        train(&emulator, &["24.0 GiB free on NVIDIA", "--batch-size", "--recompute or --dtype bf16"]);
    }
    train(&["--data", "text.txt", "--seq-len", "18446744073709551615"], &["18446744073709551615"]);
    if cfg!(not(feature = "cuda")) {
        train(&["--data", "text.txt", "--device", "cuda"], &["found cuda", "expected cpu"]); // with it: cli_cuda.rs
        place.fails(&["kernels", "--kernel", "scale"], &["without CUDA support", "--features cuda"]);
    }
    train(&["--data", "text.txt", "--dtype", "bf16"], &["found bf16"]);
    place
        .fails(&["train", "--data", "text.txt", "--out", "model", "--quiet"], &["found a training run", "--overwrite"]);
    place.fails(&["train", "--data", "text.txt", "--out", "text.txt", "--quiet"], &["found a file"]);

    let generate = |more: &[&str], expected: &[&str]| {
        place.fails(&[&["generate", "--model", "model"], more].concat(), expected);
    };
    generate(&["--prompt", ""], &["empty"]);
    generate(&["--prompt", "It was\u{e9}"], &["é", "6"]);
    generate(&["--prompt", "It", "--max-new", "63"], &["2 prompt tokens", "63 new", "64"]);
    generate(&["--prompt-file", "missing.txt"], &["missing.txt"]);
    place.fails(&["generate", "--model", "nowhere", "--prompt", "x"], &["nowhere", "config.json", "handgrad train"]);
    place.fails(&["eval", "--model", "model", "--data", "missing.txt"], &["missing.txt"]);

    let trace = |more: &[&str], expected: &[&str]| {
        place.fails(&[&["trace", "--model", "model", "--out", "t.safetensors"], more].concat(), expected);
    };
    trace(&["--ids", "1,999"], &["id 999"]);
    trace(&["--ids", "1,2", "--targets", "1,-4"], &["target -4"]);
    trace(&["--ids", "1,2", "--dtype", "bf16"], &["found bf16"]);

    let over_the_model = ["trace", "--model", "model", "--ids", "1,2", "--out", "model/model.safetensors"];
    place.fails(&over_the_model, &["in the model's directory"]);
    generate(&["--prompt-file", "bad.txt"], &["bad.txt", "0xFF at offset 2"]);

    // a model file that does not fit its configuration
    let weights = place.path("model/model.safetensors");
    let good = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &good[..good.len() - 5]).unwrap();
    generate(&["--prompt", "It"], &["model.safetensors"]);
    std::fs::write(&weights, &good).unwrap();
    let config = std::fs::read_to_string(place.path("model/config.json")).unwrap();
    std::fs::write(
        place.path("model/config.json"),
        config.replace("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5"),
    )
    .unwrap();
    generate(&["--prompt", "It"], &["missing", "model.layers.4"]);
    std::fs::write(
        place.path("model/config.json"),
        config.replace("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 4000000"),
    )
    .unwrap();
    generate(&["--prompt", "It"], &["model.safetensors", "expected at least 32000000 for the 4000000 layers"]);
    for (key, value) in
        [("vocab_size", 1_u64 << 60), ("hidden_size", 4_000_000_000), ("max_position_embeddings", 1 << 50)]
    {
        let mut json: serde_json::Value = serde_json::from_str(&config).unwrap();
        json[key] = value.into();
        std::fs::write(place.path("model/config.json"), json.to_string()).unwrap();
        generate(&["--prompt", "It"], &["is ", &value.to_string(), "expected at most"]);
    }
}

#[test]
fn values_that_cannot_be_meant_are_wrong_arguments() {
    let place = Place::with_model();
    let train = |more: &[&str], expected: &[&str]| {
        place.refuses(&[&["train", "--quiet", "--data", "text.txt", "--out", "new"], more].concat(), expected);
        assert!(!place.path("new").exists(), "{more:?} left a directory");
    };
    train(&["--lr", "NaN"], &["--lr: found NaN"]);
    train(&["--lr", "-1"], &["--lr: found -1"]);
    train(&["--lr", "1e-4", "--min-lr", "1"], &["--min-lr: found 1"]);
    train(&["--batch-size", "0"], &["--batch-size: found 0"]);
    train(&["--seq-len", "0"], &["--seq-len"]);
    train(&["--preset", "huge"], &["found 'huge'"]);
    train(&["--threads", "0"], &["--threads: found 0"]);
    train(&["--threads", "999999"], &["--threads: found 999999"]);
    train(&["--val-fraction", "1.5"], &["--val-fraction: found 1.5"]);
    train(&["--config", "model/config.json", "--seq-len", "65"], &["--seq-len: found 65", "context of 64"]);
    train(&["--warmup", "30", "--steps", "20"], &["--warmup: found 30"]);
    let generate = ["generate", "--model", "model", "--prompt", "It"];
    place.refuses(&[&generate[..], &["--temperature", "-1"]].concat(), &["temperature: found -1"]);
    place.refuses(&[&generate[..], &["--top-p", "1.5"]].concat(), &["top-p: found 1.5"]);
    let trace = ["trace", "--model", "model", "--out", "t.safetensors"];
    place.refuses(&[&trace[..], &["--ids", "1,x"]].concat(), &["found 'x'"]);
    place.refuses(&[&trace[..], &["--ids", ""]].concat(), &["found ''"]);
    place.refuses(&[&trace[..], &["--ids", "1,2;3"]].concat(), &["same length"]);
    place.refuses(&[&trace[..], &["--ids", "1,2", "--targets", "1"]].concat(), &["--targets: found [1, 1]", "[1, 2]"]);
}

/// Looks again and again whether the condition holds. The time only bounds a hang: no machine is too slow for it.
fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(600), "waited ten minutes for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A command at work. It is ended with the test, however the test comes out.
struct Running {
    child: Child,
}

impl Running {
    fn start(command: &mut Command) -> Running {
        Running { child: command.spawn().unwrap() }
    }

    /// Waits for a condition that the command brings about by its work, which must not end before.
    fn wait_for(&mut self, what: &str, mut condition: impl FnMut() -> bool) {
        wait_for(what, || {
            let holds = condition();
            let ended = self.child.try_wait().unwrap();
            assert!(holds || ended.is_none(), "ended by itself ({}) before {what}", ended.unwrap());
            holds
        });
    }

    #[cfg(unix)]
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for the end, and does `meanwhile` again and again until then.
    fn end(&mut self, mut meanwhile: impl FnMut()) -> ExitStatus {
        let mut status = None;
        wait_for("the end of the command", || {
            meanwhile();
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Neither does anything to a command that has ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pipe that nobody can read from any more.
fn closed_pipe() -> PipeWriter {
    let (reader, mut writer) = std::io::pipe().unwrap();
    drop(reader);
    // A process that another test is just starting may hold the reading end a little longer.
    wait_for("the reading end to be closed", || {
        writer.write(b"x").is_err_and(|error| error.kind() == ErrorKind::BrokenPipe)
    });
    writer
}

#[test]
fn a_closed_pipe_is_no_error() {
    let place = Place::with_model();
    let mut generate = handgrad(&["generate", "--model", "model", "--prompt", "It was"]);
    let output = generate.current_dir(place.dir.path()).stdout(closed_pipe()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.is_empty(), "{error}");
    assert!(output.status.success(), "{}", output.status);
}

#[test]
fn training_goes_on_when_nobody_reads_its_progress() {
    let place = Place::new();
    let args =
        ["train", "--data", "text.txt", "--out", "model", "--steps", "4", "--batch-size", "1", "--eval-batches", "1"];
    let status = handgrad(&args).current_dir(place.dir.path()).stderr(closed_pipe()).status().unwrap();
    assert!(status.success(), "{status}");
    assert!(place.path("model/model.safetensors").exists());
}

fn steps_logged(metrics: &Path) -> usize {
    std::fs::read_to_string(metrics).map_or(0, |text| text.lines().count())
}

#[cfg(unix)]
#[test]
fn an_interrupt_saves_and_resume_goes_on() {
    for (signal, status) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let place = Place::new();
        // So many steps that no machine comes to the last one.
        let args = [
            "train",
            "--data",
            "text.txt",
            "--out",
            "model",
            "--steps",
            "1000000000",
            "--log-every",
            "1",
            "--batch-size",
            "1",
        ];
        // The terminal of these tests may have gone, and its end be ignored.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_handgrad")]).args(args);
        let mut training = Running::start(command.current_dir(place.dir.path()).stderr(Stdio::piped()));
        training.wait_for("seven steps", || steps_logged(&place.path("model/metrics.jsonl")) >= 7);
        training.signal(signal);
        let ended = training.end(|| ());
        let mut error = String::new();
        training.child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert_eq!(ended.code(), Some(status), "{error}");
        assert!(error.contains("saved to model") && error.contains("handgrad train --resume model"), "{error}");

        let state = handgrad::train::state::read(&place.path("model")).unwrap();
        assert!(state.step >= 7 && !state.finished);
        let steps = (state.step + 2).to_string();
        place.ok(&["train", "--resume", "model", "--steps", &steps, "--quiet"]);
        let state = handgrad::train::state::read(&place.path("model")).unwrap();
        assert!(state.finished && state.step.to_string() == steps);
        place.fails(&["train", "--resume", "model", "--steps", &steps, "--quiet"], &["steps done", "--steps"]);
    }
}

/// Whether SIGINT ended a command: at once, or by way of the exit status that stands for it.
#[cfg(unix)]
fn interrupted(status: ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&status) == Some(2) || status.code() == Some(130)
}

#[cfg(unix)]
#[test]
fn reading_the_input_ends_at_the_first_interrupt() {
    let place = Place::with_model();
    let encode = ["tokenizer", "encode", "--tokenizer", "model/tokenizer.json"];
    let mut command = handgrad(&encode);
    let command = command.current_dir(place.dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut encoding = Running::start(command);
    let mut input = encoding.child.stdin.take().unwrap();
    // More than any pipe holds: when all of it is written the command has begun to read. As long as the input is open
    // the command cannot come to its end.
    input.write_all(TEXT.repeat(40_000).as_bytes()).unwrap();
    encoding.signal("INT");
    let status = encoding.end(|| ());
    assert!(interrupted(status), "{status}");
    drop(input);
    let mut output = vec![];
    encoding.child.stdout.take().unwrap().read_to_end(&mut output).unwrap();
    assert!(output.is_empty(), "{} bytes", output.len());
}

/// What Linux tells about a process and other systems do not tell in this way.
#[cfg(target_os = "linux")]
mod linux {
    use super::*;
    use handgrad::data::shard;
    use handgrad::formats::tokenizer_json;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;
    use std::os::unix::net::UnixDatagram;

    /// A standard output that is full: whoever writes to it waits until a message is taken out. Every write to it is a
    /// message of its own.
    struct FullOutput {
        receiver: UnixDatagram,
        path: PathBuf,
    }

    impl FullOutput {
        fn new(path: PathBuf) -> FullOutput {
            let output = FullOutput { receiver: UnixDatagram::bind(&path).unwrap(), path };
            output.receiver.set_nonblocking(true).unwrap();
            while output.fill() {}
            output
        }

        fn sender(&self) -> UnixDatagram {
            let sender = UnixDatagram::unbound().unwrap();
            sender.connect(&self.path).unwrap();
            sender
        }

        /// Puts an empty message in. False: there is no room for one.
        fn fill(&self) -> bool {
            let sender = self.sender();
            sender.set_nonblocking(true).unwrap();
            match sender.send(b"") {
                Ok(_) => true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => false,
                Err(error) => panic!("{error}"),
            }
        }

        /// Takes the oldest message out, if there is one.
        fn take(&self) -> Option<String> {
            let mut bytes = [0; 4096];
            let length = self.receiver.recv(&mut bytes).ok()?;
            Some(String::from_utf8(bytes[..length].to_vec()).unwrap())
        }
    }

    #[test]
    fn a_gradient_check_ends_at_the_first_interrupt() {
        let place = Place::new();
        let output = FullOutput::new(place.path("output"));
        let mut checking = Running::start(handgrad(&["gradcheck"]).stdout(OwnedFd::from(output.sender())));
        let mut room = false;
        checking.wait_for("the first line", || {
            // The room that was made and cannot be filled again has been taken by the command's first write; the next
            // one waits, so that the command cannot come to its end.
            let written = room && !output.fill();
            room = !written && output.take().is_some();
            written
        });
        checking.signal("INT");
        // From here on there is room for all that a command writes which does not heed the signal.
        let mut lines = vec![];
        let status = checking.end(|| lines.extend(output.take()));
        lines.extend(std::iter::from_fn(|| output.take()));
        assert!(interrupted(status), "{status}");
        let text = lines.concat();
        assert!(text.starts_with("seed ") && text.lines().count() <= 2, "{text}");
    }

    /// Shards of more tokens than any machine comes to the end of. Their file takes no room: ids that are not written
    /// are 0.
    fn endless_shards(place: &Place) {
        let tokenizer = tokenizer_json::read(&place.path("model/tokenizer.json")).unwrap();
        let format = shard::Format::of(&tokenizer);
        std::fs::create_dir(place.path("shards")).unwrap();
        let path = shard::path(&place.path("shards"), 0);
        shard::write(&path, format, &[0]).unwrap();
        let count = 1_u64 << 32;
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&count.to_le_bytes(), 16).unwrap();
        file.set_len(shard::HEADER as u64 + count * format.width as u64).unwrap();
    }

    /// Whether a process has handlers for SIGINT and SIGTERM.
    fn listens(process: u32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        let both = 1 << (2 - 1) | 1 << (15 - 1);
        u64::from_str_radix(caught.trim(), 16).unwrap() & both == both
    }

    /// The processor time of a process, in the system's units.
    fn processor_time(process: u32) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        // User time is the 14th field, the second is a name in brackets.
        let (_, fields) = stat.rsplit_once(')').unwrap();
        fields.split_whitespace().nth(14 - 3).unwrap().parse().unwrap()
    }

    #[test]
    fn an_evaluation_ends_at_the_first_interrupt() {
        let place = Place::with_model();
        endless_shards(&place);
        let args = ["eval", "--model", "model", "--data", "shards", "--threads", "1"];
        let mut evaluating =
            Running::start(handgrad(&args).current_dir(place.dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped()));
        let process = evaluating.child.id();
        evaluating.wait_for("handlers of the signals", || listens(process));
        // Between installing its handlers and its first batch an evaluation does next to nothing.
        let before = processor_time(process);
        evaluating.wait_for("work on the first batches", || processor_time(process) >= before + 3);
        evaluating.signal("INT");
        let status = evaluating.end(|| ());
        let mut said = String::new();
        evaluating.child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        evaluating.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((status.code(), said.as_str()), (Some(130), ""));
    }
}

#[test]
fn an_intermediate_checkpoint_is_resumed_into_its_run() {
    let place = Place::new();
    assert!(
        place.train("model", &["--steps", "4", "--save-every", "2", "--log-every", "1", "--quiet"]).status.success()
    );
    let whole = std::fs::read(place.path("model/model.safetensors")).unwrap();
    let early = std::fs::read(place.path("model/step-000002/model.safetensors")).unwrap();
    let resume = ["train", "--resume", "model/step-000002", "--quiet"];
    place.fails(&resume, &["found step 4", "--out"]); // a finished run is not thrown away
    assert!(whole == std::fs::read(place.path("model/model.safetensors")).unwrap());
    // the run crashed behind step 2
    for file in ["model.safetensors", "trainer_state.json"] {
        std::fs::remove_file(place.path("model").join(file)).unwrap();
    }
    std::fs::write(place.path("model/.model.safetensors.tmp-1-0"), "left over").unwrap();
    let inside = handgrad(&["train", "--resume", "step-000002", "--quiet"]).current_dir(place.path("model")).status();
    assert!(inside.unwrap().success(), "the run is found from within it");
    assert!(!place.path("model/.model.safetensors.tmp-1-0").exists());
    assert!(whole == std::fs::read(place.path("model/model.safetensors")).unwrap(), "the same end again");
    assert!(early == std::fs::read(place.path("model/step-000002/model.safetensors")).unwrap(), "the checkpoint stays");
    assert_eq!(steps_logged(&place.path("model/metrics.jsonl")), 5, "four steps and an evaluation");

    place.ok(&["train", "--resume", "model/step-000002", "--out", "other", "--quiet"]);
    assert!(whole == std::fs::read(place.path("other/model.safetensors")).unwrap());
    assert_eq!(steps_logged(&place.path("other/metrics.jsonl")), 5);

    let refused = place.run(&["train", "--resume", "model", "--lr", "1e-4"]);
    assert_eq!(refused.status.code(), Some(2));
    std::fs::write(place.path("text.txt"), TEXT.repeat(31)).unwrap();
    let branch = ["train", "--resume", "model/step-000002", "--out", "third", "--quiet"];
    place.fails(&branch, &["found 3410 tokens", "3300"]);
}
