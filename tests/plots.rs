//! What is made of a run's metrics: TensorBoard's events, read back by a reader of its own, and pictures.

use handgrad::figure::{self, Line, Panel};
use handgrad::train::{curves, events};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const METRICS: &str = r#"{"step":1,"tokens":10,"loss":4.5,"lr":0.001,"grad_norm":2.5,"tokens_per_s":100.0}
{"step":2,"tokens":20,"loss":3.25,"lr":0.002,"grad_norm":null,"tokens_per_s":200.0}
a damaged line
{"step":300,"tokens":3000,"val_loss":2.125}
"#;

/// A run's directory with metrics.
fn run(metrics: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("metrics.jsonl"), metrics).unwrap();
    dir
}

/// CRC-32C bit by bit, masked as TensorFlow's records have it.
fn masked(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xA282_EAD8)
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    loop {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        number |= u64::from(byte & 0x7F) << shift;
        shift += 7;
        if byte < 0x80 {
            return number;
        }
    }
}

/// The fields of a protobuf message: number and bytes, of a varint its digits.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut all = vec![];
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let len = match key & 7 {
            0 => {
                let number = varint(&mut bytes);
                all.push((key >> 3, number.to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            kind => panic!("wire type {kind}"),
        };
        all.push((key >> 3, bytes[..len].to_vec()));
        bytes = &bytes[len..];
    }
    all
}

/// Step, tag and number of each value in a file of events.
fn values(path: &Path) -> Vec<(u64, String, f32)> {
    let bytes = fs::read(path).unwrap();
    let (mut rest, mut all, mut first) = (&bytes[..], vec![], true);
    while !rest.is_empty() {
        let number = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        let len = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        assert_eq!(number(8), masked(&rest[..8]), "the length's checksum");
        let event = &rest[12..12 + len];
        assert_eq!(number(12 + len), masked(event), "the event's checksum");
        let event = fields(event);
        let get = |n: u64| event.iter().find(|(number, _)| *number == n).map(|(_, bytes)| bytes.clone());
        if first {
            assert_eq!(get(3).unwrap(), b"brain.Event:2");
            first = false;
        }
        let step = get(2).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        for (number, value) in fields(&get(5).unwrap_or_default()) {
            assert_eq!(number, 1);
            let value = fields(&value);
            let tag = String::from_utf8(value[0].1.clone()).unwrap();
            all.push((step, tag, f32::from_le_bytes(value[1].1.clone().try_into().unwrap())));
        }
        rest = &rest[16 + len..];
    }
    all
}

#[test]
fn events_are_the_metrics() {
    let dir = run(METRICS);
    events::write(dir.path()).unwrap();
    let found = values(&dir.path().join(events::FILE));
    let expected = [
        (1, "loss/training", 4.5),
        (1, "training/learning_rate", 0.001),
        (1, "training/gradient_norm", 2.5),
        (1, "training/tokens_per_s", 100.0),
        (2, "loss/training", 3.25),
        (2, "training/learning_rate", 0.002),
        (2, "training/tokens_per_s", 200.0),
        (300, "loss/validation", 2.125),
    ];
    assert_eq!(found, expected.map(|(step, tag, value)| (step, tag.to_string(), value)));
}

#[test]
fn events_grow_with_the_metrics_and_are_made_anew_where_those_went_back() {
    let dir = run("");
    let file = dir.path().join(events::FILE);
    let mut before = vec![];
    for lines in 1..=4 {
        let metrics: String = METRICS.lines().take(lines).map(|line| format!("{line}\n")).collect();
        fs::write(dir.path().join("metrics.jsonl"), metrics).unwrap();
        events::write(dir.path()).unwrap();
        let now = fs::read(&file).unwrap();
        assert!(now.starts_with(&before));
        before = now;
    }
    let whole = run(METRICS);
    events::write(whole.path()).unwrap();
    assert!(before == fs::read(whole.path().join(events::FILE)).unwrap());
    fs::write(dir.path().join("metrics.jsonl"), METRICS.lines().next().unwrap()).unwrap();
    events::write(dir.path()).unwrap();
    assert_eq!(values(&file).len(), 4, "a run that went on behind step 1");
}

#[test]
fn a_run_s_curves_are_drawn() {
    let dir = run(METRICS);
    curves::write(dir.path()).unwrap();
    let svg = fs::read_to_string(dir.path().join("curves.svg")).unwrap();
    for text in ["loss, nats a token", "training", "validation", "learning rate", "gradient norm", "tokens/s", "step"] {
        assert!(svg.contains(text), "{text}");
    }
    let decoder = png::Decoder::new(std::io::Cursor::new(fs::read(dir.path().join("curves.png")).unwrap()));
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height), (960, 4 * 280));
    let blue = pixels.chunks(3).filter(|pixel| *pixel == [0, 114, 178]).count();
    assert!(blue > 500, "{blue} pixels of the first line");
}

#[test]
fn numbers_of_any_size_are_drawn() {
    let dir = tempfile::tempdir().unwrap();
    for y in [0.0, 1e17, -1e-30, 1e308, f64::NAN, f64::MIN_POSITIVE, -1e299] {
        for points in
            [vec![(1.0, y)], vec![(1.0, y), (1.0, y)], vec![(0.0, 1.0), (5e18, y)], vec![(1.0, 2.0), (2.0, y)]]
        {
            let panel =
                Panel { title: "a".into(), x_label: "x".into(), lines: vec![Line { name: "b".into(), points }] };
            let drawn = figure::write(&dir.path().join("a.svg"), std::slice::from_ref(&panel));
            assert!(drawn.is_ok() || y.is_nan() || y.abs() >= 1e300, "{y}");
            let _ = figure::write(&dir.path().join("a.png"), &[panel]);
        }
    }
}

#[test]
fn a_long_line_keeps_its_spikes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.svg");
    let y = |x: usize| if x == 54_321 { 1000.0 } else { (x as f64 / 5000.0).sin() };
    let points: Vec<(f64, f64)> = (0..100_000).map(|x| (x as f64, y(x))).chain([(7.0, f64::NAN)]).collect();
    let panel = Panel { title: "a".into(), x_label: "x".into(), lines: vec![Line { name: "b".into(), points }] };
    figure::write(&path, std::slice::from_ref(&panel)).unwrap();
    let svg = fs::read_to_string(&path).unwrap();
    assert!(svg.len() < 100_000 && svg.contains("1000"), "{}", svg.len());
    for (name, panels, part) in [("a.gif", vec![panel], ".svg or .png"), ("b.svg", vec![], "no points")] {
        let error = figure::write(&dir.path().join(name), &panels).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(part), "{error}");
    }
}

fn handgrad(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handgrad"));
    command.args(args).current_dir(dir).env("RUST_BACKTRACE", "0").output().unwrap()
}

#[test]
fn several_runs_are_drawn_into_one_picture() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["first", "second"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("metrics.jsonl"), METRICS).unwrap();
    }
    fs::create_dir(dir.path().join("empty")).unwrap();
    let output = handgrad(dir.path(), &["plot", "first", "second", "--out", "both.svg"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let svg = fs::read_to_string(dir.path().join("both.svg")).unwrap();
    assert!(svg.contains("first, training") && svg.contains("second, validation"));
    for (status, args, part) in [
        (1, ["plot", "empty"], "empty: found no metrics.jsonl"),
        (1, ["plot", "gone"], "gone: found no metrics.jsonl"),
        (2, ["plot", "--out=a.gif"], "DIR"),
    ] {
        let output = handgrad(dir.path(), &args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(status) && error.contains(part), "{args:?}: {error}");
    }
    let output = handgrad(dir.path(), &["plot", "first", "--out", "a.gif"]);
    assert_eq!(output.status.code(), Some(2));
}
