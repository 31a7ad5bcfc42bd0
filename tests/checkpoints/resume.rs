//! What a resumed run knows: where it belongs, that nobody else writes there, and that text and tokenizer are still its own.

use super::*;
use handgrad::formats::lock::Lock;
use std::fs;

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Trains without success: the message, of one line.
    #[track_caller]
    fn fails(&self, args: &[&str], expected: &[&str]) {
        let output = self.train(args, &[]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
        assert!(expected.iter().all(|part| error.contains(part)), "{args:?}: {error}, expected {expected:?}");
    }
}

#[test]
fn a_second_run_in_a_directory_is_refused() {
    let place = Place::after(2);
    let before = place.files();
    let lock = Lock::take(&place.out()).unwrap();
    let begin = [PARTS[0], &["--overwrite"]].concat();
    for args in [PARTS[2], &["--resume", "out/step-000004"], &begin] {
        place.fails(args, &["out", "another handgrad at work", "expected a directory of this one's own"]);
    }
    assert!(place.files() == before, "a refused run writes nothing");
    drop(lock);
    place.succeeds(PARTS[2]);
}

#[test]
fn other_ids_or_another_tokenizer_are_noticed() {
    let place = Place::after(2);
    let text = fs::read_to_string(place.path("text.txt")).unwrap();
    fs::write(place.path("text.txt"), text.replace("quick", "kciuq")).unwrap();
    place.fails(PARTS[2], &["text.txt", "fingerprint", "the text changed", "--data"]);
    fs::write(place.path("text.txt"), text.trim_end()).unwrap();
    place.fails(PARTS[2], &["found 899 tokens", "900"]);
    fs::write(place.path("text.txt"), text).unwrap();

    let path = place.out().join("tokenizer.json");
    let good = fs::read_to_string(&path).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&good).unwrap();
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    let (a, b) = (vocab["a"].clone(), vocab["b"].clone());
    (vocab["a"], vocab["b"]) = (b, a);
    fs::write(&path, json.to_string()).unwrap();
    place.fails(PARTS[2], &["tokenizer.json", "found a tokenizer with fingerprint", "expected the run's"]);
    fs::write(&path, good).unwrap();
    place.succeeds(PARTS[2]);
}

#[test]
fn data_may_move() {
    let (place, expected) = (Place::after(2), Place::after(3));
    fs::create_dir(place.path("elsewhere")).unwrap();
    fs::rename(place.path("text.txt"), place.path("elsewhere/moved.txt")).unwrap();
    place.fails(PARTS[2], &["text.txt"]);
    place.succeeds(&[PARTS[2], &["--data", "elsewhere/moved.txt"]].concat());
    let weights_and_log = |name: &str| !name.ends_with("trainer_state.json");
    assert_same(&place, &expected, weights_and_log, "moved");
    place.succeeds(&["--resume", "out", "--steps", "12"]); // from where the data are now
}

#[test]
#[cfg(unix)]
fn a_path_that_cannot_be_kept_is_refused_at_once() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new();
    let name = std::ffi::OsStr::from_bytes(b"text-\xff.txt");
    fs::rename(place.path("text.txt"), place.path("").join(name)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_handgrad"));
    command.current_dir(place.dir.path()).args(["train", "--out", "out", "--data"]).arg(name);
    let output = command.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.contains("not UTF-8") && error.lines().count() == 1, "{error}");
    assert!(!place.out().exists());
}

#[test]
fn a_step_without_its_run_needs_another_directory() {
    let place = Place::after(3);
    // The run is known without its log.
    fs::remove_file(place.out().join("metrics.jsonl")).unwrap();
    let before = place.files();
    place.fails(&["--resume", "out/step-000008"], &["found step 11 in", "give --out to branch off"]);
    assert!(place.files() == before);
    // A step that was copied away, and one among the steps of another run.
    fs::create_dir(place.path("away")).unwrap();
    fs::rename(place.out().join("step-000008"), place.path("away/step-000008")).unwrap();
    place.fails(&["--resume", "away/step-000008"], &["without its run around it", "--out"]);
    let other = Place::new();
    other.succeeds(&PARTS[0].iter().map(|&arg| if arg == "5" { "6" } else { arg }).collect::<Vec<_>>());
    fs::rename(other.out(), place.path("other")).unwrap();
    fs::rename(place.path("away/step-000008"), place.path("other/step-000008")).unwrap();
    place.fails(&["--resume", "other/step-000008"], &["without its run around it", "--out"]);
    // The newest of that run is its own; the other one does not count.
    place.succeeds(&["--resume", "other", "--steps", "4"]);
    place.succeeds(&["--resume", "other/step-000008", "--out", "branch"]);
    let weights = |out: &str| fs::read(place.path(out).join("model.safetensors")).unwrap();
    assert!(weights("branch") == weights("out"));
}

#[test]
fn a_branch_that_died_before_its_first_save_may_begin_again() {
    let place = Place::after(3);
    let branch = ["--resume", "out/step-000004", "--out", "branch"];
    let killed = place.path("branch");
    fs::create_dir(&killed).unwrap();
    fs::write(killed.join("run.json"), r#"{"run":"0123456789abcdef"}"#).unwrap();
    fs::write(killed.join("metrics.jsonl"), "{\"step\":5,\"loss\":1.0}\n{\"st").unwrap();
    fs::create_dir(killed.join(".checkpoint-000011.tmp-1-2")).unwrap();
    place.succeeds(&branch);
    let log = fs::read_to_string(killed.join("metrics.jsonl")).unwrap();
    assert_eq!(log.lines().filter(|line| line.contains("\"step\":5,")).count(), 1, "{log}");
    place.fails(&branch, &["found a training run", "--overwrite"]);
}

#[test]
fn a_damaged_log_costs_its_damaged_lines() {
    let (place, expected) = (Place::after(2), Place::after(3));
    let path = place.out().join("metrics.jsonl");
    let good = fs::read_to_string(&path).unwrap();
    let mut bytes = good.clone().into_bytes();
    bytes.splice(0..0, b"\xff\xfe\0{\n[1]\n\n{\"step\":-1}\n".iter().copied());
    bytes.extend(b"{\"step\":7,\"los\xff");
    fs::write(&path, bytes).unwrap();
    place.succeeds(PARTS[2]);
    assert_same(&place, &expected, |_| true, "damaged log");
    // A directory in its place is no log at all.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    place.fails(&["--resume", "out", "--steps", "12"], &["metrics.jsonl"]);
    assert_eq!(place.step(), Some(11));
}

#[test]
fn the_newest_checkpoint_that_is_whole_is_taken_and_named() {
    let (place, expected) = (Place::after(3), Place::after(3));
    let weights = fs::canonicalize(place.out().join("optimizer.safetensors")).unwrap();
    let mut bytes = fs::read(&weights).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&weights, &bytes).unwrap();
    // OUT shows step 11, which is damaged; step 10 is whole.
    let args = ["train", "--resume", "out", "--threads", "1", "--log-every", "1"];
    let output =
        Command::new(env!("CARGO_BIN_EXE_handgrad")).current_dir(place.dir.path()).args(args).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    for part in ["optimizer.safetensors", "the file is damaged", "an earlier checkpoint is taken", "behind step 10 of"]
    {
        assert!(said.contains(part), "{said}, expected {part}");
    }
    assert_same(&place, &expected, |name| !name.starts_with("checkpoint-"), "step 11 again");
}
