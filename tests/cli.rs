//! The program as its user meets it: commands, exit status, messages, interruption.

use handgrad::train::Recipe;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

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
    let (small, report) = (Recipe::preset("chapter8").unwrap(), Recipe::preset("report-80m").unwrap());
    assert!(help.contains(&format!("Steps to train [default: {}; report-*: {}]", small.steps, report.steps)), "{help}");
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
    train(&["--data", "text.txt", "--seq-len", "18446744073709551615"], &["18446744073709551615"]);
    if cfg!(not(feature = "cuda")) {
        train(&["--data", "text.txt", "--device", "cuda"], &["found cuda", "expected cpu"]); // with it: cli_cuda.rs
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
    generate(&["--prompt", "It"], &["model.safetensors", "expected at least 2 for each"]);
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

#[test]
fn a_closed_pipe_is_no_error() {
    let place = Place::with_model();
    let mut child = handgrad(&["generate", "--model", "model", "--prompt", "It was"])
        .current_dir(place.dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert!(error.is_empty(), "{error}");
    assert!(child.wait().unwrap().success());
}

#[test]
fn training_goes_on_when_nobody_reads_its_progress() {
    let place = Place::new();
    let args =
        ["train", "--data", "text.txt", "--out", "model", "--steps", "4", "--batch-size", "1", "--eval-batches", "1"];
    let mut child = handgrad(&args).current_dir(place.dir.path()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    assert!(child.wait().unwrap().success());
    assert!(place.path("model/model.safetensors").exists());
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..1200 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("waited a minute for {what}");
}

fn steps_logged(metrics: &Path) -> usize {
    std::fs::read_to_string(metrics).map_or(0, |text| text.lines().count())
}

#[cfg(unix)]
#[test]
fn an_interrupt_saves_and_resume_goes_on() {
    for (signal, status) in [("INT", 130), ("TERM", 143)] {
        let place = Place::new();
        let args = [
            "train",
            "--data",
            "text.txt",
            "--out",
            "model",
            "--steps",
            "100000",
            "--log-every",
            "1",
            "--batch-size",
            "1",
        ];
        let child = handgrad(&args).current_dir(place.dir.path()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for("seven steps", || steps_logged(&place.path("model/metrics.jsonl")) >= 7);
        let kill = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{error}");
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

#[cfg(unix)]
#[test]
fn work_that_saves_nothing_ends_at_the_first_interrupt() {
    let place = Place::with_model();
    std::fs::write(place.path("long.txt"), TEXT.repeat(20_000)).unwrap();
    let commands: [&[&str]; 2] =
        [&["gradcheck"], &["eval", "--model", "model", "--data", "long.txt", "--threads", "1"]];
    for args in commands {
        let mut child = handgrad(args).current_dir(place.dir.path()).stdout(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(child.try_wait().unwrap().is_none(), "{args:?} ended before it could be interrupted");
        assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let interrupted = output.status.code() == Some(130) || output.status.code().is_none();
        assert!(interrupted, "{args:?}: {}", output.status);
        assert!(!String::from_utf8_lossy(&output.stdout).contains("perplexity"), "{args:?} went on");
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
