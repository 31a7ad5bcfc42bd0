//! A run that is killed, whose disk fills or whose power is cut goes on as if nothing had happened: the program is run on a
//! disk that fails on demand (`disk.c`), at operations that are counted, so that no machine's speed plays a part.

mod disk_full;
mod kills;
mod power_cut;
mod resume;

use handgrad::train::Recipe;
use handgrad::train::directory::newest_whole;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

const CONFIG: &str = r#"{"model_type":"qwen3","vocab_size":40,"max_position_embeddings":16,"num_hidden_layers":1,
"num_attention_heads":2,"num_key_value_heads":1,"hidden_size":8,"head_dim":4,"intermediate_size":8,"rope_theta":10000.0,
"tie_word_embeddings":true,"rms_norm_eps":1e-6}"#;

/// The library that stands between the program and its disk, compiled once.
fn disk() -> &'static Path {
    static DISK: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = DISK.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/disk.c");
        let options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"];
        let status = Command::new("cc").args(options).arg(&path).arg(source).status();
        assert!(status.unwrap().success(), "disk.c");
        (dir, path)
    });
    path
}

/// A directory with a text, in which the run `out` is written.
struct Place {
    dir: tempfile::TempDir,
}

/// A run of eleven steps that saves after every second one: begun, then resumed twice. Each part ends by itself.
const PARTS: [&[&str]; 3] = [
    &[
        "--config",
        "config.json",
        "--data",
        "text.txt",
        "--batch-size",
        "2",
        "--seed",
        "5",
        "--steps",
        "3",
        "--out",
        "out",
    ],
    &["--resume", "out", "--steps", "7", "--save-every", "2"],
    &["--resume", "out", "--steps", "11", "--save-every", "1"],
];

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), CONFIG).unwrap();
        std::fs::write(dir.path().join("text.txt"), "the quick brown fox jumps over the lazy dog. ".repeat(20))
            .unwrap();
        Place { dir }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    /// The place after the first parts of the run, as they should end.
    fn after(parts: usize) -> Place {
        let place = Place::new();
        for part in &PARTS[..parts] {
            place.succeeds(part);
        }
        place
    }

    /// Trains, with settings of the disk.
    fn train(&self, args: &[&str], disk_settings: &[(&str, String)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_handgrad"));
        command.arg("train").args(args).args(["--threads", "1", "--quiet", "--log-every", "1"]);
        command.current_dir(self.dir.path()).env("RUST_BACKTRACE", "0").stdin(Stdio::null());
        if !disk_settings.is_empty() {
            command.env("LD_PRELOAD", disk()).env("DISK_ROOT", self.out());
            command.envs(disk_settings.iter().map(|(name, value)| (name, value)));
        }
        command.output().unwrap()
    }

    fn succeeds(&self, args: &[&str]) {
        let output = self.train(args, &[]);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The number of the disk's operations in a part of the run; the part is then done.
    fn operations(&self, args: &[&str]) -> usize {
        let log = self.dir.path().join("log");
        let output = self.train(args, &[("DISK_LOG", log.display().to_string())]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = std::fs::read_to_string(log).unwrap();
        text.lines().last().unwrap().split('\t').next().unwrap().parse().unwrap()
    }

    /// The step of the newest whole checkpoint.
    fn step(&self) -> Option<usize> {
        Some(newest_whole(&self.out(), &mut |_| ()).ok()?.0.step)
    }

    /// Ends a part that was cut short, with the same command or, where there is nothing to go on from, from its beginning.
    fn finish(&self, part: &[&str]) {
        let output = self.train(part, &[]);
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            let (begun, ended) = (error.contains("--overwrite"), error.contains("steps done, expected fewer"));
            assert!(begun || ended, "{part:?}: {error}");
            match self.step() {
                None => self.succeeds(&[part, &["--overwrite"]].concat()),
                // The first part saves once, at its end; it was killed after that.
                step => assert!(ended || step == Some(3), "{part:?}: step {step:?}: {error}"),
            }
        }
    }

    /// All that a run leaves: its files by name, without what depends on the time and the place.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let mut files = vec![];
        for entry in std::fs::read_dir(self.out()).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_string();
            match path.is_dir() {
                true => files.extend(std::fs::read_dir(&path).unwrap().map(|file| {
                    let file = file.unwrap();
                    (format!("{name}/{}", file.file_name().display()), std::fs::read(file.path()).unwrap())
                })),
                false => files.push((name, std::fs::read(&path).unwrap())),
            }
        }
        files.sort();
        // What is drawn of the metrics shows the speed, and may be drawn again.
        files.retain(|(name, _)| !name.starts_with("curves.") && !name.starts_with("events."));
        for (name, bytes) in &mut files {
            if name == "metrics.jsonl" {
                *bytes = without_speed(bytes);
            } else if name.ends_with("trainer_state.json") {
                let text = String::from_utf8(bytes.clone()).unwrap();
                *bytes = text.replace(self.dir.path().canonicalize().unwrap().to_str().unwrap(), "").into_bytes();
            }
        }
        files
    }
}

fn without_speed(metrics: &[u8]) -> Vec<u8> {
    let line = |line: &str| {
        let mut object: serde_json::Value = serde_json::from_str(line).unwrap();
        object.as_object_mut().unwrap().remove("tokens_per_s");
        object.to_string()
    };
    let lines: Vec<String> = std::str::from_utf8(metrics).unwrap().lines().map(line).collect();
    lines.join("\n").into_bytes()
}

/// Both runs left the same files with the same bytes, as far as names are `compared`.
#[track_caller]
fn assert_same(found: &Place, expected: &Place, compared: fn(&str) -> bool, what: &str) {
    let files = |place: &Place| place.files().into_iter().filter(|(name, _)| compared(name)).collect::<Vec<_>>();
    let (found, expected) = (files(found), files(expected));
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected), "{what}");
    for ((name, found), (_, expected)) in found.iter().zip(&expected) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(found == expected, "{what}: {name}: found {}, expected {}", text(found), text(expected));
    }
}

/// How often the random tests try: few times, or as often as the environment says.
fn rounds(variable: &str, few: usize) -> usize {
    std::env::var(variable).map_or(few, |n| n.parse().unwrap())
}

/// A generator of a new seed, which is printed.
fn rng() -> ChaCha8Rng {
    let seed = rand::random();
    println!("seed {seed}");
    ChaCha8Rng::seed_from_u64(seed)
}
