//! A small program's report, and how it grows, merges and is written.

use super::*;
use crate::counters::Traffic;
use crate::device::Touched;
use crate::program::{Barrier, BarrierKind, Frame, Instruction, Op, Program, Reg, SourceLine};

/// A barrier, a branch and an exit, from two source lines.
fn program(name: &str) -> Program {
    let barrier = Barrier { id: Reg(0), threads: None, kind: BarrierKind::Sync, aligned: true };
    let line = |line| SourceLine {
        frames: [Frame { file: "kernel.cu".into(), line }].into(),
        ptx_line: line,
        form: String::new(),
    };
    let code = [(Op::Barrier(barrier), 0), (Op::Branch { target: 0 }, 1), (Op::Exit, 1)];
    Program {
        name: name.into(),
        code: code.into_iter().map(|(op, line)| Instruction { guard: None, op, line }).collect(),
        lines: vec![line(10), line(20)],
        static_shared: 512,
        dynamic_shared: 512,
        live_registers: 40,
        ..Program::default()
    }
}

fn launch(kernel: &Program, blocks: u32) -> Launch<'_> {
    Launch {
        kernel,
        grid: [blocks, 1, 1],
        block: [64, 2, 1],
        dynamic_shared: 1024,
        dynamic_shared_limit: 0,
        params: &[],
        cooperative: false,
    }
}

fn outcome() -> LaunchOutcome {
    let mut counters = Counters::new(3);
    (counters.executed, counters.lanes) = (vec![10, 20, 10], vec![320, 480, 320]);
    counters.diverged = vec![0, 5, 0];
    counters.count_global(1, 40, 10, 320);
    counters.count_shared(0, 8, 4);
    counters.count_atomic(1, 7);
    counters.barriers = 10;
    let touched = Touched { allocation: 0, begin: 256, end: 256 + 640, written: true };
    LaunchOutcome { counters, touched: vec![touched] }
}

fn report() -> Report {
    Report::new(Card::named("rtx4090").unwrap())
}

#[test]
fn a_launch_in_numbers() {
    let kernel = program("k");
    let mut report = report();
    report.record(&launch(&kernel, 6), &outcome());
    let json = report.json();
    assert_eq!((&json["schema"], &json["card"]), (&json!("cuda-emulator-report-1"), &json!("rtx4090")));
    let entry = &json["kernels"][0];
    assert_eq!(entry["kernel"], "k");
    assert_eq!((&entry["grid"], &entry["block"]), (&json!([6, 1, 1]), &json!([64, 2, 1])));
    assert_eq!((&entry["static_shared_bytes"], &entry["dynamic_shared_bytes"]), (&json!(512), &json!(1024)));
    assert_eq!((&entry["registers_per_thread"], &entry["launches"]), (&json!(40), &json!(1)));
    let instructions = json!({
        "warp": 40, "lanes_per_instruction": 28.0, "by_class": {"barrier": 10, "branch": 30}
    });
    assert_eq!(entry["instructions"], instructions);
    assert_eq!(entry["flops"], json!({"tensor_core": 0, "float32": 0, "float64": 0, "half": 0}));
    assert_eq!(
        entry["global"],
        json!({"bytes_requested": 320, "bytes_touched": 640, "sectors": 40, "sectors_ideal": 10, "efficiency_percent": 25.0})
    );
    assert_eq!(entry["shared"], json!({"wavefronts": 8, "wavefronts_ideal": 4, "efficiency_percent": 50.0}));
    let counts = ["branches", "diverged_branches", "barriers", "atomics"].map(|key| entry[key].as_u64().unwrap());
    assert_eq!(counts, [20, 5, 10, 7]);
    assert_eq!(entry["occupancy"]["limit"], "threads");
    assert_eq!(entry["occupancy"]["blocks_per_multiprocessor"], 12);
    // Six multiprocessors: 40 instructions over four a clock each, 8 wavefronts over one; 640 bytes at 1008 GB/s.
    let roofline = &entry["roofline"];
    assert_eq!(roofline["bound"], "instruction issue");
    let expected = 40.0 / (6.0 * 4.0 * 2520.0);
    assert!((roofline["microseconds"].as_f64().unwrap() - expected).abs() < 1e-9, "{roofline}");
    assert_eq!(roofline["limits"].as_array().unwrap().len(), 3);
    assert_eq!(
        entry["lines"][0],
        json!({
            "line": "kernel.cu:20", "instructions": 30, "lanes_per_instruction": 800.0 / 30.0, "diverged_branches": 5,
            "sectors": 40, "sectors_ideal": 10, "wavefronts": 0, "wavefronts_ideal": 0
        })
    );
    assert_eq!(entry["lines"][1]["line"], "kernel.cu:10");
}

#[test]
fn the_same_launch_again_is_added_up_and_another_shape_is_not() {
    let (k, other) = (program("k"), program("other"));
    let mut report = report();
    for _ in 0..100_000 {
        report.record(&launch(&k, 6), &outcome());
    }
    report.record(&launch(&other, 6), &outcome());
    report.record(&launch(&k, 7), &outcome());
    let json = report.json();
    let kernels = json["kernels"].as_array().unwrap();
    let summary: Vec<_> =
        kernels.iter().map(|k| (k["kernel"].clone(), k["grid"][0].clone(), k["launches"].clone())).collect();
    assert_eq!(
        summary,
        [
            (json!("k"), json!(6), json!(100_000)),
            (json!("other"), json!(6), json!(1)),
            (json!("k"), json!(7), json!(1))
        ]
    );
    assert_eq!(kernels[0]["instructions"]["warp"], 4_000_000);
    let [many, one] = [0, 1].map(|index| kernels[index]["roofline"]["microseconds"].as_f64().unwrap());
    assert!((many / one - 1.0).abs() < 1e-12, "{many} and {one}: both are the time of one launch");
}

#[test]
fn too_many_shapes_are_added_up_by_kernel() {
    let (k, other) = (program("k"), program("other"));
    let mut report = report();
    for blocks in 1..=1000 {
        report.record(&launch(&k, blocks), &outcome());
        report.record(&launch(&other, blocks), &outcome());
    }
    let json = report.json();
    let kernels = json["kernels"].as_array().unwrap();
    assert_eq!(kernels.len(), MOST_ENTRIES + 2);
    let merged: Vec<_> = kernels.iter().filter(|k| k["grid"] == json!([0, 0, 0])).collect();
    assert_eq!(merged.len(), 2);
    assert_eq!(merged.iter().map(|k| k["launches"].as_u64().unwrap()).sum::<u64>(), 2000 - MOST_ENTRIES as u64);
    assert!(report.text().contains("several shapes"));
}

#[test]
fn findings_are_counted_and_bounded() {
    let mut report = report();
    let fault = Fault::new(Code::IllegalAddress, "out of bounds: 4 bytes at 0x10");
    report.finding(&fault);
    report.finding(&fault);
    for number in 0..2 * MOST_FINDINGS {
        report.finding(&Fault::new(Code::LaunchFailed, format!("race {number}")));
    }
    let json = report.json();
    assert_eq!(
        json["findings"][0],
        json!({"code": 700, "name": "IllegalAddress", "message": "out of bounds: 4 bytes at 0x10", "count": 2})
    );
    assert_eq!(json["findings"].as_array().unwrap().len(), MOST_FINDINGS);
    assert_eq!(json["findings_left_out"], MOST_FINDINGS + 1);
    assert!(report.text().contains("finding: out of bounds: 4 bytes at 0x10 (2 times)"));
}

#[test]
fn the_text_has_every_figure() {
    let kernel = program("k");
    let mut report = report();
    report.record(&launch(&kernel, 6), &outcome());
    let text = report.text();
    for part in [
        "NVIDIA GeForce RTX 4090 (emulated)",
        "k  grid 6x1x1 block 64x2x1  1 launch",
        "40 of warps: branch 75.0%, barrier 25.0%",
        "40 sectors, ideal 10 (25.0%), 640 bytes touched",
        "8 wavefronts, ideal 4 (50.0%)",
        "28.0 of 32 lanes an instruction, 5 of 20 branches diverged",
        "12 blocks a multiprocessor, 100%, by threads",
        "instruction issue 0.00 µs",
        "kernel.cu:20",
        " 75.0% of instructions, 40 sectors (ideal 10), 5 branches diverged",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

#[test]
fn the_file_is_written_whole_and_again() {
    let folder = std::env::temp_dir().join(format!("cuda-emulator-report-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("report.json");
    let kernel = program("k");
    let mut report = Report { path: Some(path.clone()), ..report() };
    assert!(report.wanted());
    for launches in 1..=2u64 {
        report.record(&launch(&kernel, 6), &outcome());
        report.save().unwrap();
        let read: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(read["kernels"][0]["launches"], launches);
        assert_eq!(read, report.json());
    }
    report.record(&launch(&kernel, 6), &outcome());
    // However long this test takes, the last writing is not yet an interval ago, and then it is.
    let begin = Instant::now();
    for (saved, launches) in [(begin + 1000 * INTERVAL, 2), (begin - INTERVAL, 3)] {
        report.saved = Some(saved);
        report.save_if_due().unwrap();
        let read: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(read["kernels"][0]["launches"], launches);
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no temporary file stays");
    fs::remove_dir_all(&folder).unwrap();
    assert!(report.save().is_err(), "the folder is gone");
}

#[test]
fn a_launch_without_counts_is_reported() {
    let kernel = program("k");
    let mut report = report();
    report.record(&launch(&kernel, 1), &LaunchOutcome::default());
    let entry = &report.json()["kernels"][0];
    assert_eq!(entry["instructions"]["warp"], 0);
    assert_eq!(entry["global"]["efficiency_percent"], 100.0);
    assert_eq!(entry["roofline"]["bound"], "nothing");
    assert_eq!(entry["lines"], json!([]));
    assert_eq!(Traffic::default().excess_sectors(), 0);
    assert!(report.text().contains('k'));
}

#[test]
fn links_stay_links_and_get_the_text() {
    let folder = std::env::temp_dir().join(format!("cuda-emulator-links-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (file, link, dangling) = (folder.join("file"), folder.join("link"), folder.join("dangling"));
    fs::write(&file, "old and longer").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    std::os::unix::fs::symlink("new", &dangling).unwrap();
    for path in [&link, &dangling] {
        write_whole(path, b"text").unwrap();
        assert!(path.is_symlink());
        assert_eq!(fs::read_to_string(path).unwrap(), "text");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
    assert!(folder.join("new").is_file());
    write_whole(&folder, b"text").unwrap_err();
    // What is open under a number is a stream, even a file.
    let open = fs::File::open(&file).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&open);
    for opened in [format!("/proc/self/fd/{number}"), format!("/dev/fd/{number}")] {
        write_whole(Path::new(&opened), b"+").unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "text++");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 4, "no temporary file stays");
    fs::remove_dir_all(folder).unwrap();
}
