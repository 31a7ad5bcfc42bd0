//! A model of a power cut: the disk's operations of a run are traced, and after each of them the disk is left as a power cut
//! may leave it. What a file holds is what it held when it was last flushed; which names a directory has changed since it was
//! last flushed is anybody's guess.

use super::*;
use handgrad::train::{Placement, Resume, Run};
use rand::RngExt;
use std::collections::BTreeMap;

/// A file, directory or link; its number is its place in [`Disk::nodes`].
#[derive(Clone, Debug)]
enum Node {
    File(Vec<u8>),
    Link(String),
    Directory,
}

/// The number of a directory, and a name in it.
type Entry = (usize, String);

#[derive(Clone)]
struct Disk {
    nodes: Vec<Node>,
    /// As the running program sees it, and as it surely is after a power cut.
    names: BTreeMap<Entry, usize>,
    durable: BTreeMap<Entry, usize>,
}

impl Disk {
    /// A directory as it lies on the disk, flushed.
    fn read(path: &Path) -> Disk {
        let mut disk = Disk { nodes: vec![Node::Directory], names: BTreeMap::new(), durable: BTreeMap::new() };
        disk.add(0, path);
        disk.durable = disk.names.clone();
        disk
    }

    fn add(&mut self, directory: usize, path: &Path) {
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let node = match (path.is_symlink(), path.is_dir()) {
                (true, _) => Node::Link(path.read_link().unwrap().display().to_string()),
                (_, true) => Node::Directory,
                _ => Node::File(std::fs::read(&path).unwrap()),
            };
            let is_directory = matches!(node, Node::Directory);
            let number = self.make((directory, path.file_name().unwrap().to_str().unwrap().to_string()), node);
            if is_directory {
                self.add(number, &path);
            }
        }
    }

    fn make(&mut self, entry: Entry, node: Node) -> usize {
        self.nodes.push(node);
        self.names.insert(entry, self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    /// Where `path` stands, which begins below the root.
    fn entry(&self, path: &str) -> Entry {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let directory = if above.is_empty() { 0 } else { self.names[&self.entry(above)] };
        (directory, name.to_string())
    }

    /// `operation`, `path` and what else its line in the log says.
    fn apply(&mut self, operation: &str, path: &str, more: &str, content: &Path) {
        match operation {
            "create" if !self.names.contains_key(&self.entry(path)) => {
                self.make(self.entry(path), Node::File(vec![]));
            }
            "create" => {}
            "directory" => {
                self.make(self.entry(path), Node::Directory);
            }
            "link" => {
                self.make(self.entry(path), Node::Link(more.to_string()));
            }
            "rename" => {
                let number = self.names.remove(&self.entry(path)).expect("what is renamed is there");
                self.names.insert(self.entry(more), number);
            }
            "remove" => {
                self.names.remove(&self.entry(path)).expect("what is removed is there");
            }
            "flush" => {
                let number = self.names[&self.entry(path)];
                self.nodes[number] = Node::File(std::fs::read(content).unwrap());
            }
            "flush directory" => {
                let number = if path.is_empty() { 0 } else { self.names[&self.entry(path)] };
                self.durable.retain(|(directory, _), _| *directory != number);
                self.durable
                    .extend(self.names.iter().filter(|(entry, _)| entry.0 == number).map(|(e, n)| (e.clone(), *n)));
            }
            other => panic!("{other}"),
        }
    }

    /// The names after a power cut, where each change that was not flushed came to the disk or, as `lost` says, did not.
    fn cut(&self, mut lost: impl FnMut() -> bool) -> BTreeMap<Entry, usize> {
        let mut names = self.durable.clone();
        let changed: Vec<&Entry> = self.names.keys().chain(self.durable.keys()).collect();
        for entry in changed.into_iter().filter(|entry| self.names.get(entry) != self.durable.get(entry)) {
            if !lost() {
                match self.names.get(entry) {
                    Some(number) => names.insert(entry.clone(), *number),
                    None => names.remove(entry),
                };
            }
        }
        names
    }

    /// Makes a real directory of it.
    fn write(&self, names: &BTreeMap<Entry, usize>, directory: usize, path: &Path) {
        std::fs::create_dir(path).unwrap();
        for ((_, name), number) in names.range((directory, String::new())..(directory + 1, String::new())) {
            let path = path.join(name);
            match &self.nodes[*number] {
                Node::File(bytes) => std::fs::write(path, bytes).unwrap(),
                Node::Link(target) => std::os::unix::fs::symlink(target, path).unwrap(),
                Node::Directory => self.write(names, *number, &path),
            }
        }
    }
}

/// Resumes what a power cut left, without a step; the step that it goes on behind, or what is wrong.
fn resumed(out: &Path) -> Result<usize, String> {
    let resume = Resume { from: out, out: None, data: None, placement: Placement::CPU };
    let run = Run::resume(&resume, |recipe| Recipe { steps: 1000, ..recipe }, &mut |_| ());
    let (run, checkpoint) = run.map_err(|error| format!("{error:#}"))?;
    assert_eq!(run.trainer.step, checkpoint.step);
    // The lines of metrics before the checkpoint are there.
    let metrics = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let lines = (1..=checkpoint.step).filter(|step| !metrics.contains(&format!("{{\"step\":{step},"))).count();
    if lines > 0 { Err(format!("{lines} lines of metrics are lost")) } else { Ok(checkpoint.step) }
}

#[test]
fn a_power_cut_after_any_operation_leaves_a_checkpoint_that_resumes() {
    let mut rng = rng();
    let mut states = 0;
    for part in [1, 2] {
        let place = Place::after(part);
        let mut disk = Disk::read(&place.out());
        let log = place.dir.path().join("log");
        let output = place.train(PARTS[part], &[("DISK_LOG", log.display().to_string())]);
        assert!(output.status.success());
        let mut last = [3, 7][part - 1];
        let (text, root) = (std::fs::read_to_string(&log).unwrap(), place.out().display().to_string());
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let below = |path: &str| path.strip_prefix(&root).map(|path| path.trim_start_matches('/').to_string());
            let more = below(fields[3]).unwrap_or(fields[3].to_string());
            disk.apply(
                fields[1],
                &below(fields[2]).unwrap(),
                &more,
                &place.dir.path().join(format!("log.{}", fields[0])),
            );
            let mut least = usize::MAX;
            for variant in 0..rounds("POWER_CUTS", 5) {
                // All that is not flushed is lost, none of it, or some.
                let names = disk.cut(|| if variant < 2 { variant == 0 } else { rng.random() });
                let scratch = tempfile::tempdir().unwrap();
                let out = scratch.path().join("out");
                disk.write(&names, 0, &out);
                let step = resumed(&out)
                    .unwrap_or_else(|error| panic!("part {part}, after {line}, variant {variant}: {error}"));
                assert!(step >= last, "part {part}, after {line}, variant {variant}: step {step} after {last}");
                least = least.min(step);
                states += 1;
            }
            last = least;
        }
        assert_eq!(last, [7, 11][part - 1], "what a run reports as saved survives");
    }
    println!("{states} disks");
}
