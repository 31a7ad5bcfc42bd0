//! Writes that fail, are killed or run out of space.

use super::*;

#[test]
fn failed_write_leaves_the_old_file_and_no_temporary_one() {
    let (dir, path) = place("a");
    atomic::write(&path, |file| Ok(file.write_all(b"old")?)).unwrap();
    let failed = atomic::write_sized(&path, Some(7), |file| {
        file.write_all(b"new")?;
        anyhow::bail!("no more")
    });
    assert_says(failed, &["/a: cannot be written (7 bytes needed): no more"]);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(names(dir.path()), ["a"]);
    assert_says(atomic::write(&dir.path().join("no/a"), |_| Ok(())), &["no/a: cannot be written: No such file"]);
    assert_says(atomic::write(Path::new("/"), |_| Ok(())), &["file name"]);
}

#[test]
fn clean_removes_leftovers_only() {
    let (dir, _) = place("");
    for name in [".m.safetensors.tmp-12-0", ".m.tmp-x", ".hidden", "m.tmp-12-0", ".m.tmp-12-", "m.safetensors"] {
        fs::write(dir.path().join(name), "x").unwrap();
    }
    atomic::clean(dir.path()).unwrap();
    assert_eq!(names(dir.path()), [".hidden", ".m.tmp-12-", ".m.tmp-x", "m.safetensors", "m.tmp-12-0"]);
    assert_says(atomic::clean(&dir.path().join("gone")), &["gone", "No such file"]);
}

/// What the process does that the next two tests start, from this same program, and harm.
fn save_over_and_over(path: &Path) {
    let times = std::env::var("SAVE_TIMES").unwrap().parse::<u64>().unwrap();
    for i in 0..times {
        let tensor = Tensor::full(&[256, 256], i as f64, DType::F32);
        if let Err(error) = safetensors::write(path, &[("a".to_string(), tensor)], &[]) {
            println!("error: {error:#}");
            std::process::exit(7);
        }
    }
}

/// `limit`: the largest file, in blocks as the shell counts them.
fn child(path: &Path, times: u64, limit: &str) -> Command {
    let mut command = Command::new("sh");
    command.args([
        "-c",
        &format!(
            "ulimit -f {limit}; exec \"$0\" --exact atomic_writes::killed_save_leaves_a_complete_file --nocapture"
        ),
    ]);
    command.arg(std::env::current_exe().unwrap()).env("SAVE_PATH", path).env("SAVE_TIMES", times.to_string());
    command.stdout(std::process::Stdio::piped());
    command
}

/// Number and length of the temporary file that a process is writing, if there is one at this moment.
fn save_under_way(dir: &Path, process: u32) -> Option<(u64, u64)> {
    let mark = format!(".m.safetensors.tmp-{process}-");
    names(dir).iter().find_map(|name| {
        let number = name.strip_prefix(&mark)?.parse().ok()?;
        Some((number, fs::metadata(dir.join(name)).ok()?.len()))
    })
}

/// Waits until a process writes its save `number` or a later one, and has written so many bytes of it; the number.
fn wait_for_save(dir: &Path, child: &mut Child, number: u64, bytes: u64) -> u64 {
    let begin = Instant::now();
    loop {
        if let Some((found, length)) = save_under_way(dir, child.id())
            && found >= number
            && length >= bytes
        {
            return found;
        }
        assert!(child.try_wait().unwrap().is_none(), "the saving process ended by itself");
        if begin.elapsed() > Duration::from_secs(600) {
            child.kill().unwrap();
            panic!("waited ten minutes for save {number}"); // it hangs: no machine is that slow
        }
        std::thread::yield_now();
    }
}

#[test]
fn killed_save_leaves_a_complete_file() {
    if let Some(path) = std::env::var_os("SAVE_PATH") {
        return save_over_and_over(Path::new(&path));
    }
    let (dir, path) = place("m.safetensors");
    let left_over = || names(dir.path()).len() - 1;
    let mut rounds = 0;
    // Most kills come while the temporary file is there, which then stays; the others come a little later.
    while rounds < 50 || left_over() < 25 {
        let mut child = child(&path, u64::MAX, "unlimited").spawn().unwrap();
        let (save, bytes) = (rand::random_range(1..20), rand::random_range(0..=256 * 256 * 4));
        let save = wait_for_save(dir.path(), &mut child, save, bytes);
        child.kill().unwrap();
        child.wait().unwrap();
        let file = safetensors::read(&path).unwrap();
        let values = file.tensors["a"].to_f64_vec().unwrap();
        assert!(values.iter().all(|v| *v == values[0]), "round {rounds}");
        assert!(values[0] >= (save - 1) as f64, "round {rounds}: found {}, save {save} had begun", values[0]);
        rounds += 1;
    }
    atomic::clean(dir.path()).unwrap();
    assert_eq!(names(dir.path()), ["m.safetensors"]);
}

#[test]
fn disk_full_is_an_error_that_names_path_size_and_reason() {
    let (dir, path) = place("m.safetensors");
    fs::write(&path, "old").unwrap();
    let output = child(&path, 1, "64").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(7), "{text}");
    for part in ["m.safetensors: cannot be written", "262224 bytes needed", "File too large"] {
        assert!(text.contains(part), "'{part}' in: {text}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(names(dir.path()), ["m.safetensors"]);
}
